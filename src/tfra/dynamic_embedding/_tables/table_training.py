"""What layers and optimizers ask of a table."""

from __future__ import annotations

import functools
from typing import Any

from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.tf import ops, tf
from tfra.dynamic_embedding._tables.initializers import RandomRows
from tfra.dynamic_embedding._tables.rules import Claimant, CustomRule, EngineRule


class TableTraining:
    """The part of `HashTable` that training uses. See `rules.py` for rules and their texts."""

    # Of the table.
    name: Any
    owner: Any
    resource_handle: tf.Tensor
    _value_dtype: tf.DType
    _initial: Any
    _ready: Any
    _default_row: Any
    _scores: Any

    def lookup_pooled(
        self,
        keys: tf.Tensor,
        row_splits: tf.Tensor,
        weights: tf.Tensor,
        combiner: str,
        max_norm: float,
    ) -> tf.Tensor:
        """Combines the rows of runs of keys, with no tensor of all rows in between."""
        with self._ready():
            return ops.tfra_lookup_pooled(
                self.resource_handle,
                keys,
                row_splits,
                weights,
                self._default_row(),
                Ts=arguments.compute_dtype(self._value_dtype),
                combiner=combiner,
                max_norm=max_norm,
                initial=isinstance(self._initial, RandomRows),
            )

    def claim(self, optimizer: Claimant, step: Any, keeps: str) -> list[Any]:
        """Says that an optimizer is about to take a step: comes before the update.

        One that is new to the table takes the place of the one before it. If this is its first
        step, what that one left starts anew: slots, or rows if those are what it keeps. So a table
        has the slots of one optimizer at any time.

        Args:
            optimizer: Who it is.
            step: The number of the step, from 1; 0 if the optimizer does not count them.
            keeps: What the optimizer has in the table: "nothing", "slots" or "rows".

        Returns:
            The ops that the update must wait for.

        Raises:
            tf.errors.FailedPreconditionError: If another optimizer has taken the place of this one.
        """
        owner = None if self.owner is None else self.owner()
        with self._ready():
            claimed = ops.tfra_bind(
                self.resource_handle,
                tf.cast(step, tf.int64),
                optimizer=optimizer.unique_name,
                optimizer_name=optimizer.name,
                worker=optimizer.worker,
                table_name=(owner or self).name,
                keeps=keeps,
            )
        return [] if claimed is None else [claimed]

    def apply_gradients(
        self,
        keys: tf.Tensor,
        gradients: tf.Tensor,
        *,
        rule: str,
        params: str,
        learning_rate: tf.Tensor,
        step: tf.Tensor,
        new_keys: str = "admit",
    ) -> Any:
        """Takes one step of an update rule of the engine; gradients of equal keys are summed."""
        with self._ready():
            return ops.tfra_apply_gradients(
                self.resource_handle,
                keys,
                gradients,
                learning_rate,
                step,
                scores=self._scores(keys),
                rule=rule,
                params=params,
                new_keys=new_keys,
            )

    def lookup_rows(self, keys: tf.Tensor, *, rule: CustomRule) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the values and the slots of some keys, initial ones where they are missing.

        Rows that have the slots of another rule get those of this one.
        """
        return self._rows_and_slots(ops.tfra_lookup_rows, keys, rule)

    def lookup_slots(
        self, keys: tf.Tensor, *, optimizer: Claimant, rule: CustomRule | EngineRule
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Does so for an optimizer that trains the table, and is an error for all others."""
        op = functools.partial(ops.tfra_peek_rows, optimizer=optimizer.unique_name)
        return self._rows_and_slots(op, keys, rule)

    def _rows_and_slots(
        self, op: Any, keys: tf.Tensor, rule: CustomRule | EngineRule
    ) -> tuple[tf.Tensor, tf.Tensor]:
        with self._ready():
            rows = op(
                self.resource_handle,
                keys,
                self._default_row(),
                Ts=arguments.compute_dtype(self._value_dtype),
                rule=rule.text(),
            )
        return rows.values, tf.ensure_shape(rows.slots, [*keys.shape, rule.slot_elements])

    def write_rows(
        self,
        keys: tf.Tensor,
        values: tf.Tensor,
        slots: tf.Tensor,
        *,
        rule: CustomRule,
        add: bool,
        new_keys: str = "admit",
    ) -> Any:
        """Assigns values and slots, or adds them to those that are there."""
        op = ops.tfra_add_to_rows if add else ops.tfra_assign_rows
        with self._ready():
            return op(
                self.resource_handle,
                keys,
                values,
                slots,
                scores=self._scores(keys),
                rule=rule.text(),
                new_keys=new_keys,
            )
