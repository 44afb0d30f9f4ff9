"""The rows of a table as variables, for optimizers that update variables in place.

Optimizers of TensorFlow 1 and of Keras 2 call methods and ops of TensorFlow's variables. For each
step, `StepRows` puts the rows of the batch and their slots into variables that exist for this step
only. The optimizer updates them, and the results are written back to the table.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.tf import (
    ANONYMOUS,
    BaseResourceVariable,
    tf,
)
from tfra.dynamic_embedding._tables.rules import CustomRule, Slot
from tfra.dynamic_embedding._training.row_gradients import sum_gradients
from tfra.dynamic_embedding._training.shadow import TrainableWrapper
from tfra.dynamic_embedding._training.trained_variable import TrainedVariable

# The row of which optimizers make slots has this number in all elements. A slot that starts with it
# starts as a copy of the row. No optimizer starts a slot with it by chance.
_PROBE = 0.4375 * (1 + 2**-20)

_numbers = itertools.count()


class StepVariable(BaseResourceVariable):  # type: ignore[misc]
    """A variable that has the rows of a batch in a step, and no value between steps.

    The object stays the same in all steps and all functions. The variable behind its handle is a
    new one for each run of a step, so that steps of several threads do not meet in it.
    """

    def __init__(self, elements: int, dtype: tf.DType, name: str, device: str) -> None:
        self._place = device
        super().__init__(
            trainable=False,
            shape=[1, elements],
            dtype=dtype,
            handle=None,
            unique_id=f"{name}_{next(_numbers)}",
            handle_name=name,
            in_graph_mode=False,
        )
        self.elements = elements

    @property
    def device(self) -> str:
        """The device of the variable that optimizers are given for the table."""
        return self._place

    def begin(self, rows: tf.Tensor) -> list[Any]:
        """Makes these rows its value, and returns the ops that the step must wait for."""
        shape = rows.shape
        self._handle = tf.raw_ops.VarHandleOp(shared_name=ANONYMOUS, dtype=self.dtype, shape=shape)
        self._shape = shape
        assigned = tf.raw_ops.AssignVariableOp(resource=self._handle, value=rows)
        return [] if assigned is None else [assigned]

    def end(self) -> None:
        """Has no value any more. Its shape is that of one row."""
        self._handle = None
        self._shape = tf.TensorShape([1, self.elements])

    # --- Its rows belong to the table, so a checkpoint of the optimizer saves nothing of it.

    def _gather_saveables_for_checkpoint(self) -> dict[str, Any]:
        return {}


class StepRows:
    """The rows of one table and the slots of one optimizer in them, as variables.

    Args:
        shadow: The shadow of the table.
        device: The device of the variable that the optimizer is given for the table.

    Attributes:
        rows: The variable of the rows.
    """

    def __init__(self, shadow: TrainableWrapper, device: str) -> None:
        self.shadow = shadow
        self._lock = threading.Lock()  # The variables have the rows of one step at a time.
        params = self.params
        self._dim, self._device = params.dim, device
        self._dtype = arguments.compute_dtype(params.value_dtype)
        self.rows = StepVariable(params.dim, self._dtype, params.name, device)
        self._slots: dict[str, tuple[Slot, StepVariable]] = {}
        self._trained = False

    @property
    def params(self) -> TrainedVariable:
        """The `Variable` whose rows are trained."""
        return self.shadow.params

    @property
    def rule(self) -> CustomRule:
        """The slots, in the form that a table takes."""
        return CustomRule(tuple(slot for slot, _ in self._slots.values()), self._dim)

    @contextlib.contextmanager
    def with_one_row(self) -> Iterator[StepVariable]:
        """Lets the optimizer make slots for `rows`, which has one row in this context."""
        with self._lock:
            try:
                self.rows.begin(tf.fill([1, self._dim], tf.constant(_PROBE, self._dtype)))
                yield self.rows
            finally:
                self.rows.end()

    def slot(self, name: str) -> StepVariable:
        """Returns the variable of a slot.

        Raises:
            KeyError: If there is none of this name.
        """
        return self._slots[name][1]

    def add_slot(self, name: str, initial: Any, trained_by: str) -> StepVariable:
        """Returns the variable of a slot. The first call adds the slot.

        Args:
            name: The name of the slot.
            initial: The initial slot of the only row of `rows`; the variable `rows` itself for a
                slot that starts as a copy of the row.
            trained_by: The name of the optimizer, for the message.

        Raises:
            NotImplementedError: If a row of the table can't have such a slot.
        """
        if name not in self._slots:
            dim = self._dim
            first = np.full([1, dim], _PROBE) if initial is self.rows else _first_row(initial)
            if first is None or first.shape not in ((1, dim), (1, 1)) or np.ptp(first):
                raise NotImplementedError(
                    f"{trained_by} can't train a table: its slot {name!r} does not start with the "
                    f"same number in all elements of a row. Expected {dim} equal numbers, or one "
                    f"number, received {'a tensor' if first is None else first.tolist()}."
                )
            elements = int(first.shape[-1])
            is_copy = elements == dim and first[0, 0] == _PROBE
            slot = Slot(name, elements, math.nan if is_copy else float(first[0, 0]))
            full_name = f"{self.params.name}/{name}"
            self._slots[name] = slot, StepVariable(elements, self._dtype, full_name, self._device)
        return self.slot(name)

    def remove_slots(self, variables: Iterable[Any]) -> None:
        """Removes the slots whose variables these are, before the first step."""
        removed = {id(variable) for variable in variables}
        self._slots = {n: pair for n, pair in self._slots.items() if id(pair[1]) not in removed}

    def were_trained(self, params: TrainedVariable) -> bool:
        """Whether these are rows of this Variable, and a step was taken on them."""
        return self._trained and self.shadow._params() is params

    def take_step(
        self,
        keys: tf.Tensor,
        gradients: tf.Tensor,
        step: Callable[[tf.Tensor], Any],
        trained_by: str,
        add: bool = False,
    ) -> Any:
        """Updates the rows of some keys.

        Args:
            keys: The keys, which may repeat.
            gradients: The gradients of their rows.
            step: Called with the gradient of each distinct key. It updates `rows` and the variables
                of the slots, which hold the rows of these keys, and returns the op that does so.
            trained_by: The name of the optimizer.
            add: Whether to add the changes to the rows, instead of assigning the new rows.

        Returns:
            The op that writes the rows.
        """
        self.shadow.note_step()
        self._trained = True
        params, rule = self.params, self.rule
        params.trained_by = trained_by
        if add and rule.starts_from_rows:
            raise NotImplementedError(
                f"{trained_by} can't train a table with bp_v2=True: its slots start as copies of "
                "the rows, which can't be added up."
            )
        keys, gradients = sum_gradients(keys, gradients)

        def update(rows: tf.Tensor, slots: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with self._lock:
                return self._update(gradients, rows, slots, step)

        return params.update_rows(keys, update, rule, add)

    def _update(
        self, gradients: tf.Tensor, rows: tf.Tensor, slots: tf.Tensor, step: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        pairs = list(self._slots.values())
        sizes = [slot.elements for slot, _ in pairs]
        parts = tf.split(slots, sizes, axis=-1) if sizes else []
        variables = [self.rows, *(variable for _, variable in pairs)]
        try:
            begun = self.rows.begin(rows)
            for (slot, variable), part in zip(pairs, parts, strict=True):
                is_copy = math.isnan(slot.initial)
                begun += variable.begin(
                    tf.where(tf.math.is_nan(part), rows, part) if is_copy else part
                )
            with tf.control_dependencies(begun):
                done = step(gradients)
            with tf.control_dependencies([] if done is None else [done]):
                after = [variable.read_value() for variable in variables]
        finally:
            for variable in variables:
                variable.end()
        return after[0], tf.concat(after[1:], axis=-1) if pairs else slots


def _first_row(initial: Any) -> np.ndarray[Any, Any] | None:
    """Returns the initial slot of the only row, or None if a graph has to compute it."""
    return tf.get_static_value(tf.convert_to_tensor(initial))
