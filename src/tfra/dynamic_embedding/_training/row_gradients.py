"""Gradients of rows: the gradient that a lookup passes to a shadow, and sums over equal keys."""

from __future__ import annotations

import weakref
from typing import Any

from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.tf import is_in_while_loop, ops, tf

# The graphs of branches and functions inside graphs of TF1 style in which rows were looked up.
graphs_of_branches: weakref.WeakSet[Any] = weakref.WeakSet()


@tf.RegisterGradient("TfraTrainableRows")  # type: ignore[untyped-decorator]
def _trainable_rows_gradient(op: Any, gradient: tf.Tensor) -> list[Any]:
    keys, rows = op.inputs[1], op.inputs[2]
    gradients = tf.reshape(gradient, [-1, rows.shape[-1]])
    return [gradient_of_shadow(op, tf.reshape(keys, [-1]), gradients), None, None]


def gradient_of_shadow(op: Any, keys: tf.Tensor, gradients: tf.Tensor) -> tf.IndexedSlices:
    """Returns the gradient of a shadow, made of the gradients of rows.

    Raises:
        NotImplementedError: If the op is in the body of a tf.while_loop, or in a branch or function
            within a graph of TF1 style.
    """
    if getattr(op, "graph", None) in graphs_of_branches:
        raise NotImplementedError(
            "Gradients of rows can't be taken in a tf.cond or tf.function within a graph of TF1 "
            "style, because TensorFlow makes a wrong gradient for a branch that does not run. "
            "Look the rows up before it."
        )
    if is_in_while_loop(getattr(op, "graph", None)):
        raise NotImplementedError(
            "Gradients of rows can't be taken in the body of a tf.while_loop, whose gradient adds "
            "up tensors of one shape. Look the rows up before the loop."
        )
    # With -1 as the number of rows, a conversion to a dense tensor fails. It would lose rows.
    shape = tf.constant([-1, gradients.shape[-1]], tf.int32)
    return tf.IndexedSlices(gradients, keys, shape)


def sum_gradients(keys: tf.Tensor, gradients: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns each key once, and the sum of its gradients in at least float32."""
    dtype = arguments.compute_dtype(gradients.dtype)
    summed = ops.tfra_sum_gradients(keys, gradients, Ts=dtype)
    return summed.unique_keys, summed.sums
