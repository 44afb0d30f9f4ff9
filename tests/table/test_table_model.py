"""Random sequences of calls against a dict that does the same."""

from __future__ import annotations

import functools
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import tfra
from support import (
    FLOATING_DTYPES,
    Array,
    as_content,
    assert_identical,
    content,
    make_keys,
    numpy_dtype,
    object_array,
    row_bytes,
)

DIM = 3
# Few keys, so that most calls have existing keys and repeated keys.
KEY_NUMBERS = st.lists(st.integers(-2, 9), max_size=12)
SEEDS = st.integers(0, 50)


def rows_of_seed(value_dtype: str, count: int, seed: int) -> Array:
    """Rows of small numbers, exact in every type, that differ with the seed and the position."""
    numbers = (np.arange(count * DIM).reshape(count, DIM) * 7 + seed) % 23 - 11
    if value_dtype == "string":
        strings = (b"v" * (3 * (n + 11)) + b"%d" % n for n in numbers.ravel().tolist())
        return object_array(strings, numbers.shape)
    if value_dtype == "bool":
        return numbers % 2 == 0
    return numbers.astype(numpy_dtype(value_dtype))


class TableMachine(RuleBasedStateMachine):
    """A table and the dict that says what it holds."""

    def __init__(self, key_dtype: str, value_dtype: str) -> None:
        super().__init__()
        self.key_dtype, self.value_dtype = key_dtype, value_dtype
        self.has_optimizer = value_dtype in FLOATING_DTYPES
        self.table = tfra.Table(
            DIM,
            key_dtype=key_dtype,
            value_dtype=value_dtype,
            optimizer="adam" if self.has_optimizer else None,
        )
        self.model: dict[Any, Array] = {}
        self.initial = rows_of_seed(value_dtype, 1, 0)[0]
        self.initial[:] = b"" if value_dtype == "string" else 0

    def keys(self, numbers: list[int]) -> Array:
        return make_keys(self.key_dtype, numbers)

    def expected_rows(self, keys: Array, defaults: Array) -> Array:
        rows = np.empty((len(keys), DIM), defaults.dtype)
        for at, key in enumerate(keys.tolist()):
            rows[at] = self.model.get(key, defaults[at])
        return rows

    @rule(numbers=KEY_NUMBERS, seed=SEEDS)
    def upsert(self, numbers: list[int], seed: int) -> None:
        keys, values = self.keys(numbers), rows_of_seed(self.value_dtype, len(numbers), seed)
        self.table.upsert(keys, values)
        self.model.update(zip(keys.tolist(), values, strict=True))

    @rule(numbers=KEY_NUMBERS, seed=SEEDS, data=st.data())
    def accum(self, numbers: list[int], seed: int, data: st.DataObject) -> None:
        if self.value_dtype == "string":
            return
        keys, deltas = self.keys(numbers), rows_of_seed(self.value_dtype, len(numbers), seed)
        bools = st.lists(st.booleans(), min_size=len(numbers), max_size=len(numbers))
        exists = np.array(data.draw(bools), bool)
        self.table.accum(keys, deltas, exists)
        for key, delta, expected in zip(keys.tolist(), deltas, exists.tolist(), strict=True):
            row = self.model.get(key)
            if row is not None and expected:
                self.model[key] = row | delta if row.dtype == bool else row + delta
            elif row is None and not expected:
                self.model[key] = delta

    @rule(numbers=KEY_NUMBERS)
    def remove(self, numbers: list[int]) -> None:
        keys = self.keys(numbers)
        present = {key for key in keys.tolist() if key in self.model}
        assert self.table.remove(keys) == len(present)
        for key in present:
            del self.model[key]

    @rule()
    def clear(self) -> None:
        self.table.clear()
        self.model.clear()

    @rule(numbers=KEY_NUMBERS)
    def lookup(self, numbers: list[int]) -> None:
        keys = self.keys(numbers)
        found, exists = self.table.lookup(keys, return_exists=True)
        defaults = np.broadcast_to(self.initial, (len(keys), DIM))
        assert_identical(found, self.expected_rows(keys, defaults))
        assert exists.tolist() == [key in self.model for key in keys.tolist()]
        assert_identical(self.table.contains(keys), exists)

    @rule(numbers=KEY_NUMBERS, seed=SEEDS, row_per_key=st.booleans())
    def lookup_with_defaults(self, numbers: list[int], seed: int, row_per_key: bool) -> None:
        keys = self.keys(numbers)
        if row_per_key:
            given = defaults = rows_of_seed(self.value_dtype, len(keys), seed)
        else:
            given = rows_of_seed(self.value_dtype, 1, seed)[0]
            defaults = np.broadcast_to(given, (len(keys), DIM))
        assert_identical(self.table.lookup(keys, given), self.expected_rows(keys, defaults))

    @rule(number=st.integers(-2, 9))
    def one_key_in(self, number: int) -> None:
        key = self.keys([number]).tolist()[0]
        assert (key in self.table) == (key in self.model)

    @rule(batch_size=st.integers(1, 5))
    def iterate(self, batch_size: int) -> None:
        batches = list(self.table.iterate(batch_size))
        seen = [key for keys, _ in batches for key in keys.tolist()]
        assert len(seen) == len(set(seen)) == len(self.model)
        merged: dict[Any, Any] = {}
        for keys, values in batches:
            merged.update(as_content(keys, values))
        assert merged == self.model_content()

    @rule(n=st.integers(0, 5000))
    def reserve(self, n: int) -> None:
        self.table.reserve(n)
        assert self.table.stats().capacity >= n

    @rule()
    def shrink(self) -> None:
        self.table.shrink()

    @rule()
    def nothing_changes_nothing(self) -> None:
        keys, rows = self.keys([]), rows_of_seed(self.value_dtype, 0, 0)
        self.table.upsert(keys, rows)
        assert self.table.remove(keys) == 0
        if self.has_optimizer:
            self.table.apply_gradients(keys, rows)

    def model_content(self) -> dict[Any, Any]:
        return {key: row_bytes(row) for key, row in self.model.items()}

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert len(self.table) == len(self.model)
        assert content(self.table) == self.model_content()
        assert self.table.stats().size == len(self.model)


def test_table_does_what_a_dict_does(key_dtype: str, value_dtype: str) -> None:
    run_state_machine_as_test(
        functools.partial(TableMachine, key_dtype, value_dtype),
        settings=hypothesis.settings(max_examples=50, stateful_step_count=30),
    )
