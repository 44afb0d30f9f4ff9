"""tfra.Table with a bound: which keys stay, which are evicted, and what is counted."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tfra
from hkv_model import BoundedModel
from support import ALL_CASES, Case, as_content, assert_identical, content, make_keys

STRATEGIES = ("lru", "lfu", "epochlru", "epochlfu", "customized")


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> str:
    return request.param


def scores_of(table: tfra.Table) -> dict[Any, int]:
    keys, _, scores = table.export_with_scores()
    return dict(zip(keys.tolist(), scores.tolist(), strict=True))


def rows_of(table: tfra.Table) -> dict[Any, tuple[float, ...]]:
    keys, values, _ = table.export_with_scores()
    return {key: tuple(row) for key, row in zip(keys.tolist(), values.tolist(), strict=True)}


@pytest.mark.parametrize("capacity", [1, 7, 200])
@pytest.mark.parametrize("key_dtype", ["int64", "string"])
def test_random_histories_against_an_exact_reference(
    strategy: str, key_dtype: str, capacity: int
) -> None:
    rng = np.random.default_rng(capacity)
    table = tfra.Table(
        2, key_dtype=key_dtype, max_capacity=capacity, evict_strategy=strategy,
        remember_counts=False,
    )  # fmt: skip
    model = BoundedModel(capacity, strategy)
    ties = strategy != "lru"
    for call in range(150):
        if strategy.startswith("epoch") and call % 20 == 19:
            epoch = int(rng.integers(0, 4))
            table.set_epoch(epoch)
            model.set_epoch(epoch)
        n = int(rng.integers(1, 30))
        keys = make_keys(key_dtype, rng.integers(0, 3 * capacity + 2, n))
        rows = rng.standard_normal((n, 2)).astype(np.float32)
        given = None
        if strategy == "customized" or (strategy.endswith("lfu") and call % 3 == 0):
            given = rng.integers(0, 50, n).tolist()
        before = model.scores.copy()
        evicted, rejected = table.insert_and_evict(keys, rows, scores=given, return_rejected=True)
        gone, refused = model.upsert(keys.tolist(), [tuple(row) for row in rows.tolist()], given)
        assert len(table) == len(model.rows) <= capacity
        assert sorted(evicted.scores.tolist()) == sorted(gone.values())
        assert {k for k, r in zip(keys.tolist(), rejected.tolist(), strict=True) if r} == refused
        assert not table.contains(evicted.keys).any()
        if not ties:
            assert dict(zip(evicted.keys.tolist(), evicted.scores.tolist(), strict=True)) == gone
            assert rows_of(table) == model.rows
            assert scores_of(table) == model.scores
        # Any of the keys with equal scores may be evicted, but the remaining scores are the same.
        assert sorted(scores_of(table).values()) == sorted(model.scores.values())
        assert set(scores_of(table)) <= set(before) | set(keys.tolist())
        # From here on both hold the same keys again.
        model.rows, model.scores = rows_of(table), scores_of(table)
    stats = table.stats()
    assert (stats.evictions, stats.rejections) == (model.evictions, model.rejections)
    assert stats.evictions + stats.rejections > 100
    assert stats.inserts - stats.evictions == len(table)


@pytest.mark.parametrize("case", ALL_CASES[::5], ids=str)
def test_the_least_recent_go_in_tables_of_every_type(case: Case) -> None:
    table = case.table(max_capacity=10)
    values = case.values(30)
    for start in range(0, 30, 5):
        table.upsert(case.keys(range(start, start + 5)), values[start : start + 5])
    assert content(table) == as_content(case.keys(range(20, 30)), values[20:])


def test_a_lookup_renews_no_score_and_a_write_does() -> None:
    table = tfra.Table(1, max_capacity=2)
    table.upsert([1, 2], [[1.0], [2.0]])
    table.lookup([1])
    table.contains([1])
    table.upsert([3], [[3.0]])
    assert sorted(table.export()[0]) == [2, 3]
    table.accum([2], [[1.0]], [True])
    table.upsert([4], [[4.0]])
    assert sorted(table.export()[0]) == [2, 4]


@pytest.mark.parametrize("capacity", [1000, 5000, 40_000])
def test_after_a_uniform_stream_of_ten_times_the_keys_the_table_is_full(
    strategy: str, capacity: int
) -> None:
    table = tfra.Table(1, max_capacity=capacity, evict_strategy=strategy)
    rng = np.random.default_rng(0)
    for keys in np.array_split(rng.permutation(10 * capacity), 40):
        scores = rng.integers(0, 2**40, len(keys)) if strategy == "customized" else None
        table.upsert(keys, np.zeros((len(keys), 1), np.float32), scores=scores)
        assert len(table) <= capacity
    assert len(table) >= 0.99 * capacity
    stats = table.stats()
    assert stats.capacity <= capacity
    assert stats.inserts - stats.evictions == len(table)
    assert stats.inserts + stats.rejections == 10 * capacity


@pytest.mark.parametrize("capacity", [2000, 20_000])
def test_lfu_keeps_the_most_frequent_of_a_zipf_stream(capacity: int) -> None:
    rng = np.random.default_rng(1)
    distinct = 10 * capacity
    weights = 1 / np.arange(1, distinct + 1) ** 1.05
    names = rng.permutation(distinct)  # Keys are numbered without regard to their frequency.
    stream = names[rng.choice(distinct, 100 * capacity, p=weights / weights.sum())]
    table = tfra.Table(1, max_capacity=capacity, evict_strategy="lfu")
    for keys in np.array_split(stream, 100):
        table.upsert(keys, np.zeros((len(keys), 1), np.float32))
    top = [key for key, _ in Counter(stream.tolist()).most_common(capacity // 2)]
    assert table.contains(top).mean() >= 0.98


@pytest.mark.parametrize("capacity", [500, 5000])
def test_threads_together_keep_to_the_bound(strategy: str, capacity: int) -> None:
    table = tfra.Table(2, max_capacity=capacity, evict_strategy=strategy)

    def write(seed: int) -> int:
        rng = np.random.default_rng(seed)
        most = 0
        for _ in range(40):
            keys = rng.integers(0, 4 * capacity, 400)
            scores = keys if strategy == "customized" else None
            table.upsert(keys, np.stack([keys, keys], 1).astype(np.float32), scores=scores)
            table.remove(keys[:5])
            most = max(most, len(table))
        return most

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(write, range(4))) <= capacity
    keys, values, _ = table.export_with_scores()
    assert len(keys) == len(set(keys.tolist())) == len(table)
    np.testing.assert_array_equal(values, np.stack([keys, keys], 1))
    stats = table.stats()
    assert stats.inserts - stats.removals - stats.evictions == len(table)


def test_epochs_go_before_counts() -> None:
    table = tfra.Table(1, max_capacity=2, evict_strategy="epochlfu")
    table.upsert([1, 1, 1, 2], [[0.0]] * 4)
    table.epoch = 5
    assert table.epoch == 5
    table.upsert([3], [[0.0]])  # Once, but in a later epoch than both.
    assert sorted(table.export()[0]) == [1, 3]
    assert table.scores([1, 2, 3]).tolist() == [3, 0, (5 << 32) + 1]


def test_scores_of_the_caller() -> None:
    table = tfra.Table(1, max_capacity=3, evict_strategy="customized")
    big = 2**64 - 2
    table.upsert([1, 2, 3], [[1.0], [2.0], [3.0]], scores=np.array([big, 5, 7], np.uint64))
    assert table.scores([[1, 2], [3, 4]]).tolist() == [[big, 5], [7, 0]]
    evicted, rejected = table.insert_and_evict(
        [4, 5], [[4.0], [5.0]], scores=[4, 6], return_rejected=True
    )
    assert rejected.tolist() == [True, False]
    assert [part.tolist() for part in evicted] == [[2], [[2.0]], [5]]
    table.upsert([1], [[9.0]])  # The key keeps its score.
    assert scores_of(table) == {1: big, 3: 7, 5: 6}
    table.assign([3, 99], [[8.0], [8.0]], scores=[1, 1])
    assert (scores_of(table)[3], rows_of(table)[3], len(table)) == (1, (8.0,), 3)
    table.assign_scores([3, 99], [100, 1])
    assert scores_of(table) == {1: big, 3: 100, 5: 6}
    stats = table.stats()
    assert (stats.evictions, stats.rejections, stats.ignored) == (1, 1, 2)


@pytest.mark.parametrize("case", ALL_CASES[::5], ids=str)
def test_find_or_insert(case: Case) -> None:
    table = case.table(max_capacity=100)
    keys, values = case.keys([[0, 1], [2, 0]]), case.values((2, 2))
    table.upsert(keys[0], values[0])
    found, exists = table.find_or_insert(keys, values, return_exists=True)
    expected = values.copy()
    expected[1, 1] = values[0, 0]
    assert_identical(found, expected)
    assert exists.tolist() == [[True, True], [False, True]]
    assert content(table) == as_content(keys[[0, 0, 1], [0, 1, 0]], values[[0, 0, 1], [0, 1, 0]])
    row = case.values((), seed=5)
    assert_identical(table.find_or_insert(case.keys([7]), row), row[None])
    assert_identical(table.find_or_insert(case.keys([8])), case.zeros(1))
    assert len(table) == 5


def test_a_rejected_key_finds_its_default_and_is_not_inserted() -> None:
    table = tfra.Table(1, max_capacity=1, evict_strategy="customized", initializer=3.0)
    table.upsert([1], [[1.0]], scores=[10])
    assert table.find_or_insert([2], scores=[9]).tolist() == [[3.0]]
    assert table.export()[0].tolist() == [1]


@pytest.mark.parametrize("case", ALL_CASES[::5], ids=str)
def test_selecting_by_score(case: Case) -> None:
    table = case.table(max_capacity=100, evict_strategy="customized")
    keys, values = case.keys(range(50)), case.values(50)
    table.upsert(keys, values, scores=np.arange(50))
    assert table.size_if(score_below=20) == 20
    assert table.size_if(score_at_least=20) == 30
    assert table.size_if(score_at_least=10, score_below=12) == 2
    found = table.export_if(score_at_least=45)
    assert as_content(found.keys, found.values) == as_content(keys[45:], values[45:])
    assert sorted(found.scores.tolist()) == list(range(45, 50))
    assert table.erase_if(score_below=40) == 40
    assert content(table) == as_content(keys[40:], values[40:])
    assert table.stats().evictions == 0


def test_an_update_of_an_evicted_key_starts_from_its_initial_value() -> None:
    table = tfra.Table(2, max_capacity=2, initializer=1.0, optimizer="adagrad")
    table.apply_gradients([1, 2], [[1.0, 1.0]] * 2)
    first = table.lookup([1])
    table.apply_gradients([3], [[1.0, 1.0]])  # Evicts 1, with its slots.
    assert sorted(table.export()[0]) == [2, 3]
    table.apply_gradients([1], [[1.0, 1.0]], step=1)
    assert_identical(table.lookup([1]), first)
    assert sorted(table.export()[0]) == [1, 3]
    assert table.stats().evictions == 2


def test_an_update_of_too_low_a_score_is_dropped_and_counted() -> None:
    table = tfra.Table(
        1, max_capacity=1, evict_strategy="customized", initializer=1.0, optimizer="sgd"
    )
    table.apply_gradients([1], [[1.0]], scores=[5])
    before = table.lookup([1])
    table.apply_gradients([2], [[1.0]], scores=[4])
    table.accum([3], [[1.0]], [False], scores=[3])
    assert table.export()[0].tolist() == [1]
    assert_identical(table.lookup([1]), before)
    assert table.stats().rejections == 2


def test_a_table_grows_up_to_its_bound_and_reserve_goes_no_further() -> None:
    table = tfra.Table(1, capacity=64, max_capacity=10_000)
    assert 64 <= table.stats().capacity < 10_000
    table.reserve(1_000_000)
    assert table.stats().capacity == 10_000
    assert (table.max_capacity, table.evict_strategy) == (10_000, "lru")
    assert (tfra.Table(1).max_capacity, tfra.Table(1).evict_strategy) == (None, None)


ERRORS: list[tuple[type[Exception], str, Any]] = [
    (ValueError, "max_capacity", lambda: tfra.Table(1, max_capacity=0)),
    (ValueError, "max_capacity", lambda: tfra.Table(1, max_capacity=-1)),
    (TypeError, "max_capacity", lambda: tfra.Table(1, max_capacity=1.5)),
    (ValueError, "max_capacity", lambda: tfra.Table(1, max_capacity=5, capacity=6)),
    (ValueError, "evict_strategy", lambda: tfra.Table(1, max_capacity=5, evict_strategy="fifo")),
    (ValueError, "needs a table with scores", lambda: tfra.Table(1).scores([1])),
    (ValueError, "needs a table with scores", lambda: tfra.Table(1).export_with_scores()),
    (ValueError, "needs a table with scores", lambda: tfra.Table(1).erase_if(score_below=1)),
    (ValueError, "needs a table with scores", lambda: tfra.Table(1).assign_scores([1], [1])),
    (ValueError, "strategy", lambda: tfra.Table(1).upsert([1], [[1.0]], scores=[1])),
    (ValueError, "strategy", lambda: filled("lru").upsert([1], [[1.0]], scores=[1])),
    (ValueError, "shape", lambda: filled().upsert([1], [[1.0]], scores=[1, 2])),
    (TypeError, "integers", lambda: filled().upsert([1], [[1.0]], scores=[1.5])),
    (ValueError, "0 or more", lambda: filled().upsert([1], [[1.0]], scores=[-1])),
    (ValueError, "0 or more", lambda: filled().assign_scores([1], [-1])),
    (ValueError, "neither", lambda: filled().size_if()),
    (ValueError, "score_below", lambda: filled().size_if(score_below=-1)),
    (TypeError, "score_at_least", lambda: filled().erase_if(score_at_least=0.5)),
    (ValueError, "epochlru", lambda: filled().set_epoch(1)),
    (ValueError, "epoch", lambda: filled("epochlru").set_epoch(2**32)),
    (TypeError, "epoch", lambda: filled("epochlru").set_epoch(0.5)),
]  # fmt: skip


def filled(strategy: str = "customized") -> tfra.Table:
    return tfra.Table(1, max_capacity=5, evict_strategy=strategy)


@pytest.mark.parametrize(("error", "said", "call"), ERRORS)
def test_wrong_arguments_say_what_was_expected(
    error: type[Exception], said: str, call: Any
) -> None:
    with pytest.raises(error, match=said) as caught:
        call()
    assert "Received" in str(caught.value)


def test_a_wrong_call_changes_nothing() -> None:
    table = filled()
    table.upsert([1, 2], [[1.0], [2.0]], scores=[1, 2])
    before = scores_of(table), rows_of(table)
    for scores in ([1], [1.0, 2.0], [-1, 1]):
        with pytest.raises((TypeError, ValueError)):
            table.upsert([1, 3], [[9.0], [9.0]], scores=scores)
    assert (scores_of(table), rows_of(table)) == before
