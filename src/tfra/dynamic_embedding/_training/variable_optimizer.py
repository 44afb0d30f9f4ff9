"""What optimizers have in common that update variables in place, and now tables too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._tables.rules import BoundOptimizer, CustomRule
from tfra.dynamic_embedding._training.shadow import TrainableWrapper
from tfra.dynamic_embedding._training.shadow_variable import ShadowVariable
from tfra.dynamic_embedding._training.slot_variables import TableOptimizer
from tfra.dynamic_embedding._training.step_rows import StepRows
from tfra.dynamic_embedding._training.trained_variable import TrainedVariable

# The base class of the mixin below. Any keeps mypy from checking its calls of super(), which reach
# the class of an optimizer at run time.
_Base: Any = object


class VariableOptimizer(TableOptimizer, _Base):  # type: ignore[misc]
    """Makes an optimizer of TensorFlow 1 or Keras 2 train tables: a mixin, put before its class.

    These know variables of TensorFlow only. For a table they are given its *stand-in*, the variable
    of TensorFlow in its shadow. Where they make slots or take a step, a `StepRows` replaces it.
    """

    bp_v2 = False

    def rows_of(self, variable: Any) -> StepRows | None:
        """Returns the rows of a table, given its shadow, its stand-in or the rows themselves.

        For other variables it returns None.
        """
        tables: dict[int, StepRows] = self.__dict__.setdefault("_tables", {})
        if isinstance(variable, TrainableWrapper):
            stand_in = stand_in_of(variable)
            if id(stand_in) not in tables:
                rows = StepRows(variable, stand_in.device)
                tables[id(stand_in)] = tables[id(rows.rows)] = rows
            variable = stand_in
        return tables.get(id(variable))

    def all_rows(self) -> Iterable[StepRows]:
        """Returns the rows of all tables that the optimizer was given."""
        return list(self.__dict__.get("_tables", {}).values())

    def rows_or_self(self, variable: Any) -> Any:
        """Returns the variable that slots belong to."""
        rows = self.rows_of(variable)
        return variable if rows is None else rows.rows

    @contextlib.contextmanager
    def to_make_slots(self, variables: Iterable[Any]) -> Iterator[list[Any]]:
        """A context in which the optimizer can make slots for the variables that it yields."""
        given = list(variables)
        with contextlib.ExitStack() as contexts:
            tables = {id(rows): rows for rows in map(self.rows_of, given) if rows is not None}
            for rows in tables.values():
                contexts.enter_context(rows.with_one_row())
            yield [self.rows_or_self(variable) for variable in given]

    def update_table(
        self,
        rows: StepRows,
        keys: tf.Tensor,
        gradients: tf.Tensor,
        step: Callable[[tf.Tensor], Any],
    ) -> Any:
        """Takes one step on the rows of a table; see `StepRows.take_step`."""
        add = self.bp_v2 or rows.params.bp_v2
        with _where_tables_are():
            return rows.take_step(keys, gradients, step, self.class_name(), add)

    def bind(self, rows: StepRows, step: Any) -> list[Any]:
        """Binds the optimizer to a table; see `TableTraining.bind`."""
        keeps = "slots" if rows.rule.slots else "nothing"
        with _where_tables_are():
            return rows.params.bind(self.identity(rows.params), step, keeps)

    def class_name(self) -> str:
        """Returns the name of the optimizer's class, for messages."""
        return type(self).__name__  # The class made by adoption has the same.

    def trains(self, params: TrainedVariable) -> tuple[BoundOptimizer, CustomRule] | None:
        """Returns its identity and its rule for a Variable, or None before its first step on it."""
        rows = next((rows for rows in self.all_rows() if rows.were_trained(params)), None)
        return None if rows is None else (self.identity(params), rows.rule)

    def get_slot_names(self) -> list[str]:
        """Returns the names of all slots, including those in tables."""
        dense: list[str] = getattr(super(), "get_slot_names", list)()
        of_tables = [slot.name for rows in self.all_rows() for slot in rows.rule.slots]
        return list(dict.fromkeys([*dense, *of_tables]))


def _where_tables_are() -> contextlib.AbstractContextManager[Any]:
    """A context for ops of tables: optimizers colocate their ops with a shadow."""
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    graph = tf.compat.v1.get_default_graph()
    return graph.colocate_with(None, ignore_existing=True)


def stand_in_of(shadow: TrainableWrapper) -> Any:
    """Returns the variable of TensorFlow that optimizers are given for a table."""
    return shadow.value if isinstance(shadow, ShadowVariable) else shadow
