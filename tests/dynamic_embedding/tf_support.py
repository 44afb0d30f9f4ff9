"""What the TensorFlow tests share: keys and rows of each type, and ways to compare tensors."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import support
import tfra
from support import Array, Content, Shape, make_keys, make_values, numpy_dtype

de = tfra.dynamic_embedding

KEY_DTYPES = ("int32", "int64", "string")
VALUE_DTYPES = support.VALUE_DTYPES
# Types that can be added and subtracted.
SUMMABLE_DTYPES = tuple(name for name in VALUE_DTYPES if name not in ("bool", "string"))
KINDS = ("CuckooHashTable", "HkvHashTable")
SHAPES: list[Shape] = [(), (0,), (1,), (7,), (2, 3), (2, 0, 3), (2, 1, 2, 2)]
DEVICES = {"one partition": None, "three partitions": ["/CPU:0"] * 3}

EXTREME_KEYS: dict[str, list[Any]] = {
    "int32": [0, -1, 1, 2**31 - 1, -(2**31), 2**31 - 2, -(2**31) + 1],
    "int64": [0, -1, 1, 2**63 - 1, -(2**63), 2**63 - 2, -(2**63) + 1, 2**32, -(2**32), 2**31],
    "string": [b"", b"\0", b"\0\0", b"a", b"a\0", b"a\0b", b"\xff" * 8, b"x" * 2**20,
               b"x" * (2**20 - 1)],
}  # fmt: skip


def to_numpy(tensor: tf.Tensor) -> Array:
    """The array of a tensor; unlike `Tensor.numpy` an array for scalars too."""
    return np.array(tensor.numpy(), numpy_dtype(tensor.dtype.name))


def assert_tensor(tensor: Any, expected: Array) -> None:
    """A tensor of the same dtype, shape and bits."""
    assert isinstance(tensor, tf.Tensor)
    support.assert_identical(to_numpy(tensor), expected)


def as_content(keys: Array, values: Array) -> Content:
    """Maps keys to their rows or scalars; the last of equal keys wins."""
    row_size = math.prod(values.shape[keys.ndim :])
    return support.as_content(keys, values.reshape(keys.size, row_size))


def content(table: Any) -> Content:
    """Everything in a table or Variable; fails if a key is exported twice."""
    keys, values = (to_numpy(tensor) for tensor in table.export())
    assert keys.ndim == 1
    assert values.shape[:1] == keys.shape
    exported = as_content(keys, values)
    assert len(exported) == len(keys) == int(table.size()), "a key was exported twice"
    return exported


def signature_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Names of the arguments and their defaults, in order; arguments without a default are ...."""
    # Classes that TensorFlow tracks hide their arguments behind those of a metaclass.
    target = function.__init__ if inspect.isclass(function) else function
    parameters = inspect.signature(target).parameters.values()
    return {
        p.name: ... if p.default is p.empty else p.default for p in parameters if p.name != "self"
    }


def sequence(value_dtype: str, count: int, width: int, start: int) -> Array:
    """Rows of small numbers that every type holds and adds exactly."""
    numbers = (np.arange(count * width).reshape(count, width) + start) % 23 - 11
    return numbers.astype(numpy_dtype(value_dtype))


def raises(
    errors: type[Exception] | tuple[type[Exception], ...],
    call: Callable[[], Any],
    *said: str | Shape,
) -> Exception:
    """Checks that `call` fails, with a message that says what it received, and all of `said`."""
    with pytest.raises(errors) as caught:
        call()
    message = str(caught.value).lower().replace(" ", "")
    for part in ("received", *said):
        text = part if isinstance(part, str) else ",".join(map(str, part))
        assert text in message, f"{part} not in: {caught.value}"
    return caught.value


@dataclass(frozen=True)
class TfCase:
    """The types that a test runs with, and the shape of one row: () for a table of scalars."""

    key_dtype: str = "int64"
    value_dtype: str = "float32"
    row: Shape = (3,)

    def __str__(self) -> str:
        return f"{self.key_dtype}-{self.value_dtype}-{self.row}"

    def keys(self, numbers: Any) -> Array:
        """One key per number."""
        if self.key_dtype == "int32":
            return np.asarray(numbers, np.int32)
        return make_keys(self.key_dtype, numbers)

    def extreme_keys(self) -> Array:
        """Keys at the ends of the range of their type."""
        keys = EXTREME_KEYS[self.key_dtype]
        return support.object_array(keys, (len(keys),)).astype(numpy_dtype(self.key_dtype))

    def values(self, shape: Shape | int, seed: int = 0) -> Array:
        """Random rows for keys of `shape`."""
        shape = (shape,) if isinstance(shape, int) else shape
        whole = (*shape, *self.row)
        return make_values(self.value_dtype, (1, *whole), np.random.default_rng(seed)).reshape(
            whole
        )

    def default(self) -> Array:
        """The row of a missing key in a table made by `table`."""
        return self.values((), seed=12345)

    def defaults(self, shape: Shape | int) -> Array:
        """The default row, once for each key."""
        shape = (shape,) if isinstance(shape, int) else shape
        return np.broadcast_to(self.default(), (*shape, *self.row)).copy()

    def zeros(self, shape: Shape | int) -> Array:
        """Rows of missing keys in a Variable without an initializer."""
        return np.full_like(self.values(shape), b"" if self.value_dtype == "string" else 0)

    def table(self, kind: str, **options: Any) -> Any:
        """A new table of these types."""
        if kind == "HkvHashTable":
            options = {"init_capacity": 1024, **options}
        types = (tf.as_dtype(self.key_dtype), tf.as_dtype(self.value_dtype))
        return getattr(de, kind)(*types, self.default(), **options)

    def variable(self, **options: Any) -> Any:
        """A new Variable of these types."""
        types = {
            "key_dtype": tf.as_dtype(self.key_dtype),
            "value_dtype": tf.as_dtype(self.value_dtype),
        }
        return de.Variable(dim=self.row[0], **types, **options)


def pairs(*rows: Shape) -> list[TfCase]:
    """Every key type with every value type, for each of the shapes of a row."""
    return [TfCase(k, v, row) for k in KEY_DTYPES for v in VALUE_DTYPES for row in rows]
