"""Initial rows that TensorFlow, Keras or code of the user computes, for missing keys only."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from tfra.dynamic_embedding._platform.keras import keras
from tfra.dynamic_embedding._platform.tf import tf

# A function from distinct keys (n) to their rows (n, dim).
RowsOf = Callable[[tf.Tensor], tf.Tensor]


def computed_rows(function: Callable[..., Any], dtype: tf.DType, dim: int, seed: int) -> RowsOf:
    """Returns a function that makes rows with an initializer that the engine does not have.

    A random initializer of Keras is called once for each key, with a seed made of `seed` and the
    key. Any other function is called once for all missing keys of a lookup. There is one exception,
    in a graph: a function of TensorFlow ops that needs a static shape makes one row at a time.

    Args:
        function: The initializer. It takes nothing, a shape, or a shape and a dtype.
        dtype: The value type.
        dim: The length of a row.
        seed: The seed of random initializers.
    """
    if not (isinstance(function, keras.initializers.Initializer) and hasattr(function, "seed")):
        call = _of_shape(function, dtype)
        return lambda keys: _called_for_all(call, keys, dtype, dim)

    def row(key_seed: tf.Tensor) -> tf.Tensor:
        seeded = copy.copy(function)
        seeded.seed = _KeySeed(key_seed)
        return _exactly(_of_shape(seeded, dtype)([1, dim]), dtype)

    return _rows_by_key(row, dtype, dim, seed)


def uniform_integers(low: float, high: float, dtype: tf.DType, dim: int, seed: int) -> RowsOf:
    """Returns a function that draws rows of integers in [low, high) from `seed` and the key."""

    def row(key_seed: tf.Tensor) -> tf.Tensor:
        drawn = tf.random.stateless_uniform([dim], key_seed, int(low), int(high), tf.int64)
        return tf.cast(drawn, dtype)

    return _rows_by_key(row, dtype, dim, seed)


# The kStringHashKey of the engine. The engine hashes string keys by SipHash-2-4 with this key, and
# to_hash_bucket_strong does the same. SipHash makes it hard to find strings with equal hashes.
STRING_HASH_KEY = (0x243F6A8885A308D3, 0x13198A2E03707344)


def _rows_by_key(
    row: Callable[[tf.Tensor], tf.Tensor], dtype: tf.DType, dim: int, seed: int
) -> RowsOf:
    """Returns a function that makes the row of each key from a seed that depends on the key."""

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def rows(keys: tf.Tensor) -> tf.Tensor:
        if keys.dtype == tf.string:
            numbers = tf.strings.to_hash_bucket_strong(keys, 2**63 - 1, STRING_HASH_KEY)
        else:
            numbers = tf.cast(keys, tf.int64)
        halves = np.array([seed], np.int64).view(np.int32)
        seeds = tf.bitwise.bitwise_xor(tf.bitcast(numbers, tf.int32), halves)
        return tf.map_fn(
            lambda key_seed: tf.reshape(row(key_seed), [dim]),
            seeds,
            fn_output_signature=tf.TensorSpec([dim], dtype),
        )

    return rows


class _KeySeed(keras.random.SeedGenerator):  # type: ignore[misc]
    """Replaces the seed of an initializer by the seed of one key, the same for each draw."""

    def __init__(self, seed: tf.Tensor) -> None:  # super().__init__ would make a state variable.
        self._of_key = seed

    def next(self, ordered: bool = True) -> tf.Tensor:
        return self._of_key


def _called_for_all(
    call: Callable[[Any], Any], keys: tf.Tensor, dtype: tf.DType, dim: int
) -> tf.Tensor:
    """Calls an initializer for as many rows as there are keys. It does not see the keys.

    In a graph that number is not known, and the initializer may need it. Then an initializer that
    computes outside TensorFlow is called when the graph runs, and one of TensorFlow ops makes one
    row at a time. To tell which it is, it is called once more, while the graph is built.
    """
    if tf.executing_eagerly():
        return _exactly(call([int(tf.size(keys)), dim]), dtype)
    try:
        return _exactly(call([tf.size(keys), dim]), dtype)
    except (TypeError, ValueError):
        # The function needs a static shape, but a graph does not know how many keys are missing.
        pass
    if not tf.is_tensor(call([1, dim])):
        # The function computes outside TensorFlow: without an op that calls it, it would run only
        # once, while the graph is built.
        def made(count: int) -> np.ndarray[Any, Any]:
            rows = np.asarray(call([int(count), dim]))
            cast = exact_cast(rows, dtype)
            if cast is None:
                raise TypeError(f"{_expected(dtype, rows.dtype)} {rows}")
            return cast

        return tf.numpy_function(made, [tf.size(keys)], dtype)
    return tf.map_fn(
        lambda _: _exactly(tf.reshape(call([1, dim]), [dim]), dtype),
        tf.range(tf.size(keys)),
        fn_output_signature=tf.TensorSpec([dim], dtype),
    )


def exact_cast(rows: np.ndarray[Any, Any], dtype: tf.DType) -> np.ndarray[Any, Any] | None:
    """Returns rows in the value type; None if a number changes. Only floats may be rounded."""
    if dtype.is_floating:
        return rows.astype(dtype.as_numpy_dtype)
    with np.errstate(invalid="ignore"):  # NumPy warns of what is refused here.
        cast = rows.astype(dtype.as_numpy_dtype)
    return cast if np.array_equal(cast, rows) else None


def _exactly(rows: Any, dtype: tf.DType) -> tf.Tensor:
    """Returns rows as a tensor of the value type. Only floats may be rounded."""
    rows = tf.convert_to_tensor(rows)
    cast = tf.cast(rows, dtype)
    if rows.dtype == dtype or dtype.is_floating:
        return cast
    same = tf.reduce_all(tf.equal(tf.cast(cast, rows.dtype), rows))
    with tf.control_dependencies([tf.debugging.Assert(same, [_expected(dtype, rows.dtype), rows])]):
        return tf.identity(cast)


def _expected(dtype: tf.DType, received: Any) -> str:
    return f"`initializer`: expected values of {dtype.name}, received {received.name}:"


def _of_shape(function: Callable[..., Any], dtype: tf.DType) -> Callable[[Any], Any]:
    """Returns an initializer as a function of a shape only."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # Functions that are not written in Python have no signature.
        return function
    if not parameters:
        return lambda shape: tf.broadcast_to(function(), shape)
    kinds = inspect.Parameter
    if any(p.name == "dtype" or p.kind is kinds.VAR_KEYWORD for p in parameters):
        return lambda shape: function(shape, dtype=dtype)
    positional = [
        p
        for p in parameters
        if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    return function if len(positional) < 2 else lambda shape: function(shape, dtype)
