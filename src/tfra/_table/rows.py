"""Converts keys and rows from the arrays of users to those of the engine, and back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfra import _native
from tfra._shared import arrays

_INITIAL, _ONE_ROW, _ROW_PER_KEY = range(3)  # The engine's Defaults::Kind.
_UINT32 = np.dtype(np.uint32)


class RowFormat:
    """The types and sizes of the keys and rows of one table.

    Its methods check the arguments of a call and convert them to flat arrays, and convert the
    results of the engine to arrays of the right shape.

    Args:
        dim: The length of a row.
        key_dtype: The dtype of keys: int64, or object for strings.
        value_dtype: The dtype of values; object for strings.
        has_metadata: Returns whether keys have metadata, which they may get later.

    Attributes:
        slot_dtype: The dtype of optimizer slots.
    """

    def __init__(
        self,
        dim: int,
        key_dtype: np.dtype[Any],
        value_dtype: np.dtype[Any],
        has_metadata: Callable[[], bool],
    ) -> None:
        self.dim = dim
        self.key_dtype = key_dtype
        self.value_dtype = value_dtype
        self._has_metadata = has_metadata
        self.has_string_values = value_dtype == arrays.STRING
        self.slot_dtype = arrays.compute_dtype(value_dtype)
        self._gradient_dtypes = (self.slot_dtype, value_dtype)

    def flat_keys(self, keys: Any) -> tuple[Any, arrays.Shape]:
        """Returns keys in the form that the engine takes, and their original shape."""
        return arrays.flat_keys(keys, self.key_dtype)

    def flat_values(self, values: Any, shape: arrays.Shape, what: str = "values") -> Any:
        """Returns rows, for keys of this shape, in the form that the engine takes."""
        return arrays.flat_values(values, self.value_dtype, (*shape, self.dim), what)

    def gradients(self, gradients: Any, shape: arrays.Shape) -> NDArray[Any]:
        """Returns gradients, for keys of this shape, in the dtype of slots or of values."""
        full = (*shape, self.dim)
        return arrays.typed_array(gradients, self._gradient_dtypes, full, "gradients")

    def slots(self, rule: str) -> Mapping[str, int]:
        """Returns the number of elements of each optimizer slot of rows of this rule, by name."""
        return _slots_of_rule(rule, self.dim)

    def flat_slots(
        self, slots: Mapping[str, NDArray[Any]], rule: str, shape: arrays.Shape
    ) -> NDArray[np.uint8] | None:
        """Returns slots of this rule, for keys of this shape, in the form that the engine takes."""
        return arrays.pack_slots(slots, self.slots(rule), self.slot_dtype, shape)

    def slots_of(
        self, packed: NDArray[np.uint8], rule: str, shape: arrays.Shape
    ) -> dict[str, NDArray[Any]]:
        """Returns slots of the engine, for keys of this shape, by the names of their rule."""
        return arrays.unpack_slots(packed, self.slots(rule), self.slot_dtype, shape)

    def flat_metadata(self, metadata: Any, shape: arrays.Shape) -> NDArray[np.uint8] | None:
        """Returns metadata, for keys of this shape, in the form that the engine takes.

        Raises:
            ValueError: If keys have no metadata.
        """
        if metadata is None:
            return None
        if not self._has_metadata():
            raise ValueError("`metadata` needs a table with metadata. Received: one without")
        return arrays.raw_bytes(arrays.typed_array(metadata, (_UINT32,), (*shape, 2), "metadata"))

    def default(self, default: Any, full: arrays.Shape) -> tuple[int, Any]:
        """Returns the default of missing keys in the form that the engine takes: kind and rows."""
        if default is None:
            return _INITIAL, None
        default, shape = arrays.repeated(default, self.dim, self.value_dtype)
        if shape == (self.dim,):
            return _ONE_ROW, arrays.flat_values(default, self.value_dtype, shape, "default")
        return _ROW_PER_KEY, arrays.flat_values(default, self.value_dtype, full, "default")

    def check_out(self, out: Any, full: arrays.Shape) -> None:
        """Raises TypeError or ValueError unless an array can hold rows of this shape."""
        arrays.refuse_mask(out, "out")
        if not isinstance(out, np.ndarray) or out.dtype != self.value_dtype:
            received = getattr(out, "dtype", type(out).__name__)
            raise TypeError(f"`out` must be an array of {self.value_dtype}. Received: {received}")
        arrays.require_shape(out.shape, full, "out")
        if not out.flags.carray:
            raise ValueError(
                "`out` must be C-contiguous, aligned and writeable. Received: "
                f"c_contiguous={out.flags.c_contiguous}, aligned={out.flags.aligned}, "
                f"writeable={out.flags.writeable}"
            )

    def keys_of(self, keys: Any) -> NDArray[Any]:
        """Returns keys of the engine as an array `[n]`."""
        return arrays.exported_keys(keys, self.key_dtype)

    def values_of(self, values: Any) -> NDArray[Any]:
        """Returns rows of the engine as an array `[n, dim]`."""
        return arrays.exported_values(values, self.value_dtype, self.dim)

    def batch_of(self, exported: tuple[Any, ...], slots: bool, metadata: bool) -> tuple[Any, ...]:
        """Returns the requested columns of an export of the engine."""
        keys, values, packed, times_and_counts, rule = exported
        keys = self.keys_of(keys)
        batch: list[Any] = [keys, self.values_of(values)]
        if slots:
            batch.append(self.slots_of(packed, rule, keys.shape))
        if metadata:
            has_metadata = times_and_counts.size > 0 or (len(keys) == 0 and self._has_metadata())
            batch.append(times_and_counts.reshape(len(keys), 2 if has_metadata else 0))
        return tuple(batch)

    def no_rows(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Returns the keys and rows of an empty table."""
        return np.empty(0, self.key_dtype), np.empty((0, self.dim), self.value_dtype)


@functools.lru_cache(maxsize=64)
def _slots_of_rule(rule: str, dim: int) -> Mapping[str, int]:
    return dict(_native.rule_slots(rule, dim))
