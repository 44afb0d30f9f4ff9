"""Keras 2, which a program may have loaded besides Keras 3.

It is the package tf_keras, which `TF_USE_LEGACY_KERAS=1` makes `tf.keras`, and TensorFlow carries a
copy of its older parts. Neither is imported here: a program that has an object of Keras 2 has
imported its module.

One thing is changed in Keras 2 itself, which would save files without the rows of tables, and not
say so: see `refuse_files_without_rows`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tfra.dynamic_embedding._platform.tf import tf

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


def refuse_files_without_rows() -> None:
    """Makes models of tf_keras that have tables refuse files that would have no rows. Idempotent.

    Its HDF5 and `.keras` files contain the weights of layers of Keras 2 only. Nothing changes for
    other models, and for checkpoints and SavedModels.
    """
    model = getattr(sys.modules.get("tf_keras"), "Model", None)
    if model is None or getattr(model.save, "_refuses", False):
        return
    model.save, model.save_weights = _with_refusal(model.save), _with_refusal(model.save_weights)
    for name in ("tf_keras.models", "tf_keras.saving"):  # Where save_model(model, filepath) is.
        module: Any = sys.modules.get(name)
        if hasattr(module, "save_model"):
            module.save_model = _with_refusal(module.save_model)


def _with_refusal(save: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(save)
    def checked(
        self: Any, filepath: Any, overwrite: bool = True, save_format: Any = None, **kwargs: Any
    ) -> Any:
        suffix = str(filepath).endswith((".h5", ".hdf5", ".keras"))
        if save_format in ("h5", "hdf5", "keras", "keras_v3") or (suffix and save_format is None):
            table = next(_tables_in(self), None)
            if table is not None:
                raise ValueError(
                    f"HDF5 and .keras files of Keras 2 have no rows of tables such as {table!r}. "
                    f"Received: {str(filepath)!r}. To train on, write a checkpoint: "
                    'model.save_weights("weights"), or tf.train.Checkpoint(model=model). To serve, '
                    'write a SavedModel: model.save(folder, save_format="tf").'
                )
        return save(self, filepath, overwrite, save_format, **kwargs)

    checked._refuses = True  # type: ignore[attr-defined]
    return checked


def _tables_in(model: Any) -> Iterator[str]:
    """Yields the names of the tables that a checkpoint of a model has."""
    for part in tf.train.TrackableView(model).descendants():
        if hasattr(part, "upsert") and hasattr(part, "tables"):
            yield part.name


def optimizer_of_fit() -> Any:
    """Returns the optimizer of the model of tf_keras whose step is being taken, or None.

    A model that has a `train_step` of its own, and maybe more optimizers, is not meant.
    """
    if "tf_keras" not in sys.modules:
        return None
    frame: Any = sys._getframe(1)
    while frame is not None:
        in_keras = str(frame.f_globals.get("__name__", "")).startswith("tf_keras.")
        # AutoGraph, which converts it in tf_keras 2.16, puts "tf__" before the name.
        if in_keras and frame.f_code.co_name.removeprefix("tf__") == "train_step":
            return getattr(frame.f_locals.get("self"), "optimizer", None)
        frame = frame.f_back
    return None


def _optimizers_of_tf_keras() -> Any:
    return getattr(sys.modules.get("tf_keras"), "optimizers", None)


def _base_of(cls: type, module: Any, name: str = "Optimizer") -> type | None:
    base = getattr(module, name, None)
    return base if isinstance(base, type) and issubclass(cls, base) else None
