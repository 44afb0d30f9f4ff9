"""Keys and rows of every type, made of one number each, and comparisons by bits."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

_SPREAD = 0x9E37_79B9_7F4A_7C15  # Odd, so that different numbers make different keys.


def dtype_of(name: str) -> np.dtype[Any]:
    """Returns the dtype of arrays of a key or value type."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(object if name == "string" else name)


def make_keys(key_dtype: str, pattern: str, numbers: Array) -> Array:
    """Returns one key for each number; different numbers make different keys.

    Patterns: "dense" keys follow each other, also below 0; "spread" keys look random; "stepped"
    keys have equal low bits. Strings have from 2 to 70 bytes.
    """
    if key_dtype == "string":
        pad = b"k" if pattern == "dense" else b"key " * 15
        texts = [b"%d:" % n + pad[: n % (len(pad) + 1)] for n in numbers.tolist()]
        return object_array(texts, (len(texts),))
    bits = 32 if key_dtype == "int32" else 64
    mask, half = (1 << bits) - 1, 1 << (bits - 1)

    def key(number: int) -> int:
        if pattern == "dense":
            return number - 1000
        made = number * _SPREAD if pattern == "spread" else number << (bits - 20)
        made = made & mask
        return made - (1 << bits) if made >= half else made

    return np.array([key(n) for n in numbers.tolist()], dtype_of(key_dtype))


def make_rows(value_dtype: str, dim: int, numbers: Array) -> Array:
    """Returns rows that can be seen to be whole: all elements of a row are equal."""
    if value_dtype == "string":
        texts = [b"" if n == 0 else b"%d" % n + b"." * (abs(n) * 7 % 40) for n in numbers.tolist()]
        return object_array([text for text in texts for _ in range(dim)], (len(texts), dim))
    column = numbers % 2 == 1 if value_dtype == "bool" else numbers
    return np.repeat(column.astype(dtype_of(value_dtype))[:, None], dim, axis=1)


def object_array(items: list[Any], shape: tuple[int, ...]) -> Array:
    """Returns an object array, also of strings of equal length."""
    array = np.empty(shape, object)
    array.reshape(-1)[:] = items
    return array


def equal_rows(left: Array, right: Array) -> Bools:
    """Returns which rows are equal bit by bit."""
    if left.dtype != right.dtype or left.shape != right.shape:
        raise AssertionError(
            f"expected {left.dtype} {left.shape}, received {right.dtype} {right.shape}"
        )
    if left.dtype == object:
        same = left == right
    else:
        bits = np.dtype(f"u{left.dtype.itemsize}")
        same = np.ascontiguousarray(left).view(bits) == np.ascontiguousarray(right).view(bits)
    return np.asarray(np.asarray(same, bool).all(axis=tuple(range(1, left.ndim))))


def whole_rows(rows: Array) -> Bools:
    """Returns which rows have equal elements only."""
    return equal_rows(rows, np.repeat(rows[:, :1], rows.shape[1], axis=1))
