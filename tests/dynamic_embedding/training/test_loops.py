"""Ways to train: loops, kinds of models, layers that are shared, frozen, partitioned, mirrored."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_support import (
    COUNT,
    DIM,
    FIELDS,
    KERAS_WARNS,
    KEYS,
    Array,
    Batch,
    Inertia,
    Twins,
    dataset,
    distinct_batches,
    embedding,
    head,
    heads,
    loop,
    make_batches,
    network,
    rows_of,
    run_program,
    tape_step,
    train_on_batches,
)

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

STEPS = 4
OPTIMIZERS = {"Adam": lambda: keras.optimizers.Adam(0.05), "own": lambda: Inertia(0.05)}


@pytest.fixture(params=OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def make_optimizer(request: pytest.FixtureRequest) -> Callable[[], Any]:
    """An optimizer with a kernel of its own, and one that runs as its author wrote it."""
    return request.param


# Ways to take the steps.


def fit(model: Any, optimizer: Any, batches: list[Batch], **options: Any) -> None:
    model.compile(optimizer, "mse", **options)
    model.fit(dataset(batches), shuffle=False, verbose=0)
    assert int(model.optimizer.iterations) == len(batches)


def function_loop(model: Any, optimizer: Any, batches: list[Batch]) -> None:
    step = tf.function(tape_step)
    for x, y in batches:
        step(model, optimizer, tf.constant(x), tf.constant(y))


def apply_loop(model: Any, optimizer: Any, batches: list[Batch]) -> None:
    """Builds the optimizer first, and gives it gradients without variables."""
    optimizer.build(model.trainable_variables)
    for x, y in batches:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(tf.constant(x), training=True) - y) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables))


def apply_with_variables(model: Any, optimizer: Any, batches: list[Batch]) -> None:
    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    for x, y in batches:
        step(tf.constant(x), tf.constant(y))


def loop_with_a_second_gradient(model: Any, optimizer: Any, batches: list[Batch]) -> None:
    """Computes the gradients twice, and applies them once."""
    for x, y in batches:
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean((model(tf.constant(x), training=True) - y) ** 2)
        tape.gradient(loss, model.trainable_variables)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def loop_in_a_function(model: Any, optimizer: Any, batches: list[Batch]) -> None:
    """The loop itself is in the graph."""
    optimizer.build(model.trainable_variables)

    @tf.function
    def train(data: tf.data.Dataset) -> None:
        for x, y in data:
            tape_step(model, optimizer, x, y)

    train(dataset(batches))


WAYS = [
    fit, train_on_batches, loop, function_loop, apply_loop, apply_with_variables,
    loop_with_a_second_gradient, loop_in_a_function,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_take_a_step(way: Any, make_optimizer: Callable[[], Any]) -> None:
    Twins().train(make_optimizer, make_batches(STEPS), way).check()


@pytest.mark.parametrize(
    "options",
    [{"jit_compile": "auto"}, {"steps_per_execution": 3}, {"run_eagerly": True}],
    ids=str,
)
def test_ways_to_compile(options: dict[str, Any], make_optimizer: Callable[[], Any]) -> None:
    Twins().train(make_optimizer, make_batches(6), fit, **options).check()


def test_gradients_may_be_changed_before_they_are_applied() -> None:
    def clipped(model: Any, optimizer: Any, batches: list[Batch]) -> None:
        for x, y in batches:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(tf.constant(x), training=True) - y) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            gradients, norm = tf.clip_by_global_norm(gradients, 0.05)
            assert float(norm) > 0.05
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    # Without duplicates: TensorFlow takes the norm of slices as they are.
    twins, batches = Twins(), distinct_batches(STEPS)
    clipped(twins.model, keras.optimizers.SGD(0.5), batches)
    clipped(twins.dense_model, keras.optimizers.SGD(0.5), batches)
    twins.check()


# Kinds of models.


def sequential(layer: Any) -> keras.Model:
    ids = keras.Input((FIELDS,), dtype="int64")
    return keras.Sequential([ids, layer, keras.layers.Flatten(), head()])


class Subclassed(keras.Model):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer, self.flatten, self.head = layer, keras.layers.Flatten(), head()

    def call(self, ids: Any, training: bool = False) -> Any:
        return self.head(self.flatten(self.layer(ids, training=training)))


def subclassed(layer: Any) -> keras.Model:
    model = Subclassed(layer)
    model(np.zeros((1, FIELDS), np.int64))
    return model


def nested(layer: Any) -> keras.Model:
    ids, outer = (keras.Input((FIELDS,), dtype="int64") for _ in range(2))
    inner = keras.Model(ids, keras.layers.Flatten()(layer(ids)))
    return keras.Model(outer, head()(inner(outer)))


def called_twice(layer: Any) -> keras.Model:
    ids = keras.Input((FIELDS,), dtype="int64")
    parts = [keras.layers.Flatten()(layer(part)) for part in (ids, ids[:, 1:3])]
    return keras.Model(ids, head()(keras.layers.Concatenate()(parts)))


def two_towers(layer: Any) -> keras.Model:
    ids = keras.Input((FIELDS,), dtype="int64")
    towers = [keras.layers.GlobalAveragePooling1D()(layer(t)) for t in (ids[:, :2], ids[:, 2:])]
    return keras.Model(ids, head()(keras.layers.Multiply()(towers)))


def two_layers(first: Any, second: Any) -> keras.Model:
    ids = keras.Input((FIELDS,), dtype="int64")
    parts = [keras.layers.Flatten()(layer(ids)) for layer in (first, second)]
    return keras.Model(ids, head()(keras.layers.Concatenate()(parts)))


@pytest.mark.parametrize("build", [sequential, subclassed, nested, called_twice, two_towers])
def test_kinds_of_models(build: Any, make_optimizer: Callable[[], Any]) -> None:
    Twins(build).train(make_optimizer, make_batches(STEPS), train_on_batches).check()


@pytest.mark.parametrize("build", [subclassed, called_twice, two_towers])
def test_kinds_of_models_in_a_loop(build: Any, make_optimizer: Callable[[], Any]) -> None:
    Twins(build).train(make_optimizer, make_batches(STEPS)).check()


def test_several_layers(make_optimizer: Callable[[], Any]) -> None:
    twins = Twins(two_layers, layers=2)
    assert np.abs(twins.initial[0] - twins.initial[1]).min() > 1e-6
    twins.train(make_optimizer, make_batches(STEPS), train_on_batches).check()


@pytest.mark.parametrize("way", [loop, train_on_batches])
def test_frozen_layers(way: Any) -> None:
    def make_optimizer() -> Any:
        return keras.optimizers.SGD(0.1)

    twins = Twins(two_layers, layers=2)
    for frozen in (twins.layers[0], twins.dense_layers[0]):
        frozen.trainable = False
    assert twins.layers[0].trainable_variables == []
    twins.train(make_optimizer, make_batches(2), way)
    np.testing.assert_array_equal(rows_of(twins.layers[0]), twins.initial[0])
    assert [int(layer.params.size()) for layer in twins.layers] == [0, COUNT]
    for thawed in (twins.layers[0], twins.dense_layers[0]):
        thawed.trainable = True
    twins.train(make_optimizer, make_batches(STEPS, seed=1), way).check()


@pytest.mark.parametrize("options", [{"devices": ["/CPU:0"] * 2}, {"bp_v2": True}], ids=str)
@pytest.mark.parametrize("way", [loop, train_on_batches])
def test_partitions_and_increments_train_alike(
    options: dict[str, Any], way: Any, make_optimizer: Callable[[], Any]
) -> None:
    twins = Twins(**options).train(make_optimizer, make_batches(STEPS), way)
    twins.check()
    if "devices" in options:
        assert [int(twins.params.size(index)) for index in range(2)] == [COUNT // 2] * 2


@pytest.mark.parametrize("with_unique", [True, False])
def test_duplicates_are_added_up(with_unique: bool, make_optimizer: Callable[[], Any]) -> None:
    twins = Twins(with_unique=with_unique)
    twins.train(make_optimizer, make_batches(STEPS), train_on_batches).check()


# What a step does to the table.


def weighted_step(layer: Any, optimizer: Any, ids: Any, weights: Array) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(ids, training=True) * weights)
    variables = layer.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


@pytest.mark.parametrize("make", [lambda: keras.optimizers.SGD(0.5), lambda: Inertia(0.5)])
def test_a_row_is_inserted_by_the_first_step_that_meets_its_key(make: Any) -> None:
    layer, optimizer = embedding(), make()
    initial = rows_of(layer, KEYS)
    np.testing.assert_array_equal(layer(KEYS, training=True), initial)
    assert int(layer.params.size()) == 0
    weighted_step(layer, optimizer, tf.constant([3, 7], tf.int64), np.zeros((2, DIM), "f"))
    assert sorted(layer.params.export()[0].numpy().tolist()) == [3, 7]
    np.testing.assert_array_equal(rows_of(layer), initial)
    weighted_step(layer, optimizer, tf.constant([[7], [9]], tf.int64), np.ones((2, 1, DIM), "f"))
    assert sorted(layer.params.export()[0].numpy().tolist()) == [3, 7, 9]
    others = [0, 1, 2, 3, 4, 5, 6, 8]
    np.testing.assert_array_equal(rows_of(layer, others), initial[others])
    assert (rows_of(layer, [7, 9]) < initial[[7, 9]] - 0.01).all()


def test_a_step_without_ids_changes_nothing(make_optimizer: Callable[[], Any]) -> None:
    layer, optimizer = embedding(), make_optimizer()
    weighted_step(layer, optimizer, tf.constant([1, 2], tf.int64), np.ones((2, DIM), "f"))
    before = rows_of(layer)
    weighted_step(layer, optimizer, tf.zeros([0, 3], tf.int64), np.ones((0, 3, DIM), "f"))
    np.testing.assert_array_equal(rows_of(layer), before)
    assert int(layer.params.size()) == 2


def test_evaluate_and_predict_insert_nothing() -> None:
    layer = embedding()
    model = network(layer)
    (x, y), (unseen, _) = make_batches(2)
    train_on_batches(model, keras.optimizers.Adam(), [(x, y)])
    before = rows_of(layer, np.arange(3 * COUNT))
    model.evaluate(unseen + COUNT, y, verbose=0)
    model.predict(unseen + COUNT, verbose=0)
    model.test_on_batch(unseen + COUNT, y)
    model(unseen + COUNT)
    assert int(layer.params.size()) == COUNT
    np.testing.assert_array_equal(rows_of(layer, np.arange(3 * COUNT)), before)


# Mistakes that would train nothing.

MANY = 150


def complaints(action: Callable[[], None]) -> list[str]:
    """The warnings about lookups that no training step followed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    said = [str(w.message) for w in caught]
    return [text for text in said if re.search("no optimizer step", text)]


def train_heads_only(layer: Any) -> None:
    dense, optimizer = head(), keras.optimizers.SGD(0.01)
    for _ in range(MANY):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(dense(layer(tf.constant([1, 2], tf.int64), training=True)))
        variables = dense.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def test_a_loop_that_leaves_the_table_out_is_told_so_once() -> None:
    layer = embedding(name="left_out")
    assert len(complaints(lambda: train_heads_only(layer))) == 1
    assert int(layer.params.size()) == 0
    assert len(complaints(lambda: train_heads_only(layer))) == 0


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 4}], ids=str)
def test_right_loops_hear_nothing(options: dict[str, Any]) -> None:
    layer, optimizer = embedding(), keras.optimizers.SGD(0.1, **options)
    ids, weights = tf.constant([1, 2], tf.int64), np.ones((2, DIM), "f")

    def train_and_look() -> None:
        for _ in range(MANY):
            weighted_step(layer, optimizer, ids, weights)
        for _ in range(MANY):
            layer(ids)

    assert complaints(train_and_look) == []


def test_frozen_layers_hear_nothing() -> None:
    assert complaints(lambda: train_heads_only(embedding(trainable=False))) == []


def in_cond(layer: Any, ids: tf.Tensor) -> tf.Tensor:
    some = tf.reduce_sum(ids) >= 0
    return tf.cond(some, lambda: layer(ids, training=True), lambda: tf.zeros([*ids.shape, DIM]))


def in_while_loop(layer: Any, ids: tf.Tensor) -> tf.Tensor:
    rows = tf.zeros([0, ids.shape[1], DIM])

    def body(number: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        found = layer(ids[number : number + 1], training=True)
        return number + 1, tf.concat([rows, found], axis=0)

    shapes = (tf.TensorShape([]), tf.TensorShape([None, ids.shape[1], DIM]))
    count = ids.shape[0]
    return tf.while_loop(
        lambda number, _: number < count, body, (tf.constant(0), rows), shapes,
        maximum_iterations=count,
    )[1]  # fmt: skip


@pytest.mark.parametrize("function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("look_up", [in_cond, in_while_loop])
def test_lookups_in_control_flow_train_or_fail(look_up: Any, function: bool) -> None:
    layer, optimizer = embedding(), keras.optimizers.SGD(0.5)
    initial = rows_of(layer)
    ids = np.array([[1, 2, 1], [3, 1, 9]])
    weights = np.random.default_rng(2).standard_normal((2, 3, DIM)).astype(np.float32)
    layer(ids)

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(look_up(layer, tf.constant(ids)) * weights)
        variables = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    step = tf.function(step) if function else step
    expected = initial.copy()
    np.subtract.at(expected, ids, 2 * 0.5 * weights)
    try:
        step()
        step()
    except Exception as error:
        assert function, "control flow is plain Python in eager mode"
        assert re.search(r"(?i)tf\.cond|tf\.while_loop|control flow", str(error)), error
        np.testing.assert_array_equal(rows_of(layer), initial)
    else:
        np.testing.assert_allclose(rows_of(layer), expected, rtol=1e-5, atol=1e-5)
        assert np.abs(expected - initial).max() > 0.1


def test_mirrored_strategy_on_two_devices() -> None:
    results = run_program("training_mirrored")
    assert results["replicas"] == 2
    for name, result in results["cases"].items():
        assert result["moved"] > 1e-3, name
        assert result["size"] == COUNT, name
        assert result["rows_off_by"] < 1e-5, name
        assert result["heads_off_by"] < 1e-5, name


def test_heads_are_what_these_tests_compare() -> None:
    assert [part.shape for part in heads(network(embedding()))] == [(FIELDS * DIM, 1), (1,)]
