"""What programs read of optimizers and trainables: slots, the rows of a lookup, and their ids."""

from __future__ import annotations

from collections.abc import Callable
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
    """Not known to the engine, which has its rows and slots updated by Keras."""


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "Adam": lambda: keras.optimizers.Adam(0.1, amsgrad=True),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "Ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "SGD": lambda: keras.optimizers.SGD(0.1),
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
    of_dense = {v.path.rsplit("_", 1)[-1]: v for v in dense_optimizer.variables[2:]}
    assert len(slots) == len(of_dense)
    for slot, dense_slot in zip(slots, of_dense.values(), strict=True):
        assert slot.dim == 2
        assert slot.params is table
        assert dense_slot.path.endswith(slot.slot_name)
        np.testing.assert_allclose(slot.lookup([[1], [2], [3]])[:, 0], dense_slot[1:], rtol=1e-6)
        keys, values = slot.export()
        assert sorted(keys.numpy().tolist()) == [1, 2, 3]
        np.testing.assert_allclose(values, tf.gather(dense_slot, keys), rtol=1e-6)
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


def test_reading_slots_changes_nothing() -> None:
    """Another optimizer has taken the table: its slots stay, and the first one's are gone."""
    table = de.Variable(dim=2)
    first, second = keras.optimizers.Adagrad(0.1), keras.optimizers.Adam(0.1)
    train(table, first)
    [accumulator] = table.get_slot_variables(first)
    train(table, second)
    momentum, _ = table.get_slot_variables(second)
    before = momentum.lookup(KEYS).numpy()
    assert before.any()
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"'adagrad.*with that of 'adam'"):
        accumulator.lookup(KEYS)
    np.testing.assert_array_equal(momentum.lookup(KEYS), before)


def test_slots_of_other_things() -> None:
    table, other = de.Variable(dim=2, name="one"), de.Variable(dim=2, name="other")
    optimizer = keras.optimizers.Adam()
    train(table, optimizer)
    assert other.get_slot_variables(optimizer) == []
    with pytest.raises(TypeError, match=r"expected an optimizer of Keras 3 .* received 'adam'"):
        table.get_slot_variables("adam")
    with pytest.raises(TypeError, match="int64"):
        table.get_slot_variables(optimizer)[0].lookup(["a"])


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
    with pytest.raises(ValueError, match="not looked up yet"):
        trainable.prefetch_values()
    rows, same = de.embedding_lookup(table, [[3], [4]], return_trainable=True, name="any")
    assert same is trainable
    assert rows.shape == [2, 1, 2]
    assert trainable.ids.numpy().tolist() == [3, 4]
    assert trainable.update_op() is None
    table.upsert([3], [[6.0, 8.0]])
    assert trainable.read_value().numpy().tolist() == [[6.0, 8.0], [1.0, 1.0]]
    assert trainable.prefetch_values(update=True).numpy().tolist() == [[6.0, 8.0], [1.0, 1.0]]
    assert trainable.size() == 1
    with pytest.raises(TypeError, match="expected a string"):
        table.get_trainable_by_name(7)


def test_a_trainable_clips_rows() -> None:
    table = de.Variable(dim=2, initializer=4.0)
    shadow = de.shadow_ops.ShadowVariable(table, max_norm=1.0)
    rows = de.shadow_ops.embedding_lookup(shadow, tf.constant([1], tf.int64))
    np.testing.assert_allclose(shadow.read_value(), rows)
    np.testing.assert_allclose(tf.norm(shadow.transform(tf.constant([[3.0, 4.0]]))), 1.0)


def test_ids_of_functions_stay_there() -> None:
    table = de.Variable(dim=2)
    lookup = tf.function(lambda ids: de.embedding_lookup(table, ids))
    lookup(tf.constant([1], tf.int64))
    assert table.get_trainable_by_name("any").ids is None


def test_a_trainable_is_read_in_a_graph_of_tf1() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        table = de.get_variable("table", dim=2, initializer=1.0)
        ids = v1.placeholder(tf.int64, [None, 1])
        rows, trainable = de.embedding_lookup(table, ids, return_trainable=True)
        optimizer = de.DynamicEmbeddingOptimizer(v1.train.GradientDescentOptimizer(0.5))
        step = optimizer.minimize(tf.reduce_sum(rows), var_list=[trainable])
        with tf.control_dependencies([step]):
            after = trainable.read_value(do_prefetch=False)
        doubled, written = tf.multiply(trainable, 2.0), trainable.update_op()
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        given = {ids: [[3], [4]]}
        assert session.run(trainable.ids, given).tolist() == [3, 4]
        assert session.run(trainable, given).tolist() == [[1.0, 1.0]] * 2
        assert session.run(doubled, given).tolist() == [[2.0, 2.0]] * 2
        assert session.run(after, given).tolist() == [[0.5, 0.5]] * 2
        session.run(written, given)
        assert session.run(trainable.size()) == 2
