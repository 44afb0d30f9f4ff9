"""The initial rows of keys that were never written: a pure function of the seed and the key.

The initial row of a key does not depend on the batch, the order, the thread or the machine.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfra._shared import arrays
from tfra._shared.json_values import bytes_value, number_value, of_bytes_value, of_number_value

__all__ = [
    "Constant", "External", "Initializer", "Normal", "Ones", "TruncatedNormal", "Uniform", "Zeros",
    "get",
]  # fmt: skip


@dataclass(frozen=True)
class Initializer:
    """Base class of the initializers."""


@dataclass(frozen=True)
class Zeros(Initializer):
    """Zeros, `False` or empty strings."""


@dataclass(frozen=True)
class External(Initializer):
    """Rows that the caller computes for each lookup. The table itself uses zeros."""


@dataclass(frozen=True)
class Ones(Initializer):
    """Ones, or `True`."""


@dataclass(frozen=True, eq=False)
class Constant(Initializer):
    """The same value for every key.

    Example:
    >>> import tfra
    >>> table = tfra.Table(dim=2, initializer=tfra.initializers.Constant([1.0, 2.0]))
    >>> table.lookup(7).tolist()
    [1.0, 2.0]

    Constants are equal if their values have equal types and bits, so that NaN equals NaN.

    Args:
        value: A number, or a row of `dim` numbers; for tables of strings, a string or `dim`
            strings.
    """

    value: float | str | bytes | Sequence[Any] | NDArray[Any] | np.generic

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constant):
            return NotImplemented
        return _content(self.value) == _content(other.value)

    def __hash__(self) -> int:
        return hash(_content(self.value))


@dataclass(frozen=True)
class Uniform(Initializer):
    """Uniformly distributed numbers.

    Args:
        minval: The lowest value.
        maxval: The upper end of the range, not included.
    """

    minval: float = -0.05
    maxval: float = 0.05

    def __post_init__(self) -> None:
        low = arrays.real(self.minval, "minval", "a finite number")
        high = arrays.real(self.maxval, "maxval", "a finite number")
        if low > high:
            raise ValueError(
                "`minval` must not be greater than `maxval`. "
                f"Received: minval={self.minval}, maxval={self.maxval}"
            )
        object.__setattr__(self, "minval", low)
        object.__setattr__(self, "maxval", high)


@dataclass(frozen=True)
class Normal(Initializer):
    """Normally distributed numbers.

    Args:
        mean: The mean.
        stddev: The standard deviation.
    """

    mean: float = 0.0
    stddev: float = 0.05

    def __post_init__(self) -> None:
        mean = arrays.real(self.mean, "mean", "a finite number")
        stddev = arrays.real(self.stddev, "stddev", "a finite number, 0 or more", 0)
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "stddev", stddev)


@dataclass(frozen=True)
class TruncatedNormal(Normal):
    """Normally distributed numbers, none further than two standard deviations from the mean."""


_BY_NAME: dict[str, type[Initializer]] = {
    "zeros": Zeros,
    "ones": Ones,
    "uniform": Uniform,
    "normal": Normal,
    "truncated_normal": TruncatedNormal,
}
_KINDS = {kind: name for name, kind in _BY_NAME.items()} | {
    Constant: "constant",
    External: "external",
}


def get(identifier: Any, *, strings: bool = False) -> Initializer:
    """Returns the initializer that `identifier` stands for.

    Args:
        identifier: An `Initializer`, a name such as `"normal"`, a number or a row. If `strings`,
            every string but `"zeros"` is a value.
        strings: Whether the values of the table are strings.

    Returns:
        An `Initializer`.

    Raises:
        ValueError: If there is no initializer of that name.
        TypeError: If `identifier` is none of these.
    """
    if type(identifier) in _KINDS:
        return identifier
    if identifier is None:
        return Zeros()
    if isinstance(identifier, str) and (identifier == "zeros" or not strings):
        if identifier not in _BY_NAME:
            raise ValueError(
                f"`initializer` must be one of {sorted(_BY_NAME)}. Received: {identifier!r}"
            )
        return _BY_NAME[identifier]()
    if isinstance(identifier, (bool, int, float, str, bytes, list, tuple, np.ndarray, np.generic)):
        return Constant(identifier)
    raise TypeError(
        "`initializer` must be one of tfra.initializers, a name, a number or a row of numbers. "
        f"Received: {identifier!r} (of type {type(identifier).__name__})"
    )


def spec(initializer: Initializer, seed: int, dtype: np.dtype[Any], dim: int) -> dict[str, Any]:
    """Returns the `initializer` of the JSON form of a `TableSpec`.

    Args:
        initializer: An `Initializer`.
        seed: The seed of the table, from 0 to 2**64 - 1.
        dtype: The dtype of the values; object for strings.
        dim: The length of a row.

    Returns:
        A dict.

    Raises:
        ValueError: If a constant row has another length than `dim`.
        TypeError: If a constant cannot be a value of the table.
    """
    fields: dict[str, Any] = {"kind": _KINDS[type(initializer)], "seed": seed}
    if isinstance(initializer, Uniform):
        fields |= {"low": initializer.minval, "high": initializer.maxval}
    elif isinstance(initializer, Normal):
        fields |= {"mean": initializer.mean, "stddev": initializer.stddev}
    elif isinstance(initializer, Constant):
        fields["row"] = _constant_row(initializer.value, dtype, dim)
    return fields


def from_spec(config: dict[str, Any], dtype: np.dtype[Any]) -> Initializer:
    """Returns the initializer that `spec` described, for values of this dtype."""
    kind = config["kind"]
    if kind == "constant":
        if dtype == arrays.STRING:
            row: list[Any] = [of_bytes_value(text) for text in config["row"]]
        elif arrays.is_floating(dtype):
            row = [of_number_value(number) for number in config["row"]]
        else:
            row = config["row"]
        return Constant(row[0] if len(row) == 1 else tuple(row))
    if kind == "uniform":
        return Uniform(of_number_value(config["low"]), of_number_value(config["high"]))
    if kind == "normal":
        return Normal(of_number_value(config["mean"]), of_number_value(config["stddev"]))
    if kind == "truncated_normal":
        return TruncatedNormal(of_number_value(config["mean"]), of_number_value(config["stddev"]))
    return External() if kind == "external" else _BY_NAME[kind]()


def _content(value: Any) -> Any:
    """Returns something hashable that is equal for values of equal types and bits."""
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        content = _content(array.tolist()) if array.dtype == arrays.STRING else array.tobytes()
        return array.dtype, array.shape, content
    if isinstance(value, (list, tuple)):
        return tuple(_content(element) for element in value)
    return type(value), struct.pack("d", value) if isinstance(value, float) else value


def _constant_row(value: Any, dtype: np.dtype[Any], dim: int) -> list[Any]:
    """Returns the elements of the row, or one element if all of them are the same."""
    arrays.refuse_mask(value, "initializer")
    try:
        row = np.asarray(value, dtype=object if dtype == arrays.STRING else None)
    except ValueError as error:
        raise ValueError(f"`initializer` must have a regular shape. Received: {value!r}") from error
    if dtype == arrays.STRING:
        for text in row.reshape(-1):
            if not isinstance(text, (str, bytes)):
                raise TypeError(
                    f"`initializer` must be str or bytes. Received: {text!r} (of type "
                    f"{type(text).__name__})"
                )
    else:
        # Numbers convert to any numeric type, but a fraction must not get lost.
        if row.dtype.kind not in "biuf" and row.dtype != dtype:
            raise TypeError(f"`initializer` must be {dtype} numbers. Received: {value!r}")
        converted = row.astype(dtype)
        if dtype.kind in "iub" and not np.array_equal(converted, row):
            raise TypeError(f"`initializer` must be {dtype} numbers. Received: {value!r}")
        row = converted
    if row.shape not in ((), (dim,)):
        raise ValueError(
            f"`initializer` must be one value or a row of shape ({dim},). "
            f"Received: shape {row.shape}"
        )
    elements: list[Any] = row.reshape(-1).tolist()
    if dtype == arrays.STRING:
        elements = [_text_value(text) for text in elements]
    elif arrays.is_floating(dtype):
        elements = [number_value(float(number)) for number in elements]
    first = repr(elements[0])  # Tells 0.0 and -0.0 apart.
    return elements[:1] if all(repr(element) == first for element in elements) else elements


def _text_value(text: str | bytes) -> str | dict[str, str]:
    try:
        return bytes_value(text)
    except UnicodeEncodeError:
        raise ValueError(
            f"`initializer` must be text that can be written as UTF-8. Received: {text!r}"
        ) from None
