"""The model, and the two kinds of tables that are compared.

The model makes a vector of the user's row and another of the film's row. The product of the two
vectors, a number for the user and a number for the film are added up: the sum says how likely the
user is to like the film.

The optimizer is Adagrad: a row without a gradient stays as it is, in `tfra`'s tables and in dense
ones alike. (Adam would go on moving all rows of a dense table.) So the models differ only in which
keys share a row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from numpy.typing import NDArray

import tfra

DIM = 16
ROW_BYTES = 2 * 4 * DIM  # Each float32 value has a sum of squares, the slot of Adagrad.
KINDS = ("user", "film")
LEARNING_RATE = 0.2  # The best of 0.1, 0.2 and 0.4 for both kinds of tables.


def dynamic_rows(kind: str, seed: int) -> keras.layers.Layer:
    """Returns a layer with a row for each key that training has seen."""
    return tfra.dynamic_embedding.keras.layers.Embedding(
        DIM, key_dtype=tf.string, initializer=_initial_rows(seed), name=f"{kind}_rows"
    )


class StaticRows(keras.layers.Embedding):  # type: ignore[misc]
    """A static table that gets one gradient for each row, as `tfra`'s tables do.

    The layer of Keras gets one gradient for each number of the batch. For a number that occurs
    twice, Adagrad would then add two squares instead of the square of the sum.
    """

    def call(self, numbers: Any) -> tf.Tensor:
        """Looks up rows by a vector of row numbers."""
        distinct, places = tf.unique(numbers)
        return tf.gather(super().call(distinct), places)


def hashed_rows(kind: str, seed: int, bins: int) -> keras.layers.Layer:
    """Returns a layer with `bins` rows; the hash of a key selects its row."""
    table = StaticRows(bins, DIM, embeddings_initializer=_initial_rows(seed))
    layers = [keras.Input((), dtype="string"), keras.layers.Hashing(bins, salt=seed), table]
    return keras.Sequential(layers, name=f"{kind}_rows")


def _initial_rows(seed: int) -> Any:
    return keras.initializers.RandomNormal(stddev=0.05, seed=seed)


def make_model(rows: Callable[[str, int], keras.layers.Layer], seed: int) -> keras.Model:
    """Returns the model, compiled.

    Args:
        rows: Makes the layer that looks up rows, given "user" or "film" and a seed.
        seed: An int that determines all initial values, and which keys share a row.

    Returns:
        A model that maps the keys of users and films to the probability that the user likes the
        film.
    """
    keys, biases, vectors = [], [], []
    for number, kind in enumerate(KINDS):
        key = keras.Input((), dtype="string", name=kind)
        row = rows(kind, 2 * seed + number)(key)
        start = keras.initializers.GlorotUniform(seed=2 * seed + number)
        keys.append(key)
        biases.append(row[:, :1])
        vectors.append(
            keras.layers.Dense(DIM, kernel_initializer=start, name=f"{kind}_vector")(row)
        )
    score = keras.layers.Dot(axes=1)(vectors) + biases[0] + biases[1]
    liked = keras.layers.Activation("sigmoid", name="liked")(ops.squeeze(score, 1))
    model = keras.Model(keys, liked)
    optimizer = keras.optimizers.Adagrad(LEARNING_RATE, initial_accumulator_value=1e-5)
    model.compile(optimizer, "binary_crossentropy")
    return model


def stored_keys(model: keras.Model, kind: str) -> list[bytes]:
    """Returns the keys that have a row in a model of `dynamic_rows`."""
    return model.get_layer(f"{kind}_rows").params.export()[0].numpy().tolist()


def rows_of_keys(model: keras.Model, kind: str, keys: Collection[str]) -> NDArray[np.int64]:
    """Returns the number of the row that each key has in a model of `hashed_rows`."""
    hashing, _ = model.get_layer(f"{kind}_rows").layers
    return np.asarray(hashing(tf.constant(list(keys))), dtype=np.int64)


def table_bytes(keys: Collection[str] | Collection[bytes]) -> int:
    """Returns the memory of a `tfra` table with these keys, as the engine counts it.

    This is the memory of the index, of the rows with their slots, and of the keys.
    """
    table = tfra.Table(DIM, key_dtype="string", optimizer="adagrad")
    table.upsert(list(keys), np.zeros((len(keys), DIM), np.float32))
    return table.memory_usage()["total"]
