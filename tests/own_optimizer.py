"""An optimizer written like one of a user."""

from __future__ import annotations

from typing import Any

import keras


@keras.saving.register_keras_serializable("tests")
class OwnOptimizer(keras.optimizers.Optimizer):
    """An optimizer that no library has, with two slots, one of which starts with ones."""

    def build(self, variables: Any) -> None:
        if self.built:
            return
        super().build(variables)
        make = self.add_variable_from_reference
        self.moments = [make(v, name="moment") for v in variables]
        self.squares = [make(v, name="square", initializer="ones") for v in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        moment, square = self.moments[index], self.squares[index]
        self.assign(moment, 0.5 * moment + gradient)
        self.assign_add(square, gradient * gradient)
        step = keras.ops.cast(learning_rate, variable.dtype) * moment / keras.ops.sqrt(square)
        self.assign_sub(variable, step)
