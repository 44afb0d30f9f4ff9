"""What the optimizers of Keras 2 have in common when they train tables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._training.keras_optimizer import table_gradient
from tfra.dynamic_embedding._training.row_optimizer import refuse_whole_variable
from tfra.dynamic_embedding._training.shadow import TrainableWrapper, updating_tables
from tfra.dynamic_embedding._training.step_rows import StepRows
from tfra.dynamic_embedding._training.variable_optimizer import VariableOptimizer, stand_in_of

Pairs = list[tuple[Any, Any]]


class TrainsTables(VariableOptimizer):
    """Makes an optimizer of Keras 2 train tables: a mixin, put before the optimizer's class."""

    iterations: Any

    def remove_slots(self, variables: Iterable[Any]) -> None:
        """Removes those of these variables from tables that are slots in them."""
        for rows in self.all_rows():
            rows.remove_slots(variables)

    def without_tables(self, variables: Iterable[Any]) -> list[Any]:
        """Returns the dense variables of these."""
        return [variable for variable in variables if self.rows_of(variable) is None]

    def with_stand_ins(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Pairs:
        """Returns the pairs that Keras works on: stand-ins instead of shadows, and each once.

        Raises:
            TypeError: If the gradient of a table is not `tf.IndexedSlices`.
        """
        pairs: Pairs = []
        seen: set[int] = set()
        for gradient, variable in grads_and_vars:
            rows = self.rows_of(variable)
            if rows is None:
                pairs.append((gradient, variable))
            elif id(rows) not in seen:  # A table may be in the list for each of its lookups.
                seen.add(id(rows))
                if gradient is not None:
                    of_table = table_gradient(rows.shadow, gradient)
                    shape = tf.constant([-1, rows.params.dim], tf.int32)
                    gradient = tf.IndexedSlices(of_table.values, of_table.keys, shape)
                pairs.append((gradient, stand_in_of(rows.shadow)))
        return pairs

    def with_gradients_of_shadows(self, compute: Any, var_list: Any) -> Pairs:
        """Calls `compute` with a list of variables, or a function that returns them.

        A tape can watch stand-ins, but not shadows. The result has the shadows again.
        """
        shadows: dict[int, Any] = {}

        def stand_ins(variables: Any) -> list[Any]:
            given = tf.nest.flatten(variables)
            shadows.update({id(stand_in_of(v)): v for v in given if is_shadow(v)})
            return [stand_in_of(v) if is_shadow(v) else v for v in given]

        of_list = (lambda: stand_ins(var_list())) if callable(var_list) else stand_ins(var_list)
        return [(gradient, shadows.get(id(v), v)) for gradient, v in compute(of_list)]

    @contextlib.contextmanager
    def taking_step(self, pairs: Pairs) -> Iterator[None]:
        """Binds the optimizer to the tables; ops in this context run after that.

        Nothing is updated if a table refuses.

        Raises:
            NotImplementedError: If the optimizer can't train tables here.
        """
        given = [self.rows_of(variable) for gradient, variable in pairs if gradient is not None]
        tables = [rows for rows in given if rows is not None]
        if tables:
            refuse_whole_variable(type(self))
            _refuse_replicas(tables)
        for shadow in self.take_expected():
            if all(rows.shadow is not shadow for rows in tables):
                shadow.warn_if_untrained()
        step = tf.cast(self.iterations, tf.int64) + 1
        bindings = [op for rows in tables for op in self.bind(rows, step)]
        updating_tables.now = True
        try:
            with tf.control_dependencies(bindings):
                yield
        finally:
            updating_tables.now = False

    def update_given(self, rows: StepRows, gradient: Any, step: Any) -> Any:
        """Takes one step on the rows of a table, with what Keras made of their gradient.

        Raises:
            TypeError: If the gradient is not `tf.IndexedSlices` any more.
        """
        given = table_gradient(rows.shadow, gradient)
        return self.update_table(rows, given.keys, given.values, step)


def _refuse_replicas(tables: list[StepRows]) -> None:
    strategy = tf.distribute.get_strategy()
    distributed = tf.distribute.DistributedValues
    if strategy.num_replicas_in_sync > 1 or any(
        isinstance(stand_in_of(rows.shadow), distributed) for rows in tables
    ):
        raise NotImplementedError(
            "Optimizers of Keras 2 train tables without replicas of variables. Received: a "
            f"{type(strategy).__name__}. Use the optimizers of Keras 3 with it."
        )


def is_shadow(variable: Any) -> bool:
    """Whether a variable represents a table."""
    return isinstance(variable, TrainableWrapper)
