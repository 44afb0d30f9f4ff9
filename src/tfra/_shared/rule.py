"""The update rule of an optimizer as a table knows it: it decides the slots of a row."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tfra._shared.json_values import bytes_value, number_value, of_bytes_value, of_number_value

_SWITCHES = ("momentum", "nesterov", "amsgrad", "centered")


@dataclass(frozen=True, eq=False)
class RuleSlot:
    """A slot of an optimizer outside the engine.

    Slots are equal if the engine finds them equal: NaN is equal to NaN, and 0.0 not to -0.0.

    Args:
        name: The name of the slot.
        scalar: Whether the slot is one number for each row, instead of `dim` numbers.
        initial: The value of all numbers in a new row.
    """

    name: str
    scalar: bool = False
    initial: float = 0.0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RuleSlot) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[str, bool, str]:
        return self.name, self.scalar, repr(float(self.initial))


@dataclass(frozen=True)
class Rule:
    """The update rule of an optimizer, without hyper-parameters such as the learning rate.

    Args:
        kind: A rule of the engine such as `"adam"`; `"custom"` for an optimizer outside the engine,
            or `"none"`.
        momentum: Whether rows have a momentum slot (`"sgd"`, `"rmsprop"`).
        nesterov: Whether the momentum is Nesterov's (`"sgd"` with momentum).
        amsgrad: Whether rows have the slot of AMSGrad (`"adam"`, `"adamw"`).
        centered: Whether rows have the slot for the average gradient (`"rmsprop"`).
        initial_accumulator: The initial value of the accumulator (`"adagrad"`, `"rowwise_adagrad"`,
            `"ftrl"`), or None.
        slots: The slots of a `"custom"` rule. The engine knows those of its own rules.
    """

    kind: str = "none"
    momentum: bool = False
    nesterov: bool = False
    amsgrad: bool = False
    centered: bool = False
    initial_accumulator: float | None = None
    slots: tuple[RuleSlot, ...] = ()

    def to_config(self) -> dict[str, Any]:
        """Returns the rule as a dict in the JSON form of the engine."""
        config: dict[str, Any] = {"kind": self.kind}
        config |= {name: True for name in _SWITCHES if getattr(self, name)}
        if self.initial_accumulator is not None:
            config["initial_accumulator"] = number_value(self.initial_accumulator)
        if self.kind == "custom":
            config["slots"] = [
                {
                    "name": bytes_value(slot.name),
                    "scalar": slot.scalar,
                    "initial": number_value(slot.initial),
                }
                for slot in self.slots
            ]
        return config

    def to_json(self) -> str:
        """Returns the rule as a text in the JSON form of the engine."""
        return json.dumps(self.to_config(), allow_nan=False)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Rule:
        """Returns the rule that `to_config` described."""
        fields = dict(config)
        if "initial_accumulator" in fields:
            fields["initial_accumulator"] = of_number_value(fields["initial_accumulator"])
        fields["slots"] = tuple(
            RuleSlot(
                of_bytes_value(slot["name"]).decode(errors="surrogateescape"),
                slot["scalar"],
                of_number_value(slot["initial"]),
            )
            for slot in fields.get("slots", ())
        )
        return cls(**fields)
