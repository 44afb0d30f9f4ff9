"""`tfra.Table`: restrict, expire and metadata, against a model in plain Python."""

from __future__ import annotations

import functools
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from table_model import FIGURES, TableModel, Usage, is_a_best, table_content, waiting_of

import tfra
from support import Array, full_state, make_keys, numpy_dtype

DIM = 3
KEY_NUMBERS = st.lists(st.integers(0, 11), max_size=10)
SEEDS = st.integers(0, 50)
TIMES = st.integers(0, 300)


def rows_of_seed(value_dtype: str, count: int, seed: int) -> Array:
    """Rows of small numbers, exact in every type, some of them zeros."""
    numbers = (np.arange(count * DIM).reshape(count, DIM) * 5 + seed) % 9 - 4
    if seed % 3 == 0:
        numbers[::2] = 0
    return numbers.astype(numpy_dtype(value_dtype))


class UpkeepMachine(RuleBasedStateMachine):
    """A table with rules, and the model of it."""

    def __init__(self, key_dtype: str, value_dtype: str, min_count: int) -> None:
        super().__init__()
        self.types = {"key_dtype": key_dtype, "value_dtype": value_dtype}
        self.floating = value_dtype != "int64"
        self.options = {"initializer": "ones", "optimizer": "adam" if self.floating else None}
        rule = tfra.admission.MinCount(min_count) if min_count > 1 else None
        self.rules = {"metadata": True, "admission": rule}
        self.table = self.new_table()
        self.model = TableModel(tfra.Table(DIM, **self.types, **self.options), min_count)
        self.model.clock = self.table.clock = 100
        self.hits = self.misses = 0

    def new_table(self) -> tfra.Table:
        return tfra.Table(DIM, **self.types, **self.options, **self.rules)

    def copy(self, backwards: bool) -> tfra.Table:
        """Another table, into which all that can be exported is written."""
        keys, values, slots, usage = self.table.export(slots=True, metadata=True)
        order = np.argsort(keys)[:: -1 if backwards else 1]
        copy = self.new_table()
        slots = {name: slot[order] for name, slot in slots.items()}
        copy.upsert(keys[order], values[order], slots=slots, metadata=usage[order])
        copy.restore_admission(self.table.admission_state())
        copy.clock, copy.step = self.table.clock, self.table.step
        return copy

    def batch(self, numbers: list[int], seed: int = 0) -> tuple[Array, Array]:
        keys = make_keys(self.types["key_dtype"], numbers)
        return keys, rows_of_seed(self.types["value_dtype"], len(numbers), seed)

    @rule(seconds=st.integers(1, 60))
    def time_passes(self, seconds: int) -> None:
        self.model.clock += seconds
        self.table.clock = self.model.clock

    @rule(numbers=KEY_NUMBERS, seed=SEEDS)
    def upsert(self, numbers: list[int], seed: int) -> None:
        keys, values = self.batch(numbers, seed)
        self.table.upsert(keys, values)
        self.model.upsert(keys.tolist(), values)

    @rule(numbers=KEY_NUMBERS, seed=SEEDS, time=TIMES, count=st.integers(0, 5))
    def upsert_with_usage(self, numbers: list[int], seed: int, time: int, count: int) -> None:
        keys, values = self.batch(numbers, seed)
        usage = np.array([[time + i, count + i % 2] for i in range(len(keys))], np.uint32)
        usage = usage.reshape(-1, 2)
        self.table.upsert(keys, values, metadata=usage)
        self.model.upsert(keys.tolist(), values, usage)

    @rule(numbers=KEY_NUMBERS, seed=SEEDS, known=st.integers(0, 2**10 - 1))
    def accum(self, numbers: list[int], seed: int, known: int) -> None:
        keys, deltas = self.batch(numbers, seed)
        exists = np.array([known >> i & 1 for i in range(len(keys))], bool)
        self.table.accum(keys, deltas, exists)
        self.model.accum(keys.tolist(), deltas, exists)

    @precondition(lambda self: self.floating)
    @rule(numbers=KEY_NUMBERS, seed=SEEDS)
    def train(self, numbers: list[int], seed: int) -> None:
        keys, gradients = self.batch(numbers, seed)
        self.table.apply_gradients(keys, gradients)
        self.model.train(keys.tolist(), gradients, keys, self.table.step)

    @rule(numbers=KEY_NUMBERS)
    def touch(self, numbers: list[int]) -> None:
        keys, _ = self.batch(numbers)
        self.table.touch(keys)
        self.model.touch(keys.tolist())

    @rule(numbers=KEY_NUMBERS)
    def remove(self, numbers: list[int]) -> None:
        keys, _ = self.batch(numbers)
        assert self.table.remove(keys) == self.model.drop(keys.tolist(), "removals")

    @rule()
    def clear(self) -> None:
        self.table.clear()
        self.model.clear()

    @rule(
        by=st.sampled_from(["time", "count"]),
        keep=st.integers(0, 13),
        trigger=st.none() | st.integers(0, 13),
    )
    def restrict(self, by: str, keep: int, trigger: int | None) -> None:
        before = dict(self.model.usage)
        # A restart, and another order of the rows, change nothing.
        copies = [self.copy(backwards) for backwards in (False, True)]
        evicted = self.table.restrict(keep, by=by, trigger=trigger)
        kept = set(self.table.export()[0].tolist())
        if len(before) > (keep if trigger is None else trigger):
            self.model.figures["restrict_runs"] += 1
            assert is_a_best(kept, before, keep, by)
            assert evicted == max(0, len(before) - keep)
        else:
            assert (kept, evicted) == (set(before), 0)
        self.model.drop(set(before) - kept, "evictions")
        for copy in copies:
            assert copy.restrict(keep, by=by, trigger=trigger) == evicted
            assert set(copy.export()[0].tolist()) == kept

    @rule(
        ttl=st.none() | st.sampled_from([0, 0.5, 10, 59.9, 100, 1e9]),
        min_norm=st.none() | st.sampled_from([0.0, 0.5, 2.0, 5.0, 1e6]),
        norm_writes=st.integers(0, 3),
    )
    def expire(self, ttl: float | None, min_norm: float | None, norm_writes: int) -> None:
        min_norm = min_norm if self.floating else None
        expired = self.table.expire(ttl=ttl, min_norm=min_norm, norm_writes=norm_writes)
        assert expired == self.model.expire(ttl, min_norm, norm_writes)

    @rule(numbers=KEY_NUMBERS)
    def look_up(self, numbers: list[int]) -> None:
        keys, _ = self.batch(numbers)
        self.table.lookup(keys)
        found = sum(key in self.model.usage for key in keys.tolist())
        self.hits, self.misses = self.hits + found, self.misses + len(keys) - found

    @rule(numbers=KEY_NUMBERS)
    def ask_for_usage(self, numbers: list[int]) -> None:
        keys, _ = self.batch(numbers)
        usage = self.table.usage(keys)
        assert (usage.dtype, usage.shape) == (np.uint32, (len(keys), 2))
        expected = [list(self.model.usage.get(key, (0, 0))) for key in keys.tolist()]
        assert usage.tolist() == expected

    @rule()
    def histograms(self) -> None:
        found, model = self.table.histograms(), self.model
        ages = [max(0, model.clock - time) for time, _ in model.usage.values()]
        writes = [count for _, count in model.usage.values()]
        norms = list(model.norms().values()) if self.floating else []
        for histogram, numbers in ((found.age, ages), (found.frequency, writes)):
            assert_counts(histogram, numbers)
        assert_counts(found.norm, norms)

    @rule()
    def move_to_another_table(self) -> None:
        self.table = self.copy(False)
        self.model.figures.clear()
        self.model.figures["inserts"] = len(self.model.usage)
        self.hits = self.misses = 0

    @invariant()
    def rows_slots_and_usage_are_those_of_the_model(self) -> None:
        assert table_content(self.table) == self.model.content()
        assert waiting_of(self.table) == self.model.waiting

    @invariant()
    def figures_are_those_of_the_model(self) -> None:
        stats = self.table.stats()
        left = stats.removals + stats.evictions + stats.expirations
        assert len(self.table) == stats.size == stats.inserts - left
        assert {f: getattr(stats, f) for f in FIGURES} == {
            f: self.model.figures[f] for f in FIGURES
        }
        assert stats.waiting == len(self.model.waiting)
        assert (stats.hits, stats.misses) == (self.hits, self.misses)
        assert stats.lookups == self.hits + self.misses


def assert_counts(histogram: Any, numbers: list[float]) -> None:
    """The counts of numbers, by NumPy's way of counting."""
    ends = np.append(histogram.edges[:-1], np.finfo(np.float64).max)
    assert len(histogram.edges) == len(histogram.counts) + 1
    assert histogram.counts.tolist() == np.histogram(numbers, ends)[0].tolist()


@pytest.mark.parametrize(
    ("key_dtype", "value_dtype", "min_count"),
    [
        ("int64", "float32", 1),
        ("int64", "float32", 3),
        ("string", "float16", 1),
        ("string", "float32", 2),
        ("int64", "float64", 2),
        ("string", "int64", 2),
        ("int64", "int64", 1),
    ],
)
def test_random_histories(key_dtype: str, value_dtype: str, min_count: int) -> None:
    run_state_machine_as_test(
        functools.partial(UpkeepMachine, key_dtype, value_dtype, min_count),
        settings=hypothesis.settings(max_examples=25, stateful_step_count=25),
    )


def random_usage(count: int, kind: str) -> Array:
    rng = np.random.default_rng(len(kind))
    if kind == "all equal":
        return np.full((count, 2), 7, np.uint32)
    most = {"few different": 4, "all numbers": 2**32}[kind]
    usage = rng.integers(0, most, (count, 2), dtype=np.uint64).astype(np.uint32)
    usage[:4] = [[0, 0], [2**32 - 1, 2**32 - 1], [0, 2**32 - 1], [2**32 - 1, 0]]
    return usage


@pytest.mark.parametrize("by", ["time", "count"])
@pytest.mark.parametrize("kind", ["all equal", "few different", "all numbers"])
def test_restrict_of_many_keys(key_dtype: str, kind: str, by: str) -> None:
    count = 3000
    keys, usage = make_keys(key_dtype, np.arange(count)), random_usage(count, kind)
    values = np.arange(count, dtype=np.float32)[:, None]
    tables = [tfra.Table(1, key_dtype=key_dtype, metadata=True) for _ in range(2)]
    for table, order in zip(tables, (slice(None), slice(None, None, -1)), strict=True):
        table.upsert(keys[order], values[order], metadata=usage[order])
    known: dict[Any, Usage] = dict(zip(keys.tolist(), map(tuple, usage.tolist()), strict=True))
    for keep in (count, 2321, 2320, 1000, 1, 0):
        before = {key: known[key] for key in tables[0].export()[0].tolist()}
        kept = []
        for table in tables:
            assert table.restrict(keep, by=by) == len(before) - keep
            kept.append(set(table.export()[0].tolist()))
        assert kept[0] == kept[1]
        assert is_a_best(kept[0], before, keep, by)
        left = tables[0].lookup(make_keys(key_dtype, np.arange(count)), default=-1.0)[:, 0]
        expected = [i if key in kept[0] else -1 for i, key in enumerate(keys.tolist())]
        assert left.tolist() == expected


def test_slots_leave_with_the_row() -> None:
    table, fresh = (tfra.Table(2, optimizer="adam", metadata=True) for _ in range(2))
    gradients = np.full((2, 2), 0.5, np.float32)
    for now in (1, 2):
        table.clock = now
        table.apply_gradients([7, 8], gradients)
    table.clock = 3
    table.apply_gradients([8], gradients[:1])
    assert table.restrict(1) == 1
    assert table.export()[0].tolist() == [8]
    table.apply_gradients([7], gradients[:1], step=5)
    fresh.apply_gradients([7], gradients[:1], step=5)
    assert table.usage([7]).tolist() == [[3, 1]]
    table.remove([8])
    for mine, expected in zip(table.export(slots=True), fresh.export(slots=True), strict=True):
        np.testing.assert_equal(mine, expected)


def test_ttl_and_min_norm_of_the_table_are_the_defaults() -> None:
    table = tfra.Table(2, ttl=10, min_norm=1.0)
    assert table.metadata is True
    table.clock = 100
    table.upsert([1, 2, 3], [[5.0, 0.0], [0.1, 0.0], [5.0, 0.0]])
    table.clock = 110
    table.upsert([3], [[5.0, 0.0]])
    assert table.expire() == 1  # Key 2, by its norm; the others are 10 seconds old and 0.
    table.clock = 111
    assert table.expire(ttl=11) == 0
    assert table.expire() == 1
    assert table.export()[0].tolist() == [3]
    assert table.expire(min_norm=5.0) == 0  # Not below it.
    assert table.expire(min_norm=5.5, norm_writes=3) == 0
    assert table.expire(min_norm=5.5, norm_writes=2) == 1


def test_norms_that_are_no_numbers_do_not_expire() -> None:
    table = tfra.Table(2, metadata=True)
    table.upsert([1, 2, 3], [[np.nan, 0.0], [np.inf, 0.0], [1e-30, 0.0]])
    assert table.expire(min_norm=1e30) == 1
    assert sorted(table.export()[0].tolist()) == [1, 2]
    assert table.histograms().norm.counts[-1] == 2


def table_to_fail() -> tfra.Table:
    table = tfra.Table(1, metadata=True, optimizer="adam")
    table.upsert([1, 2], [[1.0], [2.0]])
    return table


@pytest.mark.parametrize(
    ("error", "said", "call"),
    [
        (TypeError, "`num_reserved` .* 1.5", lambda t: t.restrict(1.5)),
        (TypeError, "`num_reserved` .* '1'", lambda t: t.restrict("1")),
        (TypeError, "`num_reserved` .* True", lambda t: t.restrict(True)),
        (TypeError, "`trigger` .* 1.0", lambda t: t.restrict(1, trigger=1.0)),
        (ValueError, "`num_reserved` .* -1", lambda t: t.restrict(-1)),
        (ValueError, "`trigger` .* -1", lambda t: t.restrict(0, trigger=-1)),
        (ValueError, "`by` .* 'age'", lambda t: t.restrict(0, by="age")),
        (TypeError, "`ttl` .* '9'", lambda t: t.expire(ttl="9")),
        (ValueError, "`ttl` .* -1", lambda t: t.expire(ttl=-1)),
        (ValueError, "`ttl` .* nan", lambda t: t.expire(ttl=float("nan"))),
        (TypeError, "`min_norm` .* True", lambda t: t.expire(min_norm=True)),
        (ValueError, "`min_norm` .* -0.5", lambda t: t.expire(min_norm=-0.5)),
        (TypeError, "`norm_writes` .* 1.5", lambda t: t.expire(min_norm=9.0, norm_writes=1.5)),
        (ValueError, "`norm_writes` .* -1", lambda t: t.expire(min_norm=9.0, norm_writes=-1)),
        (TypeError, "`keys` .* float64", lambda t: t.touch([1.5])),
        (TypeError, "`keys` .* float64", lambda t: t.usage([1.5])),
        (ValueError, r"\(1, 2\).*\(1, 3\)", lambda t: t.upsert([1], [[9.0]], metadata=[[1, 2, 3]])),
        (ValueError, "uint32.*-1", lambda t: t.upsert([1], [[9.0]], metadata=[[-1, 2]])),
    ],
)
def test_errors_say_what_was_received_and_change_nothing(
    error: type[Exception], said: str, call: Any
) -> None:
    table = table_to_fail()
    before, stats = full_state(table), table.stats()
    with pytest.raises(error, match=said) as caught:
        call(table)
    assert "received" in str(caught.value).lower()
    assert (full_state(table), table.stats()) == (before, stats)


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t.touch([1]),
        lambda t: t.usage([1]),
        lambda t: t.restrict(1),
        lambda t: t.expire(ttl=1),
        lambda t: t.expire(min_norm=1e9),
    ],
)
def test_tables_without_metadata_say_so(call: Any) -> None:
    table = tfra.Table(1)
    table.upsert([1, 2], [[1.0], [2.0]])
    with pytest.raises(ValueError, match=r"metadata.* [Rr]eceived"):
        call(table)
    assert len(table) == 2


def test_norms_need_floating_values() -> None:
    table = tfra.Table(1, value_dtype="int64", metadata=True)
    table.upsert([1], [[1]])
    with pytest.raises(TypeError, match=r"floating.*int64"):
        table.expire(min_norm=2.0)
    assert len(table) == 1
