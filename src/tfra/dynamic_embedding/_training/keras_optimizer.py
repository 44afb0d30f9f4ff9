"""The methods that optimizers of Keras 3 get to train tables; `adoption.py` adds them.

A step separates the gradients of shadows from those of dense variables, clips and decays both
together, and applies the gradients of shadows to the tables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from tfra import optimizers as engine
from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.keras import keras
from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._tables.rules import (
    BoundOptimizer,
    CustomRule,
    EngineRule,
    params_text,
)
from tfra.dynamic_embedding._training.row_gradients import sum_gradients
from tfra.dynamic_embedding._training.row_optimizer import RowOptimizer, refuse_whole_variable
from tfra.dynamic_embedding._training.rowwise_adagrad import RowwiseAdagrad
from tfra.dynamic_embedding._training.shadow import TrainableWrapper
from tfra.dynamic_embedding._training.slot_variables import TableOptimizer
from tfra.dynamic_embedding._training.trained_variable import TrainedVariable

# Optimizers that the engine has a kernel for. A subclass may compute another step, so it does not
# count.
_ENGINE_RULES = {
    keras.optimizers.SGD: engine.SGD,
    keras.optimizers.Adagrad: engine.Adagrad,
    keras.optimizers.Adam: engine.Adam,
    keras.optimizers.AdamW: engine.AdamW,
    keras.optimizers.Adamax: engine.Adamax,
    keras.optimizers.Nadam: engine.Nadam,
    keras.optimizers.RMSprop: engine.RMSprop,
    keras.optimizers.Adadelta: engine.Adadelta,
    keras.optimizers.Ftrl: engine.Ftrl,
    keras.optimizers.Lion: engine.Lion,
    RowwiseAdagrad: engine.RowwiseAdagrad,
}


@dataclasses.dataclass(frozen=True)
class TableGradient:
    """The gradient of some rows of a table. Keys may repeat."""

    shadow: TrainableWrapper
    keys: tf.Tensor
    values: tf.Tensor

    def summed(self) -> TableGradient:
        """Returns the gradient with each key once."""
        keys, values = sum_gradients(self.keys, self.values)
        return TableGradient(self.shadow, keys, values)


# The base class of the mixins below. Any keeps mypy from checking their calls of super(), which
# reach the class of an optimizer at run time.
_Base: Any = object


class _Step(threading.local):
    """The gradients of tables in the current step of a thread. Each replica is a thread."""

    def __init__(self) -> None:
        self.given: list[TableGradient] = []
        self.clipped: list[TableGradient] = []
        self.decayed: set[int] = set()


_step = _Step()


@contextlib.contextmanager
def _taking_step(gradients: list[TableGradient]) -> Iterator[None]:
    before = (_step.given, _step.clipped, _step.decayed)
    _step.given, _step.clipped, _step.decayed = gradients, gradients, set()
    try:
        yield
    finally:
        _step.given, _step.clipped, _step.decayed = before


class _LossScale(float):
    """A number by which `tf.IndexedSlices` can be divided too."""

    def __rtruediv__(self, gradient: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            values = gradient.values / tf.cast(float(self), gradient.values.dtype)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return float.__rtruediv__(self, gradient)


class TrainsTables(TableOptimizer, _Base):  # type: ignore[misc]
    """Makes an optimizer of Keras train tables: a mixin, put before the optimizer's class."""

    plain_class: type
    bp_v2 = False

    @property
    def loss_scale_factor(self) -> _LossScale | None:
        """The `loss_scale_factor` of Keras, by which gradients of tables can be divided too."""
        factor = self.__dict__.get("loss_scale_factor")
        return None if factor is None else _LossScale(factor)

    @loss_scale_factor.setter
    def loss_scale_factor(self, factor: float | None) -> None:
        self.__dict__["loss_scale_factor"] = factor

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        dense: list[tuple[Any, Any]] = []
        tables: dict[int, TableGradient] = {}
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            if isinstance(variable, TrainableWrapper):
                tables.setdefault(id(variable), table_gradient(variable, gradient))
            else:
                dense.append((gradient, variable))
        if tables:
            refuse_whole_variable(self.plain_class)
        gradients = list(tables.values())
        # Bind to all tables before any update, so that nothing is updated if one refuses.
        bindings = [op for gradient in gradients for op in self._bind(gradient.shadow)]
        bound = [tf.group(*bindings)] if bindings else []
        for shadow in self.take_expected():
            if id(shadow) not in tables:
                shadow.warn_if_untrained()
        with tf.control_dependencies(bound), _taking_step(gradients):
            if bound:
                # Keras increments the step count after all ops that read it. This read waits for
                # the bindings, so a step that a table refuses is not counted.
                tf.convert_to_tensor(self._iterations)
            super()._backend_apply_gradients(
                [gradient for gradient, _ in dense], [variable for _, variable in dense]
            )

    def __reduce__(self) -> Any:
        function, *rest = super().__reduce__()
        return getattr(self.plain_class, function.__name__), *rest

    def _clip_gradients(self, grads: Any) -> Any:
        tables, steps = _step.given, self.gradient_accumulation_steps
        if steps:
            tables = [_with_sums(gradient, steps) for gradient in tables]
        if self.clipnorm or self.global_clipnorm or self.clipvalue:
            tables = [gradient.summed() for gradient in tables]
            grads = [*grads, *(gradient.values for gradient in tables)]
            grads = super()._clip_gradients(grads)
            count = len(grads) - len(tables)
            clipped = zip(tables, grads[count:], strict=True)
            tables = [dataclasses.replace(table, values=values) for table, values in clipped]
            grads = list(grads[:count])
        _step.clipped = tables
        return grads

    def _apply_weight_decay(self, variables: Any) -> None:
        super()._apply_weight_decay(variables)
        if self.weight_decay is None:
            return
        shadows = [gradient.shadow for gradient in _step.clipped]
        _step.decayed = {id(s) for s in shadows if self._use_weight_decay(s)}

    def _backend_update_step(
        self, grads: Any, trainable_variables: Any, learning_rate: Any
    ) -> None:
        super()._backend_update_step(grads, trainable_variables, learning_rate)
        for gradient in _step.clipped:
            decay = self.weight_decay if id(gradient.shadow) in _step.decayed else None
            _in_all_replicas(
                gradient, lambda g, decay=decay: self._update_table(g, learning_rate, decay)
            )

    def _backend_increment_gradient_accumulators(self, grads: Any, acc_grads: Any) -> None:
        super()._backend_increment_gradient_accumulators(grads, acc_grads)
        for gradient in _step.given:
            gradient.shadow.note_step()
            gradient.shadow.params.gradient_sums.add(gradient.keys, gradient.values)

    def _update_model_variables_moving_average(self, trainable_variables: Any) -> None:
        averages = self._model_variables_moving_average
        pairs = zip(trainable_variables, averages, strict=True)
        dense = [(v, a) for v, a in pairs if not isinstance(v, TrainableWrapper)]
        self.__dict__["_model_variables_moving_average"] = [average for _, average in dense]
        try:
            super()._update_model_variables_moving_average([v for v, _ in dense])
        finally:
            self.__dict__["_model_variables_moving_average"] = averages

    def _update_table(
        self, gradient: TableGradient, learning_rate: Any, decay: float | None
    ) -> None:
        params = gradient.shadow.params
        params.trained_by = self.plain_class.__name__
        gradient.shadow.note_step()
        rule = self._rule_in_table(params, decay)
        self.__dict__.setdefault("_rules_in_tables", weakref.WeakKeyDictionary())[params] = rule
        if isinstance(rule, EngineRule):
            params.apply_gradients(
                gradient.keys,
                gradient.values,
                rule=rule.text(),
                params=params_text(rule.optimizer),
                learning_rate=tf.cast(learning_rate, tf.float64),
                step=tf.cast(self.iterations, tf.int64) + 1,
            )
            return
        gradient = gradient.summed()
        row_optimizer = self._row_optimizer(params)

        def update(rows: tf.Tensor, slots: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            if decay is not None:
                rows -= rows * tf.cast(decay, rows.dtype) * tf.cast(learning_rate, rows.dtype)
            return row_optimizer.step(gradient.values, rows, slots, learning_rate)

        add = self.bp_v2 or params.bp_v2
        if add and row_optimizer.rule.starts_from_rows:
            raise NotImplementedError(
                f"{self.plain_class.__name__} can't train a table with bp_v2=True: its slots start "
                "as copies of the rows, which can't be added up."
            )
        params.update_rows(gradient.keys, update, row_optimizer.rule, add)

    def _bind(self, shadow: TrainableWrapper) -> list[Any]:
        """Binds this optimizer to a table, and returns the ops that do so."""
        params = shadow.params
        bound_optimizer = self.identity(params)
        # `iterations` would not do: it stays the same while gradients are accumulated.
        step = tf.cast(self._iterations, tf.int64) + 1
        decays = self.weight_decay is not None and self._use_weight_decay(shadow)
        rule = self._rule_in_table(params, self.weight_decay if decays else None)
        bindings = params.bind(bound_optimizer, step, "slots" if rule.slots else "nothing")
        if self.gradient_accumulation_steps:
            bindings += params.gradient_sums.bind(bound_optimizer, step)
        return bindings

    def _rule_in_table(
        self, params: TrainedVariable, decay: float | None
    ) -> CustomRule | EngineRule:
        optimizer = engine_rule(self, decay)
        return EngineRule(optimizer, params.dim) if optimizer else self._row_optimizer(params).rule

    def trains(
        self, params: TrainedVariable
    ) -> tuple[BoundOptimizer, CustomRule | EngineRule] | None:
        """Returns its identity and its rule for a Variable, or None before its first step on it."""
        rule = self.__dict__.get("_rules_in_tables", {}).get(params)
        return None if rule is None else (self.identity(params), rule)

    def _row_optimizer(self, params: TrainedVariable) -> RowOptimizer:
        made = self.__dict__.setdefault("_row_optimizers", {})
        kind = params.dim, arguments.compute_dtype(params.value_dtype).name
        if kind not in made:
            made[kind] = RowOptimizer(self, self.plain_class, *kind)
        return made[kind]


class ChecksTables(_Base):  # type: ignore[misc]
    """Makes a LossScaleOptimizer accept gradients of tables."""

    def check_finite(self, grads: Any) -> Any:
        """Checks that all gradients are finite; those of tables without making them dense."""
        grads = [g.values if isinstance(g, tf.IndexedSlices) else g for g in grads]
        return super().check_finite(grads)


def engine_rule(optimizer: Any, weight_decay: float | None) -> engine.Optimizer | None:
    """Returns the update rule of the engine for an optimizer, or None if the engine has none."""
    rule = _ENGINE_RULES.get(optimizer.plain_class)
    if rule is None:
        return None
    names = {field.name for field in dataclasses.fields(rule)}
    names -= {"learning_rate", "weight_decay", "clipnorm", "clipvalue"}
    arguments = {name: getattr(optimizer, name) for name in names}
    try:
        return rule(**arguments, weight_decay=weight_decay)
    except ValueError:  # Keras accepts some numbers that the engine rejects.
        return None


def table_gradient(shadow: TrainableWrapper, gradient: Any) -> TableGradient:
    """Returns the gradient of a table, with values in the type of the arithmetic.

    Raises:
        TypeError: If it is not `tf.IndexedSlices`.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        if getattr(gradient, "shape", None) == (0, shadow.params.dim):
            # A tape with unconnected_gradients="zero" returns zeros of the shape of the shadow.
            no_keys = tf.zeros([0], shadow.params.key_dtype)
            return TableGradient(shadow, no_keys, gradient)
        raise TypeError(
            f"The gradient of {shadow!r} must be tf.IndexedSlices, as a tape returns it. "
            f"Received: {gradient!r}"
        )
    values, value_dtype = gradient.values, shadow.params.value_dtype
    if values.dtype != value_dtype:
        values = tf.cast(values, arguments.compute_dtype(value_dtype))
    return TableGradient(shadow, gradient.indices, values)


def _with_sums(gradient: TableGradient, steps: int) -> TableGradient:
    """Returns the mean of this gradient and the accumulated ones, and clears those."""
    sums = gradient.shadow.params.gradient_sums
    keys, values = sums.take()
    keys = tf.concat([gradient.keys, keys], axis=0)
    values = tf.concat([tf.cast(gradient.values, sums.dtype), values], axis=0)
    return TableGradient(gradient.shadow, keys, values / steps)


def _in_all_replicas(gradient: TableGradient, update: Any) -> None:
    """Calls `update` once, with the gradients of all replicas together."""
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        update(gradient)
        return

    def merged(strategy: Any, keys: Any, values: Any) -> None:
        local = strategy.experimental_local_results
        update(
            TableGradient(
                gradient.shadow, tf.concat(local(keys), axis=0), tf.concat(local(values), axis=0)
            )
        )

    replica.merge_call(merged, args=(gradient.keys, gradient.values))
