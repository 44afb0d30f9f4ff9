"""Workers that update the same key at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from training_support import DIM, KERAS_WARNS, Array, de, embedding, rows_of

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

WORKERS, ROUNDS = 4, 10


def run_workers(work: Callable[[int], None], together: threading.Barrier | None = None) -> None:
    """Runs `work` in several threads at once, and raises what any of them raised first."""
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)
            if together is not None:
                together.abort()  # The others must not wait for the thread that failed.

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive(), "a worker hangs"
    if failures:
        raise failures[0]


def count_up(write: Callable[[Any, Array, Any, Any, Any], None], bp_v2: bool) -> float:
    """Lets each worker add one in each round, and returns the final row."""
    variable = de.Variable(dim=DIM, bp_v2=bp_v2)
    key = np.array([5])
    variable.upsert(key, np.zeros((1, DIM), np.float32))
    # All workers read before any writes, and all have written before any reads again.
    together = threading.Barrier(WORKERS, timeout=60)

    def work(number: int) -> None:
        for _ in range(ROUNDS):
            together.wait()
            old, exists = variable.lookup(key, return_exists=True)
            together.wait()
            write(variable, key, old, old + 1.0, exists)

    run_workers(work, together)
    row = variable.lookup(key).numpy()[0]
    assert (row == row[0]).all()
    return float(row[0])


def test_values_lose_updates() -> None:
    total = count_up(lambda v, key, old, new, exists: v.upsert(key, new), bp_v2=False)
    assert total == ROUNDS
    assert total < WORKERS * ROUNDS


def test_increments_lose_none() -> None:
    total = count_up(lambda v, key, old, new, exists: v.accum(key, old, new, exists), bp_v2=True)
    assert total == WORKERS * ROUNDS


class SlowSteps(keras.optimizers.Optimizer):
    """Gradient descent that takes its time between reading a row and writing it."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        step = ops.multiply(gradient, ops.cast(learning_rate, variable.dtype))
        changed = ops.subtract(variable, step)
        time.sleep(0.004)
        self.assign(variable, changed)


def train(layer: Any, optimizer: Any, ids: Array, weights: Array) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(ids, training=True) * weights)
    variables = layer.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


@pytest.mark.parametrize("devices", [None, ["/CPU:0", "/CPU:0"]], ids=["one table", "two tables"])
def test_layers_of_increments_lose_no_step(devices: list[str] | None) -> None:
    layer, optimizer = embedding(bp_v2=True, devices=devices), SlowSteps(0.25)
    ids, weights = np.array([3, 8, 3]), np.full((3, DIM), 0.5, np.float32)
    others = np.array([3, 8, 1, 2])
    initial = rows_of(layer, others)
    train(layer, optimizer, ids, weights)  # Inserts the key and builds the optimizer.

    def work(number: int) -> None:
        for _ in range(ROUNDS):
            train(layer, optimizer, ids, weights)

    run_workers(work)
    steps = 1 + WORKERS * ROUNDS
    moved = 0.25 * steps * np.array([[1.0], [0.5], [0.0], [0.0]])
    np.testing.assert_allclose(rows_of(layer, others), initial - moved, rtol=1e-5, atol=1e-5)
    assert int(layer.params.size()) == 2


@pytest.mark.parametrize("bp_v2", [False, True])
def test_workers_of_different_keys_do_not_meet(bp_v2: bool) -> None:
    layer, optimizer = embedding(bp_v2=bp_v2), SlowSteps(0.25)
    keys = np.arange(WORKERS)
    initial = rows_of(layer, keys)
    train(layer, optimizer, keys, np.zeros((WORKERS, DIM), np.float32))

    def work(number: int) -> None:
        weights = np.full((1, DIM), number + 1.0, np.float32)
        for _ in range(ROUNDS):
            train(layer, optimizer, keys[number : number + 1], weights)

    run_workers(work)
    expected = initial - 0.25 * ROUNDS * (keys[:, None] + 1.0)
    np.testing.assert_allclose(rows_of(layer, keys), expected, rtol=1e-5, atol=1e-5)


def test_steps_in_the_engine_lose_nothing() -> None:
    layer, optimizer = embedding(bp_v2=True), keras.optimizers.SGD(0.25)
    ids, weights = np.array([3]), np.ones((1, DIM), np.float32)
    initial = rows_of(layer, ids)
    train(layer, optimizer, ids, weights)

    def work(number: int) -> None:
        for _ in range(ROUNDS):
            train(layer, optimizer, ids, weights)

    run_workers(work)
    expected = initial - 0.25 * (1 + WORKERS * ROUNDS)
    np.testing.assert_allclose(rows_of(layer, ids), expected, rtol=1e-5, atol=1e-5)


def test_new_keys_of_several_workers_are_inserted_once() -> None:
    layer, optimizer = embedding(bp_v2=True), SlowSteps(0.25)
    train(layer, optimizer, np.array([0]), np.zeros((1, DIM), np.float32))
    keys = np.arange(1, 21)
    initial = rows_of(layer, keys)
    together = threading.Barrier(WORKERS, timeout=60)

    def work(number: int) -> None:
        for key in keys:
            together.wait()
            train(layer, optimizer, key[None], np.ones((1, DIM), np.float32))

    run_workers(work, together)
    assert int(layer.params.size()) == 21
    moved = initial - rows_of(layer, keys)
    # A worker that found the key missing while another inserted it may have come too late: an
    # increment needs a row to be added to. No row may be off by anything but whole steps.
    steps = moved / 0.25
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-4)
    assert steps.min() > 0.99
    assert steps.max() < WORKERS + 0.01
