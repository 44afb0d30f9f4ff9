"""The one description of a table, for every framework and file: `TableSpec`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tfra import _native, initializers
from tfra import admission as admissions
from tfra._shared import arrays
from tfra._shared.json_values import bytes_value, of_bytes_value, of_number_value
from tfra._shared.rule import Rule

_VERSION = 1


@dataclass(frozen=True)
class TableSpec:
    """The one description of a table: types, rows, which keys may enter, and how many.

    The engine checks the JSON form strictly: `engine/include/tfra/spec.h` is its contract. Files
    contain it, so that they can be read without the program that wrote them.

    Example:
    >>> import tfra
    >>> spec = tfra.Table(dim=2, initializer="normal", seed=7, optimizer="adam").spec
    >>> spec.rule.kind
    'adam'
    >>> tfra.TableSpec.from_json(spec.to_json()) == spec
    True

    Args:
        dim: The length of a row.
        key_dtype: `"int64"`, `"int32"` or `"string"`.
        value_dtype: The name of the dtype of values.
        scalar: Whether values have the shape of their keys, without a dimension for the row.
        initializer: The initial value of missing keys; `initializers.External` if the caller
            computes it.
        seed: The seed of the initial values.
        rule: The update rule of the optimizer, which decides the slots of a row.
        metadata: Whether keys have the time of their last write and the number of writes.
        admission: Which keys may enter, or None for all.
        capacity: The number of keys to reserve memory for.
        max_capacity: The number of keys that the table never exceeds, or None.
        evict_strategy: What the scores of a table with `max_capacity` are.
        remember_counts: Whether a key that returns after an eviction continues from about its
            former count.
        steps_per_epoch: The number of steps after which the epoch increases by one; 0 for never.
        fast_bytes: Bytes of memory for rows, or None if all rows are in memory.
        tier_directory: The directory of the row file, or None for the default.
    """

    dim: int
    key_dtype: str = "int64"
    value_dtype: str = "float32"
    scalar: bool = False
    initializer: initializers.Initializer = dataclasses.field(default_factory=initializers.Zeros)
    seed: int = 0
    rule: Rule = dataclasses.field(default_factory=Rule)
    metadata: bool = False
    admission: admissions.Admission | None = None
    capacity: int = 0
    max_capacity: int | None = None
    evict_strategy: str = "lru"
    remember_counts: bool = True
    steps_per_epoch: int = 0
    fast_bytes: int | None = None
    tier_directory: str | None = None

    @cached_property
    def slots(self) -> dict[str, int]:
        """The number of elements of each optimizer slot of a row, by name, in their order."""
        return dict(_native.rule_slots(self.rule.to_json(), self.dim))

    @cached_property
    def value_bytes(self) -> int:
        """The number of bytes of the value of a row.

        Raises:
            TypeError: If values are strings, which have no fixed size.
        """
        dtype = arrays.value_dtype(self.value_dtype)
        if dtype == arrays.STRING:
            raise TypeError("`value_dtype`: expected values of a fixed size. Received: string")
        return self.dim * dtype.itemsize

    @cached_property
    def row_bytes(self) -> int:
        """The number of bytes of a row, `[value | slots]`, in a `Store`.

        Raises:
            TypeError: If values are strings, which have no fixed size.
        """
        slot_dtype = arrays.compute_dtype(arrays.value_dtype(self.value_dtype))
        return self.value_bytes + sum(self.slots.values()) * slot_dtype.itemsize

    def to_json(self) -> str:
        """Returns the JSON form.

        Raises:
            ValueError: If a constant row has another length than `dim`.
            TypeError: If a constant can't be a value of the table.
        """
        dtype = arrays.value_dtype(self.value_dtype)
        config: dict[str, Any] = {
            "version": _VERSION,
            "key_type": self.key_dtype,
            "value_type": self.value_dtype,
            "dim": self.dim,
            "scalar": self.scalar,
            "initializer": initializers.spec(self.initializer, self.seed, dtype, self.dim),
            "rule": self.rule.to_config(),
            "metadata": self.metadata,
            "initial_capacity": self.capacity,
        }
        if self.admission is not None:
            config["admission"] = self.admission.spec()
        if self.max_capacity is not None:
            config["bound"] = {
                "max_capacity": self.max_capacity,
                "strategy": self.evict_strategy,
                "remember_counts": self.remember_counts,
                "steps_per_epoch": self.steps_per_epoch,
            }
        if self.fast_bytes is not None:
            directory = bytes_value(self.tier_directory or "")
            config["tiers"] = {"fast_bytes": self.fast_bytes, "directory": directory}
        return json.dumps(config, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> TableSpec:
        """Returns the spec that a text in JSON describes.

        Raises:
            ValueError: If the text is not JSON, or a field is missing, unknown or out of range.
        """
        config = json.loads(_native.parse_spec(text))
        bound, tiers = config.get("bound"), config.get("tiers")
        initial = config["initializer"]
        fields: dict[str, Any] = {
            "dim": config["dim"],
            "key_dtype": config["key_type"],
            "value_dtype": config["value_type"],
            "scalar": config.get("scalar", False),
            "initializer": _initializer_of(initial, config["value_type"]),
            "seed": initial["seed"],
            "rule": Rule.from_config(config["rule"]),
            "metadata": config["metadata"],
            "admission": admissions.from_spec(config.get("admission")),
            "capacity": config.get("initial_capacity", 0),
        }
        if bound is not None:
            fields |= {
                "max_capacity": bound["max_capacity"],
                "evict_strategy": bound["strategy"],
                "remember_counts": bound["remember_counts"],
                "steps_per_epoch": bound["steps_per_epoch"],
            }
        if tiers is not None:
            directory = of_bytes_value(tiers["directory"]).decode(errors="surrogateescape")
            fields |= {"fast_bytes": tiers["fast_bytes"], "tier_directory": directory or None}
        return cls(**fields)


def _initializer_of(config: dict[str, Any], value_dtype: str) -> initializers.Initializer:
    match config["kind"]:
        case "ones":
            return initializers.Ones()
        case "external":
            return initializers.External()
        case "constant":
            row = config["row"]
            if value_dtype == "string":
                values: Any = [of_bytes_value(text) for text in row]
            elif value_dtype.startswith(("float", "bfloat")):
                values = [of_number_value(number) for number in row]
            else:
                values = row
            return initializers.Constant(values[0] if len(values) == 1 else tuple(values))
        case "uniform":
            return initializers.Uniform(
                of_number_value(config["low"]), of_number_value(config["high"])
            )
        case "normal" | "truncated_normal" as kind:
            made = initializers.Normal if kind == "normal" else initializers.TruncatedNormal
            return made(of_number_value(config["mean"]), of_number_value(config["stddev"]))
        case _:
            return initializers.Zeros()
