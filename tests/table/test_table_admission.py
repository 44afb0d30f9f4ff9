"""`tfra.Table`: which keys enter. Random histories of exact counts are in test_table_upkeep.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tfra
from support import Array, make_keys

MinCount = tfra.admission.MinCount
CountingBloomFilter = tfra.admission.CountingBloomFilter
Probability = tfra.admission.Probability


def make_table(rule: Any, key_dtype: str = "int64", **options: Any) -> tfra.Table:
    return tfra.Table(
        1, key_dtype=key_dtype, optimizer="sgd", initializer="ones", admission=rule, **options
    )


def train(table: tfra.Table, keys: Array) -> None:
    table.apply_gradients(keys, np.ones((len(keys), 1), np.float32), learning_rate=0.5)


def test_a_key_that_waits_has_its_initial_row_and_its_gradients_are_dropped() -> None:
    table = make_table(MinCount(3))
    for step in range(2):
        train(table, np.array([7, 8, 7]))
        assert table.lookup([7, 8]).tolist() == [[1.0], [1.0]]
        assert (len(table), table.stats().refused) == (0, 2 * (step + 1))
    train(table, np.array([7, 7]))  # Its gradients are summed and applied.
    assert table.lookup([7, 8]).tolist() == [[0.0], [1.0]]
    assert table.export()[0].tolist() == [7]
    assert table.stats().waiting == 1


def test_reading_is_not_seeing() -> None:
    table = make_table(MinCount(2), metadata=True)
    train(table, np.array([7]))
    table.lookup([7])
    table.contains([7])
    table.usage([7])
    table.export()
    assert table.stats().waiting == 1
    assert table.admission_state()["seen"][:, 1].tolist() == [1]


def test_keys_written_by_hand_enter_and_wait_no_longer() -> None:
    table = make_table(MinCount(3))
    train(table, np.array([7, 8]))
    table.upsert([7, 9], [[5.0], [5.0]])
    table.accum([8], [[5.0]], [False])
    assert sorted(table.export()[0].tolist()) == [7, 8, 9]
    assert table.stats().waiting == 0
    table.remove([7, 8])
    train(table, np.array([7, 8]))  # The keys were seen once since they left.
    train(table, np.array([7, 8]))
    assert table.export()[0].tolist() == [9]
    train(table, np.array([7, 8]))
    assert len(table) == 3


def test_one_is_let_in_at_once() -> None:
    table = make_table(MinCount(1))
    train(table, np.array([7]))
    assert len(table) == 1
    assert (table.stats().refused, table.stats().waiting) == (0, 0)


@pytest.mark.parametrize(
    "rule",
    [
        CountingBloomFilter(3, capacity=4000, error_rate=0.05),
        CountingBloomFilter(20, capacity=2000, error_rate=0.05),
        CountingBloomFilter(300, capacity=200, error_rate=0.05),
    ],
)
def test_a_bloom_filter_lets_none_in_late_and_few_early(key_dtype: str, rule: Any) -> None:
    table = make_table(rule, key_dtype)
    keys = make_keys(key_dtype, np.arange(rule.capacity))
    memory = table.stats().admission_bytes
    assert memory == rule.memory_bytes == table.memory_usage()["admission"]
    for _ in range(rule.min_count - 1):
        train(table, keys)
    # Each of `capacity` keys was seen once too few. What is in by now met others everywhere.
    early = len(table) / len(keys)
    train(table, keys)
    assert len(table) == len(keys)
    assert early <= 1.5 * rule.error_rate
    assert table.stats().admission_bytes == memory


def test_the_error_rate_of_new_keys_at_capacity() -> None:
    rule = CountingBloomFilter(2, capacity=20_000, error_rate=0.02)
    table = make_table(rule)
    train(table, np.arange(20_000))
    entered = len(table)
    assert entered <= 400  # On the way there are fewer others to be taken for.
    new = np.arange(100_000, 120_000)
    # Few at a time, since they fill the filter too.
    copies = [make_copy(table, rule) for _ in range(20)]
    for copy, part in zip(copies, np.split(new, 20), strict=True):
        train(copy, part)
    mistakes = sum(len(copy) for copy in copies) / len(new)
    assert mistakes <= 1.3 * rule.error_rate


def make_copy(table: tfra.Table, rule: Any) -> tfra.Table:
    """An empty table that knows of the same keys."""
    copy = make_table(rule)
    copy.restore_admission(table.admission_state())
    return copy


def test_a_key_that_left_enters_a_bloom_filter_again_at_once() -> None:
    table = make_table(CountingBloomFilter(3, capacity=100))
    for _ in range(3):
        train(table, np.array([7]))
    table.remove([7])
    train(table, np.array([7]))
    assert len(table) == 1


def test_memory_of_a_filter_is_what_the_documentation_says() -> None:
    for min_count, bits in ((1, 4), (15, 4), (16, 8), (255, 8), (256, 16), (65535, 16)):
        rule = CountingBloomFilter(min_count, capacity=1_000_000, error_rate=0.01)
        assert rule.memory_bytes == pytest.approx(9.6 * 1_000_000 * bits / 8, rel=0.03)
    parts = tfra.estimate_memory(
        1000, dim=1, admission=CountingBloomFilter(2, capacity=10**8)
    ) - tfra.estimate_memory(1000, dim=1)
    assert parts == CountingBloomFilter(2, capacity=10**8).memory_bytes


@pytest.mark.parametrize("threads", [1, 4])
def test_a_probability_is_kept(key_dtype: str, threads: int, keep_num_threads: None) -> None:
    tfra.set_num_threads(threads)
    table = make_table(Probability(0.25, seed=5), key_dtype)
    keys = make_keys(key_dtype, np.arange(20_000))
    expected, waiting = 0.0, len(keys)
    for _ in range(3):
        train(table, keys)
        expected += 0.25 * (len(keys) - expected)
        assert len(table) == pytest.approx(expected, abs=4 * np.sqrt(0.25 * waiting))
    single = make_table(Probability(0.25, seed=5), key_dtype)
    tfra.set_num_threads(1)
    for _ in range(3):
        train(single, keys)
    assert set(single.export()[0].tolist()) == set(table.export()[0].tolist())


def test_draws_depend_on_the_seed() -> None:
    keys = np.arange(1000)
    entered = []
    for seed in (1, 1, 2):
        table = make_table(Probability(0.5, seed=seed))
        train(table, keys)
        entered.append(set(table.export()[0].tolist()))
    assert entered[0] == entered[1] != entered[2]


def test_probabilities_at_the_ends() -> None:
    never, always = make_table(Probability(0.0)), make_table(Probability(1.0))
    for table in (never, always):
        train(table, np.arange(1000))
    assert (len(never), len(always)) == (0, 1000)
    assert (never.stats().refused, always.stats().refused) == (1000, 0)
    never.upsert([1], [[1.0]])
    assert len(never) == 1


@pytest.mark.parametrize(
    "rule",
    [MinCount(3), CountingBloomFilter(3, capacity=1000), Probability(0.1, seed=3)],
    ids=["exact", "filter", "chance"],
)
def test_state_goes_to_another_table(key_dtype: str, rule: Any) -> None:
    rng = np.random.default_rng(0)
    batches = [make_keys(key_dtype, rng.integers(0, 300, 40)) for _ in range(30)]
    whole, first, second = (make_table(rule, key_dtype) for _ in range(3))
    for batch in batches[:15]:
        train(whole, batch)
        train(first, batch)
    keys, values = first.export()
    second.upsert(keys, values)
    second.restore_admission(first.admission_state())
    assert second.stats().waiting == first.stats().waiting
    entered = 0
    for batch in batches[15:]:
        train(whole, batch)
        train(second, batch)
        entered = len(second)
    assert set(second.export()[0].tolist()) == set(whole.export()[0].tolist())
    assert len(keys) < entered < 300


def test_states_of_several_tables_in_one(key_dtype: str) -> None:
    for rule in (MinCount(2), CountingBloomFilter(2, capacity=1000)):
        odd, even, both = (make_table(rule, key_dtype) for _ in range(3))
        train(odd, make_keys(key_dtype, np.arange(1, 100, 2)))
        train(even, make_keys(key_dtype, np.arange(0, 100, 2)))
        states = [table.admission_state() for table in (odd, even)]
        both.restore_admission({k: np.concatenate([s[k] for s in states]) for k in states[0]})
        train(both, make_keys(key_dtype, np.arange(100)))
        assert len(both) == 100


def test_restoring_takes_the_place_of_what_was_known() -> None:
    for rule in (MinCount(2), CountingBloomFilter(2, capacity=1000)):
        empty, table = make_table(rule), make_table(rule)
        train(table, np.arange(50))
        table.restore_admission(empty.admission_state())
        train(table, np.arange(50))
        assert len(table) == 0


def test_keys_that_wait_expire_and_are_cleared() -> None:
    table = make_table(MinCount(2), ttl=10)
    table.clock = 100
    train(table, np.array([1]))
    table.clock = 105
    train(table, np.array([2]))
    table.clock = 111
    assert table.expire() == 0
    assert table.admission_state()["keys"].tolist() == [2]
    assert table.admission_state()["seen"].tolist() == [[105, 1]]
    assert table.stats().expirations == 0  # These keys had not entered.
    table.clear()
    assert table.stats().waiting == 0


@pytest.mark.parametrize(
    ("error", "said", "make"),
    [
        (ValueError, "`min_count` .* 0", lambda: MinCount(0)),
        (TypeError, "`min_count` .* 1.5", lambda: MinCount(1.5)),
        (TypeError, "`min_count` .* True", lambda: MinCount(True)),
        (ValueError, "`min_count` .* 4294967296", lambda: MinCount(2**32)),
        (ValueError, "`min_count` .* 65536", lambda: CountingBloomFilter(65536, capacity=10)),
        (ValueError, "`capacity` .* 0", lambda: CountingBloomFilter(2, capacity=0)),
        (ValueError, "`error_rate` .* 1", lambda: CountingBloomFilter(2, 10, error_rate=1)),
        (ValueError, "`error_rate` .* nan", lambda: CountingBloomFilter(2, 10, float("nan"))),
        (ValueError, "`probability` .* -0.1", lambda: Probability(-0.1)),
        (ValueError, "`probability` .* nan", lambda: Probability(float("nan"))),
        (TypeError, "`admission` .* 3", lambda: make_table(3)),
        (TypeError, "`admission` .* 'min_count'", lambda: make_table("min_count")),
        (ValueError, "`class_name` .* 'X'", lambda: make_table({"class_name": "X", "config": {}})),
    ],
)  # fmt: skip
def test_rules_are_checked(error: type[Exception], said: str, make: Any) -> None:
    with pytest.raises(error, match=said) as caught:
        make()
    assert "Received" in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: MinCount("x"),
        lambda: MinCount(None),
        lambda: CountingBloomFilter(2, capacity="9"),
        lambda: CountingBloomFilter(2, capacity=1.5),
        lambda: CountingBloomFilter(2, capacity=10, error_rate="x"),
        lambda: Probability("x"),
        lambda: Probability(0.5, seed=1.5),
    ],
)
def test_arguments_of_a_wrong_type_are_named(make: Any) -> None:
    names = "min_count|capacity|error_rate|probability|seed"
    with pytest.raises((TypeError, ValueError), match=f"`({names})` .*Received"):
        make()


STATES = {
    "exact": MinCount(3),
    "filter": CountingBloomFilter(3, capacity=100),
    "larger filter": CountingBloomFilter(3, capacity=10_000),
    "chance": Probability(0.5),
}


@pytest.mark.parametrize(
    ("of", "into"), [(of, into) for of in STATES for into in (*STATES, "none") if of != into]
)
def test_the_state_of_another_rule_is_refused(of: str, into: str) -> None:
    source, target = make_table(STATES[of]), make_table(STATES.get(into))
    train(source, np.arange(20))
    before = target.admission_state()
    with pytest.raises(ValueError, match="received"):
        target.restore_admission(source.admission_state())
    for name, array in target.admission_state().items():
        np.testing.assert_array_equal(array, before[name])


def test_states_are_checked() -> None:
    table = make_table(MinCount(3))
    train(table, np.array([1, 2]))
    state = table.admission_state()
    for change, error in (
        ({"keys": np.array([b"a", b"b"], object)}, TypeError),
        ({"seen": state["seen"][:1]}, ValueError),
        ({"seen": state["seen"].astype(np.float32)}, TypeError),
    ):
        with pytest.raises(error, match="Received"):
            table.restore_admission({**state, **change})
    assert table.stats().waiting == 2


def test_rules_are_written_and_read() -> None:
    for rule in (MinCount(3), CountingBloomFilter(2, 10, 0.1), Probability(0.5, seed=7)):
        assert tfra.admission.deserialize(rule.serialize()) == rule
        assert tfra.admission.get(rule.serialize()) == rule
        assert make_table(rule).admission == rule
    assert tfra.admission.get(None) is None
    assert make_table(None).admission is None
