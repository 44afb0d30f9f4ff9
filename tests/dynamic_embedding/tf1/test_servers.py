"""Variables on parameter servers in processes of their own, and under a strategy in this one."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from programs import run_program, start_program
from programs.common import DIM, as_content, de, ids, rows

v1 = tf.compat.v1

TASKS = [("ps", 0), ("ps", 1), ("worker", 0)]
DEVICES = [f"/job:ps/replica:0/task:{task}/CPU:0" for task in range(2)]
NUMBERED = [[key, float(key)] for key in range(10)]


def free_addresses(count: int) -> list[str]:
    """Free addresses of this machine."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, list[str]]]:
    """Two parameter servers and a worker that are ready, and the place of a chief."""
    addresses = free_addresses(4)
    cluster = {"ps": addresses[:2], "worker": addresses[2:3], "chief": addresses[3:]}
    servers = [start_program("server", json.dumps(cluster), *task) for task in TASKS]
    try:
        for server in servers:
            if server.stdout.readline() != "ready\n":
                server.kill()
                pytest.fail(f"a server did not start\n{server.communicate()[1]}")
        yield cluster
    finally:
        for server in servers:
            server.kill()
            server.communicate()


@pytest.fixture(scope="module")
def chief(
    cluster: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The output of programs/chief.py."""
    config = {"cluster": cluster, "task": {"type": "chief", "index": 0}}
    folder = tmp_path_factory.mktemp("checkpoints")
    return run_program("chief", folder, TF_CONFIG=json.dumps(config), timeout=120)


def test_eager_calls_reach_the_servers(chief: dict[str, Any]) -> None:
    seen = chief["eager"]
    assert [f"/job:ps/replica:0/task:{task}/" in seen["devices"][task] for task in (0, 1)] == [
        True
    ] * 2
    assert seen["sizes"] == [5, 4, 9]
    assert seen["found"] == [[8.0] * DIM, [-1.0] * DIM]
    assert seen["exists"] == [True, False]
    assert seen["content"] == NUMBERED[:9]


def test_functions_of_the_chief_run_in_program_order(chief: dict[str, Any]) -> None:
    assert chief["function"]["numbers"] == [key + 3.0 for key in range(10)]


def test_a_worker_takes_steps(chief: dict[str, Any]) -> None:
    seen = chief["worker"]
    assert sorted(seen["steps"]) == [[float(number)] * 10 for number in range(1, 21)]
    assert seen["dataset"] == [21.0, 21.0]
    assert seen["content"] == [[key, key + 20.0 + (key in (3, 4))] for key in range(10)]


@pytest.mark.parametrize("place", ["eager", "worker"])
def test_errors_travel(chief: dict[str, Any], place: str) -> None:
    kind, message = chief["errors"][place]
    assert kind == "InvalidArgumentError"
    expected, received = message.split("received", 1)
    assert "expected" in expected
    assert "77" in received
    assert chief["errors"]["content"] == NUMBERED


def test_checkpoints_of_remote_tables(chief: dict[str, Any]) -> None:
    assert chief["checkpoint"] == {"remote": NUMBERED, "sizes": [5, 5], "local": NUMBERED}


class RemoteProgram:
    """A graph of TensorFlow 1 with a Variable on both parameter servers, and a Session for it."""

    def __init__(self, cluster: dict[str, list[str]], name: str) -> None:
        with tf.Graph().as_default():
            self.variable = de.get_variable(name, dim=DIM, devices=DEVICES)
            self.keys = v1.placeholder(tf.int64, [None])
            self.values = v1.placeholder(tf.float32)
            self.write = self.variable.upsert(self.keys, self.values)
            self.sizes = [self.variable.size(0), self.variable.size(1)]
            self.exported = self.variable.export()
            self.saver = v1.train.Saver()
            # There is no chief to wait for.
            config = v1.ConfigProto(device_filters=["/job:ps", "/job:worker"])
            self.session = v1.Session(f"grpc://{cluster['worker'][0]}", config=config)

    def upsert(self, keys: list[int], number: float, dim: int = DIM) -> None:
        values = np.full((len(keys), dim), number)
        self.session.run(self.write, {self.keys: keys, self.values: values})

    def content(self) -> dict[int, float]:
        return as_content(*self.session.run(self.exported))


def test_a_session_of_tensorflow_1_uses_the_servers(cluster: dict[str, list[str]]) -> None:
    program = RemoteProgram(cluster, "remote")
    with program.session as session:
        program.upsert([1, 2, 3], 4.0)
        assert session.run(program.sizes) == [1, 2]
        assert program.content() == dict.fromkeys((1, 2, 3), 4.0)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?is)expected.*received.*77"):
            program.upsert([1, 2], 1.0, dim=77)
        assert program.content() == dict.fromkeys((1, 2, 3), 4.0)


def test_clients_share_what_is_on_the_servers(cluster: dict[str, list[str]]) -> None:
    first, second = (RemoteProgram(cluster, "shared") for _ in range(2))
    with first.session, second.session:
        first.upsert([1], 1.0)
        second.upsert([2], 2.0)
        assert first.content() == second.content() == {1: 1.0, 2: 2.0}


def test_the_saver_saves_remote_tables(cluster: dict[str, list[str]], tmp_path: Any) -> None:
    program = RemoteProgram(cluster, "saved")
    with program.session as session:
        program.upsert(list(range(10)), 4.0)
        path = program.saver.save(session, str(tmp_path / "model"), write_meta_graph=False)
        program.upsert([3, 77], 5.0)
        program.saver.restore(session, path)
        assert program.content() == dict.fromkeys(range(10), 4.0)
        assert session.run(program.sizes) == [5, 5]


def test_a_strategy_runs_steps_on_a_table() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        variable = de.Variable(dim=DIM, name="in_scope")

    @tf.function
    def step(keys: tf.Tensor) -> tf.Tensor:
        def replica() -> tf.Tensor:
            variable.upsert(keys, variable.lookup(keys) + 1)
            return variable.lookup(keys)

        return strategy.run(replica)

    for number in (1, 2, 3):
        np.testing.assert_array_equal(step(ids(5)), rows(1, number))
