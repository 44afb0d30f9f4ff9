"""The lookup functions, such as `embedding_lookup`: like those of `tf.nn`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tfra.dynamic_embedding._lookup.pooling import FUSED_COMBINERS, Bags
from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.tf import on_device_of, tf
from tfra.dynamic_embedding._training.shadow import TrainableWrapper
from tfra.dynamic_embedding._variable.shadows import only_one, shadow_of
from tfra.dynamic_embedding._variable.variable import Variable

Params = Variable | TrainableWrapper


def embedding_lookup(
    params: Params,
    ids: Any,
    partition_strategy: Any = None,
    name: str | None = None,
    validate_indices: Any = None,
    max_norm: float | None = None,
    return_trainable: bool = False,
) -> Any:
    """Looks up rows, like `tf.nn.embedding_lookup`. Gradients can be taken of them.

    Example:
    >>> de = tfra.dynamic_embedding
    >>> variable = de.Variable(dim=2, initializer=1.0)
    >>> with tf.GradientTape() as tape:
    ...     rows, trainable = de.embedding_lookup(variable, [[7], [8]], return_trainable=True)
    >>> rows.shape.as_list()
    [2, 1, 2]
    >>> tape.gradient(rows, trainable).indices.numpy().tolist()
    [7, 8]

    Args:
        params: A `Variable`, or its shadow.
        ids: Keys. Can be a tensor of any shape, or a `tf.RaggedTensor`.
        partition_strategy: Not used; `tf.nn.embedding_lookup` has it.
        name: Not used.
        validate_indices: Not used; `tf.nn.embedding_lookup` has it.
        max_norm: If not None, longer rows are clipped to this L2 norm.
        return_trainable: Whether to return the shadow too.

    Returns:
        A tensor of shape `ids.shape + [dim]`, ragged if `ids` are. With `return_trainable`, a pair
        of this tensor and the shadow, a `TrainableWrapper`: take gradients with respect to it, and
        pass it to optimizers.

    Raises:
        TypeError: If `ids` are not of the key type, or `params` is not a `Variable` or shadow.
    """
    params = only_one(params)
    if isinstance(ids, tf.RaggedTensor):
        return _of_ragged(embedding_lookup, params, ids, max_norm, return_trainable)
    if _has_no_gradient(params) and not return_trainable:
        return params.lookup(ids)
    rows, shadow = shadow_of(params).embedding_lookup(ids, max_norm=max_norm)
    return (rows, shadow) if return_trainable else rows


def embedding_lookup_unique(
    params: Params,
    ids: Any,
    partition_strategy: Any = None,
    name: str | None = None,
    validate_indices: Any = None,
    max_norm: float | None = None,
    return_trainable: bool = False,
) -> Any:
    """Like `embedding_lookup`, but looks up equal ids only once.

    Args:
        params: A `Variable`, or its shadow.
        ids: Keys. Can be a tensor of any shape.
        partition_strategy: Not used.
        name: Not used.
        validate_indices: Not used.
        max_norm: If not None, longer rows are clipped to this L2 norm.
        return_trainable: Whether to return the shadow too.

    Returns:
        A tensor of shape `ids.shape + [dim]`; see `embedding_lookup`.
    """
    params = only_one(params)
    if isinstance(ids, tf.RaggedTensor):
        return _of_ragged(embedding_lookup_unique, params, ids, max_norm, return_trainable)
    if not _has_no_gradient(params) or return_trainable:
        params = shadow_of(params)
    variable = params if isinstance(params, Variable) else params.params
    ids = arguments.keys_tensor(ids, variable.key_dtype)
    with on_device_of(ids):
        unique, numbers = tf.unique(tf.reshape(ids, [-1]))
        rows = embedding_lookup(params, unique, max_norm=max_norm)
        rows = tf.gather(rows, tf.reshape(numbers, tf.shape(ids)))
        rows = tf.ensure_shape(rows, ids.shape.concatenate([variable.dim]))
    return (rows, params) if return_trainable else rows


def _of_ragged(
    lookup: Callable[..., Any],
    params: Params,
    ids: tf.RaggedTensor,
    max_norm: float | None,
    return_trainable: bool,
) -> Any:
    """Looks up ragged ids; the result has the same row lengths."""
    found = lookup(params, ids.flat_values, max_norm=max_norm, return_trainable=return_trainable)
    if return_trainable:
        return ids.with_flat_values(found[0]), found[1]
    return ids.with_flat_values(found)


def embedding_lookup_sparse(
    params: Params,
    sp_ids: Any,
    sp_weights: Any,
    partition_strategy: Any = None,
    name: str | None = "embedding_lookup_sparse",
    combiner: str = "mean",
    max_norm: float | None = None,
    return_trainable: bool = False,
) -> Any:
    """Looks up sparse or ragged ids, and combines the embeddings of each row of ids.

    Like `tf.nn.embedding_lookup_sparse`. A row without ids gives zeros.

    Example:
    >>> variable = tfra.dynamic_embedding.Variable(dim=1, initializer=2.0)
    >>> ids = tf.ragged.constant([[1, 2, 3], [4]], dtype=tf.int64)
    >>> rows = tfra.dynamic_embedding.embedding_lookup_sparse(variable, ids, None, combiner="sum")
    >>> rows.numpy().tolist()
    [[6.0], [2.0]]

    Args:
        params: A `Variable`, or its shadow.
        sp_ids: A `tf.SparseTensor` in row-major order, whose rows are along its first dimension;
            or a `tf.RaggedTensor`, whose innermost rows are combined.
        sp_weights: None, or weights for the ids, in a tensor of the same kind and shape.
        partition_strategy: Not used.
        name: Not used.
        combiner: "sum"; "mean", the weighted sum divided by the total weight; or "sqrtn", the
            weighted sum divided by the square root of the sum of the squared weights.
        max_norm: If not None, longer rows are clipped to this L2 norm before they are combined.
        return_trainable: Whether to return the shadow too.

    Returns:
        A tensor of shape `[sp_ids.shape[0], dim]`, or `sp_ids.shape[:-1] + [dim]` if `sp_ids` is
        ragged; see `embedding_lookup`.

    Raises:
        TypeError: If `sp_ids` or `sp_weights` is of another kind.
        ValueError: If `combiner` is unknown.
    """
    _check_kinds(sp_ids, sp_weights)
    if isinstance(sp_ids, tf.SparseTensor) and sp_ids.shape.rank != 2:
        # Join all dimensions but the first into one.
        shape = sp_ids.dense_shape
        matrix = tf.stack([shape[0], tf.reduce_prod(shape[1:])])
        sp_ids = tf.sparse.reshape(sp_ids, matrix)
        if sp_weights is not None:
            sp_weights = tf.sparse.reshape(sp_weights, matrix)
    return _lookup_bags(params, sp_ids, sp_weights, combiner, max_norm, return_trainable)


def _lookup_bags(
    params: Params,
    sp_ids: Any,
    sp_weights: Any,
    combiner: str,
    max_norm: float | None,
    return_trainable: bool,
) -> Any:
    """Combines rows along the last dimension of ids of any rank."""
    if combiner not in FUSED_COMBINERS:
        raise ValueError(
            f"`combiner`: expected one of {', '.join(FUSED_COMBINERS)}, received {combiner!r}"
        )
    shadow = shadow_of(params)
    ragged = isinstance(sp_ids, tf.RaggedTensor)
    with on_device_of(sp_ids.flat_values if ragged else sp_ids.values):
        bags = _bags(sp_ids, sp_weights, shadow.params.key_dtype)
        rows = bags.lookup(shadow, combiner, max_norm=max_norm)
    return (rows, shadow) if return_trainable else rows


def safe_embedding_lookup_sparse(
    embedding_weights: Params,
    sparse_ids: Any,
    sparse_weights: Any = None,
    combiner: str = "mean",
    default_id: Any = None,
    name: str | None = "safe_embedding_lookup_sparse",
    partition_strategy: Any = None,
    max_norm: float | None = None,
    return_trainable: bool = False,
) -> Any:
    """Like `embedding_lookup_sparse`, but handles weights that are not positive, and empty rows.

    Ids whose weight is not positive are left out, unless the combiner is "sum". Any id is valid,
    also a negative one.

    Args:
        embedding_weights: A `Variable`, or its shadow.
        sparse_ids: A `tf.SparseTensor` or `tf.RaggedTensor` of any rank, in any order.
        sparse_weights: None, or weights for the ids, in a tensor of the same kind and shape.
        combiner: "sum", "mean" or "sqrtn"; see `embedding_lookup_sparse`.
        default_id: The id for rows without ids. If None, these rows give zeros.
        name: Not used.
        partition_strategy: Not used.
        max_norm: If not None, longer rows are clipped to this L2 norm before they are combined.
        return_trainable: Whether to return the shadow too.

    Returns:
        A tensor of shape `sparse_ids.shape[:-1] + [dim]`; see `embedding_lookup`.

    Raises:
        TypeError: If ids or weights are of another kind.
        ValueError: If `combiner` is unknown, or `embedding_weights` is None.
    """
    if embedding_weights is None:
        raise ValueError(f"`embedding_weights`: expected a Variable, received {embedding_weights}")
    _check_kinds(sparse_ids, sparse_weights)
    ids, weights = _in_order(sparse_ids), _in_order(sparse_weights)
    if weights is not None and combiner != "sum":
        positive = weights.values > 0
        ids = tf.sparse.retain(ids, positive)
        weights = tf.sparse.retain(weights, positive)
    if default_id is not None:
        ids, weights = _fill_empty_rows(ids, weights, default_id)
    return _lookup_bags(embedding_weights, ids, weights, combiner, max_norm, return_trainable)


def trainable_wrapper_filter(
    iterable_object_in: Iterable[Any],
    test_unaggregated_function: Callable[[Any], bool] | None = None,
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Separates the shadows of tables from other variables.

    Args:
        iterable_object_in: Variables.
        test_unaggregated_function: Returns whether a variable is a shadow (optional).

    Returns:
        A pair of tuples: the other variables, and the shadows.
    """
    is_table = test_unaggregated_function or (lambda item: isinstance(item, TrainableWrapper))
    others: list[Any] = []
    tables: list[Any] = []
    for item in iterable_object_in:
        (tables if is_table(item) else others).append(item)
    return tuple(others), tuple(tables)


def _has_no_gradient(params: Any) -> bool:
    return isinstance(params, Variable) and not params.value_dtype.is_floating


def _bags(ids: Any, weights: Any, dtype: tf.DType) -> Bags:
    _check_kinds(ids, weights)
    if isinstance(ids, tf.RaggedTensor):
        arguments.keys_tensor(ids.flat_values, dtype)
        return Bags.of_ragged(ids, weights)
    arguments.keys_tensor(ids.values, dtype)
    return Bags.of_sparse(ids, weights)


def _check_kinds(ids: Any, weights: Any) -> None:
    if not isinstance(ids, (tf.SparseTensor, tf.RaggedTensor)):
        raise TypeError(
            f"`sp_ids`: expected a SparseTensor or a RaggedTensor, received {type(ids).__name__}"
        )
    kind = tf.RaggedTensor if isinstance(ids, tf.RaggedTensor) else tf.SparseTensor
    if weights is not None and not isinstance(weights, kind):
        raise TypeError(
            f"`sp_weights`: expected None or a {kind.__name__}, as the ids are, received "
            f"{type(weights).__name__}"
        )
    if weights is not None:
        received, expected = _values_of(weights), _values_of(ids).shape
        arguments.check_shape(received, expected, "sp_weights.values", "the ids")


def _values_of(tensor: Any) -> tf.Tensor:
    return tensor.flat_values if isinstance(tensor, tf.RaggedTensor) else tensor.values


def _in_order(tensor: Any) -> Any:
    """Returns ragged and sparse tensors as sparse ones in row-major order."""
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.to_sparse()
    return None if tensor is None else tf.sparse.reorder(tensor)


def _fill_empty_rows(ids: tf.SparseTensor, weights: Any, default_id: Any) -> tuple[Any, Any]:
    """Adds the default id, with weight 1, to each row without ids.

    Ids may have any rank: a row is what the last dimension holds.
    """
    shape = ids.dense_shape
    matrix = tf.stack([tf.reduce_prod(shape[:-1]), shape[-1]])
    default = tf.cast(default_id, ids.dtype) if ids.dtype != tf.string else tf.constant(default_id)
    flat, empty = tf.sparse.fill_empty_rows(tf.sparse.reshape(ids, matrix), default)
    del empty
    # If the matrix had no columns, it has one now.
    columns = tf.maximum(flat.dense_shape[1:], 1)
    new_shape = tf.concat([shape[:-1], columns], axis=0)
    filled = tf.sparse.reshape(
        tf.SparseTensor(flat.indices, flat.values, tf.concat([matrix[:1], columns], axis=0)),
        new_shape,
    )
    if weights is not None:
        one = tf.ones([], weights.dtype)
        flat, _ = tf.sparse.fill_empty_rows(tf.sparse.reshape(weights, matrix), one)
        weights = tf.SparseTensor(filled.indices, flat.values, new_shape)
    return filled, weights
