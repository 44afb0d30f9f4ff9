"""Training jobs of TensorFlow 1: monitored sessions with hooks, Savers, scopes and devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_support import de

v1 = tf.compat.v1

DIM = 2
TWO = ["/CPU:0"] * 2


def wrapped(optimizer: Any) -> Any:
    return de.DynamicEmbeddingOptimizer(optimizer)


class Model:
    """In the default graph, a model of two tables and a dense variable."""

    def __init__(self, devices: Any = None) -> None:
        self.step = v1.train.get_or_create_global_step()
        self.ids = v1.placeholder_with_default(tf.constant([1, 2], tf.int64), [None])
        with v1.variable_scope("model"):
            self.users = de.get_variable("users", dim=DIM, initializer=1.0, devices=devices)
            self.items = de.get_variable("items", dim=DIM, initializer=2.0)
        users, self.trainable = de.embedding_lookup(self.users, self.ids, return_trainable=True)
        rows = users + de.embedding_lookup(self.items, self.ids)
        scale = v1.get_variable("scale", initializer=np.ones(DIM, np.float32))
        self.optimizer = wrapped(v1.train.MomentumOptimizer(0.125, 0.5))
        self.train = self.optimizer.minimize(tf.reduce_sum(rows) + tf.reduce_sum(scale), self.step)
        slots = [
            slot.lookup(self.ids)
            for variable in (self.users, self.items)
            for slot in variable.get_slot_variables(self.optimizer)
        ]
        self.state = [self.users.lookup(self.ids), self.items.lookup(self.ids), *slots]
        self.sizes = [self.users.size(), self.items.size()]

    def tables(self) -> list[Any]:
        return [*self.users.tables, *self.items.tables]


SAVERS: dict[str, Any] = {
    "all": lambda model: None,
    "variables": lambda model: [model.users, model.items, model.step],
    "tables": lambda model: [*model.tables(), model.step],
    "slots": lambda model: [
        *model.tables(),
        *(
            table
            for variable in (model.users, model.items)
            for slot in variable.get_slot_variables(model.optimizer)
            for table in slot.tables
        ),
    ],
    "no step": lambda model: [model.users, model.items],
    "variables and tables": lambda model: [model.users, model.items, *model.tables()],
}


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        *(("all", reader) for reader in ("all", "variables", "tables")),
        *((writer, "variables") for writer in ("variables", "tables")),
        *((writer, "no step") for writer in SAVERS),
    ],
)
def test_savers_of_parts_save_all_of_these(tmp_path: Path, writer: str, reader: str) -> None:
    """What one Saver wrote another reads, also into another number of partitions."""
    with tf.Graph().as_default(), v1.Session() as session:
        model = Model()
        session.run(v1.global_variables_initializer())
        session.run(model.train, {model.ids: [3, 4]})
        session.run(model.train)
        expected = session.run(model.state)
        path = v1.train.Saver(SAVERS[writer](model)).save(session, str(tmp_path / "model"))
    with tf.Graph().as_default(), v1.Session() as session:
        model = Model(TWO)
        session.run(v1.global_variables_initializer())
        session.run(model.train, {model.ids: [8]})
        v1.train.Saver(SAVERS[reader](model)).restore(session, path)
        assert session.run(model.sizes) == [4, 4]
        for found, wanted in zip(session.run(model.state), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_savers_of_tables_by_name(tmp_path: Path) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        table = de.CuckooHashTable(tf.int64, tf.float32, [0.0, 0.0], name="table")
        variable = de.get_variable("variable", dim=DIM, checkpoint=False)
        names = {"first": table, "second": variable}
        saver = v1.train.Saver(names)
        session.run([table.insert([1], [[3.0, 4.0]]), variable.upsert([2], [[5.0, 6.0]])])
        path = saver.save(session, str(tmp_path / "model"))
        session.run([table.clear(), variable.clear()])
        saver.restore(session, path)
        found = session.run([table.lookup([1]), variable.lookup([2])])
        assert [rows.tolist() for rows in found] == [[[3.0, 4.0]], [[5.0, 6.0]]]
        saved = {name.partition("-")[0] for name, _ in tf.train.list_variables(path)}
        assert saved == set(names)
