"""What programs read of optimizers and trainables: slots, the rows of a lookup, and their ids."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_support import de

v1 = tf.compat.v1
KEYS = [3, 1, 2]


def train(table: Any, optimizer: Any, keys: list[int] = KEYS, steps: int = 2) -> Any:
    """Takes steps with the gradients 1, 2, ... of the rows of the keys."""
    scale = tf.range(1, len(keys) + 1, dtype=tf.float32)[:, None]
    for _ in range(steps):
        with tf.GradientTape() as tape:
            rows, trainable = de.embedding_lookup(table, keys, return_trainable=True)
            loss = tf.reduce_sum(rows * scale)
        optimizer.apply([tape.gradient(loss, trainable)], [trainable])
    return trainable


class OfOwn(keras.optimizers.Adam):
    """The engine has no kernel for this optimizer, so Keras updates rows and slots."""


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "Adam": lambda: keras.optimizers.Adam(0.1, amsgrad=True),
    "Adam decay": lambda: keras.optimizers.Adam(0.1, weight_decay=0.01),
    "AdamW": lambda: keras.optimizers.AdamW(0.1),
    "Adamax": lambda: keras.optimizers.Adamax(0.1),
    "Nadam": lambda: keras.optimizers.Nadam(0.1),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "Adadelta": lambda: keras.optimizers.Adadelta(0.1),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.1, momentum=0.5, centered=True),
    "Ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "Lion": lambda: keras.optimizers.Lion(0.1),
    "SGD": lambda: keras.optimizers.SGD(0.1),
    "SGD momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "own": lambda: OfOwn(0.1),
}


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_slots_are_those_of_dense_training(name: str, devices: int) -> None:
    table = de.Variable(dim=2, initializer=1.0, devices=["/CPU:0"] * devices)
    optimizer, dense_optimizer = OPTIMIZERS[name](), OPTIMIZERS[name]()
    assert table.get_slot_variables(optimizer) == []
    train(table, optimizer)

    dense = keras.Variable(np.ones([4, 2], np.float32))
    gradient = tf.constant([[0.0, 0], [2, 2], [3, 3], [1, 1]])
    for _ in range(2):
        dense_optimizer.apply([gradient], [dense])

    slots = table.get_slot_variables(optimizer)
    of_dense = [v for v in dense_optimizer.variables if v.shape == dense.shape]
    assert len(slots) == len(of_dense)
    for slot in slots:
        [dense_slot] = [v for v in of_dense if v.path.endswith(f"_{slot.slot_name}")]
        assert slot.dim == 2
        assert slot.params is table
        np.testing.assert_allclose(slot.lookup([[1], [2], [3]])[:, 0], dense_slot[1:], rtol=2e-5)
        keys, values = slot.export()
        assert sorted(keys.numpy().tolist()) == [1, 2, 3]
        np.testing.assert_allclose(values, tf.gather(dense_slot, keys), rtol=2e-5)
        assert slot.size() == 3


def test_slots_of_keys_that_are_missing_are_initial_ones() -> None:
    table = de.Variable(dim=2)
    optimizer = keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.25)
    train(table, optimizer)
    [accumulator] = table.get_slot_variables(optimizer)
    assert accumulator.lookup([9]).numpy().tolist() == [[0.25, 0.25]]
    assert table.size() == 3
    assert repr(accumulator) == f"<SlotVariable '{table.name}/accumulator': int64 -> 2 numbers>"


def test_slots_of_16_bit_rows_and_of_one_number() -> None:
    table = de.Variable(dim=4, value_dtype=tf.bfloat16)
    optimizer = de.keras.optimizers.RowwiseAdagrad(0.1, initial_accumulator_value=0.0)
    with tf.GradientTape() as tape:
        rows, trainable = de.embedding_lookup(table, [5], return_trainable=True)
        loss = tf.reduce_sum(rows * tf.constant(3, tf.bfloat16))
    optimizer.apply([tape.gradient(loss, trainable)], [trainable])
    [accumulator] = table.get_slot_variables(optimizer)
    assert (accumulator.dim, accumulator.value_dtype) == (1, tf.float32)
    assert accumulator.lookup([5]).numpy().tolist() == [[9.0]]


def test_slots_under_loss_scaling() -> None:
    table = de.Variable(dim=2)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adagrad(0.1))
    de.DynamicEmbeddingOptimizer(optimizer)
    train(table, optimizer)
    assert [slot.slot_name for slot in table.get_slot_variables(optimizer)] == ["accumulator"]


@pytest.mark.parametrize("kind", [keras.optimizers.Adam, keras.optimizers.Adagrad])
def test_reading_slots_changes_nothing(kind: Any) -> None:
    """Another optimizer has bound to the table: its slots replace those of the first."""
    table = de.Variable(dim=2)
    first, second = keras.optimizers.Adagrad(0.1), kind(0.1)
    train(table, first)
    [accumulator] = table.get_slot_variables(first)
    train(table, second)
    slot = table.get_slot_variables(second)[0]
    before = slot.lookup(KEYS).numpy()
    assert before.any()
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"Expected those of 'adagrad"):
        accumulator.lookup(KEYS)
    np.testing.assert_array_equal(slot.lookup(KEYS), before)


def test_slots_that_start_as_the_row() -> None:
    class Follows(keras.optimizers.Optimizer):
        """Keeps the previous value of the variable in a slot."""

        def build(self, variables: Any) -> None:
            if self.built:
                return
            super().build(variables)
            self.before = [self.add_variable_from_reference(v, name="before") for v in variables]
            for slot, variable in zip(self.before, variables, strict=True):
                slot.assign(variable)

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            slot = self.before[self._get_variable_index(variable)]
            slot.assign(variable)
            self.assign_sub(variable, gradient * learning_rate)

    table = de.Variable(dim=2, initializer=3.0)
    optimizer = Follows(1.0)
    train(table, optimizer, [1], steps=2)
    table.upsert([2], [[5.0, 5.0]])
    [before] = table.get_slot_variables(optimizer)
    assert before.lookup([1, 2, 9]).numpy()[:, 0].tolist() == [2.0, 5.0, 3.0]


def test_optimizers_may_have_any_names() -> None:
    class Named(keras.optimizers.SGD):
        _rule = trains_tables = "mine"

        def rule_for(self) -> None: ...

    table, optimizer = de.Variable(dim=2), Named(1.0)
    train(table, optimizer, steps=1)
    assert table.get_slot_variables(optimizer) == []
    assert table.lookup(KEYS).numpy()[:, 0].tolist() == [-1.0, -2.0, -3.0]


def test_slots_of_other_things() -> None:
    table, other = de.Variable(dim=2, name="one"), de.Variable(dim=2, name="other")
    optimizer = keras.optimizers.Adam()
    train(table, optimizer)
    assert other.get_slot_variables(optimizer) == []
    with pytest.raises(TypeError, match=r"expected an optimizer of Keras .* received 'adam'"):
        table.get_slot_variables("adam")
    with pytest.raises(TypeError, match="int64"):
        table.get_slot_variables(optimizer)[0].lookup(["a"])


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "alone": lambda adam: adam,
    "scaled": keras.optimizers.LossScaleOptimizer,
    "several": lambda adam: keras.optimizers.MultiOptimizer(lambda variable: adam),
    "v1": lambda _: v1.train.AdamOptimizer(0.1),
}
if not hasattr(keras.optimizers, "MultiOptimizer"):
    del WRAPPED["several"]


@pytest.mark.parametrize("name", WRAPPED)
def test_names_of_slots(name: str) -> None:
    table = de.Variable(dim=2)
    optimizer = de.DynamicEmbeddingOptimizer(WRAPPED[name](keras.optimizers.Adam()))
    assert optimizer.get_slot_names() == []
    with tf.GradientTape() as tape:
        rows, trainable = de.embedding_lookup(table, KEYS, return_trainable=True)
    optimizer.apply_gradients([(tape.gradient(rows, trainable), trainable)])
    names = optimizer.get_slot_names()
    assert names == [slot.slot_name for slot in table.get_slot_variables(optimizer)]
    assert names == (["m", "v"] if name == "v1" else ["momentum", "velocity"])


def test_a_checkpoint_of_an_optimizer_and_a_shadow(tmp_path: Path) -> None:
    """TensorFlow asks the optimizer for slots of all objects that it saves."""

    def make() -> tuple[Any, Any, tf.train.Checkpoint]:
        table = de.Variable(dim=2)
        shadow = de.shadow_ops.ShadowVariable(table)
        optimizer = de.DynamicEmbeddingOptimizer(v1.train.AdamOptimizer(0.1))
        parts = {"table": table, "shadow": shadow, "optimizer": optimizer}
        return shadow, optimizer, tf.train.Checkpoint(**parts)

    def step(shadow: Any, optimizer: Any) -> Any:
        with tf.GradientTape() as tape:
            rows = de.shadow_ops.embedding_lookup(shadow, tf.constant(KEYS, tf.int64))
        optimizer.apply_gradients([(tape.gradient(rows, shadow), shadow)])
        return optimizer.get_slot(shadow, "v").lookup(KEYS).numpy()

    shadow, optimizer, checkpoint = make()
    step(shadow, optimizer)
    path = checkpoint.write(str(tmp_path / "checkpoint"))
    other, after, restored = make()
    status = restored.read(path)
    np.testing.assert_array_equal(step(other, after), step(shadow, optimizer))
    status.assert_consumed()


def test_slots_in_a_graph_of_tf1() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        table = de.get_variable("table", dim=2, initializer=1.0)
        rows, trainable = de.embedding_lookup(table, KEYS, return_trainable=True)
        optimizer = de.DynamicEmbeddingOptimizer(v1.train.AdagradOptimizer(0.1))
        assert optimizer.get_slot(trainable, "accumulator") is None
        step = optimizer.minimize(tf.reduce_sum(rows) * 2.0)
        accumulator = optimizer.get_slot(trainable, "accumulator")
        assert optimizer.get_slot(trainable, "other") is None
        read, slots = accumulator.lookup(KEYS), table.get_slot_variables(optimizer)
        assert [slot.name for slot in slots] == ["table/accumulator"]
        session.run(v1.global_variables_initializer())
        session.run(step)
        np.testing.assert_allclose(session.run(read), np.full([3, 2], 4.1), rtol=1e-6)


# --- Trainables.


def test_a_trainable_knows_the_last_lookup() -> None:
    table = de.Variable(dim=2, initializer=1.0)
    trainable = table.get_trainable_by_name("any")
    assert trainable.ids is None
    for read in (trainable.prefetch_values, trainable.update_op):
        with pytest.raises(ValueError, match="expected one before this"):
            read()
    assert trainable.read_value().shape == trainable.shape == trainable.get_shape() == (0, 2)
    rows, same = de.embedding_lookup(table, [[3], [4]], return_trainable=True, name="any")
    assert same is trainable
    assert rows.shape == [2, 1, 2]
    assert trainable.ids.numpy().tolist() == [3, 4]
    assert trainable.size() == 0
    table.upsert([3], [[6.0, 8.0]])
    assert trainable.update_op() is None
    assert trainable.read_value().numpy().tolist() == [[6.0, 8.0], [1.0, 1.0]]
    assert trainable.prefetch_values(update=True).numpy().tolist() == [[6.0, 8.0], [1.0, 1.0]]
    assert trainable.size() == 2
    assert table.lookup([3, 4]).numpy().tolist() == [[6.0, 8.0], [1.0, 1.0]]
    de.embedding_lookup_sparse(table, tf.sparse.from_dense(tf.constant([[7]], tf.int64)), None)
    assert trainable.ids.numpy().tolist() == [7]
    with pytest.raises(TypeError, match="expected a string"):
        table.get_trainable_by_name(7)


def test_trainables_by_name() -> None:
    table = de.Variable(dim=2, initializer=1.0)
    shadow = de.shadow_ops.ShadowVariable(table, name="mine")
    assert table.get_trainable_by_name("mine") is shadow
    assert table.trainable_store["mine"] is shadow
    assert list(table.trainable_store) == ["mine"]
    other = table.get_trainable_by_name("other")
    assert other is not shadow
    assert table.trainable_store["other"] is other
    with tf.GradientTape() as tape:
        rows = de.shadow_ops.embedding_lookup(shadow, tf.constant([7], tf.int64))
    gradient = tape.gradient(rows, table.get_trainable_by_name("mine"))
    assert gradient.indices.numpy().tolist() == [7]
    del shadow, tape, rows, gradient
    gc.collect()
    assert table.get_trainable_by_name("mine") is other


def test_rows_that_a_trainable_reads_have_gradients() -> None:
    table = de.Variable(dim=2, initializer=1.0)
    _, trainable = de.embedding_lookup(table, [3, 4], return_trainable=True)
    with tf.GradientTape() as tape:
        loss = tf.nn.l2_loss(trainable.read_value())
    gradient = tape.gradient(loss, trainable)
    assert gradient.indices.numpy().tolist() == [3, 4]
    assert gradient.values.numpy().tolist() == [[1.0, 1.0]] * 2


def test_a_trainable_clips_rows() -> None:
    table = de.Variable(dim=2, initializer=4.0)
    shadow = de.shadow_ops.ShadowVariable(table, max_norm=1.0)
    rows = de.shadow_ops.embedding_lookup(shadow, tf.constant([1], tf.int64))
    np.testing.assert_allclose(shadow.read_value(), rows)
    np.testing.assert_allclose(tf.norm(shadow.transform(tf.constant([[3.0, 4.0]]))), 1.0)


def test_ids_of_functions_stay_there() -> None:
    table = de.Variable(dim=2, initializer=4.0)
    trainable = table.get_trainable_by_name("any")

    @tf.function
    def lookup(ids: tf.Tensor) -> Any:
        de.embedding_lookup(table, ids)
        here, rows = trainable.ids, trainable.read_value()

        def branch() -> tf.Tensor:
            outer = trainable.read_value()
            de.embedding_lookup(table, tf.concat([ids, ids], 0))
            return tf.reduce_sum(outer) + 100.0 * tf.reduce_sum(trainable.read_value())

        total = tf.cond(tf.size(ids) > 0, branch, lambda: tf.ones([]))
        return here, rows, total, trainable.ids

    ids, rows, total, after = lookup(tf.constant([[1]], tf.int64))
    assert (ids.numpy().tolist(), rows.numpy().tolist()) == ([1], [[4.0, 4.0]])
    assert (float(total), after.numpy().tolist()) == (1608.0, [1])
    assert trainable.ids is None
    assert trainable.read_value().shape == (0, 2)
    with pytest.raises(ValueError, match="Use what the lookup returned"):
        trainable.update_op()
    de.embedding_lookup(table, [5])
    lookup(tf.constant([[1, 2]], tf.int64))
    assert trainable.ids.numpy().tolist() == [5]

    @tf.function
    def another() -> bool:
        return trainable.ids is None

    assert another()


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("pooled", [False, True])
def test_a_penalty_on_a_trainable(in_function: bool, pooled: bool) -> None:
    """A shadow as a tensor is the rows of the last lookup; optimizers see no rows."""
    table = de.Variable(dim=2, initializer=2.0)
    optimizer = keras.optimizers.SGD(0.25, momentum=0.5)

    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            if pooled:
                ids = tf.sparse.from_dense(tf.constant([[3], [4]], tf.int64))
                rows, trainable = de.embedding_lookup_sparse(
                    table, ids, None, combiner="sum", return_trainable=True
                )
            else:
                rows, trainable = de.embedding_lookup(
                    table, tf.constant([[3], [4]], tf.int64), return_trainable=True
                )
            loss = tf.reduce_sum(rows) + tf.nn.l2_loss(trainable)
        optimizer.apply_gradients([(tape.gradient(loss, trainable), trainable)])
        return tf.matmul(trainable, tf.ones([2, 1]))

    product = (tf.function(step) if in_function else step)()
    # A gradient of 1, and of the penalty 2.
    assert table.lookup([3, 4, 5]).numpy().tolist() == [[1.25, 1.25]] * 2 + [[2.0, 2.0]]
    assert product.numpy().tolist() == [[2.5], [2.5]]


class GraphOfTf1:
    """A step of training in a graph of TensorFlow 1, fed with ids."""

    def __init__(self) -> None:
        self.table = de.get_variable("table", dim=2, initializer=1.0)
        self.ids = v1.placeholder(tf.int64, [None, 1])
        rows, self.trainable = de.embedding_lookup(self.table, self.ids, return_trainable=True)
        optimizer = de.DynamicEmbeddingOptimizer(v1.train.GradientDescentOptimizer(0.5))
        self.step = optimizer.minimize(tf.reduce_sum(rows), var_list=[self.trainable])


def test_a_trainable_is_read_in_a_graph_of_tf1() -> None:
    with tf.Graph().as_default() as graph, v1.Session() as session:
        program = GraphOfTf1()
        trainable = program.trainable
        with tf.control_dependencies([program.step]):
            after = trainable.read_value(do_prefetch=False)
        read, written, size = trainable.read_value(), trainable.update_op(), trainable.size()
        [gradient] = tf.gradients(tf.nn.l2_loss(read), [trainable])
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        graph.finalize()
        given = {program.ids: [[3], [4]]}
        assert session.run(trainable.ids, given).tolist() == [3, 4]
        assert session.run(read, given).tolist() == [[1.0, 1.0]] * 2
        assert session.run(gradient.indices, given).tolist() == [3, 4]
        assert session.run(after, given).tolist() == [[0.5, 0.5]] * 2
        session.run(written, given)
        assert session.run(size) == 2


def test_a_trainable_is_a_variable_to_tf1(tmp_path: Path) -> None:
    """Savers of all trainable variables work, and averages of those that are no tables."""
    with tf.Graph().as_default(), v1.Session() as session:
        program = GraphOfTf1()
        v1.get_variable("w", initializer=np.ones(2, np.float32))
        averaged, tables = de.trainable_wrapper_filter(v1.trainable_variables())
        assert tables == (program.trainable,)
        average = v1.train.ExponentialMovingAverage(0.9).apply(averaged)
        saver = v1.train.Saver(v1.trainable_variables())
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        session.run([program.step, average], {program.ids: [[3]]})
        saver.save(session, str(tmp_path / "model"))


def test_a_trainable_as_a_tensor_is_its_rows() -> None:
    """The ids of the last lookup; no initializer has to run for them."""
    with tf.Graph().as_default() as graph, v1.Session() as session:
        program = GraphOfTf1()
        trainable = program.trainable
        product = tf.matmul(trainable, tf.ones([2, 1]))
        v1.summary.histogram("rows", trainable)
        summaries = v1.summary.merge_all()
        graph.finalize()
        given = {program.ids: [[3], [4], [5]]}
        assert session.run(trainable, given).tolist() == [[1.0, 1.0]] * 3
        assert session.run(product, given).tolist() == [[2.0]] * 3
        summary = v1.Summary.FromString(session.run(summaries, given))
        assert summary.value[0].histo.num == 6


def test_rows_of_a_pooled_lookup_are_read_without_what_asks_for_them() -> None:
    """In any order and any context, also in a finalized graph."""
    with tf.Graph().as_default() as graph, v1.Session() as session:
        table = de.get_variable("table", dim=2, initializer=2.0)
        ids = tf.sparse.from_dense(tf.constant([[3], [4]], tf.int64))
        rows, trainable = de.embedding_lookup_sparse(
            table, ids, None, combiner="sum", return_trainable=True
        )
        optimizer = de.DynamicEmbeddingOptimizer(v1.train.GradientDescentOptimizer(1.0))
        step = optimizer.minimize(tf.reduce_sum(rows))
        with tf.control_dependencies([step]):
            tf.identity(trainable)
        total = tf.reduce_sum(trainable)
        graph.finalize()
        assert session.run(total) == 8.0
        assert session.run(trainable).tolist() == [[2.0, 2.0]] * 2
        assert session.run(total) == 8.0


def test_a_trainable_is_clipped_as_its_lookup() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        table = de.get_variable("table", dim=2, initializer=2.0)
        rows, trainable = de.embedding_lookup(table, [3], max_norm=1.0, return_trainable=True)
        np.testing.assert_array_equal(*session.run([rows, trainable]))


@pytest.mark.parametrize("pooled", [False, True])
def test_a_penalty_on_all_trainable_variables(pooled: bool) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        table = de.get_variable("table", dim=2, initializer=2.0)
        ids = tf.sparse.from_dense(tf.constant([[3], [4]], tf.int64))
        if pooled:
            rows = de.embedding_lookup_sparse(table, ids, None, combiner="sum")
        else:
            rows = de.embedding_lookup(table, ids.values)
        dense = v1.get_variable("w", initializer=np.float32([2.0, 2.0]))
        penalty = tf.add_n([tf.nn.l2_loss(v) for v in v1.trainable_variables()])
        optimizer = de.DynamicEmbeddingOptimizer(v1.train.GradientDescentOptimizer(0.25))
        step = optimizer.minimize(tf.reduce_sum(rows) + tf.reduce_sum(dense) + penalty)
        found = table.lookup([3, 4, 5])
        session.run(v1.global_variables_initializer())
        session.run(step)
        # A gradient of 1, and of the penalty 2.
        assert session.run(found).tolist() == [[1.25, 1.25]] * 2 + [[2.0, 2.0]]
        assert session.run(dense).tolist() == [1.25, 1.25]


def test_ids_of_branches_stay_there() -> None:
    with tf.Graph().as_default():
        table = de.get_variable("table", dim=2)
        rows, trainable = de.embedding_lookup(table, [5], return_trainable=True)
        before = trainable.ids
        taken = v1.placeholder(tf.bool, [])
        tf.cond(taken, lambda: de.embedding_lookup(table, [6]), lambda: rows)
        assert trainable.ids is before
