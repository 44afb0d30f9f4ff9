"""Figures of Variables and layers, against a reference over random histories."""

from __future__ import annotations

from collections import Counter
from typing import Any

import hypothesis
import hypothesis.strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf
from upkeep_support import (
    DIM,
    KERAS_WARNS,
    THREE,
    MinCount,
    de,
    key_set,
    keys_for,
    layers,
    model_of,
    targets,
    variable_step,
)

import tfra

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

v1 = tf.compat.v1

NUMBERS = st.lists(st.integers(0, 12), min_size=1, max_size=8)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["upsert", "lookup", "touch", "remove", "train"]), NUMBERS),
        st.tuples(st.just("restrict"), st.integers(0, 12)),
        st.tuples(st.just("expire"), st.integers(0, 3)),
        st.tuples(st.just("wait"), st.integers(1, 2)),
        st.tuples(st.just("clear"), st.just(0)),
    ),
    max_size=20,
)
FIGURES = (
    "inserts",
    "updates",
    "removals",
    "refused",
    "evictions",
    "expirations",
    "hits",
    "misses",
)


class Reference:
    """The figures of a Variable that lets keys in when they are seen for the second time."""

    def __init__(self, variable: Any) -> None:
        self.variable = variable
        self.trainer = keras.optimizers.SGD(0.1)
        self.now = 100
        variable.set_clock(self.now)
        self.times: dict[Any, int] = {}
        self.waiting: dict[Any, int] = {}
        self.figures: Counter[str] = Counter()

    def write(self, key: Any) -> None:
        self.figures["updates" if key in self.times else "inserts"] += 1
        self.times[key] = self.now

    def see(self, key: Any) -> None:
        if key in self.times or self.waiting.pop(key, None) is not None:
            self.write(key)
        else:
            self.waiting[key] = self.now
            self.figures["refused"] += 1

    def look(self, keys: list[Any]) -> None:
        hits = sum(key in self.times for key in keys)
        self.figures["hits"] += hits
        self.figures["misses"] += len(keys) - hits

    def leave(self, keys: Any, figure: str) -> None:
        gone = set(keys) & set(self.times)
        self.figures[figure] += len(gone)
        self.times = {key: time for key, time in self.times.items() if key not in gone}

    def do(self, what: str, argument: Any) -> None:
        variable = self.variable
        if isinstance(argument, list):
            tensor = keys_for(variable, argument)
            keys = tensor.numpy().tolist()
        if what == "upsert":
            variable.upsert(tensor, tf.ones([len(keys), DIM], variable.value_dtype))
            for key in keys:
                self.waiting.pop(key, None)
                self.write(key)
        elif what == "lookup":
            variable.lookup(tensor)
            self.look(keys)
        elif what == "train":
            variable_step(variable, self.trainer, tensor)
            self.look(keys)
            for key in dict.fromkeys(keys):
                self.see(key)
        elif what == "touch":
            variable.touch(tensor)
            for key in dict.fromkeys(keys):
                self.see(key)
        elif what == "remove":
            variable.remove(tensor)
            self.leave(keys, "removals")
        elif what == "restrict":
            variable.restrict(argument)
            self.leave(set(self.times) - key_set(variable), "evictions")
        elif what == "expire":
            variable.expire(ttl=argument)
            old = [key for key, time in self.times.items() if self.now - time > argument]
            self.leave(old, "expirations")
            self.waiting = {k: t for k, t in self.waiting.items() if self.now - t <= argument}
        elif what == "wait":
            self.now += argument
            variable.set_clock(self.now)
        else:
            variable.clear()
            self.leave(self.times, "removals")
            self.waiting.clear()

    def check(self) -> None:
        stats = self.variable.stats()
        assert {name: getattr(stats, name) for name in FIGURES} == {
            name: self.figures[name] for name in FIGURES
        }
        left = stats.removals + stats.evictions + stats.expirations
        assert stats.size == len(self.times) == stats.inserts - left
        assert stats.waiting == len(self.waiting)
        assert stats.lookups == stats.hits + stats.misses


def tiered(max_hbm_for_values: int = 1) -> Any:
    """Makes tables with rows in a file: with room for more keys than there are here."""
    config = de.HkvHashTableConfig(0, 10_000, max_hbm_for_values)
    return de.HkvHashTableCreator(config)


@pytest.mark.parametrize(
    ("types", "partitions", "kv_creator"),
    [
        (("int64", "float32"), None, None),
        (("string", "float16"), THREE, None),
        (("int64", "float32"), None, tiered()),
    ],
    ids=["one table", "three tables of strings", "a table with a file"],
)
def test_random_histories(types: tuple[str, str], partitions: Any, kv_creator: Any) -> None:
    @hypothesis.settings(max_examples=12)
    @hypothesis.given(events=EVENTS)
    def play(events: list[Any]) -> None:
        variable = de.Variable(
            tf.as_dtype(types[0]), tf.as_dtype(types[1]), DIM, partitions,
            restrict_policy=de.TimestampRestrictPolicy, admission=MinCount(2),
            kv_creator=kv_creator,
        )  # fmt: skip
        reference = Reference(variable)
        for event in events:
            reference.do(*event)
            reference.check()

    play()


def filled(**options: Any) -> Any:
    variable = de.Variable(dim=DIM, restrict_policy=de.FrequencyRestrictPolicy, **options)
    variable.upsert(keys_for(variable, np.arange(100)), tf.ones([100, DIM]))
    variable.lookup(keys_for(variable, [1, 2, 500]))
    return variable


def test_all_figures(devices: list[str] | None) -> None:
    variable = filled(devices=devices, key_dtype=tf.string)
    stats = variable.stats()
    assert isinstance(stats, tfra.TableStats)
    parts = [table.stats() for table in variable.tables]
    for name in ("size", "capacity", "index_bytes", "row_bytes", "string_bytes", "hits", "inserts"):
        assert getattr(stats, name) == sum(getattr(part, name) for part in parts)
    assert (stats.size, stats.hits, stats.misses, stats.lookups) == (100, 2, 1, 3)
    assert stats.hit_rate == pytest.approx(2 / 3)
    assert stats.load == pytest.approx(stats.size / stats.capacity)
    assert stats.capacity >= 100
    assert min(stats.index_bytes, stats.row_bytes, stats.string_bytes) > 0
    assert stats.bytes == stats.index_bytes + stats.row_bytes + stats.string_bytes
    assert stats.fast_hits == stats.slow_hits == stats.slow_bytes == stats.fast_bytes == 0
    assert stats.fast_hit_rate == 0.0
    figures = stats.as_dict()
    assert figures["bytes"] == stats.bytes
    assert {"keys" if name == "size" else name for name in figures} >= {"capacity", "refused"}
    variable.restrict(10, trigger=50)
    assert variable.stats().restrict_runs == variable.shard_num


def test_figures_of_both_levels(devices: list[str] | None) -> None:
    variable = de.Variable(dim=DIM, devices=devices, kv_creator=tiered())
    for start in range(0, 6000, 100):
        ids = tf.range(start, start + 100, dtype=tf.int64)
        variable.upsert(ids, tf.ones([100, DIM]))
    before = variable.stats()
    assert before.io_writes > 0
    assert before.bytes_written >= 4000 * DIM * 4
    assert before.slow_bytes >= 4000 * DIM * 4
    assert before.fast_bytes == before.row_bytes
    assert before.bytes == before.index_bytes + before.row_bytes
    variable.lookup(tf.range(7000, dtype=tf.int64))
    stats = variable.stats()
    assert stats.hits - before.hits == 6000
    fast, slow = stats.fast_hits - before.fast_hits, stats.slow_hits - before.slow_hits
    assert fast + slow == 6000
    assert slow > 3000
    assert stats.bytes_read - before.bytes_read >= slow * DIM * 4
    assert stats.fast_hit_rate == stats.fast_hits / (stats.fast_hits + stats.slow_hits)


@pytest.mark.parametrize("traced", [False, True])
def test_figures_as_tensors(traced: bool, devices: list[str] | None) -> None:
    variable = filled(devices=devices)
    read = tf.function(variable.stats_tensors) if traced else variable.stats_tensors
    for _ in range(2):
        tensors = read()
        assert all(t.shape == [] for t in tensors.values())
        floats = {name for name, t in tensors.items() if t.dtype == tf.float64}
        assert floats == {"load", "hit_rate", "fast_hit_rate"}
        assert all(tensors[name].dtype == tf.int64 for name in set(tensors) - floats)
        assert {name: t.numpy() for name, t in tensors.items()} == variable.stats().as_dict()
        variable.lookup([1])
    assert {"size", "hits", "refused", "evictions", "expirations"} <= set(tensors)


def test_figures_after_what_a_function_does() -> None:
    variable = filled()

    @tf.function
    def run() -> tuple[tf.Tensor, tf.Tensor]:
        before = variable.stats_tensors()["size"]
        variable.remove(tf.range(10, dtype=tf.int64))
        return before, variable.stats_tensors()["size"]

    assert [int(size) for size in run()] == [100, 90]


def test_in_a_session(devices: list[str] | None, session: v1.Session) -> None:
    variable = de.get_variable("table", dim=DIM, devices=devices)
    with pytest.raises(RuntimeError, match="stats_tensors"):
        variable.stats()
    with pytest.raises(RuntimeError, match="histograms"):
        variable.histograms()
    fill, figures = variable.upsert([1, 2, 3], tf.ones([3, DIM])), variable.stats_tensors()
    session.run(fill)
    assert session.run(figures)["inserts"] == 3


def test_stats_in_a_function_say_what_to_use() -> None:
    variable = filled()
    with pytest.raises(RuntimeError, match="stats_tensors"):
        tf.function(lambda: variable.stats().size)()


def test_histograms(devices: list[str] | None) -> None:
    variable = de.Variable(dim=DIM, devices=devices, ttl=100)
    for now, number in ((1000, 9), (1003, 6), (1010, 4)):
        variable.set_clock(now)
        rows = tf.stack([tf.range(float(number)), tf.zeros([number])], axis=1)
        variable.upsert(tf.range(number, dtype=tf.int64), rows)
    found = variable.histograms()
    # Written at 1010 and three times, at 1003 and twice, at 1000 and once: 4, 2 and 3 of them.
    counted = {
        name: {float(e): int(n) for e, n in zip(h.edges, h.counts, strict=False) if n}
        for name, h in (("age", found.age), ("frequency", found.frequency), ("norm", found.norm))
    }
    assert counted == {
        "age": {0.0: 4, 4.0: 2, 8.0: 3},
        "frequency": {1.0: 3, 2.0: 6},
        "norm": {0.0: 1, 1.0: 1, 2.0: 2, 4.0: 4, 8.0: 1},
    }


def test_rows_without_times_have_norms_only() -> None:
    variable = de.Variable(dim=DIM)
    variable.upsert([1, 2], tf.ones([2, DIM]))
    found = variable.histograms()
    sums = [int(part.counts.sum()) for part in (found.age, found.frequency, found.norm)]
    assert sums == [0, 0, 2]


def test_layers(devices: list[str] | None) -> None:
    layer = layers.SquashedEmbedding(DIM, devices=devices, admission=MinCount(2))
    model = model_of(layer, 3)
    x = np.array([[1, 2, 2], [3, 1, 4]])
    for _ in range(2):
        model.fit(x, targets(2), batch_size=2, verbose=0)
    stats = layer.params.stats()
    assert (stats.size, stats.inserts, stats.refused, stats.waiting) == (4, 4, 4, 0)
    before = stats.hits
    model.predict(x, verbose=0)
    assert layer.params.stats().hits == before + 6


@pytest.mark.parametrize("traced", [False, True])
def test_memory_that_keys_have_left_comes_back(traced: bool, devices: list[str] | None) -> None:
    variable = de.Variable(dim=64, devices=devices, restrict_policy=de.TimestampRestrictPolicy)
    variable.upsert(np.arange(20_000), tf.ones([20_000, 64]))
    variable.restrict(100)
    before, kept = variable.stats(), key_set(variable)
    assert before.row_bytes >= 20_000 * 64 * 4

    def shrink() -> None:
        variable.shrink()

    (tf.function(shrink) if traced else shrink)()
    after = variable.stats()
    assert after.row_bytes < before.row_bytes / 50
    assert after.index_bytes < before.index_bytes / 10
    assert key_set(variable) == kept
    assert float(tf.reduce_min(variable.lookup(sorted(kept)))) == 1.0


def test_shrinking_in_a_session(session: tf.compat.v1.Session) -> None:
    variable = de.Variable(dim=64, name="shrinks")
    fill = variable.upsert(np.arange(20_000), tf.ones([20_000, 64]))
    clear, shrink, figures = variable.clear(), variable.shrink(), variable.stats_tensors()
    session.run(fill)
    assert session.run(figures["row_bytes"]) >= 20_000 * 64 * 4
    session.run(clear)
    session.run(shrink)
    assert session.run(figures["row_bytes"]) == 0
