"""Makes optimizers of `tf.compat.v1.train` update tables.

Each step puts the rows of the batch and their slots into variables that exist for this step only.
The optimizer updates these as dense variables, and the results are written back to the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tfra.dynamic_embedding._platform.tf import ANONYMOUS, tf
from tfra.dynamic_embedding._tables.rules import BoundOptimizer, CustomRule, Slot
from tfra.dynamic_embedding._tf1.graph_shadow import GraphTrainableWrapper, updating_tables
from tfra.dynamic_embedding._training.row_gradients import sum_gradients
from tfra.dynamic_embedding._training.shadow import TrainableWrapper
from tfra.dynamic_embedding._training.shadow_variable import ShadowVariable, shadow_around
from tfra.dynamic_embedding._training.slot_variables import TableOptimizer
from tfra.dynamic_embedding._training.trained_variable import TrainedVariable

# The base class of the mixin below. Any keeps mypy from checking its calls of super(), which reach
# the class of an optimizer at run time.
_Base: Any = object


class _Rows:
    """A variable for one step, with the attributes and methods that optimizers use."""

    def __init__(self, value: tf.Tensor, name: str, slots: dict[str, _Rows] | None = None) -> None:
        self.name = name
        self.dtype = value.dtype
        self.shape = value.shape
        self.slots = slots or {}
        self.handle = tf.raw_ops.VarHandleOp(
            shared_name=ANONYMOUS, dtype=value.dtype, shape=value.shape
        )
        self.assigned = tf.raw_ops.AssignVariableOp(resource=self.handle, value=value)

    @property
    def device(self) -> str:
        return self.handle.device

    @property
    def op(self) -> Any:
        return self.handle.op

    @property
    def graph(self) -> Any:
        return self.handle.graph

    def get_shape(self) -> tf.TensorShape:
        return self.shape

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        return tf.raw_ops.AssignVariableOp(resource=self.handle, value=self._tensor(value))

    def assign_add(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        return tf.raw_ops.AssignAddVariableOp(resource=self.handle, value=self._tensor(delta))

    def assign_sub(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        return tf.raw_ops.AssignSubVariableOp(resource=self.handle, value=self._tensor(delta))

    def _tensor(self, value: Any) -> tf.Tensor:
        return tf.convert_to_tensor(value, self.dtype)

    def read_value(self) -> tf.Tensor:
        return self.read()

    value = read_value

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return self.read()

    def read(self) -> tf.Tensor:
        """Returns the value after the ops that the current context waits for."""
        value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)
        return tf.ensure_shape(value, self.shape)

    def assignments(self) -> list[Any]:
        """Returns the ops that must run before the variable is used. Eagerly there are none."""
        made = [self.assigned, *(slot.assigned for slot in self.slots.values())]
        return [op for op in made if op is not None]


def _of_value(operator: str) -> Callable[..., Any]:
    def apply(rows: _Rows, *others: Any) -> Any:
        return getattr(rows.read(), operator)(*others)

    return apply


# Optimizers that users write compute with variables, as in `var - rate * grad`.
for _operator in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
    setattr(_Rows, f"__{_operator}__", _of_value(f"__{_operator}__"))
    setattr(_Rows, f"__r{_operator}__", _of_value(f"__r{_operator}__"))
for _operator in ("neg", "abs", "lt", "le", "gt", "ge", "getitem"):
    setattr(_Rows, f"__{_operator}__", _of_value(f"__{_operator}__"))


class _PlaceOfVariables:
    """A variable on the device where new variables are placed now, to colocate others with."""

    _should_act_as_resource_variable = True

    def __init__(self) -> None:
        self.handle = tf.raw_ops.VarHandleOp(shared_name=ANONYMOUS, dtype=tf.float32, shape=[])
        self.name, self.device, self.graph = self.handle.name, self.handle.device, self.handle.graph


class TrainsTables(TableOptimizer, _Base):  # type: ignore[misc]
    """Makes an optimizer of `tf.compat.v1.train` train tables: a mixin, put before its class."""

    bp_v2 = False

    def compute_gradients(self, loss: Any, var_list: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Computes gradients. In place of a `ShadowVariable`, TensorFlow sees the one it wraps."""
        if var_list is not None:
            var_list = [v.value if isinstance(v, ShadowVariable) else v for v in var_list]
        computed = super().compute_gradients(loss, var_list, *args, **kwargs)
        return [(gradient, shadow_around(v)) for gradient, v in computed]

    def get_slot_names(self) -> list[str]:
        """Returns the names of all slots, including those in tables."""
        of_tables = self.__dict__.get("_slots_of_tables", {}).values()
        return sorted({*super().get_slot_names(), *(name for slots in of_tables for name in slots)})

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
        # A ShadowVariable has no rows to make initial values of slots from; the wrapper has one.
        seen = [
            GraphTrainableWrapper(v.params, "slots") if isinstance(v, ShadowVariable) else v
            for v in var_list
        ]
        super()._create_slots(seen)

    def _create_non_slot_variable(self, initial_value: Any, name: str, colocate_with: Any) -> Any:
        # Workers share this variable, so it can't be placed with the shadow, which each worker has
        # for itself. The optimizer may update it together with its other variables of this kind,
        # so all of them are placed together.
        if isinstance(colocate_with, GraphTrainableWrapper) and not tf.executing_eagerly():
            places = self.__dict__.setdefault("_places_of_variables", {})
            graph = colocate_with.graph
            if graph not in places:
                places[graph] = _PlaceOfVariables()
            colocate_with = places[graph]
        return super()._create_non_slot_variable(initial_value, name, colocate_with)

    def _get_or_make_slot(self, var: Any, val: Any, slot_name: str, op_name: str) -> Any:
        if isinstance(var, TrainableWrapper):
            return self._note_slot(var, slot_name, tf.get_static_value(tf.convert_to_tensor(val)))
        return super()._get_or_make_slot(var, val, slot_name, op_name)

    def _get_or_make_slot_with_initializer(
        self, var: Any, initializer: Any, shape: Any, dtype: Any, slot_name: str, op_name: str
    ) -> Any:
        if isinstance(var, TrainableWrapper):
            return self._note_slot(var, slot_name, _evaluate(initializer, shape, dtype))
        return super()._get_or_make_slot_with_initializer(
            var, initializer, shape, dtype, slot_name, op_name
        )

    def _zeros_slot(self, var: Any, slot_name: str, op_name: str) -> Any:
        if isinstance(var, TrainableWrapper):
            return self._note_slot(var, slot_name, np.zeros([1, var.params.dim]))
        return super()._zeros_slot(var, slot_name, op_name)

    def _note_slot(self, var: TrainableWrapper, name: str, initial: Any) -> None:
        dim = var.params.dim
        if initial is None or initial.shape != (1, dim) or np.any(initial != initial[0, 0]):
            raise NotImplementedError(
                f"{type(self).__name__} can't train a table: its slot {name!r} does not start with "
                "the same number in all elements."
            )
        slots = self.__dict__.setdefault("_slots_of_tables", {})
        slots.setdefault(id(var.params), {})[name] = Slot(name, dim, float(initial[0, 0]))

    def get_slot(self, var: Any, name: str) -> Any:
        """Returns the slot of a variable, a `SlotVariable` if it is in a table, or None."""
        if isinstance(var, _Rows):
            return var.slots[name]
        if not isinstance(var, TrainableWrapper):
            return super().get_slot(var, name)
        slots = var.params.get_slot_variables(self)
        return next((slot for slot in slots if slot.slot_name == name), None)

    def trains(self, params: TrainedVariable) -> tuple[BoundOptimizer, CustomRule] | None:
        """Returns its identity and its rule for a Variable, or None before its first step on it."""
        bound_optimizer = self.__dict__.get("_names_in_tables", {}).get(id(params))
        return None if bound_optimizer is None else (bound_optimizer, self._rule_in_table(params))

    def _rule_in_table(self, params: TrainedVariable) -> CustomRule:
        slots = self.__dict__.get("_slots_of_tables", {}).get(id(params), {})
        return CustomRule(tuple(slots.values()), params.dim)

    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        if isinstance(handle, TrainableWrapper):
            raise TypeError(
                f"The gradient of {handle.params.name!r} must be tf.IndexedSlices, as tf.gradients "
                f"returns it for the trainable. Received: {grad!r}"
            )
        return super()._resource_apply_dense(grad, handle)

    def _resource_apply_sparse_duplicate_indices(self, grad: Any, handle: Any, indices: Any) -> Any:
        if not isinstance(handle, TrainableWrapper):
            return super()._resource_apply_sparse_duplicate_indices(grad, handle, indices)
        if tf.executing_eagerly():
            return self._update_table(grad, handle, indices)
        # The optimizer colocates its ops with the shadow. These ops belong where the tables are.
        graph = tf.compat.v1.get_default_graph()
        with graph.colocate_with(None, ignore_existing=True):
            return self._update_table(grad, handle, indices)

    def _update_table(self, grad: Any, handle: TrainableWrapper, indices: Any) -> Any:
        handle.note_step()
        params = handle.params
        params.trained_by = type(self).__name__
        keys, gradients = sum_gradients(indices, grad)
        rule = self._rule_in_table(params)
        names_of_slots = [slot.name for slot in rule.slots]

        def update(rows: tf.Tensor, slot_rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            parts = tf.split(slot_rows, len(rule.slots), axis=-1) if rule.slots else []
            slots = {
                name: _Rows(part, f"{handle.name}/{name}")
                for name, part in zip(names_of_slots, parts, strict=True)
            }
            step = _Rows(rows, handle.name, slots)
            with tf.control_dependencies(step.assignments()):
                applied = self._resource_apply_dense(gradients, step)
            with tf.control_dependencies([] if applied is None else [applied]):
                after = [slot.read() for slot in step.slots.values()]
                return step.read(), tf.concat(after, axis=-1) if after else slot_rows

        # Workers that build the same graph get the same names, so that they share the slots.
        names = self.__dict__.setdefault("_names_in_tables", {})
        if id(params) not in names:
            name = f"{type(self).__name__} {next(params.v1_optimizers)}"
            names[id(params)] = BoundOptimizer(name, name, worker="")
        bindings = params.bind(names[id(params)], 0, "slots" if rule.slots else "nothing")
        with tf.control_dependencies(bindings):
            return params.update_rows(keys, update, rule, add=self.bp_v2 or params.bp_v2)


def _evaluate(initializer: Any, shape: Any, dtype: Any) -> Any:
    if tf.executing_eagerly():
        return initializer(shape, dtype=dtype).numpy()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(initializer(shape, dtype=dtype))


_adopted: dict[type, type] = {}


def adopt(optimizer: Any) -> Any:
    """Makes an optimizer of `tf.compat.v1.train` update tables, and returns it."""
    cls = type(optimizer)
    if not issubclass(cls, TrainsTables):
        if cls not in _adopted:
            _adopted[cls] = type(cls.__name__, (TrainsTables, cls), {"__module__": cls.__module__})
        optimizer.__class__ = _adopted[cls]
    return optimizer
