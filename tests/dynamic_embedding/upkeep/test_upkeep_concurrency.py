"""Tables are restricted, expired and counted while other threads train them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from upkeep_support import DIM, KERAS_WARNS, THREE, MinCount, de, key_set, variable_step

import tfra

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

TRAINERS, STEPS, BATCH = 3, 40, 200


def run_together(*works: Callable[[], None]) -> None:
    """Runs each in a thread of its own, and raises what any of them raised first."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]


def assert_conserved(stats: tfra.TableStats) -> None:
    left = stats.removals + stats.evictions + stats.expirations
    assert stats.size == stats.inserts - left


@pytest.mark.parametrize("devices", [None, THREE], ids=["one table", "three tables"])
@pytest.mark.parametrize("admission", [None, MinCount(2)], ids=["all enter", "the second time"])
def test_upkeep_beside_training(devices: Any, admission: Any) -> None:
    variable = de.Variable(
        dim=DIM, devices=devices, initializer=1.0, admission=admission, ttl=5,
        restrict_policy=de.TimestampRestrictPolicy,
    )  # fmt: skip
    variable.set_clock(1)
    trainer = keras.optimizers.Adam(0.1)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def train(ids: tf.Tensor) -> None:
        variable_step(variable, trainer, ids)

    train(tf.constant([0], tf.int64))  # Traces the function before the threads start.
    training = threading.Semaphore(0)
    kept_up = []

    def work(number: int) -> Callable[[], None]:
        def steps() -> None:
            rng = np.random.default_rng(number)
            try:
                for step in range(STEPS):
                    train(tf.constant(rng.integers(0, 2000, BATCH) + 30 * step))
            finally:
                training.release()

        return steps

    def upkeep() -> None:
        done = 0
        while done < TRAINERS:
            variable.set_clock(2 + len(kept_up))
            gone = int(variable.restrict(300, trigger=400)) + int(variable.expire())
            variable.histograms()
            stats = variable.stats()
            kept_up.append((gone, stats))
            assert int(variable.size()) >= 0
            done += training.acquire(blocking=False)

    run_together(*(work(number) for number in range(TRAINERS)), upkeep)
    assert len(kept_up) >= 2
    stats = variable.stats()
    assert_conserved(stats)
    assert stats.size == len(key_set(variable))
    assert stats.evictions + stats.expirations == sum(gone for gone, _ in kept_up)
    assert stats.evictions > 0
    # Each step trained each of its ids once: into the table, or it was refused.
    trained = 1 + sum(
        len(set(ids.tolist()))
        for number in range(TRAINERS)
        for rng in [np.random.default_rng(number)]
        for ids in [rng.integers(0, 2000, BATCH) for _ in range(STEPS)]
    )
    assert stats.inserts + stats.updates + stats.refused == trained
    assert (stats.refused > 0) == (admission is not None)
    # Keys that were trained after the last restriction exist.
    variable.restrict(0)
    last = tf.range(5000, 5100, dtype=tf.int64)
    for _ in range(2):
        train(last)
    assert key_set(variable) == set(range(5000, 5100))
    assert_conserved(variable.stats())
    rows = variable.lookup(last).numpy()
    assert np.isfinite(rows).all()
    assert (rows < 1.0).all()


def test_keys_of_this_second_are_never_evicted() -> None:
    """Keys that other threads write during a restriction may stay in addition."""
    table = tfra.Table(1, metadata=True, optimizer="sgd", initializer="ones")
    table.clock = 1
    table.upsert(np.arange(20_000), np.zeros((20_000, 1), np.float32))
    table.clock = 2
    done = threading.Event()

    def write() -> None:
        try:
            for step in range(100):
                keys = np.arange(100_000 + 50 * step, 100_050 + 50 * step)
                table.apply_gradients(keys, np.ones((50, 1), np.float32), learning_rate=0.5)
                table.touch(keys[:10])
        finally:
            done.set()

    def restrict() -> None:
        keep = 19_000
        while not done.is_set():
            table.restrict(keep)
            keep = max(5000, keep - 500)

    run_together(write, restrict)
    table.restrict(5000)
    new = np.arange(100_000, 105_000)
    assert table.contains(new).all()
    assert table.lookup(new).ravel().tolist() == [0.5] * 5000
    assert len(table) == 5000
    assert_conserved(table.stats())
    assert table.usage(new)[:, 1].reshape(100, 50).tolist() == [[2] * 10 + [1] * 40] * 100
