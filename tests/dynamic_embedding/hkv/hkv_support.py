"""What the tests of HkvHashTable share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tfra

de = tfra.dynamic_embedding
Strategy = de.HkvEvictStrategy

# Every key type, every value type, scalars and rows.
TYPES = [
    ("int64", "float32", 3), ("int32", "float16", 1), ("string", "bfloat16", 2),
    ("int64", "float64", None), ("string", "int8", 3), ("int32", "int32", None),
    ("int64", "int64", 2), ("string", "bool", None), ("int64", "string", 2),
    ("string", "string", None),
]  # fmt: skip


class Mode:
    """Runs ops eagerly, in a tf.function, or in a session of TensorFlow 1."""

    def __init__(self, name: str, session: Any = None) -> None:
        self.name, self._session = name, session

    def run(self, call: Callable[[], Any]) -> Any:
        """Returns the results of the call as arrays; None for operations."""
        if self._session is not None:
            return self._session.run(call())
        done = call() if self.name == "eager" else tf.function(lambda: _tensors(call()))()
        return None if done is None else tf.nest.map_structure(lambda x: x.numpy(), done)


def _tensors(done: Any) -> Any:
    return None if done is None or isinstance(done, tf.Operation) else done


def table_of(
    strategy: Any = Strategy.LRU, max_capacity: int = 4, dim: int | None = 1, **options: Any
) -> Any:
    """A small table of int64 keys and float32 values, unless the options say otherwise."""
    settings = {"key_dtype": tf.int64, "value_dtype": tf.float32, "init_capacity": 0, **options}
    if strategy == Strategy.CUSTOMIZED:
        settings.setdefault("gen_scores_fn", by_key)
    default = 0.0 if dim is None else [0.0] * dim
    settings.setdefault("default_value", default)
    return de.HkvHashTable(max_capacity=max_capacity, evict_strategy=strategy, **settings)


def by_key(keys: tf.Tensor) -> tf.Tensor:
    """Scores that are the keys themselves."""
    return tf.cast(keys, tf.int64)


def typed_table(key_dtype: str, value_dtype: str, dim: int | None, **options: Any) -> Any:
    """A bounded table of these types."""
    default: Any = "" if value_dtype == "string" else 0
    return table_of(
        key_dtype=tf.as_dtype(key_dtype),
        value_dtype=tf.as_dtype(value_dtype),
        default_value=default if dim is None else [default] * dim,
        **options,
    )


def rows(value_dtype: str, count: int, dim: int | None, seed: int = 0) -> Any:
    """Different rows, as a constant of the type."""
    shape = (count,) if dim is None else (count, dim)
    numbers = np.random.default_rng(seed).integers(-9, 9, shape)
    if value_dtype == "string":
        return np.char.mod("%d", numbers).astype(object)
    return numbers.astype(tf.as_dtype(value_dtype).as_numpy_dtype)


def keys(key_dtype: str, numbers: Any) -> Any:
    """A key for each number."""
    if key_dtype == "string":
        return np.char.mod("k%d", np.asarray(numbers)).astype(object)
    return np.asarray(numbers, key_dtype)


def key_set(array: Any) -> set[Any]:
    """Keys that can be compared, strings as str."""
    return {key.decode() if isinstance(key, bytes) else key for key in array.tolist()}


def scores_of(table: Any, mode: Mode | None = None) -> dict[Any, int]:
    """The score of each key."""
    run = (mode or Mode("eager")).run
    found, _, scores = run(table.export_with_scores)
    return dict(zip(found.tolist(), scores.tolist(), strict=True))
