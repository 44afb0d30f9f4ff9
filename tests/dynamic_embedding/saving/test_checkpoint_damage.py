"""Checkpoints with damaged tensors: the right rows, or an error and the Variable as it was."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import damage
import tfra
from damage import Kind
from tfra.dynamic_embedding._saving.content import content_of

de = tfra.dynamic_embedding
v1 = tf.compat.v1

CUSTOM = "custom 61:row:0000000000000000 62:scalar:0000000000000000"
KINDS = [
    Kind("int64", "float32", rule="adam", metadata=True, sums=True),
    Kind("int32", "bfloat16", 2, rule="sgd momentum", waiting=True, sums=True, partitions=2),
    Kind("string", "string", 2, metadata=True),
    Kind("string", "float32", 1, rule=CUSTOM, waiting=True, sums=True),
    Kind("int64", "float64", 2, rule=CUSTOM, bounded=True, sums=True, partitions=3),
]
EACH = 1000 // len(KINDS)


def variable_of(kind: Kind) -> Any:
    options: dict[str, Any] = {"devices": ["/CPU:0"] * kind.partitions, "name": "table"}
    if kind.metadata:
        options["restrict_policy"] = de.TimestampRestrictPolicy
    if kind.waiting:
        options["admission"] = tfra.admission.MinCount(100)
    if kind.bounded:
        strategy = de.HkvEvictStrategy.EPOCHLFU
        config = de.HkvHashTableConfig(max_capacity=1000, evict_strategy=strategy)
        options["kv_creator"] = de.HkvHashTableCreator(config)
    return de.Variable(
        key_dtype=tf.as_dtype(kind.key_dtype),
        value_dtype=tf.as_dtype(kind.value_dtype),
        dim=kind.dim,
        initializer="" if kind.value_dtype == "string" else 0.0,
        **options,
    )


class Restoring:
    """A Variable that restores checkpoints one after the other."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind = kind
        self.path = str(folder / "damaged")
        self.variable = variable_of(kind)
        self.checkpoint = tf.train.Checkpoint(table=self.variable)
        self.variable.restore(damage.tensors(kind.columns(seed=1)))
        saved = self.checkpoint.write(str(folder / "whole"))
        reader = tf.train.load_checkpoint(saved)
        self._stored = {n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map()}
        # The names of the columns there.
        self._names = {
            name.rpartition("/")[2]: name for name in self._stored if name.startswith("table/")
        }
        assert set(self._names) == set(kind.types)
        self.columns = {
            column: self._stored[name].astype(object)
            if kind.types[column] == "string"
            else self._stored[name]
            for column, name in self._names.items()
        }
        self._before = damage.tensors(kind.columns(seed=2, n=4))
        self.reset()
        self.before = self.state()

    def reset(self) -> None:
        self.variable.restore(self._before)

    def state(self) -> Any:
        return damage.state_of(self.variable.content(), self.kind)

    def write(self, columns: damage.Columns) -> None:
        """Writes a checkpoint of these columns, and of all else that is in one."""
        of_columns = set(self._names.values())
        stored = {n: tf.constant(a) for n, a in self._stored.items() if n not in of_columns}
        for column, tensor in damage.tensors(columns).items():
            stored[self._names[column]] = tensor
        tf.raw_ops.SaveV2(
            prefix=self.path,
            tensor_names=list(stored),
            shape_and_slices=[""] * len(stored),
            tensors=list(stored.values()),
        )

    def try_columns(self, what: str, columns: damage.Columns) -> bool:
        """Restores columns, which must give what they say. Returns whether they were good."""
        self.write(columns)
        whole = set(columns) == set(self._names)
        expected = damage.state_of_columns(columns, self.kind) if whole else None
        if expected is None:
            with pytest.raises((ValueError, tf.errors.OpError)):
                self.checkpoint.read(self.path)
                pytest.fail(f"{what}: was restored")
            assert self.state() == self.before, what
            return False
        self.checkpoint.read(self.path).assert_consumed()
        damage.assert_holds(self.state(), expected, what)
        self.reset()
        return True


@pytest.fixture(params=KINDS, ids=str)
def restoring(request: pytest.FixtureRequest, tmp_path: Path) -> Restoring:
    return Restoring(request.param, tmp_path)


def test_a_thousand_damaged_checkpoints(restoring: Restoring) -> None:
    assert restoring.try_columns("whole", restoring.columns)
    good = [
        restoring.try_columns(what, columns)
        for what, columns in damage.damaged(restoring.columns, EACH, seed=4)
    ]
    assert 10 < sum(good) < EACH - 50  # Good and bad arrays were both tried.


@pytest.mark.parametrize("rule", damage.BAD_RULES, ids=lambda rule: rule[:40])
def test_texts_that_are_no_rule(rule: bytes, tmp_path: Path) -> None:
    restoring = Restoring(KINDS[0], tmp_path)
    columns = {**restoring.columns, "rule": np.array([rule], object)}
    assert not restoring.try_columns(repr(rule[:40]), columns)


def refused_with(restoring: Restoring, message: str, **columns: Any) -> None:
    restoring.write({**restoring.columns, **columns})
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        restoring.checkpoint.read(restoring.path)
    assert restoring.state() == restoring.before


def test_errors_name_the_field(tmp_path: Path) -> None:
    restoring = Restoring(KINDS[0], tmp_path)
    columns = restoring.columns
    keys = columns["keys"].copy()
    keys[5] = keys[2]
    refused_with(
        restoring, f"`keys`: expected each key once, received {keys[2]} again at 5", keys=keys
    )
    short = columns["slots"][:, :-1]
    refused_with(
        restoring, r"`slots`: expected shape \[7, 6\], received shape \[7, 5\]", slots=short
    )
    epoch = np.array([-1, 0])
    refused_with(restoring, r"`epoch`: expected an epoch .*, received -1 at 0", epoch=epoch)
    sums = columns["sums"][:1]
    refused_with(restoring, r"`sums`: expected shape \[2, 3\], received shape \[1, 3\]", sums=sums)


def test_strings_in_errors_are_readable(tmp_path: Path) -> None:
    restoring = Restoring(KINDS[3], tmp_path)
    keys = restoring.columns["keys"].copy()
    keys[0] = keys[1] = b"\xff\xfe" + b"x" * 500
    refused_with(
        restoring, r'`keys`.* received "\\xff\\xfexx.*" \(502 bytes\) again at 1', keys=keys
    )


def test_of_many_keys_the_first_that_comes_again_is_named(tmp_path: Path) -> None:
    restoring = Restoring(Kind("int64", "float32", 1, sums=True), tmp_path)
    n = 300_000
    keys = np.random.default_rng(0).permutation(n) * 7919
    keys[[200_000, 250_000]] = keys[[7, 3]]
    columns = {
        "keys": keys,
        "values": np.zeros((n, 1), np.float32),
        "slots": np.zeros((n, 0), np.float32),
        "metadata": np.zeros((n, 0), np.int32),
    }
    refused_with(restoring, f"{keys[7]} again at 200000", **columns)
    columns["keys"] = np.arange(n) * 4096
    restoring.write({**restoring.columns, **columns})
    restoring.checkpoint.read(restoring.path).assert_consumed()
    assert set(restoring.state()["values"]) == set(columns["keys"].tolist())


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[2], KINDS[4]], ids=str)
def test_a_key_that_is_met_twice_is_saved_once(kind: Kind) -> None:
    """While others write, a key may leave a place that was saved and come back at a later one."""
    variable = variable_of(kind)
    variable.restore(damage.tensors(kind.columns(seed=1)))
    once = content_of(variable.tables)
    twice = content_of([*variable.tables, *variable.tables])
    assert once["keys"].shape == [7]
    for name in ("keys", "values", "slots", "metadata", "scores", "rule", "epoch"):
        assert np.array_equal(once[name], twice[name]), name


def test_a_full_table_is_saved_while_others_write() -> None:
    """Keys are evicted and come back all the time."""
    config = de.HkvHashTableConfig(max_capacity=3000)
    variable = de.Variable(dim=2, name="full", kv_creator=de.HkvHashTableCreator(config))
    stop = threading.Event()

    def write(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not stop.is_set():
            variable.upsert(rng.integers(0, 6000, 500), tf.ones([500, 2]))

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            keys = variable.content()["keys"].numpy()
            assert len(set(keys.tolist())) == len(keys)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_saver_of_tensorflow_1(tmp_path: Path) -> None:
    """In a graph, where shapes are not known before the op runs."""
    path = str(tmp_path / "saved")
    with tf.Graph().as_default(), v1.Session() as session:
        variable = de.Variable(dim=2, name="table", devices=["/CPU:0"] * 2)
        saver = v1.train.Saver()
        session.run(variable.upsert([1, 2, 3], [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]))
        saver.save(session, path, write_meta_graph=False)
        reader = tf.train.load_checkpoint(path)
        stored = {n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map()}
        name = next(n for n in stored if n.endswith("-keys"))
        stored[name] = np.array([1, 2, 1], np.int64)
        session.run(
            tf.raw_ops.SaveV2(
                prefix=path,
                tensor_names=list(stored),
                shape_and_slices=[""] * len(stored),
                tensors=[tf.constant(array) for array in stored.values()],
            )
        )
        session.run(variable.upsert([4], [[4.0, 4.0]]))
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"`keys`.* 1 again at 2"):
            saver.restore(session, path)
        keys, _ = session.run(variable.export())
    assert sorted(keys.tolist()) == [1, 2, 3, 4]
