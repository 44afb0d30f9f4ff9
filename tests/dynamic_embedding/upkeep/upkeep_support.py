"""What the tests of upkeep share: variables, models, ways to train them, and formats of files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import tfra
from support import Array, make_keys

de = tfra.dynamic_embedding
layers = de.keras.layers
callbacks = de.keras.callbacks
MinCount = tfra.admission.MinCount
CountingBloomFilter = tfra.admission.CountingBloomFilter
Probability = tfra.admission.Probability

DIM = 2
THREE = ["/CPU:0"] * 3
DEVICES = {"one table": None, "three tables": THREE}
POLICIES = {"time": de.TimestampRestrictPolicy, "count": de.FrequencyRestrictPolicy}
# Keras itself asks TensorFlow's variables for arrays in a way that NumPy 2 warns of.
KERAS_WARNS = "ignore:__array__ implementation:DeprecationWarning"

Usage = tuple[int, int]  # The time of the last update, and the number of updates.


def keys_for(variable: Any, numbers: Any) -> tf.Tensor:
    """One key per number, of the type of the Variable's keys."""
    name = variable.key_dtype.name
    return tf.constant(make_keys("string" if name == "string" else "int64", numbers), name)


def key_set(variable: Any) -> set[Any]:
    """The keys of a Variable; fails if one is exported twice."""
    keys = variable.export()[0].numpy().tolist()
    assert len(set(keys)) == len(keys) == int(variable.size())
    return set(keys)


def content_by_key(variable: Any) -> dict[str, Any]:
    """All that is saved of a Variable, its rows in the order of their keys."""
    content = {name: tensor.numpy() for name, tensor in variable.content().items()}
    order = np.argsort(content["keys"])
    of_rows = ("keys", "values", "slots", "metadata", "scores")
    return {
        name: array[order] if name in of_rows and len(array) else array
        for name, array in content.items()
    }


def usage_of(variable: Any) -> dict[Any, Usage]:
    """When each key was last updated, and how often."""
    keys = variable.export()[0]
    times, counts = (numbers.numpy().tolist() for numbers in variable.usage(keys))
    return dict(zip(keys.numpy().tolist(), zip(times, counts, strict=True), strict=True))


def partition_of(variable: Any, keys: Iterable[Any]) -> list[int]:
    """The table that each key belongs to."""
    keys = list(keys)
    if not keys:
        return []
    tensor = tf.constant(keys, variable.key_dtype)
    return variable.partitioner(tensor, variable.shard_num).numpy().tolist()


def shares(keep: int, tables: int) -> list[int]:
    """The share of `keep` of each table, divided as evenly as possible."""
    return [keep // tables + (i < keep % tables) for i in range(tables)]


def assert_best_stay(variable: Any, before: dict[Any, Usage], keep: int, by: str) -> None:
    """Checks that each table kept its best keys; any of equally good keys may stay."""
    kept, order = key_set(variable), (0, 1) if by == "time" else (1, 0)

    def ranks(keys: Iterable[Any]) -> list[Usage]:
        return sorted((before[k][order[0]], before[k][order[1]]) for k in keys)

    tables = partition_of(variable, before)
    for table, share in enumerate(shares(keep, variable.shard_num)):
        here = {key for key, where in zip(before, tables, strict=True) if where == table}
        best = ranks(here)[max(0, len(here) - share) :]
        assert ranks(kept & here) == best
    assert kept <= set(before)


def step(layer: Any, optimizer: Any, ids: Any, weights: Any = 1.0) -> None:
    """One step of training of a layer, by the sum of its weighted output."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(ids, training=True) * weights)
    variables = layer.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def variable_step(variable: Any, optimizer: Any, ids: Any) -> None:
    """One step of training of a Variable, by the sum of the rows."""
    with tf.GradientTape() as tape:
        rows, trainable = de.embedding_lookup(variable, ids, return_trainable=True)
        loss = tf.reduce_sum(rows)
    optimizer.apply_gradients([(tape.gradient(loss, trainable), trainable)])


@keras.saving.register_keras_serializable("upkeep")
class OwnOptimizer(keras.optimizers.Optimizer):
    """An optimizer like one of a user: gradient descent with a slot that counts its steps."""

    def __init__(self, learning_rate: Any = 0.5, **options: Any) -> None:
        super().__init__(learning_rate=learning_rate, **options)

    def build(self, variables: list[Any]) -> None:
        if self.built:
            return
        super().build(variables)
        self.steps = [self.add_variable_from_reference(v, name="steps") for v in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        steps = self.steps[self._get_variable_index(variable)]
        self.assign_add(steps, keras.ops.ones_like(gradient))
        rate = keras.ops.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, keras.ops.multiply(gradient, rate))


@keras.saving.register_keras_serializable("upkeep")
class KeepLongRows(de.RestrictPolicy):
    """A policy of a user: the example of the documentation."""

    def score(self, keys: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        return tf.norm(tf.cast(values, tf.float32), axis=1)


def model_of(layer: Any, width: int = 1, optimizer: Any = None, ragged: bool = False) -> Any:
    """A compiled model of one layer of ours and a dense one."""
    dtype = layer.params.key_dtype.name
    inputs = keras.Input((None if ragged else width,), dtype=dtype, ragged=ragged)
    start = keras.initializers.GlorotUniform(seed=1)
    rows = layer(inputs)
    flat = rows if len(rows.shape) == 2 else keras.layers.Flatten()(rows)
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer=start)(flat))
    model.compile(optimizer or keras.optimizers.Adam(0.05), "mse")
    return model


def targets(count: int, seed: int = 0) -> Array:
    """Data to learn from."""
    return np.random.default_rng(seed).standard_normal((count, 1)).astype(np.float32)


FORMATS = ("keras", "weights", "checkpoint")


def save(model: Any, how: str, folder: Path) -> None:
    """Writes a model."""
    if how == "keras":
        model.save(folder / "model.keras")
    elif how == "weights":
        model.save_weights(folder / "model.weights.h5")
    else:
        tf.train.Checkpoint(model=model).write(str(folder / "checkpoint"))


def load(how: str, folder: Path, build: Any) -> Any:
    """Reads a model; `build` makes one, where the file does not hold it."""
    if how == "keras":
        return keras.models.load_model(folder / "model.keras")
    model = build()
    if how == "weights":
        model.optimizer.build(model.trainable_variables)
        model.load_weights(folder / "model.weights.h5")
    else:
        tf.train.Checkpoint(model=model).read(str(folder / "checkpoint"))
    return model
