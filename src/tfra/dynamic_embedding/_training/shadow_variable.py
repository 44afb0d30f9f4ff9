"""What stands for a Variable in training: an empty variable that gradients of rows go to.

Optimizers and gradient tapes know variables, not tables. So a Variable gets a shadow, a trainable
variable without rows. A lookup through it is a lookup of the Variable, and the gradient of its
result with respect to the shadow is `tf.IndexedSlices(gradients of rows, keys)`. Whatever Keras
does to dense variables (slots, averages, constraints) it may do to the shadow, to no effect.
"""

from __future__ import annotations

import contextlib
import re
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from tfra.dynamic_embedding._platform.keras import (
    calling_optimizer,
    compiled_optimizer,
    inner_optimizers,
    is_rebuilding,
    is_writing_hdf5,
    keras,
    require_backend,
)
from tfra.dynamic_embedding._platform.keras2 import optimizer_of_fit, refuse_files_without_rows
from tfra.dynamic_embedding._platform.tf import (
    SAVE_FOR_CHECKPOINT,
    AutoTrackable,
    ResourceVariable,
    in_plain_graph,
    tape_may_record,
    tf,
    write_plain_object,
)
from tfra.dynamic_embedding._saving.content import keep_content
from tfra.dynamic_embedding._saving.weights_array import EmptyWithContent, from_bytes, to_bytes
from tfra.dynamic_embedding._training import model_mode
from tfra.dynamic_embedding._training.adoption import adopt_builder, adopt_caller, expect_step
from tfra.dynamic_embedding._training.shadow import (
    TrainableWrapper,
    check_max_norm,
    is_asked_by_optimizer,
    is_updating_tables,
    refusal_of_unwrapped,
)
from tfra.dynamic_embedding._training.slot_variables import TableOptimizer
from tfra.dynamic_embedding._training.trained_variable import TrainedVariable

# Eager lookups that a tape saw, before a missing optimizer step is taken for a mistake.
_MANY_LOOKUPS = 100


class ShadowVariable(TrainableWrapper, keras.Variable):  # type: ignore[misc]
    """Stands for a `Variable` in training, like a variable of Keras without rows.

    Example:
    >>> de = tfra.dynamic_embedding
    >>> shadow = de.shadow_ops.ShadowVariable(de.Variable(dim=2, initializer=1.0))
    >>> optimizer = keras.optimizers.SGD(0.5)
    >>> with tf.GradientTape() as tape:
    ...     loss = tf.reduce_sum(de.shadow_ops.embedding_lookup(shadow, tf.constant([7], tf.int64)))
    >>> optimizer.apply([tape.gradient(loss, shadow)], [shadow])
    >>> shadow.params.lookup([7]).numpy().tolist()
    [[0.5, 0.5]]

    Args:
        params: The `Variable` whose rows are trained.
        name: Its name.
        max_norm: If not None, rows longer than this are clipped when they are looked up.
        trainable: Whether optimizers update the rows.
        distribute_strategy: A `tf.distribute.Strategy` in whose scope it is made.

    Raises:
        TypeError: If `params` is not a `Variable`, or its values can't be trained.
    """

    def __init__(
        self,
        params: TrainedVariable,
        name: str = "ShadowVariable",
        max_norm: float | None = None,
        trainable: bool = True,
        distribute_strategy: Any = None,
        **kwargs: Any,
    ) -> None:
        require_backend()
        check_params(params)
        check_max_norm(max_norm)
        refuse_files_without_rows()
        self._params = lambda: params
        strategy = distribute_strategy or tf.distribute.get_strategy()
        # `predict` builds a model in a replica, from where its strategy can't be entered again.
        here = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
        with contextlib.nullcontext() if here else strategy.scope(), tf.init_scope():
            super().__init__(
                keras.initializers.Zeros(),
                shape=(0, params.dim),
                dtype=params.value_dtype.name,
                trainable=trainable,
                autocast=False,
                name=re.sub(r"[/:]", "_", name),
            )
        stand_in = self.value
        _shadows_of_variables[id(stand_in)] = self
        if in_plain_graph() and type(stand_in) is ResourceVariable:
            stand_in.__class__ = _StandIn
        self.trainable = trainable and params.trainable  # It may become so later.
        params.shadows[name] = self
        self.max_norm = max_norm
        self._ids_in_graphs = weakref.WeakKeyDictionary()
        self._lookups = 0
        self._traced = False  # Whether some of them were in a function.
        self._steps = 0
        self._warned = False

    def __repr__(self) -> str:
        return f"<ShadowVariable path={self.path} of {self.params!r}>"

    # --- In a SavedModel it is not a variable but an object that has one, and the table: what
    # belongs to a variable is lost when it is loaded.

    def _trackable_children(self, save_type: str = SAVE_FOR_CHECKPOINT, **kwargs: Any) -> Any:
        children = {"params": self.params, **super()._trackable_children(save_type, **kwargs)}
        if save_type != SAVE_FOR_CHECKPOINT:
            children["value"] = self.value
        return children

    def _export_to_saved_model_graph(self, object_map: Any, *args: Any, **kwargs: Any) -> Any:
        object_map[self] = AutoTrackable()
        return []

    def _write_object_proto(self, proto: Any, options: Any) -> None:
        write_plain_object(proto)

    # --- A checkpoint has its Variable, which is one of its children, and nothing of its own. In
    # checkpoints of earlier versions there is an array without rows, which is not restored.

    def _serialize_to_tensors(self) -> dict[str, Any]:
        return {}

    def _restore_from_tensors(self, restored_tensors: dict[str, Any]) -> Any:
        return tf.no_op()

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        keep_content(self, object_map, {})

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        """Looks up the rows of `ids`, of which penalties are made.

        It has none without them, and for optimizers, which see what their slots look like.
        """
        if calling_optimizer() is not None or self.ids is None:
            return super().__tf_tensor__(dtype, name)
        return tf.convert_to_tensor(self.read_value(), dtype=dtype, name=name)

    # --- Its value: in the place of an array without rows, what the Variable holds.

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns an empty array, by which `assign` brings back the rows as they are now."""
        # The copy owns its memory, so that views of it know it.
        return EmptyWithContent.of(self.params.content()).copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Returns all that the Variable holds as bytes, which Keras writes to its files.

        Raises:
            ValueError: If it is a file that Keras could not load, because it expects rows there.
        """
        if is_writing_hdf5():
            raise ValueError(
                f"Models with tables such as {self.params.name!r} can't be saved to HDF5 files, "
                "which have no place for keys. Save the model with "
                'model.save("model.keras"), or its weights with '
                'model.save_weights("model.weights.h5").'
            )
        return to_bytes(self.params.content())

    def assign(self, value: Any) -> Any:
        """Replaces the rows by those that `numpy` or `__array__` returned.

        A tensor or variable comes from an optimizer, and goes to the shadow, to no effect.

        Raises:
            ValueError: If it is any other array, since it has no rows.
        """
        if tf.is_tensor(value) or isinstance(value, keras.Variable):
            return super().assign(value)  # By an optimizer: of the shadow, to no effect.
        # Keras 2 makes a plain array of the value, which is a view of it.
        content = getattr(value, "content", None) or getattr(
            getattr(value, "base", None), "content", None
        )
        if content is None:
            array = np.asarray(value)
            if array.dtype != np.uint8 or array.ndim != 1:
                raise ValueError(
                    f"The weights of {self.params.name!r} are a table: expected what its `numpy()` "
                    "returned, as `model.get_weights()` has it, or a copy of that. Received: an "
                    f"array of shape {array.shape} and type {array.dtype}"
                )
            params = self.params
            content = from_bytes(array, params.key_dtype, params.value_dtype, params.dim)
        self.params.restore(content)
        return self.value

    def records(self) -> bool:
        """Whether gradients may be taken of lookups here and now."""
        if not self.trainable or model_mode.get_model_mode() == model_mode.ModelMode.INFERENCE:
            return False
        # Keras builds models outside the replicas and without state, where nothing is trained.
        return not tf.distribute.in_cross_replica_context() and not is_rebuilding()

    def gradient_target(self) -> tf.Tensor:
        """The handle that gradients are taken with respect to."""
        self.value.read_value()  # A tape watches what is read.
        self._note_lookup()
        return self.value.handle

    def read_variable(self) -> tf.Tensor:
        """Reads the variable, which has no rows: its shape is `[0, dim]`."""
        return self.value.read_value()

    # Models of Keras 2 take what has these for a layer, and train its weights.

    @property
    def trainable_weights(self) -> list[ShadowVariable]:
        """The shadow itself, or nothing if it is frozen."""
        return [self] if self.trainable else []

    @property
    def non_trainable_weights(self) -> list[ShadowVariable]:
        """Nothing, or the shadow itself if it is frozen."""
        return [] if self.trainable else [self]

    @property
    def weights(self) -> list[ShadowVariable]:
        """The shadow itself."""
        return [self]

    trainable_variables, non_trainable_variables = trainable_weights, non_trainable_weights
    variables = weights

    # Optimizers of tf.compat.v1 ask variables for these.
    _in_graph_mode = False

    def get_shape(self) -> tf.TensorShape:
        """Returns the shape of the variable without rows, as `shape` does."""
        return tf.TensorShape(self.shape)

    @property
    def device(self) -> str:
        """Where the variable without rows is."""
        return self.value.device

    # Those that are not wrapped read one of these before they update anything.

    @property
    def dtype(self) -> str:
        """The name of the type of the rows."""
        return _DtypeOfTable(super().dtype, self.params.name)

    @property
    def constraint(self) -> None:
        """None.

        Raises:
            TypeError: If an optimizer asks that can't train tables.
        """
        if is_asked_by_optimizer():
            raise refusal_of_unwrapped(self.params.name)

    @constraint.setter
    def constraint(self, constraint: None) -> None:
        """Does nothing. The base class sets it."""

    @property
    def graph(self) -> Any:
        """The graph, which a variable of Keras does not know.

        Raises:
            TypeError: If an optimizer asks that can't train tables.
            AttributeError: If anybody else does.
        """
        if is_asked_by_optimizer():
            raise refusal_of_unwrapped(self.params.name)
        raise AttributeError("'ShadowVariable' object has no attribute 'graph'")

    def __format__(self, format_spec: str) -> str:
        """Returns its `repr`, of which a tape makes an error: it can't watch what is no variable.

        Raises:
            TypeError: If the tape is of an optimizer that can't train tables.
        """
        if is_asked_by_optimizer():
            raise refusal_of_unwrapped(self.params.name)
        return str(super().__format__(format_spec))

    @property
    def _unique_id(self) -> Any:
        raise refusal_of_unwrapped(self.params.name)

    # Optimizers of Keras read `value` when they are built, and `overwrite_with_gradient` at the
    # start of each step. They are adopted then; `adoption.py` says why both are needed. Reading
    # `value` at any other time adopts nobody.

    @property
    def value(self) -> Any:
        """The variable of TensorFlow, which has no rows."""
        adopt_builder()
        return super().value

    @property
    def overwrite_with_gradient(self) -> bool:
        """Whether optimizers replace it by its gradient."""
        adopt_caller()
        return False

    @overwrite_with_gradient.setter
    def overwrite_with_gradient(self, value: bool) -> None:
        if value:
            raise ValueError("The gradient of a table can't overwrite it.")

    # --- Lookups that nothing is learned from.

    def _note_lookup(self) -> None:
        if self._steps or self._warned:
            return
        if not tape_may_record():
            if self._traced:  # The function that was to train it has been made.
                self.warn_if_untrained()
            return
        self._lookups += 1
        if tf.executing_eagerly():
            if self._lookups >= _MANY_LOOKUPS:
                self.warn_if_untrained()
            return
        self._traced = True
        optimizer = compiled_optimizer()
        if optimizer is not None:
            expect_step(optimizer, self)
            return
        optimizer = optimizer_of_fit()
        for one in inner_optimizers(optimizer) or [optimizer]:
            if isinstance(one, TableOptimizer):
                one.expect(self)

    def note_step(self) -> None:
        """Called by optimizers when they update the rows, or keep gradients for a later update."""
        self._steps += 1

    def warn_if_untrained(self) -> None:
        """Warns, once, if rows were looked up for training and no optimizer updated them."""
        if self._steps or self._warned or not self._lookups:
            return
        self._warned = True
        warnings.warn(
            f"{self.params.name!r} was looked up for training, and no optimizer step was taken on "
            "it. Is its variable among those that gradients are taken for and that the optimizer "
            "is given (`layer.trainable_variables`)?",
            stacklevel=4,
        )


class _DtypeOfTable(str):
    """The name of a type. Optimizers of TensorFlow 1, and Keras 2, ask for more."""

    _table: str

    def __new__(cls, name: str, table: str) -> _DtypeOfTable:
        """Makes the name of a type.

        Args:
            name: The name.
            table: That of the table whose rows have this type.
        """
        made = super().__new__(cls, name)
        made._table = table
        return made

    @property
    def size(self) -> int:
        """The number of bytes of a number, which `summary` of Keras 2 shows."""
        return int(tf.as_dtype(str(self)).size)

    @property
    def base_dtype(self) -> Any:
        """The type, which optimizers check when they have computed gradients.

        Raises:
            TypeError: If one of them asks.
            AttributeError: If anybody else does: a string has no such attribute.
        """
        if is_asked_by_optimizer():
            raise refusal_of_unwrapped(self._table)
        raise AttributeError("'str' object has no attribute 'base_dtype'")


class _StandIn(ResourceVariable):  # type: ignore[misc]
    """The variable of TensorFlow in a shadow, which a graph lists among its trainable variables."""

    @property
    def constraint(self) -> None:
        """None. Optimizers read this property before they apply a sparse gradient.

        Raises:
            TypeError: If the optimizer can't train tables.
        """
        shadow = shadow_around(self)
        if shadow is not self and not is_updating_tables():
            raise refusal_of_unwrapped(shadow.params.name)


def _of_rows(operator: str) -> Callable[..., Any]:
    def apply(self: ShadowVariable, *others: Any) -> Any:
        return getattr(tf.convert_to_tensor(self), operator)(*others)

    return apply


# To operators of Python, too, a shadow is the rows of its last lookup.
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
    setattr(ShadowVariable, f"__{_name}__", _of_rows(f"__{_name}__"))
    setattr(ShadowVariable, f"__r{_name}__", _of_rows(f"__r{_name}__"))
for _name in ("neg", "abs", "lt", "le", "gt", "ge", "getitem"):
    setattr(ShadowVariable, f"__{_name}__", _of_rows(f"__{_name}__"))


# By the id of the variable of TensorFlow that a shadow wraps.
_shadows_of_variables: weakref.WeakValueDictionary[int, ShadowVariable] = (
    weakref.WeakValueDictionary()
)


def shadow_around(variable: Any) -> Any:
    """Returns the shadow that wraps a variable of TensorFlow, or if none does, the variable."""
    shadow = _shadows_of_variables.get(id(variable))
    return shadow if shadow is not None and shadow.value is variable else variable


def check_params(params: Any) -> None:
    """Raises TypeError unless it is a `Variable` whose values can be trained."""
    if not isinstance(params, TrainedVariable):
        raise TypeError(
            "`params`: expected a tfra.dynamic_embedding.Variable or a ShadowVariable, received "
            f"{params!r}"
        )
    if not params.value_dtype.is_floating:
        raise TypeError(
            "Only floating values can be trained. Received: a Variable of "
            f"{params.value_dtype.name} values"
        )
