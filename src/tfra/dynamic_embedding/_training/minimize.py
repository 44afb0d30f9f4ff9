"""The methods that optimizers of Keras 2 had and those of Keras 3 lack."""

from __future__ import annotations

from typing import Any

from tfra.dynamic_embedding._platform.keras import inner_optimizers
from tfra.dynamic_embedding._platform.tf import tf


class Minimizes:
    """Adds these methods to an optimizer: the last base class, so that its own methods win."""

    scale_loss: Any
    apply_gradients: Any
    iterations: Any

    def get_slot_names(self) -> list[str]:
        """Returns the names of the slots in tables, after the first step on them."""
        inner = inner_optimizers(self)
        if inner:
            names = [name for one in inner for name in Minimizes.get_slot_names(one)]
        else:
            rules = self.__dict__.get("_rules_in_tables", {}).values()
            names = [slot.name for rule in rules for slot in rule.slots]
        return list(dict.fromkeys(names))

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[Any]:
        """Computes the gradients of a loss, for `apply_gradients`.

        Args:
            loss: A function without arguments, or a tensor that `tape` has recorded.
            var_list: Variables, or a function that returns them, called after `loss`.
            tape: The gradient tape to use.

        Returns:
            A list of pairs of a gradient and its variable.

        Raises:
            ValueError: If `loss` is a tensor and `tape` is None.
        """
        if callable(loss):
            with tape or tf.GradientTape() as tape:
                loss = loss()
        elif tape is None:
            raise ValueError(f"A `loss` that is a tensor needs its `tape`. Received: {loss!r}")
        variables = tf.nest.flatten(var_list() if callable(var_list) else var_list)
        scale = self.scale_loss(tf.ones_like(loss))  # apply_gradients divides by the scale again.
        gradients = tape.gradient(loss, variables, output_gradients=scale)
        return list(zip(gradients, variables, strict=True))

    def minimize(self, loss: Any, var_list: Any, tape: Any = None, name: str | None = None) -> Any:
        """Takes one step: computes the gradients of a loss and applies them.

        Args:
            loss: A function without arguments, or a tensor that `tape` has recorded.
            var_list: Variables, or a function that returns them, called after `loss`.
            tape: The gradient tape to use.
            name: Not used.

        Returns:
            The number of steps taken so far.

        Raises:
            ValueError: If `loss` is a tensor and `tape` is None.
        """
        del name
        self.apply_gradients(self.compute_gradients(loss, var_list, tape))
        return self.iterations
