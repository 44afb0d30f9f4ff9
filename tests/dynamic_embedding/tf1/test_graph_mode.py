"""Graphs and Sessions of TensorFlow 1: its optimizers train tables as they train variables."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_support import Array, de, initializer

v1 = tf.compat.v1

COUNT, DIM, STEPS = 8, 3, 4
KEYS = np.arange(COUNT)

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "GradientDescent": lambda: v1.train.GradientDescentOptimizer(0.1),
    "Adam": lambda: v1.train.AdamOptimizer(0.1),
    "Adam numbers": lambda: v1.train.AdamOptimizer(0.1, beta1=0.7, beta2=0.9, epsilon=1e-2),
    "Adagrad": lambda: v1.train.AdagradOptimizer(0.1, initial_accumulator_value=0.3),
    "Momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.8),
    "Momentum nesterov": lambda: v1.train.MomentumOptimizer(0.1, 0.8, use_nesterov=True),
    "RMSProp": lambda: v1.train.RMSPropOptimizer(0.05, decay=0.8, epsilon=1e-3),
    "RMSProp momentum": lambda: v1.train.RMSPropOptimizer(0.05, decay=0.8, momentum=0.7),
    "RMSProp centered": lambda: v1.train.RMSPropOptimizer(0.05, centered=True, momentum=0.7),
    "Adadelta": lambda: v1.train.AdadeltaOptimizer(1.0, rho=0.8, epsilon=1e-2),
    "Ftrl": lambda: v1.train.FtrlOptimizer(0.3),
    "Ftrl numbers": lambda: v1.train.FtrlOptimizer(
        0.3, learning_rate_power=-0.6, initial_accumulator_value=0.2,
        l1_regularization_strength=0.01, l2_regularization_strength=0.02, beta=0.1,
        l2_shrinkage_regularization_strength=0.03,
    ),
    "ProximalAdagrad": lambda: v1.train.ProximalAdagradOptimizer(
        0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.02
    ),
    "ProximalGradientDescent": lambda: v1.train.ProximalGradientDescentOptimizer(
        0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.02
    ),
}  # fmt: skip


@pytest.fixture
def session() -> Iterator[v1.Session]:
    with tf.Graph().as_default(), v1.Session() as session:
        yield session


def make_batches(steps: int, seed: int = 0) -> list[tuple[Array, Array]]:
    """Ids, each at least once and some several times, and weights of their rows."""
    rng = np.random.default_rng(seed)
    batches = []
    for _ in range(steps):
        ids = rng.permutation(np.concatenate([KEYS, rng.integers(0, COUNT, COUNT)])).reshape(4, 4)
        batches.append((ids, rng.standard_normal((4, 4, DIM)).astype(np.float32)))
    return batches


def variable(name: str = "table", **options: Any) -> Any:
    return de.get_variable(name, dim=DIM, initializer=initializer(), **options)


class Program:
    """In the default graph, one step of training, of a table or of dense rows."""

    def __init__(self, rows: Array | None = None, **options: Any) -> None:
        self.ids = v1.placeholder(tf.int64, [None, None])
        self.weights = v1.placeholder(tf.float32, [None, None, DIM])
        self.trainable = None
        if rows is None:
            self.table = variable(**options)
            found, self.trainable = de.embedding_lookup(self.table, self.ids, return_trainable=True)
            self.rows = self.table.lookup(tf.constant(KEYS))
        else:
            self.rows = v1.get_variable("rows", initializer=rows, use_resource=True)
            found = tf.matmul(tf.one_hot(self.ids, COUNT), self.rows)
        scale = v1.get_variable("scale", initializer=np.ones(DIM, np.float32), use_resource=True)
        self.scale = scale
        self.loss = tf.reduce_sum(tf.tanh(found * scale) * self.weights)

    def run(self, session: v1.Session, step: Any, batches: list[tuple[Array, Array]]) -> None:
        session.run(v1.global_variables_initializer())
        for ids, weights in batches:
            session.run(step, {self.ids: ids, self.weights: weights})


def initial_rows() -> Array:
    with tf.Graph().as_default(), v1.Session() as session:
        rows = variable().lookup(tf.constant(KEYS))
        session.run(v1.global_variables_initializer())
        return session.run(rows)


def dense_result(
    make_step: Callable[[Program], Any], batches: list[tuple[Array, Array]]
) -> tuple[Array, Array]:
    """The rows and the scale after the same steps on dense rows."""
    rows = initial_rows()
    with tf.Graph().as_default(), v1.Session() as session:
        program = Program(rows)
        program.run(session, make_step(program), batches)
        result = session.run((program.rows, program.scale))
    assert all(np.abs(a - b).mean() > 1e-3 for a, b in zip(result, (rows, 1.0), strict=True))
    return result


def check(session: v1.Session, program: Program, expected: tuple[Array, Array]) -> None:
    for actual, wanted in zip(session.run((program.rows, program.scale)), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer(session: v1.Session, name: str) -> None:
    program, plain = Program(), OPTIMIZERS[name]()
    optimizer = de.DynamicEmbeddingOptimizer(plain)
    assert optimizer is plain
    program.run(session, optimizer.minimize(program.loss), make_batches(STEPS))
    assert session.run(program.table.size()) == COUNT
    minimize = lambda dense: OPTIMIZERS[name]().minimize(dense.loss)  # noqa: E731
    check(session, program, dense_result(minimize, make_batches(STEPS)))


SOME = ("GradientDescent", "Adam", "Ftrl")


@pytest.mark.parametrize("name", SOME)
def test_the_variables_can_be_listed(session: v1.Session, name: str) -> None:
    program = Program()
    assert isinstance(program.trainable, de.TrainableWrapper)
    optimizer = de.DynamicEmbeddingOptimizer(OPTIMIZERS[name]())
    step = optimizer.minimize(program.loss, var_list=[program.trainable])
    program.run(session, step, make_batches(STEPS))
    rows, scale = session.run((program.rows, program.scale))
    np.testing.assert_array_equal(scale, np.ones(DIM, np.float32))
    initial = initial_rows()
    with tf.Graph().as_default(), v1.Session() as other:
        dense = Program(initial)
        step = OPTIMIZERS[name]().minimize(dense.loss, var_list=[dense.rows])
        dense.run(other, step, make_batches(STEPS))
        expected = other.run(dense.rows)
    assert np.abs(expected - initial).mean() > 1e-3
    np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SOME)
def test_gradients_can_be_changed(session: v1.Session, name: str) -> None:
    def make_step(program: Program) -> Any:
        optimizer = de.DynamicEmbeddingOptimizer(OPTIMIZERS[name]())
        pairs = optimizer.compute_gradients(program.loss)
        assert len(pairs) == 2
        halved = [
            (tf.IndexedSlices(g.values / 2, g.indices, g.dense_shape), v)
            if isinstance(g, tf.IndexedSlices)
            else (g / 2, v)
            for g, v in pairs
        ]
        return optimizer.apply_gradients(halved)

    program = Program()
    program.run(session, make_step(program), make_batches(STEPS))
    check(session, program, dense_result(make_step, make_batches(STEPS)))


@pytest.mark.parametrize("name", ["GradientDescent", "Adam"])
def test_rates_that_depend_on_the_step(session: v1.Session, name: str) -> None:
    kind = getattr(v1.train, f"{name}Optimizer")

    def make_step(program: Program) -> Any:
        global_step = v1.train.get_or_create_global_step()
        rate = v1.train.exponential_decay(0.2, global_step, 1, 0.5)
        optimizer = de.DynamicEmbeddingOptimizer(kind(rate))
        return optimizer.minimize(program.loss, global_step=global_step)

    program = Program()
    program.run(session, make_step(program), make_batches(STEPS))
    assert session.run(v1.train.get_global_step()) == STEPS
    check(session, program, dense_result(make_step, make_batches(STEPS)))


@pytest.mark.parametrize("name", ["Adam", "Momentum"])
def test_partitions_train_alike(session: v1.Session, name: str) -> None:
    def make_step(program: Program) -> Any:
        return de.DynamicEmbeddingOptimizer(OPTIMIZERS[name]()).minimize(program.loss)

    program = Program(devices=["/CPU:0", "/CPU:0"])
    program.run(session, make_step(program), make_batches(STEPS))
    sizes = [program.table.size(index) for index in range(2)]
    assert session.run(sizes) == [COUNT // 2] * 2
    check(session, program, dense_result(make_step, make_batches(STEPS)))


def adam(row: Array, slots: list[Array], gradient: Array, step: int) -> Array:
    slots[0] += (gradient - slots[0]) * (1 - 0.9)
    slots[1] += (gradient**2 - slots[1]) * (1 - 0.999)
    alpha = 0.1 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    return row - slots[0] * alpha / (np.sqrt(slots[1]) + 1e-8)


def momentum(row: Array, slots: list[Array], gradient: Array, step: int) -> Array:
    slots[0][:] = 0.8 * slots[0] + gradient
    return row - 0.1 * slots[0]


@pytest.mark.parametrize(("name", "rule"), [("Adam", adam), ("Momentum", momentum)])
def test_rows_and_slots_of_absent_keys_stay(session: v1.Session, name: str, rule: Any) -> None:
    table = variable()
    ids, weights = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.float32, [None, DIM])
    loss = tf.reduce_sum(de.embedding_lookup(table, ids, return_trainable=True)[0] * weights)
    step = de.DynamicEmbeddingOptimizer(OPTIMIZERS[name]()).minimize(loss)
    keys = np.array([-(2**60), -1, 0, 1, 2, 30, 2**62])
    found, size = table.lookup(tf.constant(keys)), table.size()
    session.run(v1.global_variables_initializer())
    rows = session.run(found).astype(np.float64)
    slots = [[np.zeros(DIM), np.zeros(DIM)] for _ in keys]
    rng, touched = np.random.default_rng(5), set()
    for number in range(1, 11):
        batch = rng.choice(rng.choice(len(keys), 3), 6)
        gradients = rng.standard_normal((6, DIM)).astype(np.float32)
        session.run(step, {ids: keys[batch], weights: gradients})
        for index in set(batch.tolist()):
            gradient = gradients[batch == index].sum(axis=0).astype(np.float64)
            rows[index] = rule(rows[index], slots[index], gradient, number)
        touched |= set(batch.tolist())
        np.testing.assert_allclose(session.run(found), rows, rtol=1e-4, atol=1e-5)
        assert session.run(size) == len(touched)


@pytest.fixture(scope="module")
def servers() -> list[Any]:
    """Three parameter servers and a worker."""
    sockets = [socket.socket() for _ in range(4)]
    for one in sockets:
        one.bind(("localhost", 0))
    names = [f"localhost:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    cluster = tf.train.ClusterSpec({"ps": names[:3], "worker": names[3:]})
    tasks = [("ps", 0), ("ps", 1), ("ps", 2), ("worker", 0)]
    return [v1.train.Server(cluster, job, index) for job, index in tasks]


PLACES: dict[str, Callable[[Any], Any]] = {
    "by rule": lambda cluster: v1.train.replica_device_setter(
        cluster=cluster, worker_device="/job:worker/task:0"
    ),
    "on the worker": lambda _: "/job:worker/task:0",
    "anywhere": lambda _: None,
}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["GradientDescent", "Adam"])
def test_tables_on_parameter_servers(servers: list[Any], name: str, place: str, count: int) -> None:
    def make_step(program: Program) -> Any:
        return de.DynamicEmbeddingOptimizer(OPTIMIZERS[name]()).minimize(program.loss)

    batches = make_batches(STEPS)
    expected = dense_result(make_step, batches)
    worker = servers[-1]
    devices = [f"/job:ps/replica:0/task:{task}/CPU:0" for task in (1, 0)[:count]]
    with tf.Graph().as_default(), v1.device(PLACES[place](worker.server_def.cluster)):
        # The servers still have the tables of another test.
        program = Program(devices=devices, name=f"{name}_{place.replace(' ', '_')}_{count}")
        step, sizes = make_step(program), [program.table.size(i) for i in range(count)]
        with v1.Session(worker.target) as session:
            program.run(session, step, batches)
            np.testing.assert_allclose(session.run(program.scale), expected[1], rtol=1e-5)
            np.testing.assert_allclose(session.run(program.rows), expected[0], rtol=1e-5, atol=1e-5)
            assert sum(session.run(sizes)) == COUNT


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("by_hand", [True, False])
def test_each_id_once_on_parameter_servers(servers: list[Any], place: str, by_hand: bool) -> None:
    """Only the table is trained: the optimizer's own variables need a device too."""
    worker = servers[-1]
    with tf.Graph().as_default(), v1.device(PLACES[place](worker.server_def.cluster)):
        name = f"once_{place.replace(' ', '_')}_{by_hand}"
        table = variable(name, devices=["/job:ps/replica:0/task:1/CPU:0"])
        ids = v1.placeholder(tf.int64, [None])
        if by_hand:
            unique, places = tf.unique(ids)
            rows = tf.gather(de.embedding_lookup(table, unique), places)
        else:
            rows = de.embedding_lookup_unique(table, ids)
        step = de.DynamicEmbeddingOptimizer(v1.train.AdamOptimizer(0.1)).minimize(
            tf.reduce_sum(rows)
        )
        found = table.lookup(tf.constant([3, 4, 5], tf.int64))
        with v1.Session(worker.target) as session:
            session.run(v1.global_variables_initializer())
            before = session.run(found)
            session.run(step, {ids: [3, 4, 4]})
            expected = before - np.float32([[0.1], [0.1], [0.0]])
            np.testing.assert_allclose(session.run(found), expected, rtol=1e-4, atol=1e-5)


def test_tables_on_several_devices() -> None:
    def make_step(program: Program) -> Any:
        return de.DynamicEmbeddingOptimizer(OPTIMIZERS["Adam"]()).minimize(program.loss)

    batches = make_batches(STEPS)
    expected = dense_result(make_step, batches)
    config = v1.ConfigProto(device_count={"CPU": 2})
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        program = Program(devices=["/CPU:0", "/CPU:1"])
        program.run(session, make_step(program), batches)
        check(session, program, expected)


def test_a_variable_that_is_not_trainable_stays(session: v1.Session) -> None:
    frozen = variable(trainable=False)
    rows = de.embedding_lookup(frozen, tf.constant(KEYS))
    scale = v1.get_variable("scale", initializer=np.ones(DIM, np.float32), use_resource=True)
    optimizer = de.DynamicEmbeddingOptimizer(v1.train.GradientDescentOptimizer(0.1))
    step = optimizer.minimize(tf.reduce_sum(rows * scale))
    session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
    before = session.run(rows)
    session.run(step)
    np.testing.assert_array_equal(session.run(rows), before)
    assert session.run(frozen.size()) == 0
    assert np.abs(session.run(scale) - 1.0).min() > 0
    assert v1.trainable_variables() == [scale]


def test_a_dense_gradient_is_refused(session: v1.Session) -> None:
    rows, trainable = de.embedding_lookup(
        variable(), tf.constant([1], tf.int64), return_trainable=True
    )
    gradient = tf.gradients(tf.reduce_sum(rows), rows)[0]
    optimizer = de.DynamicEmbeddingOptimizer(v1.train.GradientDescentOptimizer(0.1))
    with pytest.raises(TypeError, match="IndexedSlices"):
        optimizer.apply_gradients([(gradient, trainable)])


class AssigningOptimizer(v1.train.Optimizer):  # type: ignore[misc]
    """Momentum that calls the methods of variables, as users write optimizers."""

    def __init__(self) -> None:
        super().__init__(use_locking=False, name="Assigning")

    def _create_slots(self, var_list: Any) -> None:
        for one in var_list:
            self._zeros_slot(one, "sum", self._name)

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        total = self.get_slot(var, "sum")
        added = total.assign_add(grad)
        with tf.control_dependencies([added]):
            return var.assign_sub(0.1 * tf.convert_to_tensor(total.read_value()))


def test_an_optimizer_that_assigns() -> None:
    def make_step(program: Program) -> Any:
        return de.DynamicEmbeddingOptimizer(AssigningOptimizer()).minimize(program.loss)

    batches = make_batches(STEPS)
    expected = dense_result(make_step, batches)
    with tf.Graph().as_default(), v1.Session() as session:
        program = Program()
        program.run(session, make_step(program), batches)
        check(session, program, expected)


class DecayingOptimizer(v1.train.Optimizer):  # type: ignore[misc]
    """Momentum with weight decay that uses arithmetic on variables."""

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self._zeros_slot(var, "m", self._name)

    def _resource_apply_dense(self, grad: tf.Tensor, var: Any) -> Any:
        assert var.op.name
        assert var.graph is grad.graph
        m = self.get_slot(var, "m")
        decay = 0.0 if "bias" in var.name else 0.5
        mean = m * 0.5 + grad
        change = 0.1 * (mean + decay * var) / (1.0 + abs(var[:, :1]) * 0.0)
        return tf.group(m.assign(mean), var.assign(var - change))


@pytest.mark.parametrize(("name", "decay"), [("weights", 0.5), ("bias", 0.0)])
def test_an_optimizer_that_reckons_with_variables(
    session: v1.Session, name: str, decay: float
) -> None:
    table = de.Variable(dim=2, initializer=1.0, name=name)
    rows = de.embedding_lookup(table, tf.constant([3, 5], tf.int64))
    optimizer = de.DynamicEmbeddingOptimizer(DecayingOptimizer(False, "Decaying"))
    step = optimizer.minimize(tf.reduce_sum(rows * rows))
    read = table.lookup(tf.constant([3, 5], tf.int64))
    session.run(v1.global_variables_initializer())
    row, mean = 1.0, 0.0
    for _ in range(3):
        session.run(step)
        mean = mean * 0.5 + 2 * row
        row -= 0.1 * (mean + decay * row)
        np.testing.assert_allclose(session.run(read), np.full([2, 2], row), rtol=1e-6)


def test_a_tape_in_a_graph(session: v1.Session) -> None:
    table = variable()
    dense = v1.get_variable("dense", [1], initializer=v1.ones_initializer())
    with tf.GradientTape() as tape:
        rows, trainable = de.embedding_lookup(
            table, tf.constant([3, 5], tf.int64), return_trainable=True
        )
        loss = tf.reduce_sum(rows * rows) + tf.reduce_sum(dense)
    gradient, of_dense = tape.gradient(loss, [trainable, dense])
    session.run(v1.global_variables_initializer())
    values, indices, plain, found = session.run((gradient.values, gradient.indices, of_dense, rows))
    assert indices.tolist() == [3, 5]
    np.testing.assert_allclose(values, 2 * found)
    assert plain.tolist() == [1.0]


def test_several_lookups_of_one_table(session: v1.Session) -> None:
    table = variable()
    first, one = de.embedding_lookup(table, tf.constant([1, 2], tf.int64), return_trainable=True)
    second, other = de.embedding_lookup(table, tf.constant([2, 3], tf.int64), return_trainable=True)
    loss = tf.reduce_sum(first) + 10 * tf.reduce_sum(second)
    optimizer = de.DynamicEmbeddingOptimizer(v1.train.GradientDescentOptimizer(0.5))
    trainables = [one] if one is other else [one, other]
    step = optimizer.minimize(loss, var_list=trainables)
    rows = table.lookup(tf.constant(KEYS[:5]))
    session.run(v1.global_variables_initializer())
    before = session.run(rows)
    session.run(step)
    expected = np.repeat([[0.0], [-0.5], [-5.5], [-5.0], [0.0]], DIM, axis=1)
    np.testing.assert_allclose(session.run(rows) - before, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["embedding_lookup_unique", "sparse", "safe"])
def test_the_other_lookup_functions_train(session: v1.Session, name: str) -> None:
    table = variable()
    ids = tf.sparse.from_dense(tf.constant([[1, 2, 2], [3, 0, 0]], tf.int64))
    if name == "embedding_lookup_unique":
        flat = tf.constant([[1, 2], [2, 3]], tf.int64)
        found, trainable = de.embedding_lookup_unique(table, flat, return_trainable=True)
    elif name == "sparse":
        found, trainable = de.embedding_lookup_sparse(
            table, ids, None, combiner="sum", return_trainable=True
        )
    else:
        found, trainable = de.safe_embedding_lookup_sparse(
            table, ids, combiner="sum", return_trainable=True
        )
    optimizer = de.DynamicEmbeddingOptimizer(v1.train.GradientDescentOptimizer(0.5))
    step = optimizer.minimize(tf.reduce_sum(found), var_list=[trainable])
    rows = table.lookup(tf.constant(KEYS[:5]))
    session.run(v1.global_variables_initializer())
    before = session.run(rows)
    session.run(step)
    expected = np.repeat([[0.0], [-0.5], [-1.0], [-0.5], [0.0]], DIM, axis=1)
    np.testing.assert_allclose(session.run(rows) - before, expected, rtol=1e-5, atol=1e-5)
    assert session.run(table.size()) == 3
    session.run(step)
    np.testing.assert_allclose(session.run(rows) - before, 2 * expected, rtol=1e-5, atol=1e-5)


def test_trainables_are_among_the_trainable_variables(session: v1.Session) -> None:
    program = Program()
    others, trainables = de.trainable_wrapper_filter(v1.trainable_variables())
    assert [one is program.trainable for one in trainables] == [True]
    assert [one is program.scale for one in others] == [True]


def test_lookups_without_training_insert_nothing(session: v1.Session) -> None:
    program = Program()
    de.DynamicEmbeddingOptimizer(v1.train.AdamOptimizer()).minimize(program.loss)
    program.run(session, program.loss, make_batches(2))
    assert session.run(program.table.size()) == 0
