"""What the training tests share: a model over a table, and its twin over dense rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from keras import ops

import tfra

de = tfra.dynamic_embedding

Array = np.ndarray
Batch = tuple[Array, Array]

COUNT, DIM, FIELDS = 10, 4, 5
KEYS = np.arange(COUNT)
PROGRAMS = Path(__file__).parent / "programs"
# Keras itself asks TensorFlow's variables for arrays in a way that NumPy 2 warns of.
KERAS_WARNS = "ignore:__array__ implementation:DeprecationWarning"


def make_batches(steps: int, seed: int = 0, targets: float = 1.0) -> list[Batch]:
    """Batches that hold each id at least once and some of them several times."""
    rng = np.random.default_rng(seed)
    batches = []
    for _ in range(steps):
        ids = np.concatenate([KEYS, rng.integers(0, COUNT, COUNT)])
        x = rng.permutation(ids).reshape(-1, FIELDS)
        batches.append((x, (rng.standard_normal((len(x), 1)) * targets).astype(np.float32)))
    return batches


def distinct_batches(steps: int) -> list[Batch]:
    """Batches that hold each id once."""
    rng = np.random.default_rng(0)
    shape = (COUNT // FIELDS, FIELDS)
    targets = rng.standard_normal((steps, shape[0], 1)).astype(np.float32)
    return [(rng.permutation(KEYS).reshape(shape), y) for y in targets]


def some_batches(steps: int, seed: int = 0) -> list[Batch]:
    """Batches that hold two or three of the ids each."""
    rng = np.random.default_rng(seed)
    batches = []
    for _ in range(steps):
        x = rng.choice(rng.choice(COUNT, 3, replace=False), (4, FIELDS))
        batches.append((x, rng.standard_normal((4, 1)).astype(np.float32)))
    return batches


def initializer(seed: int = 7) -> keras.initializers.Initializer:
    """Rows that differ from key to key, and are large enough to be told from zeros."""
    return keras.initializers.RandomNormal(stddev=0.5, seed=seed)


def embedding(dim: int = DIM, seed: int = 7, **options: Any) -> Any:
    """A new layer."""
    return de.keras.layers.Embedding(dim, initializer=initializer(seed), **options)


class DenseRows(keras.layers.Layer):
    """An embedding of fixed size, with dense gradients: what the optimizers are defined for."""

    def __init__(self, rows: Array, **options: Any) -> None:
        super().__init__(**options)
        self.rows = rows
        self.embeddings = self.add_weight(
            shape=rows.shape, name="embeddings", dtype="float32", autocast=False
        )
        self.embeddings.assign(rows)

    def call(self, ids: Any) -> Any:
        found = tf.matmul(tf.one_hot(ids, len(self.rows)), self.embeddings.value)
        return ops.cast(found, self.compute_dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (*input_shape, self.rows.shape[1])


def rows_of(layer: Any, keys: Any = KEYS) -> Array:
    """The rows of some keys, of a layer of tfra or of Keras."""
    if hasattr(layer, "params"):
        return layer.params.lookup(np.asarray(keys)).numpy()
    return layer.embeddings.numpy()[np.asarray(keys)]


def head(seed: int = 1) -> keras.layers.Layer:
    """The dense end of a model, always in float32."""
    start = keras.initializers.GlorotUniform(seed=seed)
    return keras.layers.Dense(1, kernel_initializer=start, dtype="float32", name="head")


def network(layer: Any) -> keras.Model:
    """A functional model over one embedding."""
    ids = keras.Input((FIELDS,), dtype="int64")
    return keras.Model(ids, head()(keras.layers.Flatten()(layer(ids))))


def tape_step(model: Any, optimizer: Any, x: Any, y: Any) -> tf.Tensor:
    """One step of a training loop written by hand."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        scaled = optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


def loop(
    model: Any,
    optimizer: Any,
    batches: Iterable[Batch],
    before_step: Callable[[Any, int], None] = lambda optimizer, number: None,
) -> None:
    """Trains eagerly, without `fit`."""
    for number, (x, y) in enumerate(batches):
        before_step(optimizer, number)
        tape_step(model, optimizer, tf.constant(x), tf.constant(y))


def train_on_batches(
    model: Any,
    optimizer: Any,
    batches: Iterable[Batch],
    before_step: Callable[[Any, int], None] = lambda optimizer, number: None,
    **options: Any,
) -> None:
    """Trains with a compiled model."""
    model.compile(optimizer, "mse", **options)
    for number, (x, y) in enumerate(batches):
        before_step(model.optimizer, number)
        model.train_on_batch(x, y)


def dataset(batches: list[Batch]) -> tf.data.Dataset:
    """The batches as `fit` takes them, in this order."""
    x, y = (np.stack(parts) for parts in zip(*batches, strict=True))
    return tf.data.Dataset.from_tensor_slices((x, y))


class Twins:
    """A model over tables, and the same model over dense rows which start as the tables' do."""

    def __init__(
        self, build: Callable[..., Any] = network, layers: int = 1, **options: Any
    ) -> None:
        self.layers = [embedding(seed=7 + i, **options) for i in range(layers)]
        self.model = build(*self.layers)
        self.initial = [rows_of(layer) for layer in self.layers]
        self.dense_layers = [DenseRows(rows) for rows in self.initial]
        self.dense_model = build(*self.dense_layers)

    @property
    def layer(self) -> Any:
        return self.layers[0]

    @property
    def params(self) -> Any:
        return self.layers[0].params

    def train(
        self, make_optimizer: Callable[[], Any], batches: list[Batch], run: Any = loop, **how: Any
    ) -> Twins:
        """Trains both: the tables as `run` says, the dense rows eagerly."""
        run(self.model, make_optimizer(), batches, **how)
        before_step = {k: v for k, v in how.items() if k == "before_step"}
        loop(self.dense_model, make_optimizer(), batches, **before_step)
        return self

    def check(self, tolerance: float = 1e-5) -> None:
        """Checks that both have the same rows and dense weights, and that all of them changed."""
        for layer, dense, initial in zip(self.layers, self.dense_layers, self.initial, strict=True):
            rows, expected = rows_of(layer), rows_of(dense)
            assert np.abs(expected - initial).mean() > 10 * tolerance, "not trained"
            np.testing.assert_allclose(rows, expected, rtol=tolerance, atol=tolerance)
        for weights, expected in zip(heads(self.model), heads(self.dense_model), strict=True):
            np.testing.assert_allclose(weights, expected, rtol=tolerance, atol=tolerance)


def heads(model: Any) -> list[Array]:
    """The dense weights of a model."""
    return [v.numpy() for v in model.trainable_variables if "head" in v.path]


def as_dense(gradient: tf.IndexedSlices, keys: Array) -> Array:
    """The gradient of each key's row, from slices that may hold a key more than once."""
    assert isinstance(gradient, tf.IndexedSlices)
    total = dict.fromkeys(keys.tolist(), 0.0)
    for key, values in zip(gradient.indices.numpy().tolist(), gradient.values.numpy(), strict=True):
        total[key] = total[key] + values
    width = gradient.values.shape[-1]
    return np.stack([np.broadcast_to(total[key], [width]) for key in keys.tolist()])


class Inertia(keras.optimizers.Optimizer):
    """An optimizer like one of a user, with two slots, one of which does not start at zero."""

    def __init__(self, learning_rate: Any = 0.05, inertia: float = 0.9, **options: Any) -> None:
        super().__init__(learning_rate=learning_rate, **options)
        self.inertia = inertia

    def build(self, variables: list[Any]) -> None:
        if self.built:
            return
        super().build(variables)
        add, half = self.add_variable_from_reference, keras.initializers.Constant(0.5)
        self.speeds = [add(v, name="speed") for v in variables]
        self.totals = [add(v, name="total", initializer=half) for v in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        rate = ops.cast(learning_rate, variable.dtype)
        index = self._get_variable_index(variable)
        speed, total = self.speeds[index], self.totals[index]
        self.assign_add(total, ops.square(gradient))
        step = ops.divide(ops.multiply(gradient, rate), ops.sqrt(total))
        self.assign(speed, ops.subtract(ops.multiply(speed, self.inertia), step))
        self.assign_add(variable, speed)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "inertia": self.inertia}


class Careless(keras.optimizers.Optimizer):
    """An optimizer without `get_config`, with a setting that is not in its config."""

    def __init__(self, learning_rate: Any = 0.05, strength: float = 1.0, **options: Any) -> None:
        super().__init__(learning_rate=learning_rate, **options)
        self._strength = {"of the step": strength}

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        rate = ops.cast(learning_rate, variable.dtype) * self._strength["of the step"]
        self.assign_sub(variable, ops.multiply(gradient, rate))


class HalfAdam(keras.optimizers.Adam):
    """A subclass of Adam with its own update_step."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, ops.multiply(learning_rate, 0.5))


def run_program(name: str, *arguments: Any, timeout: float = 300) -> Any:
    """What `programs/<name>.py` printed last, read as JSON."""
    path = os.pathsep.join([str(PROGRAMS.parent), os.environ.get("PYTHONPATH", "")])
    settings = {"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, PROGRAMS / f"{name}.py", *map(str, arguments)],
        env={**os.environ, **settings},
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{name} {arguments} failed\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])
