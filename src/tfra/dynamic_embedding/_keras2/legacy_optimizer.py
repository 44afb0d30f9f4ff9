"""The methods that optimizers of `optimizers.legacy` get to train tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tfra.dynamic_embedding._keras2.trains_tables import Pairs, TrainsTables
from tfra.dynamic_embedding._platform.keras import keras
from tfra.dynamic_embedding._platform.keras2 import legacy_base
from tfra.dynamic_embedding._platform.tf import eager_mode, tf


class LegacyOptimizer(TrainsTables):
    """Makes an optimizer of `optimizers.legacy` train tables: a mixin, put before its class.

    `_create_slots` makes slots for the variables of `StepRows`. The optimizer updates these as it
    updates the rows of a variable whose gradient is sparse.
    """

    def _compute_gradients(self, loss: Any, var_list: Any, *args: Any, **kwargs: Any) -> Any:
        compute = super()._compute_gradients
        return self.with_gradients_of_shadows(
            lambda given: compute(loss, given, *args, **kwargs), var_list
        )

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies gradients."""
        pairs = self.with_stand_ins(grads_and_vars)
        with tf.name_scope(self._name), tf.init_scope():
            self._create_all_weights([v for gradient, v in pairs if gradient is not None])
        with self.taking_step(pairs):
            return super().apply_gradients(pairs, *args, **kwargs)

    # --- Slots.

    def _create_slots(self, var_list: Iterable[Any]) -> None:
        with self.to_make_slots(var_list) as variables:
            super()._create_slots(variables)

    def add_slot(
        self, var: Any, slot_name: str, initializer: Any = "zeros", shape: Any = None
    ) -> Any:
        """Makes a slot."""
        rows = self.rows_of(var)
        if rows is None:
            return super().add_slot(var, slot_name, initializer, shape)
        if isinstance(initializer, (str, type)):
            initializer = keras.initializers.get(initializer)
        if callable(initializer):
            with eager_mode():
                shape = var.shape if shape is None else shape
                initializer = initializer(shape, dtype=var.dtype).numpy()
        return rows.add_slot(slot_name, initializer, self.class_name())

    def get_slot(self, var: Any, slot_name: str) -> Any:
        """Returns the slot of a variable.

        Raises:
            KeyError: If there is none of this name, or it is in a table. A SavedModel that had
                references to such slots could not be loaded.
        """
        rows = self.rows_of(var)
        if rows is None:
            return super().get_slot(var, slot_name)
        if var is rows.rows:
            return rows.slot(slot_name)
        raise KeyError(
            f"Expected a variable with slots of its own, received the table {rows.params.name!r}. "
            "Use get_slot_variables(optimizer) of the table."
        )

    # --- The step.

    def _prepare(self, var_list: Iterable[Any]) -> Any:
        return super()._prepare([self.rows_or_self(variable) for variable in var_list])

    def _resource_apply_sparse_duplicate_indices(
        self, grad: Any, handle: Any, indices: Any, **kwargs: Any
    ) -> Any:
        rows = self.rows_of(handle)
        apply_sparse = super()._resource_apply_sparse_duplicate_indices
        if rows is None:
            return apply_sparse(grad, handle, indices, **kwargs)

        def step(gradients: tf.Tensor) -> Any:
            if self._has_sparse_step():
                numbers = tf.range(tf.shape(gradients)[0])
                return apply_sparse(gradients, rows.rows, numbers, **kwargs)
            state = kwargs if "apply_state" in self._dense_apply_args else {}
            return self._resource_apply_dense(gradients, rows.rows, **state)

        return self.update_table(rows, indices, grad, step)

    def _has_sparse_step(self) -> bool:
        """Whether it can update some rows of a variable. If not, all those of a step are."""
        base: Any = legacy_base(type(self))
        own = super()._resource_apply_sparse.__func__
        own_of_duplicates = super()._resource_apply_sparse_duplicate_indices.__func__
        return (own, own_of_duplicates) != (
            base._resource_apply_sparse,
            base._resource_apply_sparse_duplicate_indices,
        )

    def _transform_gradients(self, grads_and_vars: Pairs) -> Pairs:
        pairs = super()._transform_gradients(grads_and_vars)
        return self.with_stand_ins(pairs)  # Refuses gradients that were made dense.
