"""Update rules as ops take them: in the JSON form of `tfra.TableSpec`."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property

from tfra import _native, optimizers
from tfra._shared.rule import Rule, RuleSlot

# Hyper-parameters that are tensors, given to each step, or are dealt with before the engine.
_NOT_IN_TEXT = ("step", "learning_rate", "clipnorm", "clipvalue")


@dataclass(frozen=True)
class BoundOptimizer:
    """An optimizer that trains a table, as the table knows it.

    Args:
        name: What it is called. Optimizers of one name share the slots of a table if they are of
            different workers: these train it together.
        unique_name: A name that no other optimizer has.
        worker: The process that it is in.
    """

    name: str
    unique_name: str
    worker: str


@dataclass(frozen=True)
class Slot:
    """Numbers that a row carries for an optimizer outside the engine.

    Args:
        name: Its name.
        elements: How many: the length of a row, or 1.
        initial: What they are in a new row.
    """

    name: str
    elements: int
    initial: float


def rule_text(optimizer: optimizers.Optimizer) -> str:
    """Returns the rule of an optimizer of the engine, as ops take it."""
    return optimizer.rule().to_json()


def params_text(optimizer: optimizers.Optimizer) -> str:
    """Returns the hyper-parameters of an optimizer of the engine, as ops take them."""
    params = optimizer.params(step=1)
    return json.dumps({name: x for name, x in params.items() if name not in _NOT_IN_TEXT})


@dataclass(frozen=True)
class EngineRule:
    """The rule of an optimizer of the engine.

    Args:
        optimizer: What describes it.
        dim: The length of a row.
    """

    optimizer: optimizers.Optimizer
    dim: int

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """What a row carries for it; the engine knows what they start with."""
        return tuple(
            Slot(name, 1 if scalar else self.dim, initial=math.nan)
            for name, scalar in _native.rule_slots(self.text())
        )

    @property
    def slot_elements(self) -> int:
        """How many numbers all slots of a row are."""
        return sum(slot.elements for slot in self.slots)

    def text(self) -> str:
        """Returns what ops are told."""
        return rule_text(self.optimizer)


@dataclass(frozen=True)
class CustomRule:
    """The rule of an optimizer outside the engine, which is its slots.

    Args:
        slots: What a row carries for it.
        dim: The length of a row.
    """

    slots: tuple[Slot, ...]
    dim: int

    @property
    def slot_elements(self) -> int:
        """How many numbers all slots of a row are."""
        return sum(slot.elements for slot in self.slots)

    @property
    def starts_from_rows(self) -> bool:
        """Whether a slot of a new row is the row itself, for which NaN stands."""
        return any(math.isnan(slot.initial) for slot in self.slots)

    def text(self) -> str:
        """Returns what ops are told."""
        slots = tuple(
            RuleSlot(slot.name, slot.elements != self.dim, slot.initial) for slot in self.slots
        )
        return Rule("custom", slots=slots).to_json()
