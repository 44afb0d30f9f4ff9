"""Operations of TensorFlow on sparse tensors, under the names that programs for TFRA use."""

from __future__ import annotations

from typing import Any

from tfra.dynamic_embedding._platform.tf import tf

sparse_fill_empty_rows = tf.sparse.fill_empty_rows
sparse_reshape = tf.sparse.reshape


def sparse_segment_sum(
    data: Any, indices: Any, segment_ids: Any, name: str | None = None, num_segments: Any = None
) -> tf.Tensor:
    """Does what `tf.sparse.segment_sum` does, with the order of arguments of TensorFlow 1.

    Args:
        data: A tensor.
        indices: The rows of `data` to add up.
        segment_ids: The number of the sum that each of these rows belongs to, ascending.
        name: A name for the operation (optional).
        num_segments: The number of sums (optional).

    Returns:
        A tensor of sums.
    """
    return tf.sparse.segment_sum(data, indices, segment_ids, num_segments, name)


__all__ = ["sparse_fill_empty_rows", "sparse_reshape", "sparse_segment_sum"]
