"""One table, used by TensorFlow and by NumPy in one process through one handle."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfra

de = tfra.dynamic_embedding


def train(variable: de.Variable, optimizer: keras.optimizers.Optimizer, ids: list[int]) -> None:
    with tf.GradientTape() as tape:
        rows, shadow = de.embedding_lookup(variable, ids, return_trainable=True)
        loss = tf.reduce_sum(rows)
    optimizer.apply_gradients([(tape.gradient(loss, shadow), shadow)])


def test_a_variable_is_read_and_written_by_numpy() -> None:
    variable = de.Variable(dim=2, initializer=-1.0)
    table = tfra.Table.from_handle(variable.tables[0].handle())
    variable.upsert([7], [[1.0, 2.0]])
    assert table.lookup([7, 8]).tolist() == [[1.0, 2.0], [-1.0, -1.0]]
    table.upsert([8], [[3.0, 4.0]])
    assert variable.lookup([8]).numpy().tolist() == [[3.0, 4.0]]
    assert int(variable.size()) == len(table) == 2


def test_both_train_one_table_with_one_count_of_steps() -> None:
    layer = de.keras.layers.Embedding(4, initializer="ones")
    model = keras.Sequential([keras.Input((1,), dtype="int64"), layer])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    ids, targets = np.array([[5], [6]]), np.zeros((2, 1, 4), np.float32)
    model.fit(ids, targets, epochs=3, verbose=0)
    shared = tfra.Table.from_handle(layer.params.tables[0].handle(), optimizer="adam")
    assert shared.slot_names == ("momentum", "velocity")
    assert shared.step == 3
    before = shared.lookup([5])
    shared.apply_gradients([5], np.ones((1, 4), np.float32))
    assert shared.step == 4
    assert (shared.lookup([5]) < before).all()
    np.testing.assert_array_equal(model.predict(ids, verbose=0)[0, 0], shared.lookup([5])[0])


def test_a_rule_that_comes_later_changes_the_table_for_both() -> None:
    variable = de.Variable(dim=2, initializer=0.0)
    variable.upsert([1], [[1.0, 1.0]])
    table = tfra.Table.from_handle(variable.tables[0].handle())
    train(variable, keras.optimizers.Adagrad(0.5), [1])
    assert table.spec.rule.kind == "adagrad"
    np.testing.assert_array_equal(table.lookup([1]), variable.lookup([1]).numpy())


def test_a_step_of_another_rule_takes_the_place_of_the_optimizer() -> None:
    variable = de.Variable(dim=2)
    table = tfra.Table.from_handle(variable.tables[0].handle(), optimizer="adam")
    ftrl = keras.optimizers.Ftrl(0.5, name="displaced")

    def step() -> None:
        _, shadow = de.embedding_lookup(variable, [1], return_trainable=True)
        gradient = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1], tf.int64), (0, 2))
        ftrl.apply([gradient], [shadow])

    step()
    with pytest.raises(ValueError, match="gradients"):  # A step that fails takes no place.
        table.apply_gradients([1], np.ones((1, 3), np.float32))
    step()
    table.apply_gradients([1], np.ones((1, 2), np.float32))
    assert table.spec.rule.kind == "adam"
    with pytest.raises(tf.errors.FailedPreconditionError, match="displaced"):
        step()
    table.apply_gradients([1], np.ones((1, 2), np.float32))
    assert table.spec.rule.kind == "adam"


@pytest.mark.parametrize("optimizer", [keras.optimizers.Adagrad, keras.optimizers.Ftrl])
def test_slots_have_the_names_of_the_optimizer_that_trains_now(
    optimizer: type[keras.optimizers.Optimizer],
) -> None:
    variable, ids = de.Variable(dim=2), [1, 2, 3, 4]
    train(variable, keras.optimizers.Adam(), ids)
    table = tfra.Table.from_handle(variable.tables[0].handle(), optimizer="adam")
    former = table.lookup_with_slots(ids)[1]
    assert table.slot_names == tuple(former) == ("momentum", "velocity")
    second = optimizer()
    train(variable, second, ids)
    expected = {
        slot.slot_name: slot.lookup(ids).numpy() for slot in variable.get_slot_variables(second)
    }
    assert table.slot_names == tuple(table.spec.slots) == tuple(expected)
    keys, _, exported = table.export(slots=True)
    for slots, order in ((exported, keys - 1), (table.lookup_with_slots(ids)[1], slice(None))):
        assert list(slots) == list(expected)
        for name, slot in slots.items():
            np.testing.assert_array_equal(slot, expected[name][order])
    with pytest.raises(ValueError, match="`slots` must be"):
        table.upsert(ids, np.zeros((4, 2), np.float32), slots=former)


def test_a_table_outlives_the_variable_that_made_it() -> None:
    variable = de.Variable(dim=2)
    variable.upsert([7], [[1.0, 2.0]])
    table = tfra.Table.from_handle(variable.tables[0].handle())
    del variable
    tf.keras.backend.clear_session()
    assert table.lookup([7]).tolist() == [[1.0, 2.0]]


def test_int32_keys_are_for_tensorflow_only() -> None:
    variable = de.Variable(key_dtype=tf.int32, dim=2)
    with pytest.raises(TypeError, match="int32"):
        tfra.Table.from_handle(variable.tables[0].handle())


def test_a_graph_has_no_handle_yet() -> None:
    with tf.Graph().as_default():
        variable = de.Variable(dim=2, name="in_graph")
        with pytest.raises(RuntimeError, match="`handle` returns numbers"):
            variable.tables[0].handle()
