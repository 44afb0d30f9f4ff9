"""Keras 2, which a program may have loaded besides Keras 3.

It is the package tf_keras, which `TF_USE_LEGACY_KERAS=1` makes `tf.keras`, and TensorFlow carries a
copy of its older parts. Nothing is imported here: a program that has an object of Keras 2 has
imported its module.
"""

from __future__ import annotations

import sys
from typing import Any

_PACKAGES = ("tf_keras.", "tensorflow.python.keras.")
_COPY_IN_TENSORFLOW = "tensorflow.python.keras.optimizer_v2.optimizer_v2"


def present_base(cls: type) -> type | None:
    """Returns `Optimizer` of tf_keras if `cls` is a subclass of it, or None."""
    return _base_of(cls, _optimizers_of_tf_keras())


def legacy_base(cls: type) -> type | None:
    """Returns `optimizers.legacy.Optimizer` of Keras 2 if `cls` is a subclass of it, or None."""
    legacy = getattr(_optimizers_of_tf_keras(), "legacy", None)
    copy = sys.modules.get(_COPY_IN_TENSORFLOW)
    return _base_of(cls, legacy) or _base_of(cls, copy, "OptimizerV2")


def is_of_keras2(optimizer: Any) -> bool:
    """Whether this is an optimizer of Keras 2."""
    cls = type(optimizer)
    return present_base(cls) is not None or legacy_base(cls) is not None


def refuse_input(ids: Any) -> None:
    """Raises TypeError for an input of a functional model of Keras 2.

    Such a model records each op of a lookup, but not the table, which it would not train.
    """
    cls = type(ids)
    if cls.__module__.startswith(_PACKAGES) and cls.__name__.endswith("KerasTensor"):
        raise TypeError(
            "Functional models of Keras 2 can't look up rows of a table. Received: "
            f"{ids!r}. Look them up in `call` of a subclass of tf.keras.Model, or use Keras 3."
        )


def _optimizers_of_tf_keras() -> Any:
    return getattr(sys.modules.get("tf_keras"), "optimizers", None)


def _base_of(cls: type, module: Any, name: str = "Optimizer") -> type | None:
    base = getattr(module, name, None)
    return base if isinstance(base, type) and issubclass(cls, base) else None
