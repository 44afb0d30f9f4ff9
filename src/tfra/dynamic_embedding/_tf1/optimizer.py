"""`DynamicEmbeddingOptimizer`: for programs that wrap their optimizer."""

from __future__ import annotations

from typing import Any

from tfra.dynamic_embedding._platform.keras import inner_optimizers, keras, require_backend
from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._tf1 import v1_optimizer as _v1_optimizer
from tfra.dynamic_embedding._training import adoption


def DynamicEmbeddingOptimizer(
    self: Any, bp_v2: bool = False, synchronous: bool = False, **kwargs: Any
) -> Any:
    """Makes an optimizer able to train tables.

    Optimizers of Keras are so by themselves when they first meet a table; this does it beforehand.
    Those of `tf.compat.v1.train` need it.

    Example:
    >>> optimizer = tfra.dynamic_embedding.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.001))
    >>> isinstance(optimizer, keras.optimizers.Adam)
    True

    Args:
        self: An optimizer of Keras 3 or of `tf.compat.v1.train`.
        bp_v2: If True, rows are updated by adding to them, so that workers that update a row at
            the same time lose nothing. Updates by a kernel of the engine never do.
        synchronous: Not used: gradients of dense variables are the business of `tf.distribute`.
        **kwargs: Not used.

    Returns:
        The optimizer itself.

    Raises:
        TypeError: If it is not an optimizer.
        NotImplementedError: If its steps can't be taken row by row.
        RuntimeError: If Keras does not run on TensorFlow.
    """
    if isinstance(self, keras.optimizers.Optimizer):
        require_backend()
        optimizer = adoption.adopt(self)
    elif isinstance(self, tf.compat.v1.train.Optimizer):
        optimizer = _v1_optimizer.adopt(self)
    else:
        raise TypeError(
            "Expected an optimizer of Keras 3 or of tf.compat.v1.train, received "
            f"{type(self).__module__}.{type(self).__name__}"
        )
    for one in inner_optimizers(optimizer) or [optimizer]:
        vars(one)["bp_v2"] = bool(bp_v2)
    return optimizer
