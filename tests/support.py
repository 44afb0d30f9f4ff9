"""What the tests share: the types of a table, keys and values of each, and ways to compare."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import tfra

Array = np.ndarray
Shape = tuple[int, ...]
# What a table holds, in a form that can be compared: key -> row, as bytes or a tuple of strings.
Content = dict[Any, Any]

KEY_DTYPES = ("int64", "string")
FLOATING_DTYPES = ("float32", "float16", "bfloat16", "float64")
NUMERIC_DTYPES = (*FLOATING_DTYPES, "int8", "int32", "int64", "bool")
VALUE_DTYPES = (*NUMERIC_DTYPES, "string")


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of arrays of a key or value type."""
    if name == "bfloat16":
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(object if name == "string" else name)


def object_array(items: Iterable[Any], shape: Shape) -> Array:
    """Makes an object array, also of an empty list and of strings of equal length."""
    array = np.empty(shape, dtype=object)
    array.reshape(-1)[:] = list(items)
    return array


def make_keys(key_dtype: str, numbers: Any) -> Array:
    """One key per number, of the same shape; different numbers make different keys.

    The string keys are 2 to 60 bytes long, so that some are stored in other ways than others.
    """
    numbers = np.asarray(numbers, dtype=np.int64)
    if key_dtype == "int64":
        return numbers
    strings = (b"%d:" % number + b"x" * (abs(number) % 58) for number in numbers.ravel().tolist())
    return object_array(strings, numbers.shape)


def make_values(value_dtype: str, shape: Shape, rng: np.random.Generator) -> Array:
    """Random values, over the whole range of an integer type; strings of 0 to 39 bytes."""
    dtype = numpy_dtype(value_dtype)
    if value_dtype == "string":
        ends = np.cumsum(rng.integers(0, 40, int(np.prod(shape)))).tolist()
        text = rng.bytes(ends[-1] if ends else 0)
        strings = (text[start:end] for start, end in zip([0, *ends], ends, strict=False))
        return object_array(strings, shape)
    if value_dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if value_dtype in FLOATING_DTYPES:
        return rng.standard_normal(shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)


def row_bytes(row: Array) -> Any:
    """One row, hashable and compared by its bits."""
    return tuple(row.tolist()) if row.dtype == object else row.tobytes()


def as_content(keys: Array, values: Array) -> Content:
    """Maps keys to their rows; the last of equal keys wins."""
    rows = values.reshape(keys.size, values.shape[-1])
    return {key: row_bytes(row) for key, row in zip(keys.ravel().tolist(), rows, strict=True)}


def content(table: tfra.Table) -> Content:
    """Everything in `table`; fails if a key is exported twice."""
    keys, values = table.export()
    exported = as_content(keys, values)
    assert len(exported) == len(keys), "a key was exported twice"
    return exported


def full_state(table: tfra.Table) -> tuple[Any, ...]:
    """Everything that a failed call must not change: rows, slots, and the step."""
    keys, values, slots = table.export(slots=True)
    slot_rows = [as_content(keys, slots[name]) for name in sorted(slots)]
    return len(table), table.step, as_content(keys, values), slot_rows


def assert_identical(actual: Array, expected: Array) -> None:
    """Same dtype, same shape, same bits."""
    assert isinstance(actual, np.ndarray)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if actual.dtype == object:
        assert actual.tolist() == expected.tolist()
    else:
        bits = np.dtype(f"u{actual.dtype.itemsize}")
        np.testing.assert_array_equal(
            np.ascontiguousarray(actual).view(bits), np.ascontiguousarray(expected).view(bits)
        )


def sorted_export(table: tfra.Table) -> tuple[Array, Array, dict[str, Array]]:
    """Keys, values and slots of `table` in the order of the keys."""
    keys, values, slots = table.export(slots=True)
    order = np.argsort(keys, kind="stable")
    return keys[order], values[order], {name: slots[name][order] for name in slots}


@dataclass(frozen=True)
class Case:
    """The types and the width of the table that a test runs with."""

    key_dtype: str
    value_dtype: str
    dim: int
    max_capacity: int | None = None
    fast_bytes: int | None = None

    def __str__(self) -> str:
        text = f"{self.key_dtype}-{self.value_dtype}-{self.dim}"
        text += "" if self.max_capacity is None else "-bounded"
        return text if self.fast_bytes is None else f"{text}-tiered"

    def table(self, **options: Any) -> tfra.Table:
        """A new table of these types."""
        types = {"key_dtype": self.key_dtype, "value_dtype": self.value_dtype}
        limits = {"max_capacity": self.max_capacity, "fast_bytes": self.fast_bytes}
        return tfra.Table(self.dim, **{**types, **limits, **options})

    def keys(self, numbers: Any) -> Array:
        """One key per number."""
        return make_keys(self.key_dtype, numbers)

    def values(self, shape: Shape | int, seed: int = 0) -> Array:
        """Random rows for keys of `shape`."""
        shape = (shape,) if isinstance(shape, int) else shape
        return make_values(self.value_dtype, (*shape, self.dim), np.random.default_rng(seed))

    def zeros(self, shape: Shape | int) -> Array:
        """The initial rows of keys of this shape."""
        shape = (shape,) if isinstance(shape, int) else shape
        fill = b"" if self.value_dtype == "string" else 0
        return np.full((*shape, self.dim), fill, numpy_dtype(self.value_dtype))


ALL_CASES = [Case(k, v, dim) for k in KEY_DTYPES for v in VALUE_DTYPES for dim in (1, 3, 32)]


def run_python(code: str, *, timeout: float = 120, **environment: str) -> str:
    """Runs `code` in a fresh interpreter and returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
