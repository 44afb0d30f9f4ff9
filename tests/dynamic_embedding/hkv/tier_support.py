"""What the tests of tiered tables in TensorFlow share."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from hkv_support import de
from test_hkv_training import creator

SMALL = 4096  # Bytes: a few rows of each part of a table, whatever their size.
MANY = 80_000  # Several times the number of rows that are copied or restored at a time.


def variable_of(budget: int, devices: Any = None, capacity: int = 5000, **options: Any) -> Any:
    return de.Variable(
        dim=8,
        name="tiered",
        initializer=tf.keras.initializers.RandomNormal(seed=1),
        kv_creator=creator(capacity, max_hbm_for_values=budget, **options),
        devices=devices,
    )


def content_of(variable: Any) -> dict[int, bytes]:
    """All rows with their slots, by key."""
    content = variable.content()
    parts = (content[name].numpy() for name in ("keys", "values", "slots"))
    return {key: row.tobytes() + slot.tobytes() for key, row, slot in zip(*parts, strict=True)}


def step(variable: Any, optimizer: Any, ids: Any) -> None:
    with tf.GradientTape() as tape:
        found, trainable = de.embedding_lookup(variable, ids, return_trainable=True)
        loss = tf.reduce_sum(tf.square(found))
    optimizer.apply_gradients([(tape.gradient(loss, trainable), trainable)])


def fill(variable: Any, count: int) -> None:
    """In small batches: the rows of one call are in memory together."""
    for start in range(0, count, 1000):
        ids = np.arange(start, start + 1000)
        values = np.tile(ids[:, None], 8).astype(np.float32)
        variable.upsert(ids, values)


def model_of(budget: int, directory: Any = None) -> keras.Model:
    kv_creator = creator(5000, max_hbm_for_values=budget, tier_directory=directory)
    inputs = keras.Input((3,), dtype="int64")
    embedded = de.keras.layers.Embedding(
        2, name="ids", initializer=keras.initializers.RandomNormal(seed=1), kv_creator=kv_creator
    )(inputs)
    outputs = keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Flatten()(embedded))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adam(0.05), "mse")
    return model


def fit(model: keras.Model, **options: Any) -> Any:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 2000, (900, 3))
    return model.fit(
        ids, rng.standard_normal(900), batch_size=100, shuffle=False, verbose=0, **options
    )
