"""Tables in graphs and Sessions of TensorFlow 1."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from programs import run_program
from programs.common import DIM, as_content, de, ids, rows

v1 = tf.compat.v1


class Program:
    """A graph with one Variable, and what can be asked of it in any Session."""

    def __init__(self, devices: list[str] | None, shape: list[int | None] | None = None) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.variable = de.Variable(dim=DIM, devices=devices, name="table", initializer=-1.0)
            self.keys = v1.placeholder(tf.int64, shape)
            self.values = v1.placeholder(tf.float32, None if shape is None else [*shape, DIM])
            self.upsert_op = self.variable.upsert(self.keys, self.values)
            self.remove_op = self.variable.remove(self.keys)
            self.lookup_op = self.variable.lookup(self.keys)
            self.exported = self.variable.export()
            self.size = self.variable.size()
            self.initializers = [v1.tables_initializer(), v1.global_variables_initializer()]

    def session(self) -> v1.Session:
        return v1.Session(graph=self.graph)

    def upsert(self, session: v1.Session, keys: Any, number: float) -> None:
        values = np.full((*np.shape(keys), DIM), number, np.float32)
        session.run(self.upsert_op, {self.keys: keys, self.values: values})

    def lookup(self, session: v1.Session, keys: Any) -> Any:
        return session.run(self.lookup_op, {self.keys: keys}).tolist()

    def content(self, session: v1.Session) -> dict[int, float]:
        return as_content(*session.run(self.exported))


@pytest.fixture
def program(devices: list[str] | None) -> Program:
    return Program(devices)


@pytest.fixture(params=["old", "new"])
def control_flow(request: pytest.FixtureRequest) -> Iterator[None]:
    """Loops and branches of TensorFlow 1 (Switch, Merge, Enter...), and of TensorFlow 2."""
    was_enabled = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if request.param == "new" else v1.disable_control_flow_v2)()
    yield
    (v1.enable_control_flow_v2 if was_enabled else v1.disable_control_flow_v2)()


def test_nothing_needs_to_be_initialized(program: Program) -> None:
    with program.session() as session:
        assert session.run(program.size) == 0
        assert program.lookup(session, [1, 2]) == [[-1.0] * DIM] * 2
        assert program.content(session) == {}
        session.run(program.remove_op, {program.keys: [1]})
        program.upsert(session, [1, 2], 5.0)
        assert program.lookup(session, [2, 3]) == [[5.0] * DIM, [-1.0] * DIM]
        assert session.run(program.size) == 2


def test_a_first_write_creates_the_table(program: Program) -> None:
    with program.session() as session:
        program.upsert(session, [1], 5.0)
        assert program.content(session) == {1: 5.0}


def test_initializers_keep_what_is_there(program: Program) -> None:
    with program.session() as session:
        session.run(program.initializers)
        program.upsert(session, [1, 2], 5.0)
        session.run(program.initializers)
        assert program.content(session) == {1: 5.0, 2: 5.0}


def test_each_session_has_its_own_table(program: Program) -> None:
    first, second = program.session(), program.session()
    program.upsert(first, [1, 2], 5.0)
    assert second.run(program.size) == 0
    program.upsert(second, [2], 6.0)
    assert program.content(first) == {1: 5.0, 2: 5.0}
    assert program.content(second) == {2: 6.0}
    first.close()
    assert program.content(second) == {2: 6.0}
    second.close()
    with program.session() as third:
        assert program.content(third) == {}


def test_graphs_with_equal_names_have_their_own_tables() -> None:
    first, second = Program(None), Program(None)
    with first.session() as one, second.session() as other:
        first.upsert(one, [1], 5.0)
        second.upsert(other, [2], 6.0)
        assert (first.content(one), second.content(other)) == ({1: 5.0}, {2: 6.0})


def test_sessions_do_not_meet_the_eager_table_of_that_name(program: Program) -> None:
    eager = de.Variable(dim=DIM, name="table")
    eager.upsert(ids(1), rows(1, 1.0))
    with program.session() as session:
        assert session.run(program.size) == 0
        program.upsert(session, [2], 2.0)
    assert eager.export()[0].numpy().tolist() == [1]


@pytest.mark.parametrize("shape", [[None], [None, None], [2, 3], None], ids=str)
def test_placeholders(devices: list[str] | None, shape: list[int | None] | None) -> None:
    program = Program(devices, shape)
    if shape is not None:
        assert program.lookup_op.shape.as_list() == [*shape, DIM]
    keys = np.arange(6).reshape([6] if shape is not None and len(shape) == 1 else [2, 3])
    with program.session() as session:
        program.upsert(session, keys, 5.0)
        assert program.lookup(session, keys) == np.full((*keys.shape, DIM), 5.0).tolist()
        assert program.content(session) == dict.fromkeys(range(6), 5.0)


@pytest.mark.parametrize("kind", ["CuckooHashTable", "HkvHashTable"])
def test_tables_in_a_session(session: v1.Session, kind: str) -> None:
    table = getattr(de, kind)(tf.string, tf.int64, [-1, -2], name="table")
    keys = tf.constant(["a", "b"])
    found = table.lookup(tf.constant(["b", "c"]))
    session.run(table.insert(keys, tf.constant([[1, 2], [3, 4]], tf.int64)))
    assert session.run(found).tolist() == [[3, 4], [-1, -2]]
    session.run(table.remove(keys[:1]))
    assert [value.tolist() for value in session.run(table.export())] == [[b"b"], [[3, 4]]]
    session.run(table.clear())
    assert session.run(table.size()) == 0


def test_control_dependencies_order_calls(session: v1.Session, devices: list[str] | None) -> None:
    variable = de.Variable(dim=DIM, devices=devices, name="table")
    keys = tf.range(2000, dtype=tf.int64)
    number = v1.placeholder(tf.float32, [])
    before = variable.lookup(keys)
    with tf.control_dependencies([before]):
        write = variable.upsert(keys, rows(2000, number))
    with tf.control_dependencies([write]):
        after, size = variable.lookup(keys), variable.size()
    with tf.control_dependencies([after, size]):
        clear = variable.clear()
    for count in range(1, 101):
        fetched = session.run([before, after, size, clear], {number: count})
        np.testing.assert_array_equal(fetched[0], np.zeros((2000, DIM)))
        np.testing.assert_array_equal(fetched[1], np.full((2000, DIM), count))
        assert fetched[2] == 2000


@pytest.mark.usefixtures("control_flow")
def test_only_the_branch_taken_writes(session: v1.Session, devices: list[str] | None) -> None:
    variable = de.Variable(dim=DIM, devices=devices, name="table")
    is_new = v1.placeholder(tf.bool, [])

    def insert() -> tf.Tensor:
        with tf.control_dependencies([variable.upsert(ids(1, 2), rows(2, 3.0))]):
            return variable.lookup(ids(1))

    def remove() -> tf.Tensor:
        before = variable.lookup(ids(1))
        with tf.control_dependencies([before]):
            removal = variable.remove(ids(1))
        with tf.control_dependencies([removal]):
            return before + 10

    step, size = v1.cond(is_new, insert, remove), variable.size()
    assert session.run(step, {is_new: False}).tolist() == [[10.0] * DIM]
    assert session.run(size) == 0
    assert session.run(step, {is_new: True}).tolist() == [[3.0] * DIM]
    assert session.run(size) == 2
    assert session.run(step, {is_new: False}).tolist() == [[13.0] * DIM]
    assert session.run(size) == 1


@pytest.mark.usefixtures("control_flow")
def test_while_loops_read_what_they_wrote(session: v1.Session, devices: list[str] | None) -> None:
    variable = de.Variable(dim=DIM, devices=devices, name="table")

    def body(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.control_dependencies([i]):
            before = variable.lookup(ids(7))
        with tf.control_dependencies([before]):
            write = variable.upsert(ids(7), before + 1)
        with tf.control_dependencies([write]):
            after = variable.lookup(ids(7))
        with tf.control_dependencies([after]):
            return i + 1, total + after[0, 0]

    total = v1.while_loop(lambda i, _: i < 50, body, [0, 0.0])[1]
    assert session.run(total) == 1275.0
    assert as_content(*session.run(variable.export())) == {7: 50.0}
    assert session.run(total) == 1275.0 + 50 * 50


def test_a_monitored_session_trains(devices: list[str] | None) -> None:
    with tf.Graph().as_default():
        variable = de.Variable(dim=DIM, devices=devices, name="table")
        step = v1.train.get_or_create_global_step()
        dense = v1.get_variable("dense", [], initializer=v1.zeros_initializer())
        write = variable.upsert(step[None], rows(1, 2.0))
        with tf.control_dependencies([write]):
            train = tf.group(v1.assign_add(step, 1), v1.assign_add(dense, 1.0))
        exported = variable.export()
        hooks = [v1.train.StopAtStepHook(last_step=5)]
        with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            found = {}
            while not session.should_stop():
                session.run(train)
                if not session.should_stop():
                    found = as_content(*session.run(exported))
    assert found == dict.fromkeys(range(4), 2.0)


def test_get_variable_in_variable_scopes(session: v1.Session) -> None:
    def get(scope: str) -> Any:
        with v1.variable_scope(scope, reuse=v1.AUTO_REUSE):
            return de.get_variable("table", dim=DIM)

    first, second = get("first"), get("second")
    assert get("first") is first
    assert get("second") is second
    assert first is not second
    session.run([first.upsert(ids(1), rows(1, 1.0)), second.upsert(ids(2), rows(1, 2.0))])
    assert as_content(*session.run(first.export())) == {1: 1.0}
    assert as_content(*session.run(second.export())) == {2: 2.0}
    with tf.Graph().as_default():
        assert get("first") is not first


def test_threads_share_a_session(program: Program) -> None:
    with program.graph.as_default():
        one, known = rows(1, 1.0), tf.constant([True])
        add = program.variable.accum(ids(0), tf.zeros_like(one), one, known)
    failures: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(100):
                session.run(add)
                program.lookup(session, [0, 1])
        except Exception as error:
            failures.append(error)

    with program.session() as session:
        program.upsert(session, [0], 0.0)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert program.content(session) == {0: 400.0}


@pytest.mark.parametrize("values_shape", [(2, 77), (33, DIM), (2,)], ids=str)
def test_wrong_shapes_found_at_run_time(program: Program, values_shape: tuple[int, ...]) -> None:
    with program.session() as session:
        program.upsert(session, [1], 1.0)
        feeds = {program.keys: [5, 6], program.values: np.zeros(values_shape)}
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            session.run(program.upsert_op, feeds)
        expected, received = caught.value.message.lower().split("received", 1)
        assert "expected" in expected
        assert max(values_shape) == 2 or str(max(values_shape)) in received
        assert program.content(session) == {1: 1.0}


def test_a_program_without_eager_mode(tmp_path: Path) -> None:
    results = run_program("tf1_program", tmp_path / "model")
    expected = {
        "users": [[3.0, 4.0], [-1.0, -1.0]],
        "words": [[1.0], [0.0]],
        "sizes": [2, 2],
        "dense": 3.0,
        "count": 6,
    }
    assert results == {"written": expected, "new session": [0, 0], "restored": expected}
