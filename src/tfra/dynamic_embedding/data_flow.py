"""Operations of TensorFlow, under the names that programs for TFRA use."""

from __future__ import annotations

from typing import Any

from tfra.dynamic_embedding._platform.tf import tf

dynamic_partition = tf.dynamic_partition

__all__ = ["dynamic_partition", "dynamic_stitch"]


def dynamic_stitch(indices: Any, data: Any, use_fast: bool = True, name: str | None = None) -> Any:
    """Joins the parts that `dynamic_partition` made, like `tf.dynamic_stitch`.

    Args:
        indices: A list of int32 tensors: the positions of the rows of each part.
        data: A list of tensors.
        use_fast: Not used.
        name: A name for the operation (optional).

    Returns:
        A tensor of all rows.
    """
    return tf.dynamic_stitch(indices, data, name=name)
