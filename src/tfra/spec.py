"""The one description of a table, for every framework and file: `TableSpec`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tfra import _native, initializers, optimizers
from tfra import admission as admissions
from tfra._shared import arrays, limits
from tfra._shared.json_values import bytes_value, of_bytes_value
from tfra._shared.rule import Rule
from tfra._shared.tiers import checked_tiers

_VERSION = 1
_STRATEGIES = ("lru", "lfu", "epochlru", "epochlfu", "customized")


@dataclass(frozen=True, eq=False)
class TableSpec:
    """The one description of a table: types, rows, which keys may enter, and how many.

    The engine checks the JSON form strictly: `engine/include/tfra/spec.h` is its contract. Files
    contain it, so that they can be read without the program that wrote them. Two specs are equal if
    their JSON forms are. Arguments may be what `tfra.Table` takes, such as names of initializers
    and NumPy numbers; attributes are what they stand for.

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
            computes it. Constants become Python numbers, bytes, or tuples of them.
        seed: The seed of the initial values. Becomes a number from 0 to 2**64 - 1, modulo 2**64.
        rule: The update rule of the optimizer, which decides the slots of a row; or an optimizer,
            or its name, or None for no rule.
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

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If a number is out of range, a name is unknown, or an argument has no effect
            without another one that is not given.
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

    def __post_init__(self) -> None:
        dim = arrays.integer(self.dim, "dim", 1, limits.MAX_DIM)
        dtype = arrays.value_dtype(self.value_dtype)
        seed = arrays.integer(self.seed, "seed", -(2**63), 2**64 - 1) % 2**64
        initializer = initializers.get(self.initializer, strings=dtype == arrays.STRING)
        if isinstance(initializer, initializers.Constant):
            config = initializers.spec(initializer, seed, dtype, dim)
            initializer = initializers.from_spec(config, dtype)
        rule: Any = self.rule
        if not isinstance(rule, Rule):
            optimizer = optimizers.get(rule, "rule")
            rule = optimizer.rule() if optimizer else Rule()
        fast_bytes, directory = checked_tiers(self.fast_bytes, self.tier_directory, dtype)
        fields: dict[str, Any] = {
            "dim": dim,
            "key_dtype": arrays.key_type(self.key_dtype),
            "value_dtype": arrays.type_name(dtype),
            "scalar": arrays.boolean(self.scalar, "scalar"),
            "initializer": initializer,
            "seed": seed,
            "rule": rule,
            "metadata": arrays.boolean(self.metadata, "metadata"),
            "admission": admissions.get(self.admission),
            "capacity": arrays.integer(self.capacity, "capacity", 0, limits.MAX_KEYS),
            "remember_counts": arrays.boolean(self.remember_counts, "remember_counts"),
            "steps_per_epoch": arrays.integer(self.steps_per_epoch, "steps_per_epoch", 0),
            "fast_bytes": fast_bytes,
            "tier_directory": directory,
        }
        if fields["scalar"] and dim != 1:
            raise ValueError(f"`dim` must be 1, since `scalar` is true. Received: {dim}")
        if self.max_capacity is not None:
            most = arrays.integer(self.max_capacity, "max_capacity", 1, limits.MAX_KEYS)
            fields["max_capacity"] = most
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        self._check_bound()

    def _check_bound(self) -> None:
        if self.evict_strategy not in _STRATEGIES:
            raise ValueError(
                f"`evict_strategy` must be one of {', '.join(_STRATEGIES)}. "
                f"Received: {self.evict_strategy!r}"
            )
        if self.max_capacity is not None and self.max_capacity < self.capacity:
            raise ValueError(
                f"`max_capacity` must not be less than `capacity`, {self.capacity}. "
                f"Received: {self.max_capacity}"
            )
        for name in ("evict_strategy", "remember_counts", "steps_per_epoch"):
            value, default = getattr(self, name), getattr(TableSpec, name)
            if self.max_capacity is None and value != default:
                raise ValueError(
                    f"`{name}` needs `max_capacity`, the number of keys that a table never "
                    f"exceeds. Received: max_capacity=None and {name}={value!r}"
                )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TableSpec):
            return NotImplemented
        return self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())

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
        """Returns the JSON form."""
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
            TypeError: If the text is not a str.
            ValueError: If the text is not JSON, or a field is missing, unknown or out of range.
        """
        if not isinstance(text, str):
            raise TypeError(f"`text` must be a str. Received: {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"`text` must be text that can be written as UTF-8. Received: {text[:80]!r}"
            ) from None
        config = json.loads(_native.parse_spec(text))
        bound, tiers = config.get("bound"), config.get("tiers")
        initial, value_dtype = config["initializer"], config["value_type"]
        fields: dict[str, Any] = {
            "dim": config["dim"],
            "key_dtype": config["key_type"],
            "value_dtype": value_dtype,
            "scalar": config.get("scalar", False),
            "initializer": initializers.from_spec(initial, arrays.value_dtype(value_dtype)),
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
