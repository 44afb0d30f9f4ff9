"""The ways to save that docs/checkpoints.md recommends survive `kill -9` at any moment."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from layers_support import KERAS_WARNS, de

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

KEYS = 30_000
DIM = 16

# Saves again and again. All rows of one moment are the number of the save.
PROGRAM = f"""
import os, sys
import keras
import tensorflow as tf
import tfra

de = tfra.dynamic_embedding
kind, folder = sys.argv[1:]
keys = tf.range({KEYS}, dtype=tf.int64)
ids = keras.Input((1,), dtype="int64")
layer = de.keras.layers.Embedding({DIM}, name="items")
model = keras.Model(ids, layer(ids))
manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), folder, max_to_keep=2)

def save():
    if kind == "manager":
        manager.save()
    else:
        model.save(folder + "/new.keras")
        os.replace(folder + "/new.keras", folder + "/model.keras")

for number in range(1, 10**9):
    layer.params.upsert(keys, tf.fill([{KEYS}, {DIM}], float(number)))
    print(number, flush=True)
    save()
"""


def restored(kind: str, folder: Path) -> keras.Model:
    if kind == "renamed":
        return keras.models.load_model(folder / "model.keras", compile=False)
    ids = keras.Input((1,), dtype="int64")
    model = keras.Model(ids, de.keras.layers.Embedding(DIM, name="items")(ids))
    latest = tf.train.latest_checkpoint(str(folder))
    tf.train.Checkpoint(model=model).restore(latest).expect_partial()
    return model


@pytest.mark.parametrize("kind", ["manager", "renamed"])
def test_a_save_that_is_killed_loses_nothing_before(kind: str, tmp_path: Path) -> None:
    pause = random.Random(os.getpid())
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, kind, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            while int(process.stdout.readline()) < 4:
                pass
            time.sleep(pause.uniform(0, 0.1))
            process.send_signal(signal.SIGKILL)
            said: list[Any] = process.stdout.read().split()
        last = int(said[-1]) if said else 4  # Its save had begun, perhaps ended.
        rows = restored(kind, tmp_path).get_layer("items").params.lookup(range(KEYS)).numpy()
        assert np.unique(rows).tolist() in ([last - 1.0], [float(last)])
