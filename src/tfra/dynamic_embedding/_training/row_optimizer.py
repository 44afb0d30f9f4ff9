"""Runs any optimizer of Keras on the rows of one batch.

This module serves optimizers that the engine has no kernel for, such as those that users write. It
gives a copy of the optimizer one variable to update, which is a `Block`: it has the interface of a
variable, but holds only the rows of one step. The slots of that variable are blocks too.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from tfra.dynamic_embedding._platform.keras import keras
from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._tables.rules import CustomRule, Slot

# The steps of these optimizers depend on statistics of the whole variable; a step sees one batch.
_WHOLE_VARIABLE = ("Adafactor", "Lamb", "Muon")


class _Live:
    """Reads the current rows of a block at each use, as a variable of TensorFlow does."""

    def __init__(self, block: Block) -> None:
        self._block = block

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self._block.rows, dtype=dtype, name=name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._block.rows, name)


def _operator(name: str) -> Any:
    return lambda self, *others: getattr(self._block.rows, name)(*others)


for _name in ("add", "sub", "mul", "truediv", "pow", "matmul"):
    setattr(_Live, f"__{_name}__", _operator(f"__{_name}__"))
    setattr(_Live, f"__r{_name}__", _operator(f"__r{_name}__"))
for _name in ("neg", "abs", "lt", "le", "gt", "ge", "getitem"):
    setattr(_Live, f"__{_name}__", _operator(f"__{_name}__"))


class Block(keras.Variable):  # type: ignore[misc]
    """The rows of one step, with the interface of a variable."""

    def __init__(self, elements: int, dtype: str, name: str, initializer: Any = "zeros") -> None:
        # The constructor of the base class is not called: it would make a variable of TensorFlow.
        self._name = self._path = name
        self._shape = (None, elements)
        self._dtype = dtype
        self._trainable = True
        self._autocast = False
        self._regularizer = self._constraint = self._layout = self._initializer = None
        self._aggregation = self._synchronization = "none"
        self._overwrite_with_gradient = False
        self._value = None
        self.elements = elements
        self.row_initializer = initializer

    @property
    def value(self) -> _Live:
        """What Keras uses as the variable of TensorFlow."""
        return _Live(self)

    @property
    def rows(self) -> tf.Tensor | None:
        """The current rows, or None between steps."""
        return self._value

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self._value, dtype=dtype, name=name)

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the rows; between steps, their number is unknown."""
        return tf.TensorShape(self._shape) if self._value is None else self._value.shape

    def assign(self, value: Any) -> tf.Tensor:
        """Replaces the rows."""
        self._value = tf.cast(tf.convert_to_tensor(value), self._dtype)
        return self._value

    def assign_add(self, value: Any) -> tf.Tensor:
        """Adds to the rows."""
        return self.assign(self._value + tf.cast(value, self._dtype))

    def assign_sub(self, value: Any) -> tf.Tensor:
        """Subtracts from the rows."""
        return self.assign(self._value - tf.cast(value, self._dtype))

    def __hash__(self) -> int:
        return id(self)


class _OnBlocks(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Makes an optimizer work on blocks: a class between the optimizer's own and Keras' base."""

    def assign(self, variable: Any, value: Any) -> None:
        variable.assign(value)

    def assign_add(self, variable: Any, value: Any) -> None:
        variable.assign_add(value)

    def assign_sub(self, variable: Any, value: Any) -> None:
        variable.assign_sub(value)

    def _var_key(self, variable: Any) -> int:
        return id(variable)

    def add_variable_from_reference(
        self, reference_variable: Any, name: str | None = None, initializer: Any = "zeros"
    ) -> Any:
        return self._add_slot(reference_variable.elements, name, initializer)

    def add_variable(
        self, shape: Any, initializer: Any = "zeros", *args: Any, **kwargs: Any
    ) -> Any:
        if len(shape) > 0 and shape[0] is None:
            elements = shape[-1] if len(shape) > 1 else 1
            return self._add_slot(elements, kwargs.get("name"), initializer)
        return super().add_variable(shape, initializer, *args, **kwargs)

    def _add_slot(self, elements: int, name: str | None, initializer: Any) -> Block:
        name = name or "slot"
        taken = {slot.name for slot in self.slot_blocks}
        while name in taken:
            name += "_"
        slot = Block(elements, self.row_dtype, name, keras.initializers.get(initializer))
        self.slot_blocks.append(slot)
        return slot

    @property
    def iterations(self) -> Any:
        return self.parent.iterations


class RowOptimizer:
    """The step of an optimizer, as a function of rows.

    Args:
        optimizer: The optimizer. Its hyper-parameters are read at each step.
        cls: The class of the optimizer.
        dim: The length of a row.
        dtype: The type of the arithmetic.

    Raises:
        NotImplementedError: If the optimizer can't update rows independently of each other.
    """

    def __init__(self, optimizer: Any, cls: type, dim: int, dtype: str) -> None:
        refuse_whole_variable(cls)
        self._optimizer = optimizer
        self._dim = dim
        self._lock = threading.Lock()  # The blocks hold the rows of one step at a time.
        with tf.init_scope():
            self._copy, own = _copy_of(optimizer, cls, dtype)
            self._block = Block(dim, dtype, "rows")
            # A slot that equals the probe after build() starts as a copy of the variable.
            probe = tf.fill([1, dim], tf.constant(0.4375, dtype))
            self._block.assign(probe)
            before = dict(vars(self._copy))
            self._copy.build([self._block])
            self._slots = self._copy.slot_blocks
            self.slots = [self._describe(slot, probe) for slot in self._slots]
        self.rule = CustomRule(tuple(self.slots), dim)
        # Each step copies these attributes from the optimizer: hyper-parameters, and state that
        # does not belong to one variable, such as the momentum product of Nadam.
        now = vars(self._copy)
        built = {name for name in now if name not in before or now[name] is not before[name]}
        state = {name for name in built if _is_state(now[name])}
        self._shared = (own - built) | state

    def _describe(self, slot: Block, probe: tf.Tensor) -> Slot:
        if slot.elements not in (1, self._dim):
            raise NotImplementedError(
                self._refusal(f"its slot {slot.name!r} has neither 1 nor {self._dim} elements")
            )
        if slot.rows is not None:
            if slot.elements != self._dim or not np.array_equal(slot.rows, probe):
                raise NotImplementedError(self._refusal(f"it assigns {slot.name!r} in build()"))
            return Slot(slot.name, slot.elements, float("nan"))  # NaN means: a copy of the row.
        initial = np.asarray(slot.row_initializer((1, slot.elements), dtype="float32"))
        if np.any(initial != initial[0, 0]):
            raise NotImplementedError(
                self._refusal(
                    f"its slot {slot.name!r} does not start with the same number in all elements"
                )
            )
        return Slot(slot.name, slot.elements, float(initial[0, 0]))

    def _refusal(self, why: str) -> str:
        return f"{type(self._optimizer).__name__} can't update the rows of a table: {why}."

    def step(
        self, gradients: tf.Tensor, rows: tf.Tensor, slots: tf.Tensor, learning_rate: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the rows and their slots after one step. Does not change a table.

        Args:
            gradients: The gradients, `[n, dim]`, one for each distinct key.
            rows: The values of the keys, `[n, dim]`.
            slots: All slots of each key side by side, in the order of `self.slots`. If a slot
                starts as a copy of the value, NaN stands for elements that were never written.
            learning_rate: The learning rate of this step.

        Returns:
            The new values, `[n, dim]`, and the new slots, in the layout of `slots`.
        """
        with self._lock:
            return self._step(gradients, rows, slots, learning_rate)

    def _step(
        self, gradients: tf.Tensor, rows: tf.Tensor, slots: tf.Tensor, learning_rate: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        theirs = vars(self._optimizer)
        vars(self._copy).update({name: theirs[name] for name in self._shared if name in theirs})
        self._block.assign(rows)
        sizes = [slot.elements for slot in self.slots]
        parts = tf.split(slots, sizes, axis=-1) if sizes else []
        for block, part, slot in zip(self._slots, parts, self.slots, strict=True):
            fresh = np.isnan(slot.initial)
            block.assign(tf.where(tf.math.is_nan(part), rows, part) if fresh else part)
        self._copy.update_step(gradients, self._block, learning_rate)
        after = [tf.reshape(block.rows, [-1, block.elements]) for block in self._slots]
        rows = self._block.rows
        for block in [self._block, *self._slots]:
            block._value = None
        return rows, tf.concat(after, axis=-1) if after else slots


def refuse_whole_variable(cls: type) -> None:
    """Raises NotImplementedError if the steps of an optimizer depend on the whole variable."""
    for base in cls.__mro__:
        if base.__name__ in _WHOLE_VARIABLE:
            raise NotImplementedError(
                f"{cls.__name__} can't train a table: its step depends on statistics of the whole "
                "variable, and a table's rows are updated a batch at a time. Use another optimizer "
                "for the tables, e.g. with keras.optimizers.MultiOptimizer."
            )


def _is_state(value: Any) -> bool:
    return isinstance(value, keras.Variable) and not isinstance(value, Block)


def _copy_of(optimizer: Any, cls: type, dtype: str) -> tuple[Any, set[str]]:
    """Returns a copy of an optimizer that works on blocks, and the names of the copied attributes.

    All attributes are copied except those of Keras' base class. The copy is not made from the
    config, because the config of a user's optimizer may be incomplete.
    """
    on_blocks = type(f"{cls.__name__}OnBlocks", (cls, _OnBlocks), {})
    copy: Any = object.__new__(on_blocks)
    # The learning rate is not used: each step gets it as an argument.
    keras.optimizers.Optimizer.__init__(copy, learning_rate=0.001)
    # Keras tracks what setattr sets, so these bypass it.
    vars(copy).update(slot_blocks=[], row_dtype=dtype, parent=optimizer)
    own = {name for name in vars(optimizer) if name not in vars(copy)}
    vars(copy).update({name: vars(optimizer)[name] for name in own})
    return copy, own
