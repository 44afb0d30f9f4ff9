"""`DynamicEmbeddingOptimizer`, by which programs wrap their optimizer."""

from __future__ import annotations

from typing import Any

from tfra.dynamic_embedding._keras2 import adopt as keras2
from tfra.dynamic_embedding._platform.keras import inner_optimizers, keras, require_backend
from tfra.dynamic_embedding._platform.keras2 import is_of_keras2
from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._tf1 import v1_optimizer as _v1_optimizer
from tfra.dynamic_embedding._training import adoption


def DynamicEmbeddingOptimizer(
    self: Any, bp_v2: bool = False, synchronous: bool = False, **kwargs: Any
) -> Any:
    """Makes an optimizer able to train tables.

    Optimizers of `tf.compat.v1.train` and of Keras 2 need this call. Optimizers of Keras 3 do not:
    they become able to train tables when they first get the gradient of one.

    Example:
    >>> optimizer = tfra.dynamic_embedding.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.001))
    >>> isinstance(optimizer, keras.optimizers.Adam)
    True

    Args:
        self: An optimizer of Keras 3, of `tf.compat.v1.train`, or of Keras 2 (tf_keras, its
            `optimizers.legacy`, or TensorFlow's copy of these).
        bp_v2: If True, rows are updated by adding to them, so that no update is lost if several
            workers update a row at the same time. Kernels of the engine never lose updates.
        synchronous: Not used: `tf.distribute` handles the gradients of dense variables.
        **kwargs: Not used.

    Returns:
        The optimizer itself.

    Raises:
        TypeError: If `self` is not an optimizer.
        NotImplementedError: If the optimizer can't update rows independently of each other.
        RuntimeError: If Keras does not run on TensorFlow.
    """
    if isinstance(self, keras.optimizers.Optimizer):
        require_backend()
        optimizer = adoption.adopt(self)
    elif isinstance(self, tf.compat.v1.train.Optimizer):
        optimizer = _v1_optimizer.adopt(self)
    elif is_of_keras2(self):
        optimizer = keras2.adopt(self)
    else:
        raise TypeError(
            "Expected an optimizer of Keras or of tf.compat.v1.train, received "
            f"{type(self).__module__}.{type(self).__name__}"
        )
    for one in inner_optimizers(optimizer) or [optimizer]:
        vars(one)["bp_v2"] = bool(bp_v2)
    return optimizer
