"""Converts keys and values from the caller to tensors, and checks their types and shapes."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tfra._shared import arrays, limits
from tfra.dynamic_embedding._platform.keras2 import refuse_input
from tfra.dynamic_embedding._platform.tf import tf

KEY_DTYPES = (tf.int32, tf.int64, tf.string)
VALUE_DTYPES = (
    tf.float32,
    tf.float64,
    tf.float16,
    tf.bfloat16,
    tf.int8,
    tf.int32,
    tf.int64,
    tf.bool,
    tf.string,
)


class DtypeError(TypeError, ValueError):
    """Keys or values are of a wrong type: a TypeError that can be caught as ValueError too."""

    # AutoGraph adds its trace to an error only if the class has the constructor of Exception.
    __init__ = Exception.__init__


class ShapeError(tf.errors.InvalidArgumentError, ValueError):  # type: ignore[misc]
    """Keys or values are of a wrong shape: a ValueError, and what ops of TensorFlow raise.

    Args:
        node_def: None.
        op: None.
        message: What was expected, and what was received.
    """


def key_dtype(dtype: Any) -> tf.DType:
    """Returns `dtype` as a key type, or raises TypeError."""
    return _one_of(dtype, KEY_DTYPES, "key_dtype", {tf.uint64: _wide_keys_hint("uint64", tf.int32)})


def value_dtype(dtype: Any) -> tf.DType:
    """Returns `dtype` as a value type, or raises TypeError."""
    return _one_of(dtype, VALUE_DTYPES, "value_dtype", {})


def compute_dtype(dtype: tf.DType) -> tf.DType:
    """Returns the type of slots and of the engine's arithmetic, for values of a floating type."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def _one_of(
    dtype: Any, known: tuple[tf.DType, ...], what: str, hints: dict[tf.DType, str]
) -> tf.DType:
    names = ", ".join(d.name for d in known)
    try:
        # TensorFlow takes a number for a type, too: 8 for complex64.
        converted = None if isinstance(dtype, (int, np.integer)) else tf.as_dtype(dtype)
    except TypeError:
        converted = None
    if converted is None:
        raise TypeError(f"`{what}`: expected one of {names}, received {dtype!r}")
    if converted not in known:
        hint = f". {hints[converted]}" if converted in hints else ""
        raise TypeError(f"`{what}`: expected one of {names}, received {converted.name}{hint}")
    return converted


def integer(number: Any, what: str, at_least: int, at_most: int = limits.MAX_INT64) -> int:
    """Returns an integer, or raises TypeError or ValueError. Floats such as 1e6 are accepted."""
    return arrays.integer(number, what, at_least, at_most, whole_floats=True)


def convertible_integer(number: Any, what: str, at_least: int, at_most: int) -> int:
    """Returns `int(number)`, or raises TypeError or ValueError. Like TFRA, accepts "3" and 3.5."""
    try:
        converted = int(number)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(
            f"`{what}` must be convertible to int. Received: {number!r} (of type "
            f"{type(number).__name__})"
        ) from None
    return integer(converted, what, at_least, at_most)


def keys_tensor(keys: Any, dtype: tf.DType) -> tf.Tensor:
    """Returns `keys` as a tensor of the key type.

    Raises:
        TypeError: If the keys are of another type.
    """
    if isinstance(keys, tf.Tensor) and keys.dtype is dtype:
        return keys
    refuse_input(keys)
    if isinstance(keys, (tf.SparseTensor, tf.RaggedTensor)):
        raise TypeError(
            f"`keys`: expected a tensor of {dtype.name}, received a {type(keys).__name__}. Its "
            "`.values` are a tensor."
        )
    arrays.refuse_mask(keys, "keys")
    if not tf.is_tensor(keys) and not holds_tensors(keys):
        _check_kind(keys, dtype)
        try:
            return tf.convert_to_tensor(keys, dtype=dtype, name="keys")
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise DtypeError(f"`keys`: expected {dtype.name}, received {keys!r}") from error
    keys = tf.convert_to_tensor(keys, name="keys")
    if keys.dtype != dtype:
        raise wrong_keys_dtype(keys.dtype, dtype, export_hint(keys, dtype))
    return keys


def wrong_keys_dtype(received: tf.DType, dtype: tf.DType, hint: str = "") -> DtypeError:
    """Returns the error for keys of another type than that of the table, with advice."""
    advice = _keys_hint(received.name, dtype)
    return DtypeError(f"`keys`: expected {dtype.name}, received {received.name}. {advice}{hint}")


def holds_tensors(keys: Any) -> bool:
    """Whether `keys` is a list that contains tensors of a graph."""
    if not isinstance(keys, (list, tuple)) or tf.executing_eagerly():
        return False
    return any(tf.is_tensor(leaf) for leaf in tf.nest.flatten(keys))


def _check_range(array: np.ndarray[Any, Any], dtype: tf.DType, what: str) -> None:
    """Raises where TensorFlow would wrap integers around."""
    if array.dtype.kind not in "iu" or not dtype.is_integer or array.size == 0:
        return
    low, high = int(array.min()), int(array.max())
    if low < dtype.min or high > dtype.max:
        message = (
            f"`{what}`: expected {dtype.name}, in [{dtype.min}, {dtype.max}], received values "
            f"from {low} to {high}"
        )
        if what == "keys" and low >= 0 and high <= tf.uint64.max:
            message += f". {_wide_keys_hint('uint64', dtype)}"
        raise DtypeError(message)


def _check_kind(keys: Any, dtype: tf.DType) -> None:
    """Raises where TensorFlow would take something else for an integer."""
    try:
        array = np.asarray(keys)
    except ValueError as error:
        raise ValueError(
            f"`keys`: expected a regular shape, received {keys!r}. For lists of different lengths, "
            "give a layer with a combiner tf.ragged.constant(keys)."
        ) from error
    kinds = "SUO" if dtype == tf.string else "iu"
    if array.size == 0 or array.dtype.kind in kinds:
        _check_range(array, dtype, "keys")
        return
    received = array.dtype.name if array.dtype.kind not in "SUO" else "strings or objects"
    hint = _keys_hint("string" if array.dtype.kind in "SUO" else received, dtype)
    raise DtypeError(f"`keys`: expected {dtype.name}, received {received}: {keys!r}. {hint}")


def _keys_hint(received: str, expected: tf.DType) -> str:
    """Returns advice for an error about keys of a wrong type."""
    if received == "string":
        return "For keys that are strings, make it with key_dtype=tf.string."
    if expected == tf.string:
        return (
            "For keys that are integers, make it with key_dtype=tf.int64; or convert them with "
            "tf.strings.as_string."
        )
    if tf.as_dtype(received).is_integer:
        if tf.as_dtype(received).max > expected.max:
            return _wide_keys_hint(received, expected)
        return f"Convert them with tf.cast(keys, tf.{expected.name})."
    return (
        f"Convert them with tf.cast(keys, tf.{expected.name}), best where they are read: floats "
        "round large ids."
    )


def export_hint(keys: tf.Tensor, dtype: tf.DType) -> str:
    """Returns advice for floats in a function, which Keras may have made to export a model."""
    if not tf.inside_function() or not keys.dtype.is_floating:
        return ""
    shapes = _input_shapes_of_model() or {"ids": tuple(keys.shape) if keys.shape.rank else ()}
    specs = [_spec_text(shape, dtype) for shape in shapes.values()]
    several = ", each with its own type" if "".join(specs).count("TensorSpec") > 1 else ""
    listed = ", ".join(specs)
    return (
        f" To save a model that is a subclass of keras.Model, say what its inputs are{several}: "
        f"model.export(path, input_signature=[{listed}]), or tf.saved_model.save(model, path, "
        f"signatures=tf.function(model).get_concrete_function({listed}))."
    )


def _input_shapes_of_model() -> dict[str, Any] | None:
    """Returns the shapes by which Keras built the model that is being called, if any."""
    shapes, frame = None, sys._getframe(1)
    while frame is not None:  # The outermost model is the one that is saved.
        caller: Any = frame.f_locals.get("self")
        if hasattr(type(caller), "export") and getattr(caller, "_build_shapes_dict", None):
            shapes = caller._build_shapes_dict
        frame = frame.f_back  # type: ignore[assignment]
    return shapes


def _spec_text(shape: Any, dtype: tf.DType, name: str = "") -> str:
    """Returns the line that makes the specs of inputs of these shapes, in their structure."""
    if isinstance(shape, dict):
        parts = [f"{key!r}: {_spec_text(part, dtype, key)}" for key, part in shape.items()]
        return "{" + ", ".join(parts) + "}"
    if any(isinstance(part, (dict, list, tuple)) for part in shape):
        return "[" + ", ".join(_spec_text(part, dtype) for part in shape) + "]"
    named = f", {name!r}" if name else ""
    return f"tf.TensorSpec({[None, *shape[1:]] if shape else None}, tf.{dtype.name}{named})"


def _wide_keys_hint(received: str, expected: tf.DType) -> str:
    """Returns advice for an error about integers that may not fit the key type."""
    wider = "" if expected == tf.int64 else "Make it with key_dtype=tf.int64. "
    if received != "uint64":
        return f"{wider}If all of them fit, convert them with tf.cast(keys, tf.{expected.name})."
    return (
        f"{wider}tf.bitcast(keys, tf.int64), or array.view('int64') in NumPy, takes keys of uint64 "
        "as they are, one to one."
    )


def values_tensor(values: Any, dtype: tf.DType, what: str = "values") -> tf.Tensor:
    """Returns `values` as a tensor of the value type.

    Raises:
        TypeError: If the values are of another type.
    """
    if tf.is_tensor(values):
        values = tf.convert_to_tensor(values)
        if values.dtype != dtype:
            cast = f". Convert them with tf.cast({what}, tf.{dtype.name})."
            hint = "" if tf.string in (values.dtype, dtype) else cast
            raise DtypeError(f"`{what}`: expected {dtype.name}, received {values.dtype.name}{hint}")
        return values
    arrays.refuse_mask(values, what)
    if not holds_tensors(values):
        _check_values(values, dtype, what)
    try:
        return tf.convert_to_tensor(values, dtype=dtype, name=what)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        raise DtypeError(f"`{what}`: expected {dtype.name}, received {values!r}") from error


def _check_values(values: Any, dtype: tf.DType, what: str) -> None:
    """Raises DtypeError if TensorFlow would change the values in a conversion."""
    try:
        array = np.asarray(values)
    except ValueError:
        return  # The rows have different lengths: TensorFlow raises an error.
    received = array.dtype.kind
    if array.size == 0 or received in "SUOV":
        return
    loses_fraction = received == "f" and not dtype.is_floating
    if received == "c" or loses_fraction or (received in "iu" and dtype == tf.bool):
        raise DtypeError(f"`{what}`: expected {dtype.name}, received {array.dtype.name}")
    _check_range(array, dtype, what)


_WHOSE_SHAPE = "the keys and of a row"


def check_rows(keys: tf.Tensor, values: tf.Tensor, row_shape: list[int], what: str) -> None:
    """Raises ShapeError unless `values` has one row for each key.

    Dimensions that are not known yet are checked when the op runs.
    """
    check_shape(values, keys.shape.concatenate(row_shape), what, _WHOSE_SHAPE)


def check_shape(tensor: tf.Tensor, expected: tf.TensorShape, what: str, whose: str) -> None:
    """Raises ShapeError unless a tensor has this shape, as far as both are known.

    Args:
        tensor: The tensor.
        expected: Its shape.
        what: The name of the argument.
        whose: What else has that shape.
    """
    if not tensor.shape.is_compatible_with(expected):
        message = (
            f"Expected shape {expected.as_list()} for `{what}`, that of {whose}. Received: "
            f"{tensor.shape.as_list()}"
        )
        raise ShapeError(None, None, message)


def default_rows(keys: tf.Tensor, given: Any, dtype: tf.DType, row_shape: list[int]) -> tf.Tensor:
    """Returns `dynamic_default_values` as one row, or as one row for each key.

    Raises:
        TypeError: If they are of another type.
        ShapeError: If they are of another shape. The op checks dimensions that are not known yet.
    """
    rows = values_tensor(given, dtype, "dynamic_default_values")
    rank, count = keys.shape.rank, keys.shape.num_elements()
    is_one_row = rows.shape.is_compatible_with([1, *row_shape]) and rows.shape[:1] == [1]
    if is_one_row or (rows.shape.rank == 0 and row_shape == [1]):
        rows = tf.reshape(rows, row_shape)
    elif (
        (rank or 0) > 1
        and rows.shape.rank is not None
        and rows.shape.is_compatible_with([count, *row_shape])
    ):  # The rows of keys of a higher rank are given as a list of rows.
        rows = tf.reshape(rows, tf.concat([tf.shape(keys), tf.shape(rows)[1:]], axis=0))
    if not rows.shape.is_compatible_with(row_shape):
        check_rows(keys, rows, row_shape, "dynamic_default_values")
    return rows


def assert_rows(keys: tf.Tensor, values: tf.Tensor, row_shape: list[int], what: str) -> tf.Tensor:
    """Returns `values`, with an assertion that they have one row for each key.

    It is for values that other ops use before an op of the table checks them.
    """
    if keys.shape.is_fully_defined() and values.shape.is_fully_defined():
        return values
    row = tf.constant(row_shape, tf.int32, [len(row_shape)])
    # Shapes are compared as texts, because shapes of different ranks are not comparable tensors.
    expected = _shape_text(tf.concat([tf.shape(keys), row], axis=0))
    received = _shape_text(tf.shape(values))
    after = f" for `{what}`, that of {_WHOSE_SHAPE}. Received: "
    report = tf.strings.join(["Expected shape ", expected, after, received])
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(expected, received), [report])]):
        return tf.identity(values)


def _shape_text(shape: tf.Tensor) -> tf.Tensor:
    sizes = tf.strings.reduce_join(tf.as_string(shape), separator=", ")
    return tf.strings.join(["[", sizes, "]"])
