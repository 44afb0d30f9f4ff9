"""Models that one process trains and saves, and another one loads and trains on."""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from layers_support import DIM, content, layers

from own_optimizer import OwnOptimizer

FOLDER = Path(__file__).parent
BATCH, STEPS, WIDTH = 4, 3, 3
PARTS = (0, 1)
ODD_STRINGS = [b"", b"\0", b"\0\0", b"a", b"a\0", b"a\0b", b"\xff\xfe", b"x" * 300]


@dataclass(frozen=True)
class Variant:
    """The settings of a model."""

    key_dtype: str = "int64"
    value_dtype: str = "float32"
    devices: tuple[str, ...] | None = None
    optimizer: Any = keras.optimizers.Adam
    named: bool = True
    accumulated: int = 1  # Batches for each update; STEPS need not be a multiple.

    def ids(self, *parts: int) -> tf.Tensor:
        """Ids of the steps of each part; the second part has some of the first, and new ones."""
        shape = (BATCH * STEPS, WIDTH)
        numbers = [np.random.default_rng(i).integers(8 * i, 8 * i + 16, shape) for i in parts]
        if self.key_dtype != "string":
            return tf.constant(np.concatenate(numbers), self.key_dtype)
        names = ODD_STRINGS + [b"%d" % number for number in range(100)]
        return tf.gather(tf.constant(names), np.concatenate(numbers))

    def model(self) -> keras.Model:
        """A compiled model of two layers with tables."""
        options = {"value_dtype": tf.as_dtype(self.value_dtype)}
        options |= {"key_dtype": tf.as_dtype(self.key_dtype), "devices": self.devices}
        users, items = dict(options), dict(options)
        if self.named:
            normal = keras.initializers.RandomNormal
            users |= {"name": "users", "initializer": normal(seed=3)}
            items |= {"name": "items", "initializer": normal(seed=4)}
        inputs = keras.Input((WIDTH,), dtype=self.key_dtype)
        flat = keras.layers.Flatten()(layers.Embedding(DIM, **users)(inputs))
        squashed = layers.SquashedEmbedding(DIM, combiner="mean", **items)(inputs)
        together = keras.layers.Concatenate()([flat, squashed])
        dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
        model = keras.Model(inputs, dense(together))
        steps = self.accumulated if self.accumulated > 1 else None
        model.compile(self.optimizer(0.05, gradient_accumulation_steps=steps), "mse")
        return model

    def train(self, model: keras.Model, part: int, callbacks: Any = None) -> None:
        """All steps of a part, in order."""
        targets = np.random.default_rng(100 + part).standard_normal((BATCH * STEPS, 1))
        options = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "callbacks": callbacks}
        model.fit(self.ids(part), targets.astype(np.float32), **options)

    def predict(self, model: keras.Model) -> np.ndarray:
        """Predictions for the ids of both parts, of which some may not be in the tables."""
        return model.predict(self.ids(*PARTS), verbose=0)


VARIANTS = {
    "adam": Variant(),
    # Clipped by the norm of all rows of a step, including accumulated ones.
    "accumulating": Variant(
        optimizer=functools.partial(keras.optimizers.Adam, global_clipnorm=0.01),
        devices=("/CPU:0",) * 2,
        accumulated=2,
    ),
    "accumulating strings": Variant("string", "float16", optimizer=OwnOptimizer, accumulated=2),
    "own optimizer": Variant(optimizer=OwnOptimizer, devices=("/CPU:0",) * 3),
    "strings of float16": Variant("string", "float16", devices=("/CPU:0",) * 2),
    "unnamed": Variant(named=False),
}
# What each variant is saved to, to be trained on.
FORMATS = {
    "adam": ["keras", "weights", "checkpoint", "epoch keras", "epoch weights"],
    "accumulating": ["keras", "weights", "checkpoint", "epoch keras", "epoch weights"],
    "accumulating strings": ["keras", "weights", "checkpoint"],
    "own optimizer": ["keras", "checkpoint"],
    "strings of float16": ["keras", "weights", "checkpoint"],
    "unnamed": ["keras"],
}
CASES = [(variant, name) for variant, names in FORMATS.items() for name in names]
SERVED = [
    ("adam", "export"),
    ("adam", "saved model"),
    ("accumulating", "export"),
    ("accumulating", "saved model"),
    ("strings of float16", "export"),
]
FILES = {
    "keras": "whole.keras",
    "weights": "only.weights.h5",
    "checkpoint": "checkpoint",
    "epoch keras": "epoch.keras",
    "epoch weights": "epoch.weights.h5",
    "export": "export",
    "saved model": "saved_model",
}


def path_of(folder: Path, variant: str, name: str) -> str:
    """The path of a variant in a format."""
    return str(folder / variant.replace(" ", "_") / FILES[name])


def tables_of(model: keras.Model) -> list[Any]:
    """What is in each table of a model, in the order of the layers."""
    return [content(layer) for layer in model.layers if isinstance(layer, layers.BasicEmbedding)]


def state_of(model: keras.Model) -> dict[str, Any]:
    """The bits of everything that training changes."""
    return {
        "tables": tables_of(model),
        "dense": [weight.tobytes() for weight in model.layers[-1].get_weights()],
        "batches": int(model.optimizer.variables[0]),  # The optimizer's own count of all batches.
    }


def save(model: keras.Model, name: str, path: str) -> None:
    """Writes a model in a format."""
    if name == "keras":
        model.save(path)
    elif name == "weights":
        model.save_weights(path)
    elif name == "checkpoint":
        tf.train.Checkpoint(model=model).write(path)
    elif name == "export":
        model.export(path, verbose=False)
    elif name == "saved model":
        tf.saved_model.save(model, path)


def load(variant: Variant, name: str, path: str) -> tuple[keras.Model, Any]:
    """A model that was saved, and something to call at the end."""
    if name.endswith("keras"):
        return keras.models.load_model(path), lambda: None
    model = variant.model()
    if name == "checkpoint":
        return model, tf.train.Checkpoint(model=model).read(path).assert_consumed
    model.optimizer.build(model.trainable_variables)
    model.load_weights(path)
    return model, lambda: None


def run_program(name: str, folder: Path) -> Any:
    """What `programs/<name>.py` wrote to `folder`; fails with all it said if it failed."""
    paths = os.pathsep.join([str(FOLDER), str(FOLDER.parent)])
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, FOLDER / "programs" / f"{name}.py", folder],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{name} failed\n{done.stdout}\n{done.stderr}"
    return pickle.loads((folder / "results").read_bytes())
