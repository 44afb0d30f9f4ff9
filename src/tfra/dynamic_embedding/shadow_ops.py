"""Lookups through a `ShadowVariable`, the shadow of a Variable."""

from __future__ import annotations

from typing import Any

from tfra.dynamic_embedding._lookup import embedding_ops as _embedding_ops
from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._training.shadow_variable import ShadowVariable

__all__ = ["ShadowVariable", "embedding_lookup", "embedding_lookup_unique"]


def embedding_lookup(
    shadow: ShadowVariable,
    ids: Any,
    partition_strategy: Any = None,
    name: str | None = None,
    validate_indices: Any = None,
) -> tf.Tensor:
    """Looks up rows of the shadow's Variable, of which gradients can be taken.

    Args:
        shadow: A `ShadowVariable`.
        ids: Keys. Can be a tensor of any shape.
        partition_strategy: Not used.
        name: A name for the operation (optional).
        validate_indices: Not used.

    Returns:
        A tensor of shape `ids.shape + [dim]`.

    Raises:
        TypeError: If `ids` are not of the key type, or `shadow` is not a `ShadowVariable`.
    """
    _check(shadow)
    return _embedding_ops.embedding_lookup(shadow, ids, name=name)


def embedding_lookup_unique(
    shadow: ShadowVariable,
    ids: Any,
    embedding_size: int,
    with_unique: bool = True,
    name: str | None = None,
) -> tf.Tensor:
    """Looks up rows of the shadow's Variable, equal ids only once by default.

    Args:
        shadow: A `ShadowVariable`.
        ids: Keys. Can be a tensor of any shape.
        embedding_size: The length of a row.
        with_unique: Whether to look up equal ids only once.
        name: A name for the operation (optional).

    Returns:
        A tensor of shape `ids.shape + [embedding_size]`.

    Raises:
        TypeError: If `ids` are not of the key type, or `shadow` is not a `ShadowVariable`.
        ValueError: If `embedding_size` is not the length of a row.
    """
    _check(shadow)
    if embedding_size != shadow.params.dim:
        raise ValueError(
            f"`embedding_size`: expected {shadow.params.dim}, the length of a row, received "
            f"{embedding_size}"
        )
    if with_unique:
        return _embedding_ops.embedding_lookup_unique(shadow, ids, name=name)
    return _embedding_ops.embedding_lookup(shadow, ids, name=name)


def _check(shadow: Any) -> None:
    if not isinstance(shadow, ShadowVariable):
        raise TypeError(f"`shadow`: expected a ShadowVariable, received {shadow!r}")
