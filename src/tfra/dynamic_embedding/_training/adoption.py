"""How an optimizer of Keras comes to train tables: it is *adopted*.

Keras gives every optimizer the gradients of all trainable variables, and an optimizer updates each
of them as a dense array. Tables need something else (`TrainsTables` in `keras_optimizer.py`).
`adopt` gives an optimizer object a new class: one with the same name, module and registered name,
which has `TrainsTables` before the optimizer's own class. So the object stays what the user made,
`isinstance` works as before, Keras saves it under its own name, and nothing has to be wrapped.
Other objects of the same class stay as they are.

An optimizer is adopted

- when the user calls `DynamicEmbeddingOptimizer` with it;
- when an embedding layer is called for training in a model that was compiled with it;
- when it is built on a shadow, or takes its first step on one, outside of such a model: the
  methods of the optimizer then ask the shadow for `value` or `overwrite_with_gradient`, and the
  shadow calls `adopt_caller`.

`adopt_caller` looks at the scope that Keras opens in the methods of optimizers, so that reading a
shadow anywhere else changes nothing. Adoption is idempotent and lasts as long as the optimizer.
"""

from __future__ import annotations

import warnings
import weakref
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
    if issubclass(cls, (TrainsTables, ChecksTables)):
        return optimizer
    inner = inner_optimizers(optimizer)
    for one in inner:
        adopt(one)
    if inner and not hasattr(optimizer, "check_finite"):
        return optimizer  # One of several for different variables, which does nothing itself.
    if not inner and optimizer.use_ema:
        warnings.warn(
            "`use_ema` averages dense variables only: the rows of tables stay as they are.",
            stacklevel=3,
        )
    if cls not in _adopted:
        mixin = ChecksTables if inner else TrainsTables
        adopted = type(cls.__name__, (mixin, cls, Minimizes), {"plain_class": cls})
        adopted.__module__ = cls.__module__
        adopted.__qualname__ = cls.__qualname__
        take_name_of(adopted, cls)
        _adopted[cls] = adopted
    object.__setattr__(optimizer, "__class__", _adopted[cls])
    return optimizer


def adopt_caller() -> None:
    """Adopts the optimizer in one of whose methods we are, if any."""
    optimizer = calling_optimizer()
    if optimizer is not None:
        adopt(optimizer)


def expect_step(optimizer: Any, shadow: TrainableWrapper) -> None:
    """Lets the only optimizer of a model warn if it is not given what its model looks up."""
    inner = inner_optimizers(optimizer)
    if len(inner) == 1:
        expect_step(inner[0], shadow)
    elif not inner:
        expected = adopt(optimizer).__dict__.setdefault("_expected_shadows", [])
        expected.append(weakref.ref(shadow))
