"""Operations on sparse tensors that programs for TFRA call by these names: TensorFlow's own."""

from __future__ import annotations

from tfra._tf import tf

sparse_fill_empty_rows = tf.sparse.fill_empty_rows
sparse_reshape = tf.sparse.reshape
sparse_segment_sum = tf.sparse.segment_sum

__all__ = ["sparse_fill_empty_rows", "sparse_reshape", "sparse_segment_sum"]
