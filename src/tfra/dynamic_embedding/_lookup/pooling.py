"""Combines the rows of several keys into one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tfra.dynamic_embedding._platform.tf import ops, tf
from tfra.dynamic_embedding._training.row_gradients import gradient_of_shadow
from tfra.dynamic_embedding._training.shadow import TrainableWrapper

Combiner = str | Callable[..., tf.Tensor]

# The combiners that the engine computes without a tensor of all rows.
FUSED_COMBINERS = ("sum", "mean", "sqrtn")


@dataclass(frozen=True)
class Bags:
    """Bags of keys. The keys of bag i are `keys[row_splits[i]:row_splits[i + 1]]`.

    Args:
        keys: A vector of keys.
        row_splits: An int64 vector with one element more than there are bags.
        weights: None, or a weight for each key.
        shape: The shape in which the bags are arranged, an int64 vector.
        static_shape: The part of the shape that is known when a graph is built.
    """

    keys: tf.Tensor
    row_splits: tf.Tensor
    weights: tf.Tensor | None
    shape: tf.Tensor
    static_shape: tf.TensorShape

    @classmethod
    def of_ragged(cls, ids: tf.RaggedTensor, weights: Any = None) -> Bags:
        """Makes a bag of each innermost row of a ragged tensor.

        Raises:
            ValueError: If a dimension between the first and the last is ragged.
        """
        ids = with_known_rank(ids)
        if ids.flat_values.shape.rank != 1:
            raise ValueError(f"The innermost dimension of ids must be ragged. Received: {ids}")
        if ids.ragged_rank > 1 and any(n is None for n in ids.shape[1:-1]):
            raise ValueError(
                "Ragged ids must have a known size in all dimensions between the first and the "
                f"last. Received shape: {ids.shape}"
            )
        inner = ids
        while inner.ragged_rank > 1:
            inner = inner.values
        if weights is not None:
            weights = tf.cast(weights.flat_values, tf.float32)
        shape = tf.concat(
            [
                [ids.nrows(tf.int64)],
                tf.constant(ids.shape[1:-1].as_list(), tf.int64, [len(ids.shape) - 2]),
            ],
            axis=0,
        )
        return cls(
            ids.flat_values, tf.cast(inner.row_splits, tf.int64), weights, shape, ids.shape[:-1]
        )

    @classmethod
    def of_sparse(cls, ids: tf.SparseTensor, weights: Any = None) -> Bags:
        """Makes a bag of each innermost row of a sparse tensor in row-major order."""
        shape = ids.dense_shape[:-1]
        strides = tf.math.cumprod(shape, exclusive=True, reverse=True)
        rows = tf.reduce_sum(ids.indices[:, :-1] * strides, axis=1)
        ascending = tf.debugging.Assert(
            tf.reduce_all(rows[1:] >= rows[:-1]),
            ["Sparse ids must be in row-major order: see tf.sparse.reorder."],
        )
        with tf.control_dependencies([] if ascending is None else [ascending]):
            rows = tf.identity(rows)
        splits = tf.searchsorted(
            rows, tf.range(tf.reduce_prod(shape) + 1), side="left", out_type=tf.int64
        )
        if weights is not None:
            weights = tf.cast(weights.values, tf.float32)
        return cls(ids.values, splits, weights, shape, ids.shape[:-1])

    @classmethod
    def of_rows(cls, keys: tf.Tensor, rows: tf.Tensor, shape: tf.Tensor, static: Any) -> Bags:
        """Makes bags of keys in any order.

        Args:
            keys: A vector of keys.
            rows: The number of the bag of each key, int64.
            shape: The shape in which the bags are arranged, an int64 vector.
            static: The part of the shape that is known when a graph is built.
        """
        order = tf.argsort(rows, stable=True)
        splits = tf.searchsorted(
            tf.gather(rows, order), tf.range(tf.reduce_prod(shape) + 1), out_type=tf.int64
        )
        return cls(tf.gather(keys, order), splits, None, shape, tf.TensorShape(static))

    def without(self, dropped: tf.Tensor) -> Bags:
        """Returns the bags without some keys.

        Args:
            dropped: A bool for each key.
        """
        kept = tf.logical_not(dropped)
        before = tf.cumsum(tf.cast(kept, tf.int64))  # Keys that stay, up to and including each.
        before = tf.concat([tf.zeros([1], tf.int64), before], axis=0)
        weights = None if self.weights is None else tf.boolean_mask(self.weights, kept)
        return replace(
            self,
            keys=tf.boolean_mask(self.keys, kept),
            row_splits=tf.gather(before, self.row_splits),
            weights=weights,
        )

    def lookup(
        self,
        shadow: TrainableWrapper,
        combiner: Combiner,
        training: bool | None = None,
        max_norm: float | None = None,
    ) -> tf.Tensor:
        """Looks up the keys and combines the rows of each bag. Empty bags give zeros.

        Args:
            shadow: The shadow of the Variable.
            combiner: "sum", "mean" or "sqrtn". Without weights, also what comes after `tf.reduce_`,
                or a function of a ragged tensor and `axis`.
            training: See `TrainableWrapper.lookup`.
            max_norm: See `TrainableWrapper.lookup`.
        """
        params = shadow.params
        max_norm = shadow.max_norm if max_norm is None else max_norm
        if combiner in FUSED_COMBINERS and (max_norm is None or not shadow.records()):
            train = shadow.is_training(training)
            shadow.note_lookup(self.keys)
            pooled = self._fused(shadow, str(combiner), train, max_norm or 0.0)
        else:
            rows = shadow.lookup(self.keys, training, max_norm)
            pooled = self._combine(rows, combiner)
        dim = params.dim
        shaped = tf.reshape(pooled, tf.concat([self.shape, tf.constant([dim], tf.int64)], axis=0))
        return tf.ensure_shape(shaped, self.static_shape.concatenate([dim]))

    def _fused(
        self, shadow: TrainableWrapper, combiner: str, training: bool, max_norm: float
    ) -> tf.Tensor:
        params = shadow.params
        weights = tf.zeros([0]) if self.weights is None else self.weights
        if not shadow.records():
            return params.lookup_pooled(
                self.keys, self.row_splits, weights, combiner, max_norm=max_norm
            )
        pooled = params.lookup_pooled(self.keys, self.row_splits, weights, combiner, training)
        return ops.tfra_trainable_pooled(
            shadow.gradient_target(),
            self.keys,
            self.row_splits,
            weights,
            pooled,
            combiner=combiner,
            value_dtype=params.value_dtype,
        )

    def _combine(self, rows: tf.Tensor, combiner: Combiner) -> tf.Tensor:
        if combiner in FUSED_COMBINERS:
            return self._weighted(rows, str(combiner))
        if self.weights is not None:
            raise ValueError(
                f"`combiner`: with weights, expected one of {', '.join(FUSED_COMBINERS)}, received "
                f"{combiner!r}"
            )
        ragged = tf.RaggedTensor.from_row_splits(rows, self.row_splits, validate=False)
        combined = combiner_function(combiner)(ragged, axis=1)
        empty = tf.equal(self.row_splits[1:], self.row_splits[:-1])
        return tf.where(empty[:, tf.newaxis], tf.zeros_like(combined), combined)

    def _weighted(self, rows: tf.Tensor, combiner: str) -> tf.Tensor:
        bags = _bag_of_each(self.row_splits)
        count = tf.shape(self.row_splits, tf.int64)[0] - 1
        weights = tf.ones_like(bags, rows.dtype) if self.weights is None else self.weights
        weights = tf.cast(weights, rows.dtype)
        total = _sum_of(rows * weights[:, tf.newaxis], bags, count)
        if combiner == "sum":
            return total
        if combiner == "mean":
            return tf.math.divide_no_nan(total, _sum_of(weights, bags, count)[:, tf.newaxis])
        norm = tf.sqrt(_sum_of(weights * weights, bags, count))
        return tf.math.divide_no_nan(total, norm[:, tf.newaxis])


@tf.RegisterGradient("TfraTrainablePooled")  # type: ignore[untyped-decorator]
def _trainable_pooled_gradient(op: Any, gradient: tf.Tensor) -> list[Any]:
    gradient = tf.convert_to_tensor(gradient)
    keys, row_splits, weights = op.inputs[1:4]
    combiner = op.get_attr("combiner").decode()
    keys, rows = ops.tfra_pooled_gradient(keys, row_splits, weights, gradient, combiner=combiner)
    rows = tf.cast(rows, op.get_attr("value_dtype"))
    return [gradient_of_shadow(op, keys, rows), None, None, None, gradient]


@tf.RegisterGradient("TfraLookupPooled")  # type: ignore[untyped-decorator]
def _lookup_pooled_gradient(op: Any, gradient: tf.Tensor) -> list[Any]:
    table, keys, row_splits, weights, row = op.inputs

    def rows() -> tf.Tensor:
        return ops.tfra_lookup(table, keys, row, [], op.get_attr("initial")).values

    of_weights = _weights_gradient(op, rows, row_splits, weights, gradient)
    return [None, None, None, of_weights, None]


@tf.RegisterGradient("TfraPoolRows")  # type: ignore[untyped-decorator]
def _pool_rows_gradient(op: Any, gradient: tf.Tensor) -> list[Any]:
    rows, row_splits, weights = op.inputs
    return [None, None, _weights_gradient(op, lambda: rows, row_splits, weights, gradient)]


def _weights_gradient(
    op: Any, rows_of: Any, row_splits: tf.Tensor, weights: tf.Tensor, gradient: tf.Tensor
) -> tf.Tensor | None:
    if weights.shape[0] == 0:  # The lookup had no weights.
        return None
    combiner = op.get_attr("combiner").decode()
    bags = _bag_of_each(row_splits)
    rows = tf.cast(rows_of(), gradient.dtype)
    product = tf.reduce_sum(rows * tf.gather(gradient, bags), axis=-1)
    if combiner == "sum":
        return tf.cast(product, weights.dtype)
    count = tf.shape(row_splits, tf.int64)[0] - 1
    back = tf.gather(tf.reduce_sum(op.outputs[0] * gradient, axis=-1), bags)
    if combiner == "mean":
        total = tf.gather(_sum_of(weights, bags, count), bags)
        return tf.math.divide_no_nan(tf.cast(product - back, weights.dtype), total)
    norm = tf.gather(tf.sqrt(_sum_of(weights * weights, bags, count)), bags)
    direct = tf.math.divide_no_nan(tf.cast(product, weights.dtype), norm)
    return direct - tf.math.divide_no_nan(weights, norm * norm) * tf.cast(back, weights.dtype)


def with_known_rank(ids: tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns ragged ids of known rank. If it is unknown, their innermost dimension is ragged."""
    if ids.flat_values.shape.rank is not None:
        return ids
    return ids.with_flat_values(tf.ensure_shape(ids.flat_values, [None]))


def _bag_of_each(row_splits: tf.Tensor) -> tf.Tensor:
    return tf.ragged.row_splits_to_segment_ids(row_splits)


def _sum_of(values: tf.Tensor, bags: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    return tf.math.unsorted_segment_sum(values, bags, count)


def combiner_function(combiner: Combiner) -> Callable[..., tf.Tensor]:
    """Returns a combiner as a function of a tensor and `axis`.

    Raises:
        ValueError: If there is no combiner of that name.
    """
    if callable(combiner):
        return combiner
    function = getattr(tf.math, f"reduce_{combiner}", None) if isinstance(combiner, str) else None
    if function is None:
        raise ValueError(
            "`combiner`: expected a function, 'sqrtn', or what comes after tf.math.reduce_ (sum, "
            f"mean, min, max, prod, std, ...), received {combiner!r}"
        )
    return function
