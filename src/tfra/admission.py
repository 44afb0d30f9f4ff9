"""Admission rules: which keys training may insert into a table.

Most ids of a stream are seen only once; rows for them waste memory and add noise. With an admission
rule, training inserts a new key only when the rule lets it in. Until then lookups return its
initial value, and its gradients are dropped and counted (`TableStats.refused`). A training step
counts a key as seen once, however often it is in the batch. The count of writes of a row, which
`restrict` may rank by, includes the times its key was seen before it entered. Keys that are written
directly (`upsert`, `insert`) always enter.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from tfra import _native
from tfra._shared import arrays, limits

__all__ = ["Admission", "CountingBloomFilter", "MinCount", "Probability", "deserialize", "get"]


@dataclass(frozen=True)
class Admission:
    """Base class of the admission rules."""

    def spec(self) -> dict[str, Any]:
        """Returns the rule in the JSON form of a `TableSpec`."""
        return {"kind": "all"}

    def serialize(self) -> dict[str, Any]:
        """Returns the rule in the form that `deserialize` takes, for the configs of layers."""
        return {"class_name": type(self).__name__, "config": asdict(self)}


@dataclass(frozen=True)
class MinCount(Admission):
    """A key enters when it is seen for the `min_count`-th time.

    Counts are exact. Each waiting key takes 16 bytes in a hash table that is a quarter to a half
    empty, and the bytes of a string key. `expire` with a `ttl` forgets keys that wait too long. The
    count of a key that left the table starts again.

    Example:
    >>> import numpy as np
    >>> import tfra
    >>> table = tfra.Table(dim=2, optimizer="sgd", admission=tfra.admission.MinCount(2))
    >>> table.apply_gradients([7], np.ones((1, 2), np.float32))
    >>> len(table), table.stats().refused
    (0, 1)
    >>> table.apply_gradients([7], np.ones((1, 2), np.float32))
    >>> len(table)
    1

    Args:
        min_count: 1 or more.

    Raises:
        TypeError: If it is not an integer.
        ValueError: If it is out of range.
    """

    min_count: int

    def __post_init__(self) -> None:
        arrays.integer(self.min_count, "min_count", 1, limits.MAX_UINT32)

    def spec(self) -> dict[str, Any]:
        """Returns the rule in the JSON form of a `TableSpec`."""
        return {"kind": "min_count", "min_count": int(self.min_count)}


@dataclass(frozen=True)
class CountingBloomFilter(Admission):
    """Like `MinCount`, with counts in a Bloom filter, whose memory does not grow.

    Keys share counters, so a key may enter early, but never late. After `capacity` different keys
    were seen, the probability that a new key is mistaken for a seen one is at most about
    `error_rate`; with more keys it grows. The filter takes `memory_bytes` from the beginning: 9.6
    counters for each key at an error rate of 1 %. A counter has 4 bits if `min_count` is at most
    15, 8 bits if it is at most 255, and 16 bits otherwise. A key that left the table enters again
    at once.

    Example:
    >>> import tfra
    >>> rule = tfra.admission.CountingBloomFilter(3, capacity=1_000_000, error_rate=0.01)
    >>> rule.memory_bytes < 5_000_000
    True

    Args:
        min_count: 1 to 65535.
        capacity: The number of different keys that the filter is made for.
        error_rate: The probability of a mistake after that many keys, between 0 and 1.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If a number is out of range.
    """

    min_count: int
    capacity: int
    error_rate: float = 0.01

    def __post_init__(self) -> None:
        arrays.integer(self.min_count, "min_count", 1, limits.MAX_FILTER_COUNT)
        arrays.integer(self.capacity, "capacity", 1, limits.MAX_FILTER_KEYS)
        expected = "a number, at least 1e-15 and below 1"
        arrays.real(self.error_rate, "error_rate", expected, 1e-15, math.nextafter(1, 0))

    @property
    def memory_bytes(self) -> int:
        """The memory of the filter of one table."""
        table = {"version": 1, "key_type": "int64", "value_type": "int8", "dim": 1}
        parts = _native.estimate_memory(json.dumps(table | {"admission": self.spec()}), 0, 0.0)
        return parts["admission_bytes"]

    def spec(self) -> dict[str, Any]:
        """Returns the rule in the JSON form of a `TableSpec`."""
        return {
            "kind": "bloom_filter",
            "min_count": int(self.min_count),
            "filter_keys": int(self.capacity),
            "filter_error": float(self.error_rate),
        }


@dataclass(frozen=True)
class Probability(Admission):
    """A key enters with a given probability each time it is seen.

    So a key enters after `1 / probability` times on average, and waiting keys take no memory. The
    draws depend on the seed and on the order of the calls, not on threads.

    Args:
        probability: From 0 to 1.
        seed: An int.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If the probability is out of range.
    """

    probability: float
    seed: int = 0

    def __post_init__(self) -> None:
        arrays.real(self.probability, "probability", "a number between 0 and 1", 0, 1)
        arrays.integer(self.seed, "seed", -(2**63), 2**64 - 1)

    def spec(self) -> dict[str, Any]:
        """Returns the rule in the JSON form of a `TableSpec`."""
        return {
            "kind": "probability",
            "probability": float(self.probability),
            "seed": int(self.seed) & 0xFFFF_FFFF_FFFF_FFFF,
        }


_BY_NAME = {rule.__name__: rule for rule in (MinCount, CountingBloomFilter, Probability)}


def get(identifier: Any) -> Admission | None:
    """Returns the rule that `identifier` stands for.

    Args:
        identifier: A rule, None for no rule, or what `Admission.serialize` returned.

    Returns:
        An `Admission`, or None.

    Raises:
        TypeError: If `identifier` is something else.
        ValueError: If there is no rule of that name.
    """
    if identifier is None or type(identifier) in _BY_NAME.values():
        return identifier
    if isinstance(identifier, dict):
        return deserialize(identifier)
    raise TypeError(
        "`admission` must be one of tfra.admission.MinCount, CountingBloomFilter and Probability, "
        f"or None. Received: {identifier!r} (of type {type(identifier).__name__})"
    )


def deserialize(config: dict[str, Any]) -> Admission:
    """Makes the rule that `Admission.serialize` described.

    Raises:
        ValueError: If there is no rule of that name.
    """
    name = config.get("class_name")
    if name not in _BY_NAME:
        raise ValueError(f"`class_name` must be one of {sorted(_BY_NAME)}. Received: {name!r}")
    return _BY_NAME[name](**config["config"])


def from_spec(spec: dict[str, Any] | None) -> Admission | None:
    """Returns the rule that `Admission.spec` described; None for all keys."""
    kind = "all" if spec is None else spec["kind"]
    if spec is None or kind == "all":
        return None
    if kind == "min_count":
        return MinCount(spec["min_count"])
    if kind == "bloom_filter":
        return CountingBloomFilter(spec["min_count"], spec["filter_keys"], spec["filter_error"])
    if kind == "probability":
        return Probability(spec["probability"], spec["seed"])
    raise ValueError(f"`admission`: expected a known kind. Received: {kind!r}")
