"""Exports of whole tables: a fixed order, and complete while other threads write."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from tf_support import KEY_DTYPES, TfCase, de, to_numpy

ROWS = 20_000


def numbered(numbers: Any, dim: int) -> np.ndarray:
    """Rows that say, in every element, the number of their key."""
    return np.repeat(np.asarray(numbers, np.float32)[:, None], dim, 1)


@pytest.mark.parametrize("key_dtype", KEY_DTYPES)
@pytest.mark.parametrize("devices", [1, 3])
def test_an_export_has_one_order(key_dtype: str, devices: int) -> None:
    case = TfCase(key_dtype, "float32")
    variable = case.variable(devices=["/CPU:0"] * devices)
    variable.upsert(case.keys(range(ROWS)), case.values(ROWS))
    keys, values = (to_numpy(tensor) for tensor in variable.export())
    assert sorted(keys.tolist()) == sorted(case.keys(range(ROWS)).tolist())
    for _ in range(5):
        again_keys, again_values = variable.export()
        np.testing.assert_array_equal(again_keys, keys)
        np.testing.assert_array_equal(again_values, values)


@pytest.mark.parametrize("key_dtype", KEY_DTYPES)
@pytest.mark.parametrize("dim", [3, 16])
def test_exports_are_complete_while_a_table_grows(key_dtype: str, dim: int) -> None:
    case = TfCase(key_dtype, "float32", (dim,))
    variable = case.variable()
    stay = 2_000
    variable.upsert(case.keys(range(stay)), numbered(range(stay), dim))
    number_of = {key: number for number, key in enumerate(case.keys(range(ROWS)).tolist())}

    def grow() -> None:
        for begin in range(stay, ROWS, 500):
            more = range(begin, begin + 500)
            variable.upsert(case.keys(more), numbered(more, dim))

    growing = threading.Thread(target=grow)
    growing.start()
    sizes = []
    while growing.is_alive() or not sizes:
        keys, values = (to_numpy(tensor) for tensor in variable.export())
        numbers = np.array([number_of[key] for key in keys.tolist()])
        assert len(set(numbers.tolist())) == len(numbers), "a key was exported twice"
        assert set(range(stay)) <= set(numbers.tolist()), "a key that was there is missing"
        np.testing.assert_array_equal(values, numbered(numbers, dim))
        sizes.append(len(keys))
    growing.join()
    assert sizes == sorted(sizes)
    assert len(variable.export()[0]) == ROWS


def test_exports_are_complete_while_keys_leave() -> None:
    variable = de.Variable(dim=16)
    keys = np.arange(ROWS)
    rows = numbered(keys, 16)
    variable.upsert(keys, rows)
    stay = 2_000

    def shrink() -> None:
        for begin in range(stay, ROWS, 200):
            variable.remove(keys[begin : begin + 200])

    leaving = threading.Thread(target=shrink)
    leaving.start()
    exports = 0
    while leaving.is_alive() or exports == 0:
        exports += 1
        exported, values = (tensor.numpy() for tensor in variable.export())
        assert len(set(exported.tolist())) == len(exported), "a key was exported twice"
        assert set(range(stay)) <= set(exported.tolist()), "a key that was there is missing"
        np.testing.assert_array_equal(values, rows[exported])
    leaving.join()
    assert len(variable.export()[0]) == stay
