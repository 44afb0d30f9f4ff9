"""From what users pass to what the engine takes: flat keys, raw bytes of values, checked shapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]

_NUMERIC = ("float32", "float16", "float64", "int8", "int32", "int64", "bool")
_STRING_NAMES = {"string", "str", "bytes", "object", str, bytes, object}


def value_dtype(dtype: Any) -> np.dtype[Any]:
    """The NumPy dtype of a table's values; object stands for strings."""
    if isinstance(dtype, (str, type)) and dtype in _STRING_NAMES:
        return np.dtype(object)
    if str(dtype) == "bfloat16" or getattr(dtype, "__name__", "") == "bfloat16":
        return _bfloat16()
    try:
        result = np.dtype(dtype)
    except TypeError:
        result = None
    if result is not None and result.kind in "OSUT":
        return np.dtype(object)
    if result is None or result.name not in _NUMERIC or not result.isnative:
        raise TypeError(
            f"`value_dtype` must be one of {', '.join(_NUMERIC)}, bfloat16 or string. "
            f"Received: {dtype!r}"
        )
    return result


def _bfloat16() -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError(
            "bfloat16 arrays need the package ml_dtypes: pip install tfra[bfloat16]"
        ) from error
    return np.dtype(ml_dtypes.bfloat16)


def key_dtype(dtype: Any) -> np.dtype[Any]:
    """The NumPy dtype of a table's keys: int64, or object for strings."""
    if isinstance(dtype, (str, type)) and dtype in _STRING_NAMES:
        return np.dtype(object)
    try:
        result = np.dtype(dtype)
    except TypeError:
        result = None
    if result is not None and result.kind in "OSUT":
        return np.dtype(object)
    if result is None or result.name not in ("int64", "int32"):
        raise TypeError(f"`key_dtype` must be int64 or string. Received: {dtype!r}")
    return np.dtype(np.int64)


def type_name(dtype: np.dtype[Any]) -> str:
    """The engine's name of a dtype."""
    return "string" if dtype == object else dtype.name


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of optimizer slots, and of gradients, of such values."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def flat_keys(keys: Any, dtype: np.dtype[Any]) -> tuple[NDArray[np.int64] | list[Any], Shape]:
    """Keys as the engine takes them, flat, and the shape they had."""
    return _flat_strings(keys, "keys") if dtype == object else _flat_ints(keys)


def _flat_ints(keys: Any) -> tuple[NDArray[np.int64], Shape]:
    try:
        array = np.asarray(keys)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"`keys` must be integers in a regular shape. Received: {keys!r}") from error
    if array.size == 0 and not isinstance(keys, (np.ndarray, np.generic)):
        array = array.astype(np.int64)  # An empty list has no dtype of its own.
    if array.dtype.kind not in "iu" or array.dtype == np.uint64:
        raise TypeError(
            f"`keys` must be int64 (or narrower integers). Received: dtype {array.dtype}"
        )
    return np.ascontiguousarray(array, dtype=np.int64).reshape(-1), array.shape


def _flat_strings(texts: Any, what: str) -> tuple[list[Any], Shape]:
    if isinstance(texts, (bytes, str)):
        return [texts], ()
    if isinstance(texts, (np.ndarray, np.generic)):
        array = np.asarray(texts)
        if array.dtype.kind not in "OSUT":
            raise TypeError(f"`{what}` must be strings. Received: dtype {array.dtype}")
    else:
        # By way of object, because NumPy's own string dtypes drop trailing NULs.
        try:
            array = np.asarray(texts, dtype=object)
        except ValueError as error:
            raise ValueError(f"`{what}` must have a regular shape. Received: {texts!r}") from error
    return array.reshape(-1).tolist(), array.shape


def flat_values(
    values: Any, dtype: np.dtype[Any], shape: Shape, what: str
) -> NDArray[np.uint8] | list[Any]:
    """Values of exactly this dtype and shape, as the engine takes them."""
    if dtype == object:
        texts, received = _flat_strings(values, what)
        require_shape(received, shape, what)
        return texts
    return raw_bytes(typed_array(values, (dtype,), shape, what))


def typed_array(
    values: Any, dtypes: tuple[np.dtype[Any], ...], shape: Shape, what: str
) -> NDArray[Any]:
    """An array of this shape and one of these dtypes. Lists and numbers take the first."""
    if isinstance(values, (np.ndarray, np.generic)) or hasattr(values, "__array__"):
        array = np.asarray(values)
    else:
        array = _from_python(values, dtypes[0], what)
    if array.dtype not in dtypes:
        names = " or ".join(dict.fromkeys(dtype.name for dtype in dtypes))
        raise TypeError(f"`{what}` must be of dtype {names}. Received: dtype {array.dtype}")
    require_shape(array.shape, shape, what)
    return array


def _from_python(values: Any, dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    try:
        natural = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"`{what}` must have a regular shape. Received: {values!r}") from error
    allowed = {"b": "b", "i": "bi", "u": "bi"}.get(dtype.kind, "bif")
    if natural.size > 0 and natural.dtype.kind not in allowed:
        raise TypeError(f"`{what}` must be {dtype.name} numbers. Received: {values!r}")
    converted: NDArray[Any] = natural.astype(dtype)
    if dtype.kind in "iu" and natural.size > 0 and not np.array_equal(converted, natural):
        raise ValueError(f"`{what}` must fit in {dtype.name}. Received: {values!r}")
    return converted


def require_shape(received: Shape, expected: Shape, what: str) -> None:
    """Raises ValueError if the shapes differ."""
    if received != expected:
        raise ValueError(f"`{what}` must have shape {expected}. Received: shape {received}")


def raw_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of an array, without a copy if it is contiguous."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8) if flat.size else np.empty(0, np.uint8)


def object_array(texts: list[bytes], shape: Shape) -> NDArray[np.object_]:
    """An object array of these texts."""
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array.reshape(shape)


def from_bytes(raw: NDArray[np.uint8], dtype: np.dtype[Any], width: int) -> NDArray[Any]:
    """Rows of `width` elements from their bytes."""
    rows = len(raw) // (width * dtype.itemsize)
    return raw.view(dtype).reshape(rows, width)


def integer(value: Any, what: str) -> int:
    """An int that the engine can take; raises TypeError or ValueError otherwise."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        received = f"{value!r} (of type {type(value).__name__})"
        raise TypeError(f"`{what}` must be an integer. Received: {received}")
    number = int(value.__index__())
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"`{what}` must fit in 64 bits. Received: {number}")
    return number


def element_count(shape: Shape) -> int:
    """The number of elements of an array of this shape."""
    return math.prod(shape)
