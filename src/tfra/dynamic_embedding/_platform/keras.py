"""Keras, and all that this package uses of its undocumented parts.

Private imports of Keras are only here. All other modules use its public API, except that they
override private methods of optimizers.

Three things are changed in Keras itself, where it would lose restored weights, refuse to save
models, or not say what to write: see `_restore_variables_without_value`,
`_need_no_guessed_signature` and `explain_arrays_of_strings`.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from tfra.dynamic_embedding._platform.arguments import DtypeError
from tfra.dynamic_embedding._platform.tf import tf

try:
    import keras
except ImportError as error:
    raise ImportError(
        "tfra.dynamic_embedding needs Keras 3.9 or later on TensorFlow. Importing Keras, with "
        f"KERAS_BACKEND={os.environ.get('KERAS_BACKEND')!r}, failed: {error}. Install it with: pip "
        "install 'tfra[tensorflow]', and set KERAS_BACKEND to 'tensorflow'."
    ) from error

if tuple(int(part) for part in keras.__version__.split(".")[:2]) < (3, 9):
    # Earlier versions export models without their tables.
    raise ImportError(
        f"tfra.dynamic_embedding needs Keras 3.9 or later. Found: Keras {keras.__version__}. "
        "Install it with: pip install 'tfra[tensorflow]'"
    )

from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.saving import object_registration
from keras.src.trainers.data_adapters import array_slicing

__all__ = [
    "calling_optimizer",
    "compiled_optimizer",
    "explain_arrays_of_strings",
    "inner_optimizers",
    "is_rebuilding",
    "is_writing_hdf5",
    "keras",
    "loaded_objects",
    "require_backend",
    "take_name_of",
]


def require_backend() -> None:
    """Raises unless Keras runs on TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "tfra.dynamic_embedding trains with Keras on TensorFlow. Received: a Keras whose "
            f"backend is {keras.backend.backend()!r}. Set the environment variable KERAS_BACKEND "
            "to 'tensorflow' before Keras is imported."
        )


def calling_optimizer() -> Any:
    """Returns the optimizer that is calling this code, or None."""
    scopes = global_state.get_global_attribute("name_scope_stack") or []
    caller = scopes[-1].caller if scopes else None
    return caller if isinstance(caller, keras.optimizers.Optimizer) else None


def compiled_optimizer() -> Any:
    """Returns the optimizer of the model that is being called, or None."""
    context = global_state.get_global_attribute("current_call_ctx")
    optimizer = getattr(getattr(context, "entry_layer", None), "optimizer", None)
    return optimizer if isinstance(optimizer, keras.optimizers.Optimizer) else None


def inner_optimizers(optimizer: Any) -> list[Any]:
    """Returns the optimizers that a LossScaleOptimizer or MultiOptimizer wraps; [] for others."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return list(getattr(optimizer, "_inner_optimizers", ())) if inner is None else [inner]


def is_rebuilding() -> bool:
    """Whether Keras calls a layer only to build it, with placeholders as inputs."""
    return bool(in_stateless_scope())


def loaded_objects() -> dict[Any, Any] | None:
    """Returns what `keras.models.load_model`, if it is running, made for several layers to share.

    Keras keeps it by numbers, and forgets it at the end.
    """
    objects: dict[Any, Any] | None
    objects = global_state.get_global_attribute("shared_objects/id_to_obj_map")
    return objects


def is_writing_hdf5() -> bool:
    """Whether Keras is writing a whole model to an HDF5 file, the format of Keras 1 and 2."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "keras.src.legacy.saving.legacy_h5_format":
            return True
        frame = frame.f_back
    return False


def take_name_of(new: type, cls: type) -> None:
    """Makes Keras save objects of the class `new` under the registered name of `cls`."""
    names = object_registration.GLOBAL_CUSTOM_NAMES
    if cls in names:
        names[new] = names[cls]


@functools.cache
def explain_arrays_of_strings() -> None:
    """Lets `fit`, `evaluate` and `predict` say what to write instead of a NumPy array of strings.

    Keras refuses such arrays before a layer sees them, and names their type only. Nothing else
    changes. Layers whose ids are strings call this function.
    """
    convert = array_slicing.convert_to_sliceable

    @functools.wraps(convert)
    def convert_to_sliceable(arrays: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return convert(arrays, *args, **kwargs)
        except ValueError as error:
            for array in keras.tree.flatten(arrays):
                if getattr(getattr(array, "dtype", None), "kind", "") in ("U", "S", "O"):
                    raise ValueError(
                        f"{error}. `fit`, `evaluate` and `predict` of Keras take no NumPy arrays "
                        f"of strings, received one of type {array.dtype}. Write tf.constant(array)."
                    ) from error
            raise

    array_slicing.convert_to_sliceable = convert_to_sliceable


def _restore_variables_without_value() -> None:
    """Lets checkpoints be restored into variables of Keras that have no value yet.

    The first call of a model that has no `build` of its own lets Keras build the layers with
    placeholders. Keras then makes variables without values, and gives them their initial values
    afterwards. A checkpoint that was restored before the first call reaches the variables in
    between. Keras would ask the missing value for its tensors, and hide the error, so that the
    restored weights would be lost. Here they become the initial value. Nothing changes for a
    variable that has a value.
    """
    cls = keras.Variable
    serialize, restore = cls._serialize_to_tensors, cls._restore_from_tensors

    def serialize_to_tensors(variable: Any) -> Any:
        if variable._value is not None:
            return serialize(variable)
        return {"VARIABLE_VALUE": tf.zeros(variable.shape, variable.dtype)}

    def restore_from_tensors(variable: Any, tensors: dict[str, tf.Tensor]) -> Any:
        if variable._value is not None:
            return restore(variable, tensors)
        value = tensors["VARIABLE_VALUE"]
        variable.shape.assert_is_compatible_with(value.shape)
        variable._initializer = lambda shape, dtype: tf.cast(value, dtype)
        return tf.no_op()

    cls._serialize_to_tensors, cls._restore_from_tensors = (
        serialize_to_tensors,
        restore_from_tensors,
    )


def _need_no_guessed_signature() -> None:
    """Lets TensorFlow save models that refuse the signature that Keras guesses for them.

    `tf.saved_model.save` saves a default signature of each model of Keras, even if other signatures
    are given. Of a subclass of `keras.Model`, Keras knows only the shapes of the inputs, and takes
    all of them for float32. If these are refused as keys, that signature is left out. If it is the
    only one, that is an error, as before.
    """
    guess = keras.Model._default_save_signature.fget

    def default_save_signature(model: Any) -> Any:
        function = guess(model)
        if function is None:
            return function
        try:
            function.get_concrete_function()
        except DtypeError as error:
            refused = error

            def refuse() -> None:
                raise refused

            function._list_all_concrete_functions_for_serialization = list
            function._get_concrete_function_garbage_collected = refuse
        except Exception:
            pass  # TensorFlow hides errors of attributes. It traces the function again, and raises.
        return function

    keras.Model._default_save_signature = property(default_save_signature)


if keras.backend.backend() == "tensorflow":
    _restore_variables_without_value()
    _need_no_guessed_signature()
