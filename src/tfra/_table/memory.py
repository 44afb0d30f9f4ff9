"""Estimates how much memory a table will take."""

from __future__ import annotations

from typing import Any

from tfra import _native, optimizers
from tfra._shared import arrays, limits
from tfra._shared.rule import Rule
from tfra.admission import Admission
from tfra.spec import TableSpec


def estimate_memory(
    keys: int,
    dim: int,
    value_dtype: Any = "float32",
    optimizer: optimizers.Optimizer | str | None = None,
    *,
    key_dtype: Any = "int64",
    metadata: bool = False,
    admission: Admission | None = None,
    key_bytes: float = 16,
    fast_bytes: int | None = None,
) -> int:
    """Estimates the memory of a table of this many keys, in bytes.

    The estimate covers index, rows and keys, and agrees within a few percent with what the
    operating system reports once a table has some hundred thousand keys.

    Example:
    >>> import tfra
    >>> tfra.estimate_memory(10_000_000, dim=32) < 1.6e9
    True

    Args:
        keys: The number of keys.
        dim: The length of a row.
        value_dtype: See `tfra.Table`. The bytes of string values are not counted.
        optimizer: See `tfra.Table`.
        key_dtype: See `tfra.Table`.
        metadata: See `tfra.Table`.
        admission: See `tfra.Table`. The memory of a Bloom filter is counted, that of waiting keys
            is not.
        key_bytes: The average length of string keys.
        fast_bytes: See `tfra.Table`. Rows in the row file are not counted.

    Returns:
        An int.

    Raises:
        ValueError: If a number is out of range.
        TypeError: If a dtype or an optimizer is unknown, or the optimizer can't train the dtype.
    """
    most = limits.MAX_UINT32
    key_bytes = arrays.real(key_bytes, "key_bytes", f"a number between 0 and {most}", 0, most)
    known = optimizers.get(optimizer, "optimizer")
    spec = TableSpec(
        dim=dim,
        key_dtype=arrays.type_name(arrays.key_dtype(key_dtype)),
        value_dtype=value_dtype,
        rule=known.rule() if known else Rule(),
        metadata=bool(metadata),
        admission=admission,
        fast_bytes=fast_bytes,
    )
    count = arrays.integer(keys, "keys", 0, limits.MAX_KEYS)
    parts = _native.estimate_memory(spec.to_json(), count, key_bytes)
    kinds = ("index_bytes", "row_bytes", "string_bytes", "admission_bytes")
    return sum(parts[kind] for kind in kinds)
