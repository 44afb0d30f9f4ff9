"""`LayerNormalization`, which takes ragged tensors too."""

from __future__ import annotations

from typing import Any

from tfra.dynamic_embedding._platform.keras import keras
from tfra.dynamic_embedding._platform.tf import tf


@keras.saving.register_keras_serializable(package="tfra")
class LayerNormalization(keras.layers.LayerNormalization):  # type: ignore[misc]
    """`keras.layers.LayerNormalization`, which takes ragged tensors of rows too.

    The arguments are those of `keras.layers.LayerNormalization`. All dimensions but the last may be
    unknown when a function is traced.

    Example:
    >>> layer = tfra.dynamic_embedding.keras.layers.LayerNormalization(epsilon=0.0)
    >>> rows = tf.RaggedTensor.from_row_lengths([[1.0, 3.0], [2.0, 8.0]], [2, 0])
    >>> layer(rows).to_list()
    [[[-1.0, 1.0], [-1.0, 1.0]], []]
    """

    def call(self, inputs: Any) -> Any:
        """Normalizes rows.

        Raises:
            ValueError: If ragged rows would be normalized along another axis than the last.
        """
        if not isinstance(inputs, tf.RaggedTensor):
            return super().call(inputs)
        axes = [self.axis] if isinstance(self.axis, int) else list(self.axis)
        rows = inputs.flat_values
        if rows.shape.rank == 1 or axes not in ([-1], [inputs.shape.rank - 1]):
            raise ValueError(
                "Ragged rows are normalized along their last dimension, which must not be ragged. "
                f"Received: axis={self.axis} and a shape of {inputs.shape}"
            )
        return inputs.with_flat_values(super().call(rows))

    def compute_output_spec(self, inputs: Any) -> Any:
        """Returns the shape and dtype of the result, which are those of the rows."""
        ragged = getattr(inputs, "ragged", False)
        return keras.KerasTensor(inputs.shape, dtype=self.compute_dtype, ragged=ragged)
