"""Converts arguments of users to what the engine takes: flat keys and raw bytes of values."""

from __future__ import annotations

import math
import numbers
import operator
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]

# The dtype that stands for strings.
STRING = np.dtype(object)
_INT64 = np.dtype(np.int64)
_BYTE = np.dtype(np.uint8)

_NUMERIC = ("float32", "float16", "float64", "int8", "int32", "int64", "bool")
_STRING_KEYS_HINT = (
    ". For keys that are integers, make the table with key_dtype='int64'; or convert them with str."
)
_STRING_NAMES = {"string", "str", "bytes", "object", str, bytes, object}


def value_dtype(dtype: Any) -> np.dtype[Any]:
    """Returns the NumPy dtype of the values of a table."""
    if str(dtype) == "bfloat16" or getattr(dtype, "__name__", "") == "bfloat16":
        return _bfloat16()
    result = _dtype_of(dtype)
    if result is None or not (result == STRING or result.name in _NUMERIC):
        raise TypeError(
            f"`value_dtype` must be one of {', '.join(_NUMERIC)}, bfloat16 or string. "
            f"Received: {dtype!r}"
        )
    return result


def key_dtype(dtype: Any) -> np.dtype[Any]:
    """Returns the NumPy dtype of the keys of a table: int64, or `STRING`."""
    return STRING if key_type(dtype, "int64 or string") == "string" else _INT64


def key_type(dtype: Any, expected: str = "int64, int32 or string") -> str:
    """Returns the name of the dtype of keys in a `TableSpec`. Errors list those `expected`."""
    result = _dtype_of(dtype)
    if result is None or not (result == STRING or result.name in ("int64", "int32")):
        raise TypeError(f"`key_dtype` must be {expected}. Received: {dtype!r}")
    return type_name(result)


def _dtype_of(dtype: Any) -> np.dtype[Any] | None:
    """Returns what users write for a dtype as a NumPy dtype, or None if no table can have it."""
    if isinstance(dtype, (str, type)) and dtype in _STRING_NAMES:
        return STRING
    if dtype is None:  # np.dtype(None) is float64.
        return None
    try:
        result = np.dtype(dtype)
    except TypeError:
        return None
    if result.kind in "OSUT":
        return STRING
    return result if result.isnative else None


def _bfloat16() -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError(
            "bfloat16 arrays need the package ml_dtypes: pip install 'tfra[bfloat16]'"
        ) from error
    return np.dtype(ml_dtypes.bfloat16)


def type_name(dtype: np.dtype[Any]) -> str:
    """Returns the name that the engine has for a dtype."""
    return "string" if dtype == STRING else dtype.name


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether values of this dtype are floating numbers."""
    return type_name(dtype) in ("float16", "bfloat16", "float32", "float64")


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the dtype of the optimizer slots and gradients of values of this dtype."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def flat_keys(keys: Any, dtype: np.dtype[Any]) -> tuple[NDArray[np.int64] | list[Any], Shape]:
    """Returns flat keys in the form that the engine takes, and their original shape."""
    # The common case needs no checks and no copy.
    if type(keys) is np.ndarray and keys.dtype is _INT64 and dtype is _INT64:
        flags = keys.flags
        if flags.c_contiguous and flags.aligned:
            return keys.reshape(-1), keys.shape
    refuse_mask(keys, "keys")
    return _flat_strings(keys, "keys") if dtype == STRING else _flat_ints(keys)


def _flat_ints(keys: Any) -> tuple[NDArray[np.int64], Shape]:
    try:
        array = np.asarray(keys)
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"`keys` must be integers in a regular shape. Received: {keys!r}"
        ) from error
    if array.size == 0 and not isinstance(keys, (np.ndarray, np.generic)):
        array = array.astype(np.int64)  # An empty list has no dtype of its own.
    if array.dtype.kind not in "iu" or (array.dtype.kind == "u" and array.dtype.itemsize == 8):
        raise TypeError(
            f"`keys` must be int64 (or narrower integers). Received: dtype {array.dtype}. "
            f"{_int_keys_hint(array.dtype)}"
        )
    return np.require(array, np.int64, ["C", "A"]).reshape(-1), array.shape


def _int_keys_hint(received: np.dtype[Any]) -> str:
    if received.kind in "SUOT":
        return "For keys that are strings, make the table with key_dtype='string'."
    if received.kind == "u":
        return "Take them as they are with keys.view('int64'), which maps them one to one."
    best = ", best where they are made: floats round large ids" if received.kind == "f" else ""
    return f"Convert them with keys.astype('int64'){best}."


def _flat_strings(texts: Any, what: str) -> tuple[list[Any], Shape]:
    if isinstance(texts, (bytes, str)):
        return [texts], ()
    if isinstance(texts, (np.ndarray, np.generic)):
        array = np.asarray(texts)
        if array.dtype.kind not in "OSUT":
            hint = _STRING_KEYS_HINT if what == "keys" else ""
            raise TypeError(f"`{what}` must be strings. Received: dtype {array.dtype}{hint}")
    else:
        # The dtype is object, because the string dtypes of NumPy drop trailing NULs.
        try:
            array = np.asarray(texts, dtype=STRING)
        except ValueError as error:
            raise ValueError(f"`{what}` must have a regular shape. Received: {texts!r}") from error
    flat = array.reshape(-1).tolist()
    # The engine checks all other elements.
    if what == "keys" and flat and isinstance(flat[0], (int, float)):
        raise TypeError(f"`keys` must be strings. Received: {flat[0]!r}{_STRING_KEYS_HINT}")
    return flat, array.shape


def flat_values(
    values: Any, dtype: np.dtype[Any], shape: Shape, what: str
) -> NDArray[np.uint8] | list[Any]:
    """Returns values, of exactly this dtype and shape, in the form that the engine takes."""
    refuse_mask(values, what)
    if dtype == STRING:
        texts, received = _flat_strings(values, what)
        require_shape(received, shape, what)
        return texts
    return raw_bytes(typed_array(values, (dtype,), shape, what))


def repeated(default: Any, dim: int, dtype: np.dtype[Any]) -> tuple[Any, Shape]:
    """Returns a default value and its shape. A single value is repeated to a row."""
    refuse_mask(default, "default")
    try:
        array = np.asarray(default, dtype=STRING if dtype == STRING else None)
    except ValueError as error:
        raise ValueError(f"`default` must have a regular shape. Received: {default!r}") from error
    if array.shape != ():
        return default, array.shape
    row = np.empty(dim, array.dtype)
    row[:] = array
    # Numbers and lists of Python are converted to the dtype of the table; arrays keep their dtype.
    is_array = isinstance(default, (np.ndarray, np.generic))
    return (row if is_array or dtype == STRING else row.tolist()), (dim,)


def typed_array(
    values: Any, dtypes: tuple[np.dtype[Any], ...], shape: Shape, what: str
) -> NDArray[Any]:
    """Returns an array of this shape and one of these dtypes. Lists get the first dtype."""
    if type(values) is np.ndarray and values.shape == shape and values.dtype in dtypes:
        return values
    refuse_mask(values, what)
    if isinstance(values, (np.ndarray, np.generic)) or hasattr(values, "__array__"):
        array = np.asarray(values)
    else:
        array = _from_python(values, dtypes[0], what)
    if array.dtype not in dtypes:
        names = " or ".join(dict.fromkeys(dtype.name for dtype in dtypes))
        raise TypeError(
            f"`{what}` must be of dtype {names}. Received: dtype {array.dtype}. Convert them with "
            f"{what}.astype({dtypes[0].name!r})."
        )
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
    """Returns the bytes of an array, without a copy if it is contiguous and aligned."""
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        array = np.require(array, requirements=["C", "A"])
    return array.reshape(-1).view(_BYTE) if array.size else np.empty(0, _BYTE)


def object_array(texts: list[Any], shape: Shape) -> NDArray[np.object_]:
    """Returns an object array of these texts."""
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array.reshape(shape)


def pack_slots(
    slots: Mapping[str, NDArray[Any]], widths: Mapping[str, int], dtype: np.dtype[Any], shape: Shape
) -> NDArray[np.uint8] | None:
    """Converts optimizer slots by name to the form of the engine: side by side for each key."""
    if not isinstance(slots, Mapping):
        raise TypeError(f"`slots` must be a dict of arrays. Received: {type(slots).__name__}")
    if set(slots) != set(widths):
        raise ValueError(f"`slots` must be {sorted(widths)}. Received: {sorted(slots)}")
    parts = [
        typed_array(slots[name], (dtype,), (*shape, width), f"slots[{name!r}]")
        for name, width in widths.items()
    ]
    if not parts:
        return None
    rows = math.prod(shape)
    return raw_bytes(np.concatenate([part.reshape(rows, part.shape[-1]) for part in parts], 1))


def unpack_slots(
    raw: NDArray[np.uint8], widths: Mapping[str, int], dtype: np.dtype[Any], shape: Shape
) -> dict[str, NDArray[Any]]:
    """Converts the bytes of the engine, for keys of this shape, to optimizer slots by name."""
    rows = raw.view(dtype).reshape(*shape, sum(widths.values()))
    slots, first = {}, 0
    for name, width in widths.items():
        slots[name] = rows[..., first : first + width]
        first += width
    return slots


def from_bytes(raw: NDArray[np.uint8], dtype: np.dtype[Any], width: int) -> NDArray[Any]:
    """Converts bytes to rows of `width` elements."""
    rows = len(raw) // (width * dtype.itemsize)
    return raw.view(dtype).reshape(rows, width)


def exported_keys(keys: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Converts the keys of an export of the engine to an array `(n,)`."""
    return object_array(keys, (len(keys),)) if dtype == STRING else keys


def exported_values(values: Any, dtype: np.dtype[Any], dim: int) -> NDArray[Any]:
    """Converts the values of an export of the engine to an array `(n, dim)`."""
    if dtype == STRING:
        return object_array(values, (len(values) // dim, dim))
    return from_bytes(values, dtype, dim)


def boolean(value: Any, what: str) -> bool:
    """Returns a bool, or raises TypeError if the value is none."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{what}` must be a bool. Received: {value!r}")
    return bool(value)


def integer(
    value: Any,
    what: str,
    least: int = -(2**63),
    most: int = 2**63 - 1,
    *,
    whole_floats: bool = False,
) -> int:
    """Returns an int between `least` and `most`: the check of every size, capacity and count.

    Args:
        value: The argument of the caller.
        what: The name of the argument.
        least: The lowest number that is allowed.
        most: The highest number that is allowed. See `limits.py`.
        whole_floats: Whether floats without a fraction, such as 1e6, are accepted too.

    Raises:
        TypeError: If the value is not an integer.
        ValueError: If the value is out of range.
    """
    if whole_floats and isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        received = f"{value!r} (of type {type(value).__name__})"
        raise TypeError(f"`{what}` must be an integer. Received: {received}") from None
    if least <= number <= most:
        return number
    expected = f"be between {least} and {most}"
    if most == 2**63 - 1:
        too_small = number < least and least > -(2**63)
        expected = f"be {least} or more" if too_small else "fit in 64 bits"
    raise ValueError(f"`{what}` must {expected}. Received: {number}")


def real(
    value: Any, what: str, expected: str, least: float = -math.inf, most: float = math.inf
) -> float:
    """Returns a finite float between `least` and `most`. Errors describe the range as `expected`.

    Raises:
        TypeError: If the value is not a number.
        ValueError: If the value is out of range.
    """
    wrong = f"`{what}` must be {expected}. Received: {value!r}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(wrong)
    try:
        number = float(value)
    except OverflowError:  # An int that is too large for a float.
        raise ValueError(wrong) from None
    if not (math.isfinite(number) and least <= number <= most):
        raise ValueError(wrong)
    return number


def refuse_mask(values: Any, what: str) -> None:
    """Raises TypeError for a masked array: its mask would get lost."""
    # The first use of np.ma imports numpy.ma. A fork during this import would leave the import lock
    # locked in the child, so numpy.ma is not imported here. Without it there are no masked arrays.
    if "numpy.ma" not in sys.modules:
        return
    masked = getattr(sys.modules["numpy.ma"], "MaskedArray", ())
    parts = values if isinstance(values, (list, tuple)) else ()
    if isinstance(values, masked) or any(isinstance(part, masked) for part in parts):
        raise TypeError(
            f"`{what}` must be an array without a mask. Received: a masked array. Leave masked "
            f"entries out with {what}.compressed(), or give them a value with {what}.filled(value)."
        )


def refuse_overlap(out: NDArray[Any], others: Mapping[str, Any]) -> None:
    """Raises ValueError if `out` shares memory with another array of the call.

    Args:
        out: A contiguous array.
        others: The contiguous arrays that the engine reads while it writes to `out`, by name.
    """
    for name, other in others.items():
        if isinstance(other, np.ndarray) and np.may_share_memory(out, other):
            raise ValueError(
                f"`out` must not share memory with `{name}`. Received: arrays that overlap. Make a "
                f"copy of one, such as {name}.copy()."
            )
