"""The slots of an optimizer in the rows of a table, readable like Variables."""

from __future__ import annotations

import math
import uuid
import weakref
from typing import Any

from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.keras import inner_optimizers, keras
from tfra.dynamic_embedding._platform.keras2 import is_of_keras2
from tfra.dynamic_embedding._platform.tf import Trackable, tf
from tfra.dynamic_embedding._tables.rules import BoundOptimizer, CustomRule, EngineRule
from tfra.dynamic_embedding._training.shadow import TrainableWrapper
from tfra.dynamic_embedding._training.trained_variable import TrainedVariable

# Tells apart the optimizers of two processes that run the same program on the tables of a server.
_WORKER = uuid.uuid4().hex


class TableOptimizer:
    """What tables and slot variables need of an optimizer that trains tables."""

    _name: str  # Of those without a public `name`.

    def trains(
        self, params: TrainedVariable
    ) -> tuple[BoundOptimizer, CustomRule | EngineRule] | None:
        """Returns its identity and its rule for a Variable, or None before its first step on it."""
        raise NotImplementedError

    def identity(self, params: TrainedVariable) -> BoundOptimizer:
        """Returns the identity by which a table knows it."""
        del params
        name = str(getattr(self, "name", None) or self._name)
        unique = self.__dict__.setdefault("_name_in_tables", f"{name} {uuid.uuid4().hex[:12]}")
        return BoundOptimizer(name, unique, _WORKER)

    def expect(self, shadow: TrainableWrapper) -> None:
        """Notes that the optimizer's model looked up a table for training."""
        self.__dict__.setdefault("_expected_shadows", []).append(weakref.ref(shadow))

    def take_expected(self) -> list[TrainableWrapper]:
        """Returns the shadows that the optimizer's model looked up since the last step."""
        expected = [shadow() for shadow in self.__dict__.pop("_expected_shadows", ())]
        return [shadow for shadow in expected if shadow is not None]


class SlotVariable(Trackable):  # type: ignore[misc]
    """A slot of an optimizer in the rows of a `Variable`, which can be read but not written.

    `Variable.get_slot_variables` returns them.

    Attributes:
        params: The `Variable` whose rows contain the slot.
        name: The name of the Variable, a slash, and the name of the slot.
        slot_name: The name that the optimizer gives to the slot.
        dim: The number of elements that the slot has in each row.
    """

    def __init__(
        self,
        params: TrainedVariable,
        number: int,
        optimizer: BoundOptimizer,
        rule: CustomRule | EngineRule,
    ) -> None:
        slot = rule.slots[number]
        self.params = params
        self.slot_name = slot.name
        self.name = f"{params.name}/{slot.name}"
        self.dim = slot.elements
        self._optimizer, self._rule = optimizer, rule
        self._first = sum(slot.elements for slot in rule.slots[:number])
        # In such a slot NaN means that it was not written yet: it still equals the row.
        self._starts_from_row = isinstance(rule, CustomRule) and math.isnan(slot.initial)

    def __repr__(self) -> str:
        return f"<SlotVariable {self.name!r}: {self.key_dtype.name} -> {self.dim} numbers>"

    @property
    def key_dtype(self) -> tf.DType:
        """The dtype of keys."""
        return self.params.key_dtype

    @property
    def value_dtype(self) -> tf.DType:
        """The dtype of the slot: at least float32, whatever the dtype of the values is."""
        return arguments.compute_dtype(self.params.value_dtype)

    @property
    def tables(self) -> list[Any]:
        """The tables whose rows contain the slot: those of the Variable."""
        return self.params.tables

    def lookup(self, keys: Any, name: str | None = None) -> tf.Tensor:
        """Looks up the slot in the rows of some keys.

        Args:
            keys: Keys. Can be a tensor of any shape.
            name: A name for the operation (optional).

        Returns:
            A tensor of shape `keys.shape + [dim]`. Missing keys get the initial slot of a new row.

        Raises:
            TypeError: If `keys` are not of the key type.
            tf.errors.FailedPreconditionError: If the optimizer has not taken its first step, or
                another optimizer trains the Variable now.
        """
        keys = arguments.keys_tensor(keys, self.key_dtype)
        rows, slots = self.params.lookup_slots(keys, self._optimizer, self._rule)
        slot = slots[..., self._first : self._first + self.dim]
        if self._starts_from_row:
            slot = tf.where(tf.math.is_nan(slot), tf.cast(rows, slot.dtype), slot)
        return tf.identity(slot, name=name)

    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all keys and their slots.

        Args:
            name: A name for the operation (optional).

        Returns:
            A pair of tensors of shapes `[n]` and `[n, dim]`.
        """
        keys, _ = self.params.export()
        return keys, self.lookup(keys, name=name)

    def size(self, name: str | None = None) -> tf.Tensor:
        """Returns the number of keys of the Variable, all of which have the slot.

        Args:
            name: A name for the operation (optional).
        """
        return self.params.size(name=name)


def slot_variables_of(params: TrainedVariable, optimizer: Any) -> list[SlotVariable]:
    """Returns the slots that an optimizer has in the rows of a Variable.

    The list is empty if the optimizer has not trained this Variable.

    Raises:
        TypeError: If `optimizer` is not an optimizer of Keras or of `tf.compat.v1.train`.
    """
    of_keras3_or_v1 = (keras.optimizers.Optimizer, tf.compat.v1.train.Optimizer)
    if not isinstance(optimizer, of_keras3_or_v1) and not is_of_keras2(optimizer):
        raise TypeError(
            "`optimizer`: expected an optimizer of Keras or of tf.compat.v1.train, received "
            f"{optimizer!r}"
        )
    inner = inner_optimizers(optimizer)
    if inner:
        return [slot for one in inner for slot in slot_variables_of(params, one)]
    trains = optimizer.trains(params) if isinstance(optimizer, TableOptimizer) else None
    if trains is None:
        return []
    bound_optimizer, rule = trains
    return [
        SlotVariable(params, number, bound_optimizer, rule) for number in range(len(rule.slots))
    ]
