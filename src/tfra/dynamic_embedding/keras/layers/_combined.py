"""Embedding layers that combine rows of dense ids."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from tfra._shared import limits
from tfra.dynamic_embedding._lookup.pooling import (
    FUSED_COMBINERS,
    Bags,
    Combiner,
    combiner_function,
    with_known_rank,
)
from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.keras import keras
from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding.keras.layers import _config
from tfra.dynamic_embedding.keras.layers._embedding import Embedding
from tfra.dynamic_embedding.keras.layers._ids import check_input_dtype


def reduce_pooling(x: Any, combiner: Combiner = "sum") -> tf.Tensor:
    """Combines all rows of each example, as `SquashedEmbedding` does.

    Example:
    >>> rows = tf.ones([3, 2, 8])
    >>> tfra.dynamic_embedding.keras.layers.embedding.reduce_pooling(rows).shape.as_list()
    [3, 8]

    Args:
        x: Rows, of shape `[batch_size, ..., embedding_size]`; or those of one example, of shape
            `[count, embedding_size]`.
        combiner: See `Embedding`.

    Returns:
        A tensor of shape `[batch_size, embedding_size]`; for one example, `[embedding_size]`.

    Raises:
        ValueError: If `x` has less than two dimensions, or the combiner is unknown.
    """
    x = tf.convert_to_tensor(x)
    rank = x.shape.rank
    if rank is not None and rank < 2:
        raise ValueError(f"`x`: expected two dimensions or more, received shape {x.shape}")
    if rank == 2:
        return reduce_pooling(x[tf.newaxis], combiner)[0]
    shape = tf.shape(x)
    count = tf.reduce_prod(shape[1:-1])
    rows = tf.reshape(x, tf.stack([shape[0], count, shape[-1]]))
    rows = tf.ensure_shape(rows, [x.shape[0], None, x.shape[-1]] if rank else [None] * 3)
    if combiner == "sqrtn":
        root = tf.sqrt(tf.cast(tf.maximum(count, 1), rows.dtype))
        return tf.reduce_sum(rows, axis=1) / root
    return combiner_function(combiner)(rows, axis=1)


@keras.saving.register_keras_serializable(package="tfra")
class SquashedEmbedding(Embedding):
    """An embedding layer that combines all rows of an example.

    The result has shape `(batch_size, embedding_size)`. Ids of one dimension are a single example:
    its result has shape `(embedding_size,)`. The arguments are those of `Embedding`.

    Example:
    >>> layer = tfra.dynamic_embedding.keras.layers.SquashedEmbedding(8, combiner="mean")
    >>> layer(tf.constant([[15, 2], [4, 92], [22, 4]], dtype=tf.int64)).shape.as_list()
    [3, 8]
    >>> layer(tf.constant([2, 7, 4, 1, 5], dtype=tf.int64)).shape.as_list()
    [8]
    """

    def call(self, ids: Any, training: bool | None = None) -> tf.Tensor:
        """Looks up the rows of ids and combines the rows of each example."""
        ids = self._prepare(ids, training)
        if isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)):
            if ids.shape.rank not in (None, 2):
                raise ValueError(
                    f"Ragged and sparse ids must be a matrix. Received shape: {ids.shape}"
                )
            return tf.ensure_shape(super().call(ids, training), [None, self.embedding_size])
        rank = ids.shape.rank
        if rank is None:
            dims, static = tf.minimum(tf.rank(ids) - 1, 1), tf.TensorShape(None)
        else:  # A vector is a single example.
            dims = min(rank - 1, 1)
            static = ids.shape[:dims]
        batch = tf.shape(ids, tf.int64)[:dims]
        examples = tf.reduce_prod(batch)
        size = tf.math.floordiv(tf.size(ids, tf.int64), tf.maximum(examples, 1))
        if self.combiner not in FUSED_COMBINERS and not self.mask_zero:
            # A function of the user may not support ragged rows, so it gets dense ones.
            rows = self._lookup(ids, training)
            rows = tf.reshape(rows, [examples, size, self.embedding_size])
            combined = self._cast(combiner_function(self.combiner)(rows, axis=1))
            shape = tf.concat([batch, tf.shape(combined, tf.int64)[1:]], axis=0)
            return tf.ensure_shape(
                tf.reshape(combined, shape), static.concatenate(combined.shape[1:])
            )
        splits = tf.range(examples + 1) * size
        flat = tf.reshape(ids, [-1])
        bags = Bags(flat, splits, None, batch, static)
        return self._combine(bags, training)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Returns the shape of the result for ids of this shape."""
        return (*tuple(input_shape)[: 0 if len(input_shape) == 1 else 1], self.embedding_size)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Returns None: the result does not have the dimensions of the mask."""
        return None


@keras.saving.register_keras_serializable(package="tfra")
class FieldWiseEmbedding(Embedding):
    """An embedding layer that combines the rows of each field of an example.

    Every id belongs to a field. The result has shape `(batch_size, nslots, embedding_size)`; a
    field without ids gives zeros.

    Example:
    >>> layer = tfra.dynamic_embedding.keras.layers.FieldWiseEmbedding(
    ...     2, nslots=3, slot_map_fn=lambda ids: ids % 3, initializer="ones"
    ... )
    >>> layer(tf.constant([[23, 12, 0]], dtype=tf.int64)).numpy().tolist()
    [[[2.0, 2.0], [0.0, 0.0], [1.0, 1.0]]]

    Args:
        embedding_size: Length of the rows.
        nslots: Number of fields. It must be convertible to int.
        slot_map_fn: A function that maps a tensor of ids to their fields, 0 to `nslots - 1`. Lookup
            tables and variables of TensorFlow that it uses, and those of layers such as
            `keras.layers.StringLookup`, are saved when the layer is exported.
        **kwargs: The other arguments of `Embedding`.
    """

    def __init__(
        self,
        embedding_size: int,
        nslots: int,
        slot_map_fn: Callable[[tf.Tensor], tf.Tensor] | None = None,
        key_dtype: Any = tf.int64,
        value_dtype: Any = tf.float32,
        combiner: Combiner = "sum",
        initializer: Any = None,
        devices: Any = None,
        name: str = "SlotDynamicEmbeddingLayer",
        with_unique: bool = True,
        **kwargs: Any,
    ) -> None:
        if not callable(slot_map_fn):
            raise ValueError(f"`slot_map_fn`: expected a function, received {slot_map_fn!r}")
        super().__init__(
            embedding_size,
            key_dtype,
            value_dtype,
            combiner,
            initializer,
            devices,
            name,
            with_unique,
            **kwargs,
        )
        self.nslots = arguments.convertible_integer(nslots, "nslots", 1, limits.MAX_INT64)
        self.slot_map_fn = slot_map_fn
        # A SavedModel holds only what is an attribute of an object in it.
        for number, table in enumerate(_resources_of(slot_map_fn)):
            setattr(self, f"slot_map_table_{number}", table)

    def call(self, ids: Any, training: bool | None = None) -> tf.Tensor:
        """Looks up the rows of ids and combines the rows of each field of each example."""
        ids = self._prepare(ids, training)
        if isinstance(ids, tf.SparseTensor):
            keys, examples = ids.values, ids.indices[:, 0]
            batch, static = ids.dense_shape[0], ids.shape[0]
        elif isinstance(ids, tf.RaggedTensor):
            ids = with_known_rank(ids)
            ids = ids.merge_dims(1, -1) if ids.shape.rank > 2 else ids
            keys, examples = ids.flat_values, tf.cast(ids.value_rowids(), tf.int64)
            batch, static = ids.nrows(tf.int64), ids.shape[0]
        else:
            batch, static = tf.shape(ids, tf.int64)[0], ids.shape[0]
            keys = tf.reshape(ids, [-1])
            size = tf.math.floordiv(tf.size(keys, tf.int64), tf.maximum(batch, 1))
            examples = tf.math.floordiv(tf.range(tf.size(keys, tf.int64)), tf.maximum(size, 1))
        fields = tf.cast(self.slot_map_fn(keys), tf.int64)
        below = tf.constant(self.nslots, tf.int64)
        said = f"{self.name}: slot_map_fn gave a"
        checks = [
            tf.debugging.assert_non_negative(fields, f"{said} negative field"),
            tf.debugging.assert_less(
                fields, below, f"{said} field that is not below nslots={self.nslots}"
            ),
        ]
        # In a graph of TF1 style, the checks run only if something depends on them.
        with tf.control_dependencies([check for check in checks if check is not None]):
            fields = tf.identity(fields)
        shape = tf.stack([batch, tf.constant(self.nslots, tf.int64)])
        bags = Bags.of_rows(keys, examples * self.nslots + fields, shape, [static, self.nslots])
        return self._combine(bags, training)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Returns the shape of the result for ids of this shape."""
        return (input_shape[0], self.nslots, self.embedding_size)

    def compute_output_spec(self, ids: Any, training: bool | None = None) -> Any:
        """Returns the shape and dtype of the result of a call."""
        check_input_dtype(ids.dtype, self.key_dtype)
        shape = self.compute_output_shape(tuple(ids.shape))
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Returns None: the result does not have the dimensions of the mask."""
        return None

    def get_config(self) -> dict[str, Any]:
        """Returns the config of the layer."""
        return {
            **super().get_config(),
            "nslots": self.nslots,
            "slot_map_fn": _config.serialize(self.slot_map_fn),
        }


def _resources_of(function: Callable[..., Any]) -> list[Any]:
    """Returns the tables and variables of TensorFlow that a function uses.

    They are those that it refers to, those of layers such as `keras.layers.StringLookup` that it
    refers to, and those of the object whose method it is.
    """
    function = getattr(function, "python_function", function)  # Of a tf.function.
    if isinstance(function, functools.partial):
        given = [function.func, *function.args, *function.keywords.values()]
        return [found for each in given for found in _resources_of(each)]
    holders = [function, getattr(function, "__self__", None)]
    if inspect.isfunction(function) or inspect.ismethod(function):
        names = inspect.getclosurevars(function)
        holders += [*names.nonlocals.values(), *names.globals.values()]
    found: list[Any] = []
    for holder in holders:
        # A module, a class or a function has attributes too, but does not hold them for a call.
        is_plain = inspect.ismodule(holder) or inspect.isclass(holder) or inspect.isroutine(holder)
        parts = [] if is_plain else getattr(holder, "__dict__", {}).values()
        found += [each for each in (holder, *parts) if isinstance(each, _RESOURCES)]
    return list({id(each): each for each in found}.values())


_RESOURCES = (tf.saved_model.experimental.TrackableResource, tf.Variable)
