"""Training jobs of TensorFlow 1: monitored sessions with hooks, Savers, scopes and devices."""

from __future__ import annotations

import contextlib
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


class SizeHook(v1.train.SessionRunHook):  # type: ignore[misc]
    """Asks for the size of a Variable and the value of a trainable, before and after each step."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.seen: list[int] = []

    def before_run(self, run_context: Any) -> Any:
        variables = v1.trainable_variables()
        return v1.train.SessionRunArgs([self.model.users.size(), variables])

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.seen.append(int(run_context.session.run(self.model.users.size())))


class SizeListener(v1.train.CheckpointSaverListener):  # type: ignore[misc]
    """Asks for sizes when a checkpoint was saved."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.seen: list[int] = []

    def after_save(self, session: Any, global_step_value: int) -> None:
        sizes = session.run([self.model.users.size(0), self.model.items.size()])
        self.seen.append(int(sizes[1]))


@pytest.mark.parametrize("devices", [None, TWO], ids=["one table", "partitions"])
def test_a_monitored_session_trains_and_continues(tmp_path: Path, devices: Any) -> None:
    rows, row, mean = [], 1.0, 0.0
    for turn in range(2):
        with tf.Graph().as_default():
            model = Model(devices)
            asks, listener = SizeHook(model), SizeListener(model)
            saver = v1.train.Saver(max_to_keep=2)
            hooks = [
                asks,
                v1.train.StopAtStepHook(num_steps=3),
                v1.train.CheckpointSaverHook(
                    str(tmp_path), save_steps=1, saver=saver, listeners=[listener]
                ),
            ]
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path), hooks=hooks, save_checkpoint_secs=None
            ) as session:
                while not session.should_stop():
                    rows.append(session.run(model.state[0], {model.ids: [9]})[0, 0])
                    np.testing.assert_allclose(rows[-1], row, rtol=1e-6)
                    session.run(model.train, {model.ids: [len(rows), 9]})
                    mean = 0.5 * mean + 1.0
                    row -= 0.125 * mean
            assert asks.seen == [[0, 2, 2, 3, 3, 4], [4, 5, 5, 6, 6, 7]][turn]
            assert listener.seen[-1] == [4, 7][turn]
    assert len(rows) == 6
    kept = tf.train.get_checkpoint_state(str(tmp_path)).all_model_checkpoint_paths
    assert [Path(path).name for path in kept] == ["model.ckpt-5", "model.ckpt-6"]


def test_a_trainable_that_was_looked_up_in_a_branch_is_read_in_a_finalized_graph() -> None:
    with tf.Graph().as_default() as graph, v1.Session() as session:
        table = de.get_variable("table", dim=DIM)
        tf.cond(
            v1.placeholder_with_default(True, []),
            lambda: de.embedding_lookup(table, [1]),
            lambda: tf.ones([1, DIM]),
        )
        [trainable] = v1.trainable_variables()
        session.run(v1.local_variables_initializer())
        graph.finalize()
        assert session.run(trainable).shape == trainable.shape == (1, DIM)


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


class RestoreHook(v1.train.SessionRunHook):  # type: ignore[misc]
    """The `RestoreTfraVariableHook` of TFRA's demos, as `docs/from-tfra.md` has it."""

    def __init__(self, path: str, variables: list[Any]) -> None:
        self.path, self.variables = path, variables

    def begin(self) -> None:
        self.saver = v1.train.Saver([t for variable in self.variables for t in variable.tables])

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.saver.restore(session, self.path)


@pytest.mark.parametrize("devices", [None, TWO])
def test_a_hook_restores_one_table_of_a_checkpoint(tmp_path: Path, devices: Any) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        model = Model(devices)
        session.run(v1.global_variables_initializer())
        session.run(model.train)
        expected = session.run(model.state)
        path = v1.train.Saver().save(session, str(tmp_path / "all"))
    with tf.Graph().as_default():
        model = Model()
        hook = RestoreHook(path, [model.users])
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            users, items, slots, *_ = session.run(model.state[:3])
            assert session.run(model.sizes) == [2, 0]
    np.testing.assert_array_equal(users, expected[0])
    np.testing.assert_array_equal(slots, expected[2])
    assert (items == 2.0).all()


KINDS: dict[str, dict[str, Any]] = {
    "one table": {},
    "partitions": {"devices": TWO},
    "computed rows": {"initializer": tf.ones},
    "bounded": {"kv_creator": de.HkvHashTableCreator()},
    "policy": {"restrict_policy": de.TimestampRestrictPolicy},
}


@pytest.mark.parametrize("kind", KINDS)
def test_update_op_stores_the_rows_that_were_looked_up(kind: str) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        table = de.get_variable("table", **{"dim": DIM, "initializer": 1.0, **KINDS[kind]})
        ids = v1.placeholder(tf.int64)
        rows, trainable = de.embedding_lookup(table, ids, return_trainable=True)
        optimizer = wrapped(v1.train.GradientDescentOptimizer(0.5))
        step = optimizer.minimize(tf.reduce_sum(rows), var_list=[trainable])
        store, size, found = trainable.update_op(), table.size(), table.lookup([1, 2, 3])
        with tf.control_dependencies([step]):
            trained_and_stored = trainable.update_op()
        session.run(v1.global_variables_initializer())
        session.run(store, {ids: [[1, 2], [2, 2]]})
        assert session.run(size) == 2
        session.run(trained_and_stored, {ids: 2})
        session.run(store, {ids: [2, 3]})
        assert session.run(size) == 3
        assert session.run(found)[:, 0].tolist() == [1.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("optimizer", "where"),
    [
        *(("tf.compat.v1", where) for where in ("graph", "eager", "function")),
        *(("Keras", where) for where in ("eager", "function")),  # It has no op for a Session.
    ],
)
@pytest.mark.parametrize("form", ["trainable", "lookup"])
def test_minimize_of_a_function(form: str, optimizer: str, where: str) -> None:
    context = tf.Graph().as_default() if where == "graph" else contextlib.nullcontext()
    with context:
        table = de.Variable(dim=DIM, initializer=1.0)
        ids = tf.constant([3, 4, 3], tf.int64)
        _, var = de.embedding_lookup(table, ids, return_trainable=True)
        if optimizer == "Keras":
            minimize = wrapped(tf.keras.optimizers.SGD(0.125)).minimize
        else:
            minimize = wrapped(v1.train.GradientDescentOptimizer(0.125)).minimize

        def loss() -> tf.Tensor:
            if form == "lookup":
                return tf.reduce_sum(de.embedding_lookup(table, ids) ** 2)
            if where == "function":
                de.embedding_lookup(table, ids)
            return 0.5 * var * var + tf.square(var) / 2

        def step() -> Any:
            return minimize(loss, var_list=[var])

        if where == "graph":
            train, read = step(), table.lookup([3, 4, 5])
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                session.run(train)
                rows = session.run(read)
        else:
            (step if where == "eager" else tf.function(lambda: (step(), tf.ones([]))[1]))()
            rows = table.lookup([3, 4, 5]).numpy()
    assert rows.tolist() == [[0.5, 0.5], [0.75, 0.75], [1.0, 1.0]]


def test_layers_train_with_the_variables_of_the_graph() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        layer = de.keras.layers.Embedding(DIM, initializer="ones", name="in_graph")
        loss = tf.reduce_sum(layer(tf.constant([3, 4], tf.int64)))
        optimizer = wrapped(v1.train.AdamOptimizer(0.5))
        step, rows = optimizer.minimize(loss), layer.params.lookup([3, 4, 5])
        session.run(v1.global_variables_initializer())
        session.run(step)
        np.testing.assert_allclose(session.run(rows)[:, 0], [0.5, 0.5, 1.0], rtol=1e-5)


def test_names_of_trainables_follow_the_scope_of_the_lookup() -> None:
    with tf.Graph().as_default():
        with v1.variable_scope("tower"):
            own = de.get_variable("own", dim=DIM)
            de.embedding_lookup(own, [1])
        shared = de.get_variable("shared", dim=DIM)
        with v1.variable_scope("other/inner"):
            de.embedding_lookup(shared, [1])
        with v1.variable_scope("tower"):  # Has another name scope than before.
            de.embedding_lookup(de.get_variable("late", dim=DIM), [1])
        plain = de.get_variable("plain", dim=DIM)
        with tf.name_scope("layers"):
            de.embedding_lookup(plain, [1])

        def names(scope: str) -> list[str]:
            return [variable.name for variable in v1.trainable_variables(scope)]

        assert names("tower/") == ["tower/own_shadow:0", "tower/late_shadow:0"]
        assert names("other/inner/") == ["other/inner/shared_shadow:0"]
        assert names("plain") == ["plain_shadow:0"]


LOOKUPS: dict[str, Any] = {
    "plain": de.embedding_lookup,
    "unique": de.embedding_lookup_unique,
    "sparse": lambda table, ids: de.embedding_lookup_sparse(
        table, tf.SparseTensor(tf.zeros([1, 2], tf.int64), ids, [1, 1]), None
    ),
    "ragged": lambda table, ids: (
        de.embedding_lookup(
            table, tf.RaggedTensor.from_row_splits(ids, [0, 1], validate=False)
        ).flat_values
    ),
}


@pytest.mark.parametrize("lookup", LOOKUPS)
def test_lookups_are_on_the_device_of_their_ids(lookup: str) -> None:
    with tf.Graph().as_default():
        table = de.get_variable("table", dim=DIM, devices=["/job:ps/task:0", "/job:ps/task:1"])
        with tf.device("/job:worker/task:1"):
            ids = tf.identity(tf.constant([1], tf.int64))
        with tf.device("/job:worker/task:2"):
            assert "/task:1" in LOOKUPS[lookup](table, ids).device
        with tf.device("/job:worker/task:2"):
            assert "/task:2" in LOOKUPS[lookup](table, tf.constant([1], tf.int64)).device
