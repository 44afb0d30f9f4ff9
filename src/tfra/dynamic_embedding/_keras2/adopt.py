"""Makes optimizers of Keras 2 train tables."""

from __future__ import annotations

import warnings
from typing import Any

from tfra.dynamic_embedding._keras2.legacy_optimizer import LegacyOptimizer
from tfra.dynamic_embedding._keras2.present_optimizer import PresentOptimizer
from tfra.dynamic_embedding._keras2.trains_tables import TrainsTables
from tfra.dynamic_embedding._platform.keras import inner_optimizers
from tfra.dynamic_embedding._platform.keras2 import present_base

_adopted: dict[type, type] = {}


def adopt(optimizer: Any) -> Any:
    """Makes an optimizer of Keras 2 update tables, and returns it. Idempotent.

    Raises:
        TypeError: If it wraps another optimizer.
    """
    cls = type(optimizer)
    if issubclass(cls, TrainsTables):
        return optimizer
    if inner_optimizers(optimizer):
        raise TypeError(
            f"{cls.__name__} of Keras 2 can't be wrapped. Wrap the optimizer that it is given: "
            f"{cls.__name__}(DynamicEmbeddingOptimizer(optimizer))"
        )
    if getattr(optimizer, "use_ema", False):
        warnings.warn(
            "`use_ema` averages dense variables only: the rows of tables stay as they are.",
            stacklevel=3,
        )
    if cls not in _adopted:
        mixin = PresentOptimizer if present_base(cls) else LegacyOptimizer
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        _adopted[cls] = type(cls.__name__, (mixin, cls), names)
    object.__setattr__(optimizer, "__class__", _adopted[cls])
    return optimizer
