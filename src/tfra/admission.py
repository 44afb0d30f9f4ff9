"""Which keys may enter a table.

Most ids of a stream are seen once and never again; rows for them are memory and noise. With an
admission rule, a key that is not in the table enters it only when the rule lets it in. Until then
lookups return its initial value, and gradients to it are dropped and counted
(`TableStats.refused`). A key is seen once by each training step that has it, however often it is in
the batch. What a row knows of its updates, such as the frequency that `restrict` goes by, counts
the times its key was seen before it entered. Keys that are written by hand (`upsert`, `insert`)
always enter.
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
    """Base class of the rules."""

    def spec(self) -> dict[str, Any]:
        """The rule, as the JSON form of a table's spec has it."""
        return {"kind": "all"}

    def serialize(self) -> dict[str, Any]:
        """The rule as `deserialize` takes it: for the configuration of layers."""
        return {"class_name": type(self).__name__, "config": asdict(self)}


@dataclass(frozen=True)
class MinCount(Admission):
    """A key enters when it is seen for the `min_count`-th time.

    Counts are exact. They take memory for each key that waits: 16 bytes, with a quarter to a half
    of the places free, and the bytes of string keys. `expire` with a `ttl` forgets those that wait
    for too long. A key that left the table is counted anew.

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
        """The rule, as the JSON form of a table's spec has it."""
        return {"kind": "min_count", "min_count": int(self.min_count)}


@dataclass(frozen=True)
class CountingBloomFilter(Admission):
    """As `MinCount`, with counts in a Bloom filter: memory that does not grow.

    Keys share counters, so a key may enter early, but never late. After `capacity` different keys
    were seen, a new key is taken for one that was seen before with a probability of at most about
    `error_rate`; beyond that the probability grows. The filter takes `memory_bytes`, from the
    beginning: 9.6 counters for each key at an error rate of 1 %, of four bits if `min_count` is at
    most 15, of eight to 255, of sixteen beyond. A key that left the table enters again at once.

    Example:
    >>> import tfra
    >>> rule = tfra.admission.CountingBloomFilter(3, capacity=1_000_000, error_rate=0.01)
    >>> rule.memory_bytes < 5_000_000
    True

    Args:
        min_count: 1 to 65535.
        capacity: The number of different keys it is made for.
        error_rate: The probability of a mistake then, between 0 and 1.

    Raises:
        TypeError: If a number is not one.
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
        """What the filter of one table takes."""
        table = {"version": 1, "key_type": "int64", "value_type": "int8", "dim": 1}
        parts = _native.estimate_memory(json.dumps(table | {"admission": self.spec()}), 0, 0.0)
        return parts["admission_bytes"]

    def spec(self) -> dict[str, Any]:
        """The rule, as the JSON form of a table's spec has it."""
        return {
            "kind": "bloom_filter",
            "min_count": int(self.min_count),
            "filter_keys": int(self.capacity),
            "filter_error": float(self.error_rate),
        }


@dataclass(frozen=True)
class Probability(Admission):
    """Each time a key is seen, it enters with a probability.

    So a key enters after `1 / probability` times on average, and nothing is kept of those that
    wait. The draws depend on the seed and on the order of the calls, not on threads.

    Args:
        probability: From 0 to 1.
        seed: An int.

    Raises:
        TypeError: If a number is not one.
        ValueError: If the probability is out of range.
    """

    probability: float
    seed: int = 0

    def __post_init__(self) -> None:
        arrays.real(self.probability, "probability", "a number between 0 and 1", 0, 1)
        arrays.integer(self.seed, "seed", -(2**63), 2**64 - 1)

    def spec(self) -> dict[str, Any]:
        """The rule, as the JSON form of a table's spec has it."""
        return {
            "kind": "probability",
            "probability": float(self.probability),
            "seed": int(self.seed) & 0xFFFF_FFFF_FFFF_FFFF,
        }


_BY_NAME = {rule.__name__: rule for rule in (MinCount, CountingBloomFilter, Probability)}


def get(identifier: Any) -> Admission | None:
    """Returns the rule that `identifier` stands for.

    Args:
        identifier: One of the rules, None for none, or what `Admission.serialize` returned.

    Returns:
        An `Admission`, or None.

    Raises:
        TypeError: If `identifier` is something else.
        ValueError: If there is no rule of that name.
    """
    if identifier is None or isinstance(identifier, Admission):
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
