"""The initial rows of missing keys, made from whatever a user may give as `initializer`."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfra import initializers
from tfra._shared import arrays
from tfra.admission import Admission
from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._tables.computed_rows import (
    RowsOf,
    computed_rows,
    exact_cast,
    uniform_integers,
)


@dataclass(frozen=True)
class ConstantRow:
    """The same row for every key."""

    row: np.ndarray[Any, Any]  # Of the value type, in the shape of a row: (dim,) or ().

    external: bool = False  # Whether code outside the engine makes the initial rows.

    @property
    def initializer(self) -> initializers.Initializer:
        """The initializer in the TableSpec."""
        if self.external:
            return initializers.External()
        if self.row.dtype.kind in "SUO":
            return initializers.Zeros()  # Each lookup passes the default string as an argument.
        return initializers.Constant(self.row)

    @property
    def seed(self) -> int:
        """The seed in the TableSpec; a constant needs none."""
        return 0


@dataclass(frozen=True)
class RandomRows:
    """Rows that the engine computes from the seed and the key."""

    initializer: initializers.Uniform | initializers.Normal
    seed: int
    dim: int


@dataclass(frozen=True)
class ComputedRows:
    """Rows that code outside the engine computes, for missing keys only."""

    of: RowsOf


InitialRows = ConstantRow | RandomRows | ComputedRows


@dataclass(frozen=True)
class NewRows:
    """What a Variable tells its tables about new rows. Creators pass it on as `default_value`."""

    initial: ConstantRow | RandomRows
    metadata: bool = False  # Whether keys have the time of the last write and the count of writes.
    admission: Admission | None = None


def constant_row(value: Any, dtype: tf.DType, shape: tuple[int, ...] | None) -> ConstantRow:
    """Returns `value` as a row of this shape; if `shape` is None, in its own shape.

    Raises:
        ShapeError: If `value` does not have that shape.
        TypeError: If `value` is not of the value type.
    """
    if tf.is_tensor(value):
        static = tf.get_static_value(value)
        if static is None:
            raise ValueError(f"A default value must be known when the table is made: {value}")
        value = static
    row = _row_of(value, dtype)
    if shape is None:
        if row.ndim > 1:
            message = f"A default value must be a scalar or a vector. Received shape: {row.shape}"
            raise arguments.ShapeError(None, None, message)
        return ConstantRow(row)
    if row.shape == (1, *shape):  # A batch of one row.
        row = row[0]
    if row.shape not in (shape, (), (1,)):
        message = (
            f"An initial value must be a number or a row: expected shape {shape}, "
            f"received {row.shape}"
        )
        raise arguments.ShapeError(None, None, message)
    return ConstantRow(np.array(np.broadcast_to(row, shape)))


def _row_of(value: Any, dtype: tf.DType) -> np.ndarray[Any, Any]:
    """Returns `value` as an array of the type. Only floats may be rounded."""
    wrong = TypeError(f"A default value: expected {dtype.name}, received {value!r}")
    given = np.asarray(value)
    if dtype == tf.string:
        row = np.asarray(value, dtype=object)
        if not all(isinstance(text, (str, bytes)) for text in row.reshape(-1)):
            raise wrong
        return row
    if given.dtype.kind not in "biufV":  # NumPy does not know bfloat16: its kind is V.
        raise wrong
    try:
        cast = exact_cast(given, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise wrong from error
    if cast is None:
        raise wrong
    return cast


def initial_rows(initializer: Any, dtype: tf.DType, dim: int, name: str) -> InitialRows:
    """Returns the initial rows of a `Variable`.

    Args:
        initializer: None, a number, an array, an initializer of TensorFlow, Keras or this package
            (or its class), or any callable that takes nothing, a shape, or a shape and a dtype.
        dtype: The value type.
        dim: The length of a row.
        name: The name of the variable. The seed is made of it if the initializer has none.
    """
    arrays.refuse_mask(initializer, "initializer")
    if initializer is None:
        initializer = "" if dtype == tf.string else 0
    if isinstance(initializer, type):
        initializer = initializer()
    known = _in_engine(initializer, dim)
    if isinstance(known, (initializers.Uniform, initializers.Normal)):
        seed = _seed_of(initializer, name)
        if dtype.is_floating:
            return RandomRows(known, seed, dim)
        if isinstance(known, initializers.Uniform) and dtype.is_integer:
            _check_limits(known, dtype)
            return ComputedRows(uniform_integers(known.minval, known.maxval, dtype, dim, seed))
        raise TypeError(
            f"`initializer`: expected one that makes values of type {dtype.name}, received "
            f"{initializer!r}"
        )
    if known is not None:
        initializer = known.value
    if callable(initializer):
        seed = _seed_of(initializer, name)
        return ComputedRows(computed_rows(initializer, dtype, dim, seed))
    return constant_row(initializer, dtype, (dim,))


def _check_limits(uniform: initializers.Uniform, dtype: tf.DType) -> None:
    """Raises ValueError unless there are integers to draw between exact limits."""
    low, high = uniform.minval, uniform.maxval
    if not (low == int(low) and high == int(high) and dtype.min <= low < high <= dtype.max + 1):
        raise ValueError(
            f"`initializer`: for values of {dtype.name}, expected whole numbers as limits, the "
            f"first below the second. Received: {low} and {high}"
        )


def _in_engine(
    initializer: Any, dim: int
) -> initializers.Uniform | initializers.Normal | initializers.Constant | None:
    """Returns the equivalent initializer of the engine, or None if there is none."""
    if isinstance(initializer, initializers.Initializer):
        if isinstance(initializer, (initializers.Zeros, initializers.Ones)):
            return initializers.Constant(float(isinstance(initializer, initializers.Ones)))
        return initializer  # type: ignore[return-value]
    # Initializers are recognized by the name of their class: TensorFlow and Keras have several
    # classes of each name, with the same meaning and attributes. A subclass by the user counts as
    # its base class, unless it has its own __call__.
    cls = next((c for c in type(initializer).__mro__ if _is_of_framework(c)), None)
    if cls is None or type(initializer).__call__ is not cls.__call__:
        return None
    kind = cls.__name__

    def get(attribute: str) -> Any:
        for spelling in (attribute, "_" + attribute):
            if hasattr(initializer, spelling):
                return getattr(initializer, spelling)
        raise AttributeError(f"{initializer!r} has no {attribute}")

    if kind == "Zeros":
        return initializers.Constant(0.0)
    if kind == "Ones":
        return initializers.Constant(1.0)
    if kind == "Constant":
        return initializers.Constant(get("value"))
    if kind == "RandomUniform":
        low, high = get("minval"), get("maxval")
        return initializers.Uniform(low, 1.0 if high is None else high)
    if kind == "RandomNormal":
        return initializers.Normal(get("mean"), get("stddev"))
    if kind == "TruncatedNormal":
        return initializers.TruncatedNormal(get("mean"), get("stddev"))
    if hasattr(initializer, "scale") and hasattr(initializer, "distribution"):
        return _variance_scaling(initializer.scale, initializer.distribution, dim)
    return None


def _is_of_framework(cls: type) -> bool:
    return cls.__module__.split(".")[0] in ("tensorflow", "keras", "tf_keras")


def _variance_scaling(
    scale: float, distribution: str, dim: int
) -> initializers.Uniform | initializers.Normal:
    """Glorot, He and Lecun initializers, with `dim` as both fan-in and fan-out.

    A table has no fixed number of rows that could be the fan-in.
    """
    variance = scale / max(1, dim)
    if distribution == "uniform":
        limit = math.sqrt(3.0 * variance)
        return initializers.Uniform(-limit, limit)
    if distribution == "untruncated_normal":
        return initializers.Normal(0.0, math.sqrt(variance))
    # The constant is the standard deviation of a standard normal truncated to [-2, 2].
    return initializers.TruncatedNormal(0.0, math.sqrt(variance) / 0.87962566103423978)


def _seed_of(initializer: Any, name: str) -> int:
    """Returns the seed of the initializer, or a hash of the name: the same in all processes."""
    # If no seed was given, Keras draws a random one; `_init_seed` keeps what was given.
    seed = getattr(initializer, "_init_seed", getattr(initializer, "seed", None))
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        return int(seed) % 2**63
    return zlib.crc32(name.encode())
