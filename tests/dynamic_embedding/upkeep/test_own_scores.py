"""Policies that users write: any number is a score, and removed keys count as evictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from upkeep_support import DIM, de, key_set

KEYS = np.arange(200)


class KeepByTable(de.RestrictPolicy):
    """A policy with a given score for each of `KEYS`."""

    scores: Any = None

    def score(self, keys: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        return tf.gather(self.scores, keys)


def restricted(scores: Any, keep: int, devices: list[str] | None = None) -> Any:
    """A Variable that kept the best of `KEYS`."""
    variable = de.Variable(dim=DIM, devices=devices, restrict_policy=KeepByTable)
    variable.restrict_policy.scores = scores
    variable.upsert(KEYS[: len(scores)], tf.ones([len(scores), DIM]))
    assert int(variable.restrict(keep)) == len(scores) - keep
    return variable


@pytest.mark.parametrize(
    ("dtype", "first"),
    [
        ("int64", 2**60),
        ("int64", -(2**63)),
        ("uint64", 2**63 - 100),
        ("uint64", 2**64 - 200),
        ("int32", -100),
        ("uint8", 0),
        ("float32", 1e6),
        ("bfloat16", -100),
        ("float64", 1e15),
    ],
)
def test_scores_are_compared_as_they_are(dtype: str, first: Any) -> None:
    """Numbers next to each other, also beyond what a float64 tells apart."""
    order = np.random.default_rng(1).permutation(len(KEYS))
    exact = [int(first) + int(i) for i in order]
    scores = tf.cast(tf.constant(exact, dtype if "int" in dtype else "float64"), dtype)
    assert key_set(restricted(scores, 50)) == set(np.flatnonzero(order >= 150).tolist())


def test_boolean_scores() -> None:
    assert key_set(restricted(tf.constant(KEYS % 4 == 1), 50)) == set(range(1, 200, 4))


@pytest.mark.parametrize("seed", range(5))
def test_nan_is_lower_than_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.permutation(len(KEYS)) - 100.0
    scores[rng.random(len(KEYS)) < 0.3] = np.nan
    best = np.argsort(np.where(np.isnan(scores), -np.inf, scores))[-40:]
    assert key_set(restricted(tf.constant(scores), 40)) == set(best.tolist())


def test_infinite_scores() -> None:
    scores = tf.constant([np.inf, 1.0, -np.inf, 5.0, np.nan, np.inf])
    assert key_set(restricted(scores, 3)) == {0, 3, 5}


def test_counters(devices: list[str] | None) -> None:
    """`restrict` counts the same with a policy of a user and of the engine."""
    variable = restricted(tf.constant(KEYS), 40, devices)
    stats = variable.stats()
    assert (stats.evictions, stats.removals) == (160, 0)
    assert stats.restrict_runs == variable.shard_num
    assert stats.size == stats.inserts - stats.evictions == 40
    variable.remove(variable.export()[0])
    stats = variable.stats()
    assert (stats.evictions, stats.removals, stats.size) == (160, 40, 0)


def test_counters_in_a_function() -> None:
    variable = de.Variable(dim=DIM, restrict_policy=KeepByTable)
    variable.restrict_policy.scores = tf.constant(KEYS)
    variable.upsert(KEYS, tf.ones([len(KEYS), DIM]))
    assert int(tf.function(lambda: variable.restrict(150))()) == 50
    assert (variable.stats().evictions, variable.stats().restrict_runs) == (50, 1)
