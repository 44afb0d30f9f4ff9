"""What a missing key's row is, from whatever a user may give as `initializer`."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfra import initializers
from tfra._shared import arrays
from tfra.admission import Admission
from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._tables.computed_rows import (
    RowsOf,
    computed_rows,
    uniform_integers,
)


@dataclass(frozen=True)
class ConstantRow:
    """The same row for every key."""

    row: np.ndarray[Any, Any]  # Of the value type; its shape is that of a row: (dim,) or ().

    external: bool = False  # Whether code outside of the engine makes the rows.

    @property
    def initializer(self) -> initializers.Initializer:
        """What a table's spec says."""
        if self.external:
            return initializers.External()
        if self.row.dtype.kind in "SUO":
            return initializers.Zeros()  # Strings are given to each lookup.
        return initializers.Constant(self.row)

    @property
    def seed(self) -> int:
        """What a table's spec says."""
        return 0


@dataclass(frozen=True)
class RandomRows:
    """A row that is a function of seed and key, computed by the engine."""

    initializer: initializers.Uniform | initializers.Normal
    seed: int
    dim: int


@dataclass(frozen=True)
class ComputedRows:
    """Rows that code outside of the engine makes, for missing keys only."""

    of: RowsOf


InitialRows = ConstantRow | RandomRows | ComputedRows


@dataclass(frozen=True)
class NewRows:
    """What a Variable tells its tables of rows to come; creators pass it on as `default_value`."""

    initial: ConstantRow | RandomRows
    metadata: bool = False  # Whether rows carry the time and the number of updates.
    admission: Admission | None = None


def constant_row(value: Any, dtype: tf.DType, shape: tuple[int, ...] | None) -> ConstantRow:
    """Returns the row that `value` stands for, of this shape, or of its own if that is None.

    Raises:
        ValueError: If it does not have that shape.
        TypeError: If it is not of the type of the table.
    """
    if tf.is_tensor(value):
        static = tf.get_static_value(value)
        if static is None:
            raise ValueError(f"A default value must be known when the table is made: {value}")
        value = static
    row = _row_of(value, dtype)
    if shape is None:
        if row.ndim > 1:
            raise ValueError(
                f"A default value must be a scalar or a vector. Received shape: {row.shape}"
            )
        return ConstantRow(row)
    if row.shape == (1, *shape):  # As a batch of one.
        row = row[0]
    if row.shape not in (shape, (), (1,)):
        raise ValueError(
            f"An initial value must be a number or a row: expected shape {shape}, "
            f"received {row.shape}"
        )
    return ConstantRow(np.array(np.broadcast_to(row, shape)))


def _row_of(value: Any, dtype: tf.DType) -> np.ndarray[Any, Any]:
    """Returns `value` as an array of the type, with nothing lost but digits of floats."""
    wrong = TypeError(f"A default value: expected {dtype.name}, received {value!r}")
    given = np.asarray(value)
    if dtype == tf.string:
        row = np.asarray(value, dtype=object)
        if not all(isinstance(text, (str, bytes)) for text in row.reshape(-1)):
            raise wrong
        return row
    if given.dtype.kind not in "biufV":  # V: bfloat16, which NumPy does not know.
        raise wrong
    try:
        row = np.asarray(value).astype(dtype.as_numpy_dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise wrong from error
    if not dtype.is_floating and not np.array_equal(row, given):
        raise wrong
    return row


def initial_rows(initializer: Any, dtype: tf.DType, dim: int, name: str) -> InitialRows:
    """Returns what missing keys of a `Variable` get.

    Args:
        initializer: None, a number, an array, an initializer of TensorFlow, Keras or this package
            (or its class), or any callable that takes nothing, a shape, or a shape and a dtype.
        dtype: The value type.
        dim: The length of a row.
        name: Of the variable: stands in for a seed where none is given.
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


def _in_engine(
    initializer: Any, dim: int
) -> initializers.Uniform | initializers.Normal | initializers.Constant | None:
    """Returns the engine's equivalent of an initializer, if it has one."""
    if isinstance(initializer, initializers.Initializer):
        if isinstance(initializer, (initializers.Zeros, initializers.Ones)):
            return initializers.Constant(float(isinstance(initializer, initializers.Ones)))
        return initializer  # type: ignore[return-value]
    # By the class's name: TensorFlow and Keras have several classes for each, with the same
    # meaning and the same attributes. A user's class may be one of them with other arguments.
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
    """Glorot, He and Lecun initializers, as for a square matrix of rows.

    A table has no number of rows that could count as its fan, so both fans are `dim`.
    """
    variance = scale / max(1, dim)
    if distribution == "uniform":
        limit = math.sqrt(3.0 * variance)
        return initializers.Uniform(-limit, limit)
    if distribution == "untruncated_normal":
        return initializers.Normal(0.0, math.sqrt(variance))
    # The standard deviation of a normal distribution cut at two of its own.
    return initializers.TruncatedNormal(0.0, math.sqrt(variance) / 0.87962566103423978)


def _seed_of(initializer: Any, name: str) -> int:
    """The initializer's seed, or one that is the same in every process that runs the program."""
    # Keras draws a seed where none was given, and keeps what was given beside it.
    seed = getattr(initializer, "_init_seed", getattr(initializer, "seed", None))
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        return int(seed) % 2**63
    return zlib.crc32(name.encode())
