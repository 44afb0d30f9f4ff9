"""The methods that optimizers of tf_keras get to train tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tfra.dynamic_embedding._keras2.trains_tables import TrainsTables
from tfra.dynamic_embedding._platform.tf import in_plain_graph, tf


class PresentOptimizer(TrainsTables):
    """Makes an optimizer of tf_keras train tables: a mixin, put before its class.

    `build` makes slots for the variables of `StepRows`, and `update_step` is called with these.
    """

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[Any]:
        """Computes gradients, of shadows too."""
        compute = super().compute_gradients
        return self.with_gradients_of_shadows(lambda given: compute(loss, given, tape), var_list)

    def minimize(self, loss: Any, var_list: Any, tape: Any = None) -> Any:
        """Takes one step, and returns what `apply_gradients` returns: in a graph, the op to run."""
        return self.apply_gradients(self.compute_gradients(loss, var_list, tape))

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies gradients.

        In a graph, the step is a function, which runs its ops in their order. Without it, Keras
        would return an op that only counts the step.
        """
        pairs = self.with_stand_ins(grads_and_vars)
        if pairs:
            with tf.name_scope(self.name), tf.init_scope():
                self.build([variable for _, variable in pairs])
        apply = super().apply_gradients

        def step() -> Any:
            with self.taking_step(pairs):
                return apply(pairs, *args, **kwargs)

        return tf.function(step, autograph=False)() if in_plain_graph() else step()

    def build(self, var_list: Iterable[Any]) -> None:
        """Makes the slots."""
        with self.to_make_slots(var_list) as variables:
            super().build(variables)
        if self.use_ema:  # Averages are of dense variables only.
            self.remove_slots(self._model_variables_moving_average)

    def add_variable_from_reference(
        self, model_variable: Any, variable_name: str, shape: Any = None, initial_value: Any = None
    ) -> Any:
        """Makes a slot."""
        rows = self.rows_of(model_variable)
        if rows is None:
            return super().add_variable_from_reference(
                model_variable, variable_name, shape, initial_value
            )
        taken = {slot.name for slot in rows.rule.slots}
        while variable_name in taken:
            variable_name += "_"
        if initial_value is None:
            initial_value = np.zeros(model_variable.shape if shape is None else shape)
        return rows.add_slot(variable_name, initial_value, self.class_name())

    def _var_key(self, variable: Any) -> Any:
        return super()._var_key(self.rows_or_self(variable))

    def _update_step(self, gradient: Any, variable: Any) -> None:
        rows = self.rows_of(variable)
        if rows is None:
            super()._update_step(gradient, variable)
            return
        update = super()._update_step
        decays = self.weight_decay is not None and self._use_weight_decay(variable)

        def step(gradients: tf.Tensor) -> None:
            table = rows.rows
            if decays:
                rate = tf.cast(self.learning_rate, table.dtype)
                table.assign_sub(table * tf.cast(self.weight_decay, table.dtype) * rate)
            update(gradients, table)

        self.update_given(rows, gradient, step)

    def _update_step_xla(self, gradient: Any, variable: Any, key: int) -> None:
        if self.rows_of(variable) is None:
            super()._update_step_xla(gradient, variable, key)
        else:
            self._update_step(gradient, variable)  # XLA can't compile the ops of tables.

    # --- What Keras does to all rows of a variable: to those of a table that are in the batch, or
    # not at all.

    def _apply_weight_decay(self, variables: Iterable[Any]) -> None:
        super()._apply_weight_decay(self.without_tables(variables))

    def _update_model_variables_moving_average(self, var_list: Iterable[Any]) -> None:
        super()._update_model_variables_moving_average(self.without_tables(var_list))

    def _overwrite_model_variables_with_average_value(self, var_list: Iterable[Any]) -> None:
        super()._overwrite_model_variables_with_average_value(self.without_tables(var_list))
