"""The part of a table that layers and optimizers use."""

from __future__ import annotations

import functools
from typing import Any, Protocol

from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.tf import ops, tf
from tfra.dynamic_embedding._tables.rules import BoundOptimizer, CustomRule, EngineRule


class TableToTrain(Protocol):
    """The interface of a table that `TableTraining` needs."""

    owner: Any

    @property
    def name(self) -> str:
        """The name of the table."""

    @property
    def value_dtype(self) -> tf.DType:
        """The type of the values."""

    @property
    def resource_handle(self) -> tf.Tensor:
        """The handle that ops take."""

    @property
    def has_random_rows(self) -> bool:
        """Whether the engine computes the initial rows."""

    def ready(self) -> Any:
        """Returns a context whose ops run after the table was created."""

    def default_row(self) -> tf.Tensor:
        """The row for missing keys."""

    def scores_of_write(self, keys: tf.Tensor) -> list[tf.Tensor]:
        """Returns the argument `scores` of a writing op."""


def pool_rows(
    rows: tf.Tensor, row_splits: tf.Tensor, weights: tf.Tensor, combiner: str, max_norm: float
) -> tf.Tensor:
    """Combines the rows of each bag; see `Bags`. A `max_norm` of 0 means no clipping."""
    if max_norm:
        rows = tf.clip_by_norm(rows, max_norm, axes=[-1])
    dtype = arguments.compute_dtype(rows.dtype)
    pooled = ops.tfra_pool_rows(rows, row_splits, weights, Ts=dtype, combiner=combiner)
    return tf.ensure_shape(pooled, [None, rows.shape[-1]])


class TableTraining:
    """The part of a table that layers and optimizers use. See `rules.py` for update rules.

    Args:
        table: The table.
    """

    def __init__(self, table: TableToTrain) -> None:
        self._table = table

    def lookup_pooled(
        self,
        keys: tf.Tensor,
        row_splits: tf.Tensor,
        weights: tf.Tensor,
        combiner: str,
        max_norm: float,
    ) -> tf.Tensor:
        """Combines the rows of each bag of keys, without a tensor of all rows."""
        with self._table.ready():
            return ops.tfra_lookup_pooled(
                self._table.resource_handle,
                keys,
                row_splits,
                weights,
                self._table.default_row(),
                Ts=arguments.compute_dtype(self._table.value_dtype),
                combiner=combiner,
                max_norm=max_norm,
                initial=self._table.has_random_rows,
            )

    def bind(self, optimizer: BoundOptimizer, step: Any, keeps: str) -> list[Any]:
        """Binds an optimizer that is about to take a step. Call it before each update.

        A new optimizer replaces the bound one. If this is its first step, the state of the previous
        optimizer is reset: the slots, or the rows if `keeps` is "rows". So a table has the slots of
        one optimizer at any time.

        Args:
            optimizer: The identity of the optimizer.
            step: The number of the step, from 1; 0 if the optimizer does not count steps.
            keeps: What the optimizer keeps in the table: "nothing", "slots" or "rows".

        Returns:
            The ops that the update must wait for.

        Raises:
            tf.errors.FailedPreconditionError: If another optimizer has replaced this one.
        """
        table = self._table
        owner = None if table.owner is None else table.owner()
        with self._table.ready():
            bound = ops.tfra_bind(
                self._table.resource_handle,
                tf.cast(step, tf.int64),
                optimizer=optimizer.unique_name,
                optimizer_name=optimizer.name,
                worker=optimizer.worker,
                table_name=(owner or table).name,
                keeps=keeps,
            )
        return [] if bound is None else [bound]

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
        """Takes one step of an update rule of the engine. Gradients of equal keys are summed."""
        with self._table.ready():
            return ops.tfra_apply_gradients(
                self._table.resource_handle,
                keys,
                gradients,
                learning_rate,
                step,
                scores=self._table.scores_of_write(keys),
                rule=rule,
                params=params,
                new_keys=new_keys,
            )

    def lookup_rows(self, keys: tf.Tensor, *, rule: CustomRule) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the values and slots of keys. Missing keys get initial ones.

        If the table has the slots of another rule, it first gets those of `rule`.
        """
        return self._rows_and_slots(ops.tfra_lookup_rows, keys, rule)

    def lookup_slots(
        self, keys: tf.Tensor, *, optimizer: BoundOptimizer, rule: CustomRule | EngineRule
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Like `lookup_rows`, but fails unless `optimizer` is bound to the table."""
        op = functools.partial(ops.tfra_peek_rows, optimizer=optimizer.unique_name)
        return self._rows_and_slots(op, keys, rule)

    def _rows_and_slots(
        self, op: Any, keys: tf.Tensor, rule: CustomRule | EngineRule
    ) -> tuple[tf.Tensor, tf.Tensor]:
        with self._table.ready():
            rows = op(
                self._table.resource_handle,
                keys,
                self._table.default_row(),
                Ts=arguments.compute_dtype(self._table.value_dtype),
                rule=rule.text(),
            )
        return rows.values, tf.ensure_shape(rows.slots, keys.shape.concatenate(rule.slot_elements))

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
        """Assigns values and slots, or adds to the stored ones if `add` is true."""
        op = ops.tfra_add_to_rows if add else ops.tfra_assign_rows
        with self._table.ready():
            return op(
                self._table.resource_handle,
                keys,
                values,
                slots,
                scores=self._table.scores_of_write(keys),
                rule=rule.text(),
                new_keys=new_keys,
            )
