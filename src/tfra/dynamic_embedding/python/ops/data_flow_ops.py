"""Operations that split and join tensors, under the name of their module in TFRA."""

from tfra.dynamic_embedding.data_flow import dynamic_partition, dynamic_stitch

__all__ = ["dynamic_partition", "dynamic_stitch"]
