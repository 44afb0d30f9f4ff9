"""Tables whose rows carry the time of the last write and the number of writes."""

from __future__ import annotations

import time

import numpy as np
import pytest

import tfra
from support import make_keys

ROWS = np.zeros((1, 2), np.float32)


def make_table(key_dtype: str = "int64") -> tfra.Table:
    """Key k was last written at time 100 + k, and k + 1 times in all; k from 0 to 9."""
    table = tfra.Table(2, key_dtype=key_dtype, metadata=True, optimizer="sgd")
    for now in range(100, 110):
        table.clock = now
        for key in range(now - 100, 10):
            table.upsert(make_keys(key_dtype, [key]), ROWS)
    return table


def numbers(table: tfra.Table, **conditions: int) -> list[int]:
    keys = table.select(**conditions)
    if keys.dtype == object:
        keys = np.array([int(key.split(b":")[0]) for key in keys])
    return sorted(keys.tolist())


def test_rows_are_selected_by_time(key_dtype: str) -> None:
    table = make_table(key_dtype)
    assert table.metadata is True
    assert numbers(table, written_before=100) == []
    assert numbers(table, written_before=104) == [0, 1, 2, 3]
    assert table.count_if(written_before=104) == 4
    assert table.count_if(written_before=111) == 10


def test_rows_are_selected_by_number_of_writes(key_dtype: str) -> None:
    table = make_table(key_dtype)
    assert numbers(table, count_below=1) == []
    assert numbers(table, count_below=3) == [0, 1]
    assert table.count_if(count_below=3) == 2


def test_both_conditions_must_hold_and_none_means_all() -> None:
    table = make_table()
    table.clock = 200
    table.upsert([0], ROWS)
    assert numbers(table, written_before=105, count_below=4) == [1, 2]
    assert table.count_if(written_before=105, count_below=4) == 2
    assert numbers(table) == list(range(10))
    assert table.count_if() == 10
    assert table.remove_if() == 10
    assert len(table) == 0


@pytest.mark.parametrize(
    ("conditions", "selected"),
    [
        ({"written_before": 106}, [0, 1, 2, 3, 4, 5]),
        ({"count_below": 4}, [0, 1, 2]),
        ({"written_before": 102, "count_below": 8}, [0, 1]),
    ],
)
def test_remove_if_removes_what_select_shows(
    key_dtype: str, conditions: dict[str, int], selected: list[int]
) -> None:
    table = make_table(key_dtype)
    assert numbers(table, **conditions) == selected
    assert table.remove_if(**conditions) == len(selected)
    assert numbers(table) == [n for n in range(10) if n not in selected]
    assert table.remove_if(**conditions) == 0
    assert not table.contains(make_keys(key_dtype, selected)).any()
    assert table.stats().removals == len(selected)


@pytest.mark.parametrize("write", ["upsert", "accum", "apply_gradients"])
def test_every_kind_of_write_counts_and_reading_does_not(write: str) -> None:
    table = make_table()
    table.clock = 500
    if write == "upsert":
        table.upsert([3, 3], np.zeros((2, 2), np.float32))
    elif write == "accum":
        table.accum([3, 3], np.zeros((2, 2), np.float32), [True, True])
    else:
        table.apply_gradients([3, 3], np.zeros((2, 2), np.float32))
    table.lookup([4])
    table.contains([4])
    assert numbers(table, written_before=500) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    # Key 3 had 4. Duplicates in a batch are writes of their own, but one step of an optimizer.
    writes = 5 if write == "apply_gradients" else 6
    assert table.usage([3, 4, 99]).tolist() == [[500, writes], [104, 5], [0, 0]]


def test_the_clock_starts_at_the_time_of_day() -> None:
    table = tfra.Table(2, metadata=True)
    before = int(time.time())
    assert before - 1 <= table.clock <= int(time.time()) + 1
    table.upsert([1], ROWS)
    assert table.count_if(written_before=before - 1) == 0
    assert table.count_if(written_before=int(time.time()) + 2) == 1


def test_the_clock_can_be_set() -> None:
    table = tfra.Table(2, metadata=True)
    table.clock = 12345
    assert table.clock == 12345
    table.upsert([1], ROWS)
    assert table.count_if(written_before=12345) == 0
    assert table.count_if(written_before=12346) == 1


def test_growth_keeps_the_metadata() -> None:
    table = make_table()
    table.clock = 1000
    table.upsert(np.arange(100, 20_100), np.zeros((20_000, 2), np.float32))
    table.shrink()
    assert numbers(table, written_before=1000) == list(range(10))
    assert table.count_if(count_below=2) == 20_001
    assert numbers(table, count_below=5, written_before=1000) == [0, 1, 2, 3]


def test_a_removed_key_starts_anew() -> None:
    table = make_table()
    table.remove([9])
    table.upsert([9], ROWS)
    assert table.count_if(count_below=2) == 2


@pytest.mark.parametrize("method", ["count_if", "select", "remove_if"])
def test_tables_without_metadata_say_so(method: str) -> None:
    table = tfra.Table(2)
    table.upsert([1], ROWS)
    with pytest.raises(ValueError, match="metadata"):
        getattr(table, method)(count_below=5)
    assert len(table) == 1


def test_bounds_are_checked() -> None:
    table = tfra.Table(1, metadata=True)
    with pytest.raises(ValueError, match="written_before"):
        table.count_if(written_before=2**70)
    with pytest.raises(TypeError, match="count_below"):
        table.remove_if(count_below="1")  # type: ignore[arg-type]
