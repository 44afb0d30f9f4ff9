"""Names as they are in the modules of TFRA, for programs that import them from there."""

from tfra.dynamic_embedding.python import ops

__all__ = ["ops"]
