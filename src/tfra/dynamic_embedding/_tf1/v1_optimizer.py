"""Makes optimizers of `tf.compat.v1.train` update tables.

They update the rows of a batch, in the variables of `StepRows`, as dense variables.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from tfra.dynamic_embedding._platform.tf import ANONYMOUS, eager_mode, in_saved_model, tf
from tfra.dynamic_embedding._tables.rules import BoundOptimizer
from tfra.dynamic_embedding._training.shadow import TrainableWrapper, updating_tables
from tfra.dynamic_embedding._training.shadow_variable import ShadowVariable, shadow_around
from tfra.dynamic_embedding._training.trained_variable import TrainedVariable
from tfra.dynamic_embedding._training.variable_optimizer import VariableOptimizer


class _PlaceOfVariables:
    """A variable on the device where new variables are placed now, to colocate others with."""

    _should_act_as_resource_variable = True

    def __init__(self) -> None:
        self.handle = tf.raw_ops.VarHandleOp(shared_name=ANONYMOUS, dtype=tf.float32, shape=[])
        self.name, self.device, self.graph = self.handle.name, self.handle.device, self.handle.graph


class TrainsTables(VariableOptimizer):
    """Makes an optimizer of `tf.compat.v1.train` train tables: a mixin, put before its class."""

    def compute_gradients(self, loss: Any, var_list: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Computes gradients. In place of a `ShadowVariable`, TensorFlow sees the one it wraps."""
        if var_list is not None:
            var_list = [v.value if isinstance(v, ShadowVariable) else v for v in var_list]
        computed = super().compute_gradients(loss, var_list, *args, **kwargs)
        return [(gradient, shadow_around(v)) for gradient, v in computed]

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies gradients. If a table is in the list several times, the first gradient counts."""
        once: dict[int, tuple[Any, Any]] = {}
        for number, (gradient, variable) in enumerate(grads_and_vars):
            is_table = isinstance(variable, TrainableWrapper)
            once.setdefault(id(variable) if is_table else number, (gradient, variable))
        updating_tables.now = True
        try:
            return super().apply_gradients(list(once.values()), *args, **kwargs)
        finally:
            updating_tables.now = False

    def _create_slots(self, var_list: Any) -> None:
        with self.to_make_slots(var_list) as variables:
            super()._create_slots(variables)

    def _create_non_slot_variable(self, initial_value: Any, name: str, colocate_with: Any) -> Any:
        # Workers share this variable, so it can't be placed with the shadow, which each worker has
        # for itself. The optimizer may update it together with its other variables of this kind,
        # so all of them are placed together.
        if self.rows_of(colocate_with) is not None and not tf.executing_eagerly():
            places = self.__dict__.setdefault("_places_of_variables", {})
            graph = tf.compat.v1.get_default_graph()
            if graph not in places:
                places[graph] = _PlaceOfVariables()
            colocate_with = places[graph]
        return super()._create_non_slot_variable(initial_value, name, colocate_with)

    def _get_or_make_slot(self, var: Any, val: Any, slot_name: str, op_name: str) -> Any:
        rows = self.rows_of(var)
        if rows is None:
            return super()._get_or_make_slot(var, val, slot_name, op_name)
        return rows.add_slot(slot_name, val, self.class_name())

    def _get_or_make_slot_with_initializer(
        self, var: Any, initializer: Any, shape: Any, dtype: Any, slot_name: str, op_name: str
    ) -> Any:
        rows = self.rows_of(var)
        if rows is None:
            return super()._get_or_make_slot_with_initializer(
                var, initializer, shape, dtype, slot_name, op_name
            )
        with eager_mode():
            initial = initializer(shape, dtype=dtype).numpy()
        return rows.add_slot(slot_name, initial, self.class_name())

    def _zeros_slot(self, var: Any, slot_name: str, op_name: str) -> Any:
        rows = self.rows_of(var)
        if rows is None:
            return super()._zeros_slot(var, slot_name, op_name)
        return rows.add_slot(slot_name, np.zeros(var.shape), self.class_name())

    def get_slot(self, var: Any, name: str) -> Any:
        """Returns the slot of a variable, a `SlotVariable` if it is in a table, or None."""
        rows = self.rows_of(var)
        if rows is None:
            return super().get_slot(var, name)
        if var is rows.rows:
            return rows.slot(name)
        # TensorFlow asks for the slots of all objects that it saves. It saves none for the variable
        # in a shadow, and a SavedModel has none of tables.
        if var is not rows.shadow or in_saved_model():
            return None
        slots = rows.params.get_slot_variables(self)
        return next((slot for slot in slots if slot.slot_name == name), None)

    def _create_or_restore_slot_variable(
        self, slot_variable_position: Any, slot_name: str, variable: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if isinstance(variable, TrainableWrapper):
            return None  # Its slots are in the table, which restores them.
        return super()._create_or_restore_slot_variable(
            slot_variable_position, slot_name, variable, *args, **kwargs
        )

    def identity(self, params: TrainedVariable) -> BoundOptimizer:
        """Returns the identity by which a table knows it.

        Workers that build the same graph get the same names, so that they share the slots.
        """
        names = self.__dict__.setdefault("_names_in_tables", weakref.WeakKeyDictionary())
        if params not in names:
            names[params] = f"{self.class_name()} {next(params.v1_optimizers)}"
        return BoundOptimizer(names[params], names[params], worker="")

    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        if isinstance(handle, TrainableWrapper):
            raise TypeError(
                f"The gradient of {handle.params.name!r} must be tf.IndexedSlices, as tf.gradients "
                f"returns it for the trainable. Received: {grad!r}"
            )
        return super()._resource_apply_dense(grad, handle)

    def _resource_apply_sparse_duplicate_indices(self, grad: Any, handle: Any, indices: Any) -> Any:
        rows = self.rows_of(handle)
        if rows is None:
            return super()._resource_apply_sparse_duplicate_indices(grad, handle, indices)

        def step(gradients: tf.Tensor) -> Any:
            return self._resource_apply_dense(gradients, rows.rows)

        with tf.control_dependencies(self.bind(rows, 0)):
            return self.update_table(rows, indices, grad, step)


_adopted: dict[type, type] = {}


def adopt(optimizer: Any) -> Any:
    """Makes an optimizer of `tf.compat.v1.train` update tables, and returns it."""
    cls = type(optimizer)
    if not issubclass(cls, TrainsTables):
        if cls not in _adopted:
            _adopted[cls] = type(cls.__name__, (TrainsTables, cls), {"__module__": cls.__module__})
        optimizer.__class__ = _adopted[cls]
    return optimizer
