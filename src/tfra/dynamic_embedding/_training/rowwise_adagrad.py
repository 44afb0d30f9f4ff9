"""Adagrad with one accumulator for each row."""

from __future__ import annotations

from typing import Any

from tfra.dynamic_embedding._platform.keras import keras


@keras.saving.register_keras_serializable(package="tfra")
class RowwiseAdagrad(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Adagrad with one accumulator for each row, which sums the mean of the squared gradient.

    The slot of a row is one number instead of `dim` numbers, which saves memory for large
    embeddings. The rows of a dense variable are along its first dimension.

    Example:
    >>> optimizer = tfra.dynamic_embedding.keras.optimizers.RowwiseAdagrad(0.1)
    >>> optimizer.get_config()["initial_accumulator_value"]
    0.1

    Args:
        learning_rate: A float, a schedule of Keras, or a callable. Defaults to `0.001`.
        initial_accumulator_value: The initial value of the accumulator. Defaults to `0.1`.
        epsilon: A number that is added under the square root. Defaults to `1e-7`.
        **kwargs: The arguments of `keras.optimizers.Optimizer`.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.initial_accumulator_value = initial_accumulator_value
        self.epsilon = epsilon

    def build(self, variables: Any) -> None:
        """Makes an accumulator for each row of each variable."""
        if self.built:
            return
        super().build(variables)
        initial = keras.initializers.Constant(self.initial_accumulator_value)
        self._accumulators = [
            self.add_variable(
                shape=tuple(v.shape)[:1] + (1,) * (len(v.shape) - 1),
                initializer=initial,
                dtype=v.dtype,
                name=f"{v.name}_accumulator",
            )
            for v in variables
        ]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Takes one step on a dense variable."""
        ops = keras.ops
        accumulator = self._accumulators[self._get_variable_index(variable)]
        gradient = ops.cast(ops.convert_to_tensor(gradient), variable.dtype)
        axes = tuple(range(1, len(variable.shape)))
        square = ops.square(gradient)
        mean = ops.mean(square, axis=axes, keepdims=True) if axes else square
        self.assign_add(accumulator, mean)
        rate = ops.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, rate * gradient / ops.sqrt(accumulator + self.epsilon))

    def get_config(self) -> dict[str, Any]:
        """Returns the config of the optimizer."""
        return {
            **super().get_config(),
            "initial_accumulator_value": self.initial_accumulator_value,
            "epsilon": self.epsilon,
        }
