"""`fit` that was interrupted goes on with `BackupAndRestore`, as if it had not been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from layers_support import DIM, KERAS_WARNS, content, layers

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

IDS = np.random.default_rng(0).integers(0, 40, (24, 3))
TARGETS = np.random.default_rng(1).standard_normal((24, 1)).astype(np.float32)
EPOCHS = 3


class Scored(keras.Model):
    """A model of a user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.items = layers.SquashedEmbedding(DIM, name="items")
        self.score = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        return self.score(self.items(ids))


class Stops(keras.callbacks.Callback):
    """Interrupts the second epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == (1, 1):
            raise KeyboardInterrupt


def new_model() -> keras.Model:
    model = Scored()
    model(IDS[:1])  # Keras restores only models that are built.
    # The first epoch ends before the first update: only sums of gradients are saved.
    model.compile(keras.optimizers.Adam(0.05, gradient_accumulation_steps=4), "mse")
    return model


def fit(model: keras.Model, *callbacks: Any) -> Any:
    options = {"batch_size": 8, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
    return model.fit(IDS, TARGETS, callbacks=list(callbacks), **options)


def test_fit_goes_on(tmp_path: Path) -> None:
    expected = new_model()
    fit(expected)
    with pytest.raises(KeyboardInterrupt):
        fit(new_model(), keras.callbacks.BackupAndRestore(tmp_path), Stops())
    model = new_model()
    assert fit(model, keras.callbacks.BackupAndRestore(tmp_path)).epoch == [1, 2]
    assert content(model.items) == content(expected.items)
    np.testing.assert_array_equal(model.predict_on_batch(IDS), expected.predict_on_batch(IDS))
    assert int(model.optimizer.iterations) == int(expected.optimizer.iterations)
