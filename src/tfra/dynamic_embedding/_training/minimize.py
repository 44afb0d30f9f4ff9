"""`minimize` and `compute_gradients`, which optimizers of Keras 3 have no more."""

from __future__ import annotations

from typing import Any

from tfra.dynamic_embedding._platform.tf import tf


class Minimizes:
    """What optimizers of Keras 2 had, for those that do not have it. Comes after all else."""

    scale_loss: Any
    apply_gradients: Any
    iterations: Any

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[Any]:
        """Computes the gradients of a loss, for `apply_gradients`.

        Args:
            loss: A function without arguments, or a tensor that `tape` has seen.
            var_list: Variables, or a function that returns them once the loss is known.
            tape: The tape to be used.

        Returns:
            A list of pairs of a gradient and its variable.

        Raises:
            ValueError: If the loss is a tensor and there is no tape.
        """
        if callable(loss):
            with tape or tf.GradientTape() as tape:
                loss = loss()
        elif tape is None:
            raise ValueError(f"A `loss` that is a tensor needs its `tape`. Received: {loss!r}")
        variables = tf.nest.flatten(var_list() if callable(var_list) else var_list)
        scale = self.scale_loss(tf.ones_like(loss))  # Which is taken off when they are applied.
        gradients = tape.gradient(loss, variables, output_gradients=scale)
        return list(zip(gradients, variables, strict=True))

    def minimize(self, loss: Any, var_list: Any, tape: Any = None, name: str | None = None) -> Any:
        """Takes a step: computes the gradients of a loss and applies them.

        Args:
            loss: A function without arguments, or a tensor that `tape` has seen.
            var_list: Variables, or a function that returns them once the loss is known.
            tape: The tape to be used.
            name: Not used.

        Returns:
            The number of steps.

        Raises:
            ValueError: If the loss is a tensor and there is no tape.
        """
        del name
        self.apply_gradients(self.compute_gradients(loss, var_list, tape))
        return self.iterations
