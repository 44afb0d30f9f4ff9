"""How an optimizer of Keras comes to train tables: it is *adopted*.

Keras gives every optimizer the gradients of all trainable variables, and an optimizer updates each
of them as a dense array. Tables need something else (`TrainsTables` in `keras_optimizer.py`).
`adopt` gives an optimizer object a new class: one with the same name, module and registered name,
which has `TrainsTables` before the optimizer's own class. So the object stays what the user made,
`isinstance` works as before, Keras saves it under its own name, and nothing has to be wrapped.
Other objects of the same class stay as they are.

An optimizer is adopted

1. when the user calls `DynamicEmbeddingOptimizer` with it;
2. when a model that was compiled with it is called for training, and an embedding layer in it is
   called, or a tf.function that calls the model looks up a shadow;
3. when it takes a step on a shadow. At the start of each step, `apply` asks every variable for
   `overwrite_with_gradient`, and the shadow calls `adopt_caller`;
4. when its first `apply` builds it on a shadow. `build` then reads the `value` of every variable to
   register it, and the shadow calls `adopt_builder`.

For 3 and 4, the scope that Keras opens in `apply` names the optimizer. Outside of that scope, and
in the methods of an optimizer that is already built, reading `value` adopts nobody. Adoption is
idempotent and lasts as long as the optimizer.

Event 4 has to exist, and has to be a read of `value`, because event 3 comes too late or not at all
in two cases:

- A `LossScaleOptimizer` checks that gradients are finite before its inner optimizer takes the step.
  Keras' own check fails for gradients of tables, so the LossScaleOptimizer has to be adopted before
  the check. Until then, it opens a scope in `build` only. There, an inner optimizer without slots
  (SGD) reads no attribute of a variable but `value`. In Keras 3.9, inner optimizers with slots do
  not ask for `overwrite_with_gradient` there either.
- If the list of variables has a `tf.Variable`, Keras 3.9 does not ask the variables after it for
  `overwrite_with_gradient`.

For the same reason, a LossScaleOptimizer on which the user calls `build` has to be adopted by event
1 or 2: `build` opens no scope then, so the shadow does not know who reads it.
"""

from __future__ import annotations

import warnings
from typing import Any

from tfra.dynamic_embedding._platform.keras import (
    calling_optimizer,
    inner_optimizers,
    take_name_of,
)
from tfra.dynamic_embedding._training.keras_optimizer import ChecksTables, TrainsTables
from tfra.dynamic_embedding._training.minimize import Minimizes
from tfra.dynamic_embedding._training.shadow import TrainableWrapper

_adopted: dict[type, type] = {}


def adopt(optimizer: Any) -> Any:
    """Makes an optimizer of Keras update tables, and returns it. Idempotent."""
    cls = type(optimizer)
    if issubclass(cls, Minimizes):
        return optimizer
    inner = inner_optimizers(optimizer)
    for one in inner:
        adopt(one)
    if not inner and optimizer.use_ema:
        warnings.warn(
            "`use_ema` averages dense variables only: the rows of tables stay as they are.",
            stacklevel=3,
        )
    if cls not in _adopted:
        mixins: tuple[type, ...] = () if inner else (TrainsTables,)
        if inner and hasattr(cls, "check_finite"):  # Else the inner optimizers do all.
            mixins = (ChecksTables,)
        adopted = type(cls.__name__, (*mixins, cls, Minimizes), {"plain_class": cls})
        adopted.__module__ = cls.__module__
        adopted.__qualname__ = cls.__qualname__
        take_name_of(adopted, cls)
        _adopted[cls] = adopted
    object.__setattr__(optimizer, "__class__", _adopted[cls])
    return optimizer


def adopt_caller() -> None:
    """Adopts the optimizer whose `apply` is calling this code, if any."""
    optimizer = calling_optimizer()
    if optimizer is not None:
        adopt(optimizer)


def adopt_builder() -> None:
    """Adopts the optimizer whose first `apply` is building it, if any."""
    optimizer = calling_optimizer()
    if optimizer is not None and not optimizer.built:
        adopt(optimizer)


def expect_step(optimizer: Any, shadow: TrainableWrapper) -> None:
    """Lets the only optimizer of a model warn if it is not given what its model looks up."""
    inner = inner_optimizers(optimizer)
    if len(inner) == 1:
        expect_step(inner[0], shadow)
    elif not inner:
        adopt(optimizer).expect(shadow)
