"""Operations on sparse tensors, under the name of their module in TFRA."""

from tfra.dynamic_embedding.math import sparse_fill_empty_rows, sparse_reshape, sparse_segment_sum

__all__ = ["sparse_fill_empty_rows", "sparse_reshape", "sparse_segment_sum"]
