"""Trains tables under a MirroredStrategy of two logical CPUs, and compares them with dense rows."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from training_support import DenseRows, Inertia, embedding, heads, make_batches, network, rows_of

# Whether the dense rows are mirrored too: Keras clips the gradients of each replica for itself.
CASES: dict[str, tuple[Callable[[], Any], bool]] = {
    "Adam": (lambda: keras.optimizers.Adam(0.05), False),
    "own, clipped": (lambda: Inertia(0.05, clipvalue=0.02), True),
}


def fit(model: Any) -> None:
    x, y = (np.concatenate(parts) for parts in zip(*make_batches(4), strict=True))
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)


def run(
    strategy: tf.distribute.Strategy, make_optimizer: Callable[[], Any], mirrored: bool
) -> dict[str, Any]:
    with strategy.scope():
        layer = embedding()
        model = network(layer)
        model.compile(make_optimizer(), "mse")
    initial = rows_of(layer)
    fit(model)
    with strategy.scope() if mirrored else contextlib.nullcontext():
        dense_layer = DenseRows(initial)
        dense_model = network(dense_layer)
        dense_model.compile(make_optimizer(), "mse", run_eagerly=not mirrored)
    fit(dense_model)
    pairs = zip(heads(model), heads(dense_model), strict=True)
    return {
        "moved": float(np.abs(rows_of(layer) - initial).mean()),
        "size": int(layer.params.size()),
        "rows_off_by": float(np.abs(rows_of(layer) - rows_of(dense_layer)).max()),
        "heads_off_by": float(max(np.abs(a - b).max() for a, b in pairs)),
    }


def main() -> None:
    # Devices can be set up only before TensorFlow uses one.
    cpu, halves = tf.config.list_physical_devices("CPU")[0], tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(cpu, [halves] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    cases = {name: run(strategy, *case) for name, case in CASES.items()}
    print(json.dumps({"replicas": strategy.num_replicas_in_sync, "cases": cases}))


if __name__ == "__main__":
    main()
