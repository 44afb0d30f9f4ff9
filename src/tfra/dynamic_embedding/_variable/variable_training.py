"""The part of a Variable that optimizers use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._tables.partitions import Partitions
from tfra.dynamic_embedding._tables.rules import CustomRule
from tfra.dynamic_embedding._variable.variable_rows import VariableRows


class VariableTraining:
    """Updates the rows of a Variable.

    Args:
        partitions: The tables.
        rows: Reads the rows of the tables.
        policy: The `restrict_policy` of the Variable, or None. It may record which keys are
            trained.
    """

    def __init__(self, partitions: Partitions, rows: VariableRows, policy: Any) -> None:
        self._partitions = partitions
        self._rows = rows
        self._policy = policy

    def apply_gradients(self, keys: tf.Tensor, gradients: tf.Tensor, **options: Any) -> Any:
        """Takes one step of an update rule of the engine; see `TableTraining.apply_gradients`."""
        with self._update_of(keys) as new_keys:
            applied = self._partitions.write(
                "training.apply_gradients", keys, (gradients,), new_keys=new_keys, **options
            )
        return self._tell_policy(keys, applied)

    def update_rows(
        self,
        keys: tf.Tensor,
        update: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
        rule: CustomRule,
        add: bool,
    ) -> Any:
        """Replaces rows and slots by what a function computes; see `Variable.update_rows`."""
        first = self._partitions.tables[0]
        with self._update_of(keys) as new_keys:
            values, slots = self._partitions.read("training.lookup_rows", keys, rule=rule)
            values.set_shape([None, first.dim])
            rows = tf.cast(values, slots.dtype)
            new_rows, new_slots = update(rows, slots)
            if add:
                new_rows, new_slots = new_rows - rows, new_slots - slots
            written = self._partitions.write(
                "training.write_rows",
                keys,
                (tf.cast(new_rows, first.value_dtype), new_slots),
                rule=rule,
                add=add,
                new_keys=new_keys,
            )
        return self._tell_policy(keys, written)

    def store_new(self, keys: tf.Tensor) -> Any:
        """Inserts missing keys that admission lets in, with their initial rows."""
        return self._tell_policy(keys, self._rows.store_new(keys))

    @contextlib.contextmanager
    def _update_of(self, keys: tf.Tensor) -> Iterator[str]:
        """Prepares the tables for an update, whose ops go into this context.

        If admission decides about keys whose rows a function of the user makes, this stores the
        rows of admitted new keys first. Yields the `new_keys` of the update: "drop" then, else
        "admit".
        """
        for table in self._partitions.tables:
            table.trained = True
        if not self._rows.enter_before_updates:
            yield "admit"
            return
        # The engine decides which keys may enter, but only the user's function makes their rows.
        stored = self._rows.store_new(keys)
        with tf.control_dependencies([] if stored is None else [stored]):
            yield "drop"

    def _tell_policy(self, keys: tf.Tensor, update: Any) -> Any:
        """Passes the keys of an update to a policy that does not use the engine's metadata."""
        if self._policy is None or getattr(self._policy, "kept_by_engine", False):
            return update
        noted = self._policy.apply_update(keys)
        done = [op for op in (update, noted) if op is not None]
        return None if tf.executing_eagerly() else tf.group(*done)
