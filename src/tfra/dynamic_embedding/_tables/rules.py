"""Update rules in the form that ops take: the JSON form of `tfra.TableSpec`."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property

from tfra import _native, optimizers
from tfra._shared.rule import Rule, RuleSlot

# Ops get the step and the learning rate as tensors, and clipping happens before the op runs.
_NOT_IN_TEXT = ("step", "learning_rate", "clipnorm", "clipvalue")


@dataclass(frozen=True)
class BoundOptimizer:
    """The identity by which a table knows an optimizer.

    Args:
        name: The name of the optimizer. Optimizers of different workers with the same name train a
            table together and share its slots.
        unique_name: A name that no other optimizer has.
        worker: The process of the optimizer.
    """

    name: str
    unique_name: str
    worker: str


@dataclass(frozen=True)
class Slot:
    """A slot of an optimizer.

    Args:
        name: The name of the slot.
        elements: The number of its elements: the length of a row, or 1.
        initial: The value of all elements in a new row.
    """

    name: str
    elements: int
    initial: float


def rule_text(optimizer: optimizers.Optimizer) -> str:
    """Returns the rule of an optimizer of the engine as JSON."""
    return optimizer.rule().to_json()


def params_text(optimizer: optimizers.Optimizer) -> str:
    """Returns the hyper-parameters of an optimizer of the engine as JSON."""
    params = optimizer.params(step=1)
    return json.dumps({name: x for name, x in params.items() if name not in _NOT_IN_TEXT})


@dataclass(frozen=True)
class EngineRule:
    """The rule of an optimizer of the engine.

    Args:
        optimizer: The description of the optimizer.
        dim: The length of a row.
    """

    optimizer: optimizers.Optimizer
    dim: int

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """The slots of a row. Only the engine knows their initial values."""
        return tuple(
            Slot(name, elements, initial=math.nan)
            for name, elements in _native.rule_slots(self.text(), self.dim)
        )

    @property
    def slot_elements(self) -> int:
        """The number of elements of all slots of a row together."""
        return sum(slot.elements for slot in self.slots)

    def text(self) -> str:
        """Returns the rule as JSON, for ops."""
        return rule_text(self.optimizer)


@dataclass(frozen=True)
class CustomRule:
    """The rule of an optimizer outside the engine. A table needs to know only its slots.

    Args:
        slots: The slots of a row.
        dim: The length of a row.
    """

    slots: tuple[Slot, ...]
    dim: int

    @property
    def slot_elements(self) -> int:
        """The number of elements of all slots of a row together."""
        return sum(slot.elements for slot in self.slots)

    @property
    def starts_from_rows(self) -> bool:
        """Whether a slot starts as a copy of the row. Its `initial` is NaN then."""
        return any(math.isnan(slot.initial) for slot in self.slots)

    def text(self) -> str:
        """Returns the rule as JSON, for ops."""
        slots = tuple(
            RuleSlot(slot.name, slot.elements != self.dim, slot.initial) for slot in self.slots
        )
        return Rule("custom", slots=slots).to_json()
