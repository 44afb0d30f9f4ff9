"""Optimizers of Keras 2, wrapped, train tables as they train variables with sparse gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.keras.optimizer_v2 import (
    adadelta,
    adagrad,
    adam,
    adamax,
    ftrl,
    gradient_descent,
    nadam,
    optimizer_v2,
    rmsprop,
)
from training_support import Array, de, initializer

tf_keras = pytest.importorskip("tf_keras")

v1 = tf.compat.v1
COUNT, DIM, STEPS = 8, 3, 4
KEYS = np.arange(COUNT)


class CopyInTensorFlow:
    """The optimizers that TensorFlow itself carries, by their names in Keras."""

    Adadelta, Adagrad, Adam = adadelta.Adadelta, adagrad.Adagrad, adam.Adam
    Adamax, Ftrl, Nadam = adamax.Adamax, ftrl.Ftrl, nadam.Nadam
    RMSprop, SGD = rmsprop.RMSprop, gradient_descent.SGD


KINDS: dict[str, Any] = {
    "present": tf_keras.optimizers,
    "legacy": tf_keras.optimizers.legacy,
    "copy": CopyInTensorFlow,
}
RATE = 0.1
OF_ALL: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda k: k.SGD(RATE),
    "SGD momentum": lambda k: k.SGD(RATE, momentum=0.8),
    "SGD nesterov": lambda k: k.SGD(RATE, momentum=0.8, nesterov=True),
    "Adam": lambda k: k.Adam(RATE, beta_1=0.7, epsilon=1e-3),
    "Adam amsgrad": lambda k: k.Adam(RATE, amsgrad=True),
    "Adam clipnorm": lambda k: k.Adam(RATE, clipnorm=0.5),
    "Adagrad": lambda k: k.Adagrad(RATE, initial_accumulator_value=0.3),
    "Adamax": lambda k: k.Adamax(RATE),
    "Nadam": lambda k: k.Nadam(RATE),
    "RMSprop": lambda k: k.RMSprop(RATE),
    "RMSprop momentum": lambda k: k.RMSprop(RATE, momentum=0.7),
    "RMSprop centered": lambda k: k.RMSprop(RATE, momentum=0.7, centered=True),
    "Adadelta": lambda k: k.Adadelta(1.0, epsilon=1e-2),
    "Ftrl": lambda k: k.Ftrl(
        0.3, initial_accumulator_value=0.2, l1_regularization_strength=0.01,
        l2_regularization_strength=0.02, beta=0.1, l2_shrinkage_regularization_strength=0.03,
    ),
    "global clipnorm": lambda k: k.SGD(RATE, global_clipnorm=0.5),
    "clipvalue": lambda k: k.SGD(RATE, clipvalue=0.3),
    "schedule": lambda k: k.SGD(tf_keras.optimizers.schedules.ExponentialDecay(0.2, 1, 0.5))
    if k is not CopyInTensorFlow
    else k.SGD(RATE, decay=0.5),
}  # fmt: skip
OF_PRESENT: dict[str, Callable[[Any], Any]] = {
    "AdamW": lambda k: k.AdamW(RATE, weight_decay=0.1),
    "Lion": lambda k: k.Lion(RATE),
    "weight decay": lambda k: k.SGD(RATE, momentum=0.9, weight_decay=0.2),
}
CASES = [(kind, name) for kind in KINDS for name in OF_ALL]
CASES += [("present", name) for name in OF_PRESENT]


def make(kind: str, name: str) -> Any:
    return {**OF_ALL, **OF_PRESENT}[name](KINDS[kind])


def make_batches(steps: int = STEPS, seed: int = 0) -> list[tuple[Array, Array]]:
    """Ids, each at least once and some several times, and weights of their rows."""
    rng = np.random.default_rng(seed)
    batches = []
    for _ in range(steps):
        ids = rng.permutation(np.concatenate([KEYS, rng.integers(0, COUNT, COUNT)]))
        batches.append((ids, rng.standard_normal((2 * COUNT, DIM)).astype(np.float32)))
    return batches


def some_batches(steps: int = STEPS, seed: int = 0) -> list[tuple[Array, Array]]:
    """Batches that have a few of the ids, some of them several times."""
    rng = np.random.default_rng(seed)
    ids = [rng.choice(rng.choice(KEYS, 3), 6) for _ in range(steps)]
    return [(i, rng.standard_normal((6, DIM)).astype(np.float32)) for i in ids]


class OfTable:
    """A table and a dense variable, trained together."""

    def __init__(self, **options: Any) -> None:
        self.table = de.Variable(dim=DIM, initializer=initializer(), **options)
        self.shadow = de.shadow_ops.ShadowVariable(self.table, name="shadow")
        self.scale = tf.Variable(tf.ones(DIM))

    @property
    def variables(self) -> list[Any]:
        return [self.shadow, self.scale]

    def loss(self, ids: Any, weights: Any) -> tf.Tensor:
        found = de.shadow_ops.embedding_lookup(self.shadow, tf.cast(ids, tf.int64))
        return tf.reduce_sum(tf.tanh(found * self.scale) * weights)

    def result(self) -> tuple[Array, Array]:
        return self.table.lookup(KEYS).numpy(), self.scale.numpy()

    def wrap(self, optimizer: Any) -> Any:
        return de.DynamicEmbeddingOptimizer(optimizer)


class OfDense(OfTable):
    """The same with dense rows, whose gradients are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = tf.Variable(self.table.lookup(KEYS))

    @property
    def variables(self) -> list[Any]:
        return [self.rows, self.scale]

    def loss(self, ids: Any, weights: Any) -> tf.Tensor:
        return tf.reduce_sum(tf.tanh(tf.gather(self.rows, ids) * self.scale) * weights)

    def result(self) -> tuple[Array, Array]:
        return self.rows.numpy(), self.scale.numpy()

    def wrap(self, optimizer: Any) -> Any:
        return optimizer


def train(
    program: OfTable,
    optimizer: Any,
    batches: Iterable[tuple[Array, Array]],
    decorate: Callable[[Any], Any] = lambda step: step,
) -> Any:
    optimizer = program.wrap(optimizer)

    def step(ids: tf.Tensor, weights: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = program.loss(ids, weights)
        variables = program.variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    step = decorate(step)
    for ids, weights in batches:
        step(tf.constant(ids), tf.constant(weights))
    return optimizer


def check(actual: tuple[Array, Array], expected: tuple[Array, Array]) -> None:
    before = OfDense().result()
    assert all(np.abs(a - b).mean() > 1e-2 for a, b in zip(expected, before, strict=True))
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def dense_result(optimizer: Any, batches: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    program = OfDense()
    train(program, optimizer, batches)
    return program.result()


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_every_optimizer(kind: str, name: str) -> None:
    program, plain = OfTable(), make(kind, name)
    optimizer = train(program, plain, make_batches())
    assert optimizer is plain
    assert int(optimizer.iterations) == STEPS
    assert int(program.table.size()) == COUNT
    check(program.result(), dense_result(make(kind, name), make_batches()))


SOME = [("present", "AdamW"), ("present", "Ftrl"), ("legacy", "SGD"), ("legacy", "Adam amsgrad")]
SOME += [("copy", "RMSprop centered"), ("legacy", "RMSprop")]


@pytest.mark.parametrize(("kind", "name"), SOME)
def test_functions(kind: str, name: str) -> None:
    program = OfTable(devices=["/CPU:0"] * 2)
    decorate = functools.partial(tf.function, autograph=False)
    optimizer = train(program, make(kind, name), make_batches(), decorate)
    assert int(optimizer.iterations) == STEPS
    check(program.result(), dense_result(make(kind, name), make_batches()))


@pytest.mark.parametrize(("kind", "name"), SOME)
def test_graphs(kind: str, name: str) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        ids, weights = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.float32, [None, DIM])
        table = de.get_variable("table", dim=DIM, initializer=initializer())
        scale = v1.get_variable("scale", initializer=np.ones(DIM, np.float32), use_resource=True)
        optimizer = de.DynamicEmbeddingOptimizer(make(kind, name))

        def loss() -> tf.Tensor:
            return tf.reduce_sum(tf.tanh(de.embedding_lookup(table, ids) * scale) * weights)

        step = optimizer.minimize(loss, v1.trainable_variables)
        result = table.lookup(tf.constant(KEYS)), scale
        session.run(v1.global_variables_initializer())
        for batch in make_batches():
            session.run(step, dict(zip((ids, weights), batch, strict=True)))
        actual = session.run(result)
        assert session.run(optimizer.iterations) == STEPS
    check(actual, dense_result(make(kind, name), make_batches()))


@pytest.mark.parametrize("decorate", [lambda step: step, tf.function], ids=["eager", "function"])
@pytest.mark.parametrize("kind", KINDS)
def test_minimize_with_a_function_of_variables(kind: str, decorate: Any) -> None:
    """The trainables are those of the lookups that the loss makes."""
    table = de.Variable(dim=DIM, initializer=initializer())
    scale = tf.Variable(tf.ones(DIM))
    optimizer = de.DynamicEmbeddingOptimizer(make(kind, "Adam"))
    trainables: list[Any] = []

    @decorate
    def step(ids: tf.Tensor, weights: tf.Tensor) -> None:
        def loss() -> tf.Tensor:
            found, trainable = de.embedding_lookup(table, ids, return_trainable=True)
            trainables.append(trainable)
            return tf.reduce_sum(tf.tanh(found * scale) * weights)

        optimizer.minimize(loss, lambda: [*trainables, scale])

    for ids, weights in make_batches():
        step(tf.constant(ids), tf.constant(weights))
    actual = table.lookup(KEYS).numpy(), scale.numpy()
    check(actual, dense_result(make(kind, "Adam"), make_batches()))


@pytest.mark.parametrize("kind", KINDS)
def test_minimize_with_a_list_and_a_tape(kind: str) -> None:
    program = OfTable()
    optimizer = de.DynamicEmbeddingOptimizer(make(kind, "Adam"))
    for ids, weights in make_batches():
        with tf.GradientTape() as tape:
            loss = program.loss(ids, weights)
        optimizer.minimize(loss, program.variables, tape=tape)
    check(program.result(), dense_result(make(kind, "Adam"), make_batches()))


# --- What optimizers do to sparse gradients only.


class LazyAdam(tf_keras.optimizers.legacy.Adam):
    """Adam that leaves the slots of absent rows as they are."""

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        state = apply_state[var.device, var.dtype.base_dtype]
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        new_m = tf.gather(m, indices) * 0.9 + 0.1 * grad
        new_v = tf.gather(v, indices) * 0.999 + 0.001 * tf.square(grad)
        step = state["lr"] * new_m / (tf.sqrt(new_v) + state["epsilon"])
        scatter = tf.raw_ops.ResourceScatterUpdate
        return tf.group(
            scatter(resource=m.handle, indices=indices, updates=new_m),
            scatter(resource=v.handle, indices=indices, updates=new_v),
            tf.raw_ops.ResourceScatterSub(resource=var.handle, indices=indices, updates=step),
        )

    def _resource_apply_dense(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the gradient of the rows is sparse")


@pytest.mark.parametrize("decorate", [lambda step: step, tf.function], ids=["eager", "function"])
def test_a_lazy_optimizer(decorate: Any) -> None:
    class Program(OfTable):
        variables = property(lambda self: [self.shadow])

    class Dense(OfDense):
        variables = property(lambda self: [self.rows])

    program, dense = Program(), Dense()
    train(program, LazyAdam(RATE), some_batches(8), decorate)
    train(dense, LazyAdam(RATE), some_batches(8))
    rows, expected = program.result()[0], dense.result()[0]
    assert np.abs(expected - Dense().result()[0]).mean() > 1e-2
    np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-5)


class DenseOnly(optimizer_v2.OptimizerV2):
    """An optimizer of a user, who wrote no step for sparse gradients."""

    def __init__(self, name: str = "DenseOnly") -> None:
        super().__init__(name)
        self._set_hyper("learning_rate", RATE)

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self.add_slot(var, "start", initializer=var)

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        start = self.get_slot(var, "start")
        return var.assign(start * 0.5 + var * 0.5 - grad * self._get_hyper("learning_rate"))

    def get_config(self) -> dict[str, Any]:
        return super().get_config()


def test_an_optimizer_without_a_sparse_step() -> None:
    """And with a slot that starts as a copy of the row."""
    program = OfTable()
    optimizer = train(program, DenseOnly(), make_batches())
    start = program.table.get_slot_variables(optimizer)[0].lookup(KEYS)
    np.testing.assert_array_equal(start, OfTable().result()[0])

    class Dense(OfDense):
        def loss(self, ids: Any, weights: Any) -> tf.Tensor:
            found = tf.matmul(tf.one_hot(ids, COUNT), self.rows)
            return tf.reduce_sum(tf.tanh(found * self.scale) * weights)

    dense = Dense()
    train(dense, DenseOnly(), make_batches())
    check(program.result(), dense.result())


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_slots_of_absent_keys_stay(kind: str) -> None:
    program = OfTable()
    optimizer = train(program, make(kind, "Adam"), make_batches(1))
    slots = program.table.get_slot_variables(optimizer)
    before = [one.lookup(KEYS).numpy() for one in (program.table, *slots)]
    train(program, optimizer, [(np.array([1, 1]), np.ones((2, DIM), np.float32))])
    for one, rows in zip((program.table, *slots), before, strict=True):
        now = one.lookup(KEYS).numpy()
        changed = [key for key in KEYS if np.any(now[key] != rows[key])]
        assert changed == [1]


# --- Slots.


@pytest.mark.parametrize("kind", KINDS)
def test_slots(kind: str) -> None:
    program, dense = OfTable(), OfDense()
    optimizer = de.DynamicEmbeddingOptimizer(make(kind, "Adam amsgrad"))
    assert program.table.get_slot_variables(optimizer) == []
    train(program, optimizer, make_batches())
    plain = train(dense, make(kind, "Adam amsgrad"), make_batches())
    assert optimizer.get_slot_names() == ["m", "v", "vhat"]
    slots = program.table.get_slot_variables(optimizer)
    assert [slot.slot_name for slot in slots] == ["m", "v", "vhat"]
    if kind == "present":
        expected = [plain._momentums[0], plain._velocities[0], plain._velocity_hats[0]]
    else:
        expected = [plain.get_slot(dense.rows, name) for name in ("m", "v", "vhat")]
        with pytest.raises(KeyError, match=r"Use get_slot_variables\(optimizer\)"):
            optimizer.get_slot(program.shadow, "m")
        assert optimizer.get_slot(program.scale, "m").shape == [DIM]
    for slot, value in zip(slots, expected, strict=True):
        np.testing.assert_allclose(slot.lookup(KEYS), value, rtol=1e-5, atol=1e-6)


def test_slots_need_one_number_for_a_row() -> None:
    class Random(tf_keras.optimizers.legacy.SGD):
        def _create_slots(self, var_list: Any) -> None:
            for var in var_list:
                self.add_slot(var, "noise", tf_keras.initializers.RandomNormal())

    with pytest.raises(NotImplementedError, match="slot 'noise' does not start with the same"):
        train(OfTable(), Random(RATE), make_batches())


class Rowwise(tf_keras.optimizers.Optimizer):
    """An optimizer of a user, with two slots of one name, one of one number for each row."""

    def __init__(self) -> None:
        super().__init__("Rowwise")
        self._learning_rate = self._build_learning_rate(RATE)

    def build(self, var_list: Any) -> None:
        super().build(var_list)
        if getattr(self, "_built", False):
            return
        self._built = True
        self.totals = [
            self.add_variable_from_reference(
                v, "total", initial_value=tf.fill([*v.shape[:-1], 1], 0.5)
            )
            for v in var_list
        ]
        self.rates = [
            self.add_variable_from_reference(v, "total", initial_value=tf.fill(v.shape, RATE))
            for v in var_list
        ]

    def update_step(self, gradient: Any, variable: Any) -> None:
        index = self._index_dict[self._var_key(variable)]
        total, rate = self.totals[index], self.rates[index]
        gradient = tf.convert_to_tensor(gradient)
        total.assign_add(tf.reduce_mean(tf.square(gradient), axis=-1, keepdims=True))
        rate.assign(rate * 0.9)
        variable.assign_sub(rate * gradient / tf.sqrt(total))

    def get_config(self) -> dict[str, Any]:
        return super().get_config()


def test_slots_of_one_number_and_of_one_name() -> None:
    program, dense = OfTable(), OfDense()
    for one in (program, dense):
        one.scale = tf.Variable(tf.ones([1, DIM]))
        optimizer = train(one, Rowwise(), make_batches())
        if one is program:
            slots = program.table.get_slot_variables(optimizer)
            assert [slot.dim for slot in slots] == [1, DIM]
            assert optimizer.get_slot_names() == ["total", "total_"]
    np.testing.assert_allclose(program.result()[0], dense.result()[0], rtol=1e-5, atol=1e-5)


# --- Checkpoints.


@pytest.mark.parametrize("kind", KINDS)
def test_training_goes_on_after_a_restore(kind: str, tmp_path: Path) -> None:
    def checkpoint_of(program: OfTable, optimizer: Any) -> tf.train.Checkpoint:
        parts = {"table": program.table, "shadow": program.shadow, "scale": program.scale}
        return tf.train.Checkpoint(optimizer=optimizer, **parts)

    first, second = make_batches(), make_batches(seed=1)
    program = OfTable()
    optimizer = train(program, make(kind, "Adam amsgrad"), first)
    path = checkpoint_of(program, optimizer).write(str(tmp_path / "checkpoint"))

    restored = OfTable()
    after = de.DynamicEmbeddingOptimizer(make(kind, "Adam amsgrad"))
    status = checkpoint_of(restored, after).read(path)
    train(restored, after, second)
    status.assert_consumed()
    assert int(after.iterations) == 2 * STEPS
    check(restored.result(), dense_result(make(kind, "Adam amsgrad"), first + second))
    np.testing.assert_array_equal(
        restored.table.get_slot_variables(after)[0].lookup(KEYS),
        (train(program, optimizer, second), program.table.get_slot_variables(optimizer)[0])[1]
        .lookup(KEYS),
    )  # fmt: skip


# --- What belongs to the optimizer.


def test_averages_are_of_dense_variables() -> None:
    def of(**options: Any) -> Any:
        return tf_keras.optimizers.SGD(RATE, momentum=0.5, **options)

    ema = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2}
    program, plain, dense = OfTable(), of(**ema), OfDense()
    with pytest.warns(UserWarning, match="averages dense variables only"):
        optimizer = de.DynamicEmbeddingOptimizer(plain)
    one = (KEYS, np.ones((COUNT, DIM), np.float32))
    train(program, optimizer, [one])
    expected = dense_result(of(), [one])
    check(program.result(), expected)  # The first step overwrites nothing.
    train(program, optimizer, [one])
    train(dense, of(**ema), [one, one])
    rows, scale = program.result()
    assert optimizer.get_slot_names() == ["m"]
    assert np.abs(rows - expected[0]).mean() > 1e-2
    assert np.abs(rows - dense.result()[0]).mean() > 1e-2
    average = optimizer._model_variables_moving_average[1]
    np.testing.assert_array_equal(scale, average.numpy())
    optimizer.finalize_variable_values(program.variables)
    np.testing.assert_array_equal(program.result()[0], rows)


def test_tables_can_be_excluded_from_weight_decay() -> None:
    program, dense = OfTable(), OfDense()
    for one in (program, dense):
        optimizer = one.wrap(make("present", "weight decay"))
        optimizer.exclude_from_weight_decay([one.variables[0]])
        train(one, optimizer, make_batches())
    check(program.result(), dense.result())
    assert np.abs(
        dense.result()[0] - dense_result(make("present", "weight decay"), make_batches())[0]
    ).mean() > 1e-3  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_learning_rate_that_is_set(kind: str) -> None:
    program, dense = OfTable(), OfDense()
    for one, decorate in ((program, tf.function), (dense, lambda step: step)):
        optimizer = one.wrap(make(kind, "SGD momentum"))
        train(one, optimizer, make_batches(), decorate)
        optimizer.learning_rate = 0.01
        train(one, optimizer, make_batches(seed=1), decorate)
    check(program.result(), dense.result())


def test_options_of_the_variable() -> None:
    """Words as keys, float16 values, a bound, and rows that are added to."""
    words = tf.constant(["a", "b", "a", "c"])
    for kind in KINDS:
        table = de.Variable(
            key_dtype=tf.string, value_dtype=tf.float16, dim=2, initializer=1.0, bp_v2=True
        )
        shadow = de.shadow_ops.ShadowVariable(table)
        optimizer = de.DynamicEmbeddingOptimizer(make(kind, "SGD momentum"))
        for _ in range(2):
            with tf.GradientTape() as tape:
                rows = de.shadow_ops.embedding_lookup(shadow, words)
                loss = tf.reduce_sum(tf.cast(rows, tf.float32))
            optimizer.apply_gradients([(tape.gradient(loss, shadow), shadow)])
        expected = [1 - 0.1 * n * (1 + 1.8) for n in (2, 1, 1)]
        np.testing.assert_allclose(table.lookup(["a", "b", "c"])[:, 0], expected, rtol=2e-3)
        assert table.get_slot_variables(optimizer)[0].value_dtype == tf.float32


@pytest.mark.parametrize("kind", ["present", "legacy"])
def test_threads_do_not_meet(kind: str) -> None:
    """A function that several threads run: the rows of a step belong to this run of it."""
    table = de.Variable(dim=DIM, initializer=0.0)
    shadow = de.shadow_ops.ShadowVariable(table)
    optimizer = de.DynamicEmbeddingOptimizer(make(kind, "SGD momentum"))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(de.shadow_ops.embedding_lookup(shadow, ids))
        optimizer.apply_gradients([(tape.gradient(loss, shadow), shadow)])

    step(tf.constant([], tf.int64))

    def work(number: int) -> None:
        for _ in range(30):
            step(1000 * number + tf.range(100 + number, dtype=tf.int64))

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(work, range(3)))
    row, speed = 0.0, 0.0
    for _ in range(30):
        speed = 0.8 * speed - RATE
        row += speed
    _, rows = table.export()
    np.testing.assert_allclose(rows, np.full([303, DIM], row), rtol=1e-5)


def test_compiled_updates_leave_tables_out() -> None:
    """Keras compiles updates if there is a GPU."""
    plain = make("present", "SGD momentum")
    plain.jit_compile = True
    shadow = OfTable().shadow
    optimizer = de.DynamicEmbeddingOptimizer(plain)
    with tf.GradientTape() as tape:
        loss = de.shadow_ops.embedding_lookup(shadow, tf.constant([1], tf.int64))
    optimizer.apply_gradients([(tape.gradient(loss, shadow), shadow)])
    assert int(shadow.params.size()) == 1


def test_loss_scaling_around_a_wrapped_optimizer() -> None:
    plain = make("present", "Adam")
    program, batches = OfTable(), make_batches()
    optimizer = tf_keras.mixed_precision.LossScaleOptimizer(program.wrap(plain))
    for ids, weights in batches:
        with tf.GradientTape() as tape:
            loss = optimizer.get_scaled_loss(program.loss(ids, weights))
        gradients = tape.gradient(loss, program.variables)
        gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, program.variables, strict=True))
    check(program.result(), dense_result(make("present", "Adam"), batches))


# --- Models of Keras 2.


class ModelOfKeras2(tf_keras.Model):
    """A layer of tfra, and a shadow of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = de.keras.layers.Embedding(DIM, initializer=initializer(seed=1))
        start = tf_keras.initializers.RandomNormal(0.0, 0.5, seed=2)
        self.table = de.Variable(dim=DIM, initializer=start)
        self.shadow = de.shadow_ops.ShadowVariable(self.table)
        self.head = tf_keras.layers.Dense(1)

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        rows = de.shadow_ops.embedding_lookup(self.shadow, ids)
        return self.head(self.embedding(ids) * rows)

    @property
    def trainable_variables(self) -> list[Any]:
        return [*super().trainable_variables, self.shadow]


IDS = np.arange(64) % COUNT
TARGETS = (IDS % 3)[:, None].astype(np.float32)


def fitted(kind: str, epochs: int = 20) -> Any:
    model = ModelOfKeras2()
    model.compile(de.DynamicEmbeddingOptimizer(make(kind, "Adam")), "mse")
    if epochs:
        losses = model.fit(IDS, TARGETS, epochs=epochs, verbose=0).history["loss"]
        assert losses[-1] < 0.2 * losses[0]
        assert int(model.table.size()) == int(model.embedding.params.size()) == COUNT
    return model


@pytest.mark.parametrize("kind", ["present", "legacy"])
def test_fit_and_save(kind: str, tmp_path: Path) -> None:
    model, other = fitted(kind), fitted(kind, epochs=0)
    other(tf.constant(IDS))  # Keras creates the dense layer.
    expected = model.predict(IDS, verbose=0)
    model.save_weights(str(tmp_path / "weights"))
    other.load_weights(str(tmp_path / "weights"))
    np.testing.assert_array_equal(other.predict(IDS, verbose=0), expected)
    for one in (model, other):
        one.fit(IDS, TARGETS, shuffle=False, verbose=0)
    after = model.predict(IDS, verbose=0)
    assert np.any(after != expected)
    np.testing.assert_array_equal(other.predict(IDS, verbose=0), after)
    served = str(tmp_path / "served")
    options = tf.saved_model.SaveOptions(namespace_whitelist=["TFRA"])
    model.save(served, save_format="tf", options=options)
    loaded = tf.saved_model.load(served)
    signature = loaded.signatures["serving_default"]
    np.testing.assert_allclose(signature(tf.constant(IDS))["output_1"], after, rtol=1e-6)


def test_functional_models_are_refused() -> None:
    """They would not train the table."""
    ids = tf_keras.Input((2,), dtype="int64")
    table = de.Variable(dim=DIM)
    with pytest.raises(TypeError, match="Functional models of Keras 2"):
        de.keras.layers.SquashedEmbedding(DIM)(ids)
    with pytest.raises(TypeError, match="Functional models of Keras 2"):
        de.embedding_lookup(table, ids)


# --- What is refused.


@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_that_was_replaced_is_refused(kind: str) -> None:
    program = OfTable()
    first = train(program, make(kind, "Adam"), make_batches(1))
    train(program, make(kind, "Adagrad"), make_batches(1))
    before = program.result()
    with pytest.raises(tf.errors.FailedPreconditionError, match="the slots of one optimizer"):
        train(program, first, make_batches(1))
    for now, then in zip(program.result(), before, strict=True):
        np.testing.assert_array_equal(now, then)
    assert int(first.iterations) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_that_are_not_slices_are_refused(kind: str) -> None:
    program = OfTable()
    optimizer = de.DynamicEmbeddingOptimizer(make(kind, "SGD"))
    with pytest.raises(TypeError, match=r"must be tf\.IndexedSlices"):
        optimizer.apply_gradients([(tf.ones([2, DIM]), program.shadow)])


def test_optimizers_that_cannot_train_tables_are_refused() -> None:
    adafactor = de.DynamicEmbeddingOptimizer(tf_keras.optimizers.Adafactor())
    with pytest.raises(NotImplementedError, match="Adafactor can't train a table"):
        train(OfTable(), adafactor, make_batches())
    scaled = tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.SGD())
    with pytest.raises(TypeError, match="Wrap the optimizer that it is given"):
        de.DynamicEmbeddingOptimizer(scaled)
    strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
    with strategy.scope():
        program = OfTable()
        optimizer = de.DynamicEmbeddingOptimizer(tf_keras.optimizers.SGD())
    with pytest.raises(NotImplementedError, match="without replicas of variables"):
        strategy.run(lambda: train(program, optimizer, make_batches()))


@pytest.mark.parametrize("kind", KINDS)
def test_optimizers_have_to_be_wrapped(kind: str) -> None:
    class Unwrapped(OfTable):
        def wrap(self, optimizer: Any) -> Any:
            return optimizer

    with pytest.raises(TypeError, match="DynamicEmbeddingOptimizer"):
        train(Unwrapped(), make(kind, "Adam"), make_batches())
