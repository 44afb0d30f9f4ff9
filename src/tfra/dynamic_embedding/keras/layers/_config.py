"""Converts the arguments of layers to the form that Keras saves, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfra.admission import Admission
from tfra.admission import get as get_admission
from tfra.dynamic_embedding._platform.keras import keras
from tfra.dynamic_embedding._stores.store_creator import StoreCreator
from tfra.dynamic_embedding._tables.creators import (
    CuckooHashTableCreator,
    HkvHashTableCreator,
)
from tfra.dynamic_embedding._upkeep.restrict_policies import (
    FrequencyRestrictPolicy,
    TimestampRestrictPolicy,
)

for _class in (
    CuckooHashTableCreator,
    HkvHashTableCreator,
    StoreCreator,
    TimestampRestrictPolicy,
    FrequencyRestrictPolicy,
):
    keras.saving.register_keras_serializable(package="tfra")(_class)

# Arguments that the base class of Keras deserializes itself.
_OF_KERAS = ("dtype", "activity_regularizer")


def serialize(value: Any) -> Any:
    """Returns an argument in the form that a config holds."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (str, bool, int, float, list, tuple)):
        return value
    if isinstance(value, Admission):
        return value.serialize()
    if isinstance(value, type):
        return keras.saving.get_registered_name(value)
    if type(value).__module__.startswith("tensorflow.") and hasattr(value, "get_config"):
        # Keras can't read an initializer of TensorFlow, so it is saved as the one of Keras.
        kind = getattr(keras.initializers, type(value).__name__, None)
        value = value if kind is None else kind(**value.get_config())
    return keras.saving.serialize_keras_object(value)


def deserialize(value: Any, name: str) -> Any:
    """Returns the argument that `serialize` converted."""
    if name == "restrict_policy" and isinstance(value, str):
        found = keras.saving.get_registered_object(value)
        if found is None:
            raise ValueError(
                f"`restrict_policy`: expected a class that Keras knows, received {value!r}. Put "
                "@keras.saving.register_keras_serializable() before it."
            )
        return found
    if name == "admission":
        return get_admission(value)
    if isinstance(value, dict) and name not in _OF_KERAS:
        return keras.saving.deserialize_keras_object(value)
    return value
