"""Converts the ids that a layer is called with to tensors of its key type."""

from __future__ import annotations

from typing import Any

from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.keras import is_rebuilding, keras
from tfra.dynamic_embedding._platform.keras2 import refuse_input
from tfra.dynamic_embedding._platform.tf import tf


def ids_of(ids: Any, dtype: tf.DType) -> Any:
    """Returns ids of the key type, or raises TypeError."""
    refuse_input(ids)
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(ids_of(ids.flat_values, dtype))
    if isinstance(ids, tf.SparseTensor):
        return tf.SparseTensor(ids.indices, ids_of(ids.values, dtype), ids.dense_shape)
    if not tf.is_tensor(ids) and not arguments.holds_tensors(ids):
        return arguments.keys_tensor(ids, dtype)
    ids = tf.convert_to_tensor(ids)
    integers = ids.dtype.is_integer and dtype.is_integer
    if integers and ids.dtype.min >= dtype.min and ids.dtype.max <= dtype.max:
        return tf.cast(ids, dtype)
    if ids.dtype.is_floating and is_rebuilding():
        return tf.zeros(tf.shape(ids), dtype)  # Only the shape of these placeholders is right.
    check_ids_dtype(ids.dtype, dtype, arguments.export_hint(ids, dtype))
    return arguments.keys_tensor(ids, dtype)


def is_padding(ids: tf.Tensor) -> tf.Tensor:
    """Whether each id is 0, or an empty string: what `mask_zero` takes for no id."""
    return tf.equal(ids, tf.constant("" if ids.dtype == tf.string else 0, ids.dtype))


@keras.saving.register_keras_serializable(package="tfra")
class MaskOfIds(keras.Operation):  # type: ignore[misc]
    """The mask of ids: false for padding. An operation, so that functional models contain it."""

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns a bool for each id."""
        return tf.logical_not(is_padding(ids))

    def compute_output_spec(self, ids: Any) -> Any:
        """Returns the shape and dtype of the mask."""
        return keras.KerasTensor(ids.shape, "bool")


def check_input_dtype(received: Any, dtype: tf.DType) -> None:
    """Raises TypeError for an input of a functional model whose ids a call would refuse."""
    check_ids_dtype(received, dtype)
    received = tf.as_dtype(received)
    integers = received.is_integer and dtype.is_integer
    if received != dtype and not (
        integers and dtype.min <= received.min <= received.max <= dtype.max
    ):
        raise arguments.wrong_keys_dtype(received, dtype)


def check_ids_dtype(received: Any, dtype: tf.DType, hint: str = "") -> None:
    """Raises TypeError for floating ids."""
    if tf.as_dtype(received).is_floating:
        message = (
            f"`ids`: expected {dtype.name}, received {tf.as_dtype(received).name}, which does not "
            "tell large ids apart. Keras makes inputs so unless it is told otherwise, with "
            f"keras.Input(shape, dtype={dtype.name!r}), which a Sequential model may begin with, "
            f"too.{hint}"
        )
        raise arguments.DtypeError(message)
