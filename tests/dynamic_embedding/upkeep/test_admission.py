"""`admission` of Variables and layers: which keys training lets in, against counts in a dict."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from upkeep_support import (
    DIM,
    KERAS_WARNS,
    THREE,
    CountingBloomFilter,
    MinCount,
    OwnOptimizer,
    Probability,
    de,
    key_set,
    keys_for,
    layers,
    model_of,
    step,
    targets,
    variable_step,
)

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

v1 = tf.compat.v1

RATE = 0.5
IDS = np.arange(12)


def ones(shape: Any, dtype: Any = tf.float32) -> tf.Tensor:
    """An initializer of a user."""
    return tf.ones(shape, dtype)


def batches(distinct: bool, steps: int = 10, size: int = 6) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.choice(IDS, size, replace=not distinct) for _ in range(steps)]


class Reference:
    """Gradient descent on rows of ones, where the gradient is how often a key is in the batch."""

    def __init__(self, min_count: int) -> None:
        self.min_count = min_count
        self.seen: Counter[int] = Counter()
        self.rows: dict[int, float] = {}
        self.refused = 0

    def step(self, ids: Any) -> None:
        for key, times in Counter(np.ravel(ids).tolist()).items():
            self.seen[key] += 1
            if self.seen[key] < self.min_count:
                self.refused += 1
            else:
                self.rows[key] = self.rows.get(key, 1.0) - RATE * times

    def check(self, variable: Any, refused: bool = True) -> None:
        keys = keys_for(variable, IDS)
        rows, exists = variable.lookup(keys, return_exists=True)
        expected = [[self.rows.get(key, 1.0)] * DIM for key in IDS.tolist()]
        assert exists.numpy().tolist() == [key in self.rows for key in IDS.tolist()]
        assert rows.numpy().tolist() == expected
        stats = variable.stats()
        assert stats.size == stats.inserts == len(self.rows)
        assert stats.waiting == len(set(self.seen) - set(self.rows))
        if refused:
            assert stats.refused == self.refused


OPTIMIZERS: dict[str, Any] = {
    "kernel": lambda: keras.optimizers.SGD(RATE),
    "rows": lambda: OwnOptimizer(RATE),
    "wrapped": lambda: de.DynamicEmbeddingOptimizer(OwnOptimizer(RATE), bp_v2=True),
}


@pytest.mark.parametrize("distinct", [True, False], ids=["distinct ids", "repeated ids"])
@pytest.mark.parametrize("initializer", ["ones", ones], ids=["constant", "function"])
@pytest.mark.parametrize(
    ("kind", "optimizer", "bp_v2", "partitions"),
    [
        (layers.Embedding, "kernel", False, None),
        (layers.Embedding, "rows", True, THREE),
        (layers.Embedding, "wrapped", False, None),
        (layers.SquashedEmbedding, "kernel", False, THREE),
        (layers.SquashedEmbedding, "rows", False, None),
    ],
)
def test_layers_let_keys_in_at_their_third_step(
    kind: Any, optimizer: str, bp_v2: bool, partitions: Any, initializer: Any, distinct: bool
) -> None:
    layer = kind(
        DIM, initializer=initializer, bp_v2=bp_v2, devices=partitions, admission=MinCount(3)
    )  # fmt: skip
    trainer, reference = OPTIMIZERS[optimizer](), Reference(3)
    for ids in batches(distinct):
        step(layer, trainer, tf.constant(ids.reshape(2, 3)))
        reference.step(ids)
        reference.check(layer.params, refused=initializer == "ones")
    assert 0 < len(reference.rows) <= len(IDS)


def test_gradients_to_rows_of_a_function_are_refused_once() -> None:
    layer = layers.Embedding(DIM, initializer=ones, admission=MinCount(3))
    trainer, reference = keras.optimizers.SGD(RATE), Reference(3)
    for ids in batches(distinct=True):
        step(layer, trainer, tf.constant(ids))
        reference.step(ids)
    reference.check(layer.params)


@pytest.mark.parametrize("initializer", ["ones", ones], ids=["constant", "function"])
def test_one_step_sees_a_key_once_whatever_the_number_of_lookups(initializer: Any) -> None:
    layer = layers.Embedding(DIM, initializer=initializer, admission=MinCount(3))
    trainer = keras.optimizers.SGD(RATE)
    for number in range(1, 4):
        with tf.GradientTape() as tape:
            towers = [layer(tf.constant(ids), training=True) for ids in ([7], [7, 8])]
            loss = tf.add_n([tf.reduce_sum(rows) for rows in towers])
        gradients = tape.gradient(loss, layer.trainable_variables)
        trainer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
        assert int(layer.params.size()) == (2 if number == 3 else 0)


@pytest.mark.parametrize("kind", [layers.Embedding, layers.SquashedEmbedding])
def test_ragged_ids(kind: Any, devices: list[str] | None) -> None:
    layer = kind(DIM, initializer="ones", devices=devices, admission=MinCount(3))
    trainer, reference = keras.optimizers.SGD(RATE), Reference(3)
    for ids in batches(distinct=False):
        step(layer, trainer, tf.RaggedTensor.from_row_lengths(ids, [1, 0, 3, 2]))
        reference.step(ids)
        reference.check(layer.params)


@pytest.mark.parametrize("types", [("string", "float16"), ("int32", "float64")])
def test_variables_of_other_types(types: tuple[str, str], devices: list[str] | None) -> None:
    variable = de.Variable(
        tf.as_dtype(types[0]), tf.as_dtype(types[1]), DIM, devices, initializer=1.0,
        admission=MinCount(3), name=f"of {types[0]}",
    )  # fmt: skip
    trainer, reference = keras.optimizers.SGD(RATE), Reference(3)
    for ids in batches(distinct=False):
        variable_step(variable, trainer, keys_for(variable, ids))
        reference.step(ids)
        reference.check(variable)


def test_a_function_is_traced_once_and_counts_every_step() -> None:
    variable = de.get_variable("traced", dim=DIM, initializer=1.0, admission=MinCount(3))
    trainer, reference, traces = keras.optimizers.SGD(RATE), Reference(3), []

    @tf.function
    def train(ids: tf.Tensor) -> None:
        traces.append(ids)
        variable_step(variable, trainer, ids)

    for ids in batches(distinct=False):
        train(tf.constant(ids))
        reference.step(ids)
        reference.check(variable)
    assert len(traces) <= 2  # Keras makes the optimizer's variables in the first.


@pytest.mark.parametrize("initializer", [1.0, ones], ids=["constant", "function"])
def test_in_a_session(initializer: Any, devices: list[str] | None, session: v1.Session) -> None:
    variable = de.get_variable(
        "table", dim=DIM, initializer=initializer, devices=devices, admission=MinCount(3)
    )
    ids = v1.placeholder(tf.int64, [None])
    optimizer = de.DynamicEmbeddingOptimizer(v1.train.GradientDescentOptimizer(RATE))
    train = optimizer.minimize(tf.reduce_sum(de.embedding_lookup(variable, ids)))
    looked = variable.lookup(tf.constant(IDS), return_exists=True)
    figures = variable.stats_tensors()
    session.run(v1.global_variables_initializer())
    reference = Reference(3)
    for batch in batches(distinct=True):
        session.run(train, {ids: batch})
        reference.step(batch)
        rows, exists = session.run(looked)
        assert exists.tolist() == [key in reference.rows for key in IDS.tolist()]
        assert rows[:, 0].tolist() == [reference.rows.get(key, 1.0) for key in IDS.tolist()]
        if initializer == 1.0:
            assert session.run(figures["refused"]) == reference.refused


def test_dense_parts_train_while_keys_wait() -> None:
    layer = layers.Embedding(DIM, initializer="ones", admission=MinCount(100))
    model = model_of(layer, 2, keras.optimizers.SGD(0.05))
    dense = model.layers[-1]
    x, y = IDS[:8].reshape(4, 2), targets(4)
    losses, weights = [], []
    for _ in range(4):
        losses.append(model.train_on_batch(x, y))
        weights.append(dense.get_weights()[0].copy())
    assert int(layer.params.size()) == 0
    assert losses[-1] < losses[0]
    assert all(np.abs(a - b).max() > 0 for a, b in itertools.pairwise(weights))
    kernel, bias = dense.get_weights()
    expected = np.ones((4, 2 * DIM)) @ kernel + bias
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=1e-5)
    stats = layer.params.stats()
    assert (stats.refused, stats.waiting) == (4 * 8, 8)


@pytest.mark.parametrize("initializer", ["ones", ones], ids=["constant", "function"])
def test_only_training_sees_keys(initializer: Any) -> None:
    layer = layers.Embedding(DIM, initializer=initializer, admission=MinCount(2))
    model = model_of(layer, 2)
    x, y = np.array([[1, 2], [3, 4]]), targets(2)
    for _ in range(3):
        model.evaluate(x, y, verbose=0)
        model.predict(x, verbose=0)
        model(x)
        model(x, training=False)
        layer.params.lookup([1])
    assert (layer.params.stats().waiting, layer.params.stats().refused) == (0, 0)
    model.fit(x, y, epochs=1, verbose=0)
    model.fit(x, y, epochs=1, verbose=0, validation_data=(x + 10, y))
    assert key_set(layer.params) == {1, 2, 3, 4}
    assert layer.params.stats().waiting == 0


def test_sums_of_gradients_that_wait_are_seen_when_they_are_applied() -> None:
    layer = layers.Embedding(DIM, initializer="ones", admission=MinCount(2))
    trainer = keras.optimizers.SGD(RATE, gradient_accumulation_steps=2)
    sizes = []
    for _ in range(6):
        step(layer, trainer, tf.constant([7, 8, 7]))
        sizes.append(int(layer.params.size()))
    assert sizes == [0, 0, 0, 2, 2, 2]
    # The first sum was dropped; each of the others is the mean of two steps.
    assert layer.params.lookup([7, 8]).numpy()[:, 0].tolist() == [1 - 2 * 2 * RATE, 1 - 2 * RATE]


def test_what_is_written_by_hand_enters(devices: list[str] | None) -> None:
    variable = de.Variable(dim=DIM, devices=devices, admission=MinCount(5))
    variable.upsert([1, 2], np.ones((2, DIM), np.float32))
    old = tf.zeros([1, DIM])
    variable.accum([3], old, old + 1.0, [False])
    assert key_set(variable) == {1, 2, 3}
    assert variable.stats().refused == 0


@pytest.mark.parametrize("initializer", [1.0, ones], ids=["constant", "function"])
def test_touching_is_seeing(initializer: Any, devices: list[str] | None) -> None:
    variable = de.Variable(
        dim=DIM, initializer=initializer, devices=devices, admission=MinCount(2), ttl=10
    )
    variable.touch([[7, 8], [7, 9]])
    assert (int(variable.size()), variable.stats().waiting) == (0, 3)
    variable.touch([7])
    assert key_set(variable) == {7}
    assert variable.lookup([7]).numpy().tolist() == [[1.0] * DIM]


def test_a_touch_of_rows_of_a_function_counts_as_one_write() -> None:
    variable = de.Variable(dim=DIM, initializer=ones, ttl=10)
    for number in range(1, 4):
        variable.touch([7, 7])
        assert variable.usage([7])[1].numpy().tolist() == [number]
    assert variable.stats().refused == 0


def test_a_filter_is_never_late(devices: list[str] | None) -> None:
    layer = layers.Embedding(
        DIM, devices=devices, admission=CountingBloomFilter(3, capacity=2000, error_rate=0.02)
    )
    trainer, ids = keras.optimizers.SGD(RATE), tf.range(2000, dtype=tf.int64)
    for _ in range(2):
        step(layer, trainer, ids)
    assert int(layer.params.size()) < 0.03 * 2000
    step(layer, trainer, ids)
    assert int(layer.params.size()) == 2000
    memory = layer.params.stats().admission_bytes
    assert memory == layer.params.shard_num * layer.params.admission.memory_bytes


def test_chance(devices: list[str] | None) -> None:
    def entered(seed: int) -> set[Any]:
        layer = layers.Embedding(DIM, devices=devices, admission=Probability(0.3, seed=seed))
        step(layer, keras.optimizers.SGD(RATE), tf.range(3000, dtype=tf.int64))
        return key_set(layer.params)

    first = entered(1)
    assert 0.25 < len(first) / 3000 < 0.35
    assert entered(1) == first != entered(2)


# --- Arguments.


RULES = [MinCount(3), CountingBloomFilter(3, capacity=50, error_rate=0.1), Probability(0.5, 7)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("kind", [layers.Embedding, layers.SquashedEmbedding])
def test_layers_have_it_in_their_config(kind: Any, rule: Any) -> None:
    layer = kind(DIM, admission=rule, ttl=60, min_norm=0.5, name="ids")
    config = layer.get_config()
    again = kind.from_config(config)
    assert again.get_config() == config
    for each in (layer, again):
        assert (each.params.admission, each.params.ttl, each.params.min_norm) == (rule, 60, 0.5)
    clone = keras.models.clone_model(model_of(layer)).get_layer("ids")
    assert (clone.params.admission, clone.params.ttl) == (rule, 60)
    assert "admission" not in kind(DIM).get_config()


def test_field_wise_layers_take_it() -> None:
    layer = layers.FieldWiseEmbedding(
        DIM, nslots=2, slot_map_fn=lambda ids: ids % 2, initializer="ones", admission=MinCount(2)
    )
    trainer = keras.optimizers.SGD(RATE)
    for expected in (0, 3):
        step(layer, trainer, tf.constant([[1, 2, 3]]))
        assert int(layer.params.size()) == expected


def test_get_variable_compares_parameters() -> None:
    rule = CountingBloomFilter(2, capacity=10)
    options = {"dim": DIM, "admission": rule, "ttl": 10, "min_norm": 0.5}
    variable = de.get_variable("admission compared", **options)
    assert (variable.admission, variable.ttl, variable.min_norm) == (rule, 10.0, 0.5)
    same = {**options, "admission": CountingBloomFilter(2, capacity=10)}
    assert de.get_variable("admission compared", **same) is variable
    for change in (
        {"admission": MinCount(2)},
        {"admission": CountingBloomFilter(2, capacity=11)},
        {"admission": None},
        {"ttl": 11},
        {"ttl": None},
        {"min_norm": 0.25},
        {"min_norm": None},
    ):
        (name,) = change
        with pytest.raises(ValueError, match=rf"{name}.*Received: {name}="):
            de.get_variable("admission compared", **{**options, **change})


@pytest.mark.parametrize("make", [de.Variable, lambda **o: layers.Embedding(DIM, **o).params])
@pytest.mark.parametrize(
    ("option", "error"),
    [
        ({"admission": 3}, TypeError),
        ({"admission": "min_count"}, TypeError),
        ({"ttl": "1"}, TypeError),
        ({"ttl": -1}, ValueError),
        ({"min_norm": -0.5}, ValueError),
        ({"min_norm": float("inf")}, ValueError),
    ],
)
def test_wrong_arguments(make: Any, option: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=f"`{next(iter(option))}` must .*Received"):
        make(**option)
