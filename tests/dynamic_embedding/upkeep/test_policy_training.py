"""Policies and training: every optimizer step records its keys; policies that users write."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from upkeep_support import (
    DIM,
    KERAS_WARNS,
    THREE,
    KeepLongRows,
    OwnOptimizer,
    assert_best_stay,
    content_by_key,
    de,
    key_set,
    keys_for,
    layers,
    model_of,
    step,
    targets,
    usage_of,
    variable_step,
)

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

v1 = tf.compat.v1

STEPS = [[0, 1, 2, 2], [2, 3, 4, 2], [2, 5, 6, 0], [7, 7, 7, 7]]


def expected_usage() -> dict[int, tuple[int, int]]:
    usage: dict[int, tuple[int, int]] = {}
    for second, ids in enumerate(STEPS, 1):
        for key in set(ids):
            usage[key] = (second, usage.get(key, (0, 0))[1] + 1)
    return usage


class SetClock(keras.callbacks.Callback):
    """A second for each step of fit."""

    def __init__(self, variable: Any) -> None:
        super().__init__()
        self.variable = variable

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.variable.set_clock(batch + 1)


OPTIMIZERS = {
    "adam": keras.optimizers.Adam,
    "sgd": keras.optimizers.SGD,
    "own": OwnOptimizer,
    "wrapped": lambda: de.DynamicEmbeddingOptimizer(keras.optimizers.Adam()),
}


@pytest.mark.parametrize(
    ("kind", "optimizer", "devices"),
    [
        (layers.Embedding, "adam", None),
        (layers.Embedding, "own", THREE),
        (layers.Embedding, "wrapped", None),
        (layers.SquashedEmbedding, "sgd", THREE),
        (layers.SquashedEmbedding, "own", None),
    ],
)
def test_fit_keeps_the_status(kind: Any, optimizer: str, devices: list[str] | None) -> None:
    layer = kind(DIM, devices=devices, restrict_policy=de.FrequencyRestrictPolicy)
    model = model_of(layer, 4, OPTIMIZERS[optimizer]())
    clock = SetClock(layer.params)
    x = np.array(STEPS)
    model.fit(x, targets(4), batch_size=1, shuffle=False, verbose=0, callbacks=[clock])
    assert usage_of(layer.params) == expected_usage()
    model.evaluate(x, targets(4), verbose=0)
    model.predict(x + 100, verbose=0)
    assert usage_of(layer.params) == expected_usage()
    layer.params.restrict(1)
    if devices is None:
        assert key_set(layer.params) == {2}


@pytest.mark.parametrize("bp_v2", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_loop_of_ones_own_keeps_the_status(optimizer: str, bp_v2: bool) -> None:
    variable = de.get_variable(
        f"by hand {optimizer} {bp_v2}", dim=DIM, bp_v2=bp_v2,
        restrict_policy=de.TimestampRestrictPolicy,
    )  # fmt: skip
    trainer = OPTIMIZERS[optimizer]()
    for second, ids in enumerate(STEPS, 1):
        variable.set_clock(second)
        variable_step(variable, trainer, tf.constant(ids, tf.int64))
    assert usage_of(variable) == expected_usage()
    variable.restrict(4)
    assert key_set(variable) == {7, 2, 0} | (key_set(variable) & {5, 6})
    assert int(variable.size()) == 4


@pytest.mark.parametrize("bp_v2", [False, True])
def test_an_optimizer_of_tf1_keeps_the_status(
    bp_v2: bool, devices: list[str] | None, session: v1.Session
) -> None:
    variable = de.get_variable(
        "table", dim=DIM, devices=devices, restrict_policy=de.FrequencyRestrictPolicy, bp_v2=bp_v2
    )
    ids, now = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.int64, [])
    rows = de.embedding_lookup(variable, ids)
    optimizer = de.DynamicEmbeddingOptimizer(v1.train.AdamOptimizer(0.1))
    train = optimizer.minimize(tf.reduce_sum(rows * rows))
    clock, exported = variable.set_clock(now), variable.export()[0]
    every = tf.constant(sorted(expected_usage()), tf.int64)
    usage, restrict = variable.usage(every), variable.restrict(3)
    session.run(v1.global_variables_initializer())
    for second, batch in enumerate(STEPS, 1):
        session.run(clock, {now: second})
        session.run(train, {ids: batch})
    times, counts = (numbers.tolist() for numbers in session.run(usage))
    expected = expected_usage()
    assert list(zip(times, counts, strict=True)) == [expected[key] for key in sorted(expected)]
    session.run(restrict)
    assert {2} <= set(session.run(exported).tolist())
    assert len(session.run(exported)) == 3


@pytest.mark.parametrize("optimizer", ["adam", "own"])
def test_an_evicted_key_starts_anew(optimizer: str, devices: list[str] | None) -> None:
    options = {"devices": devices, "restrict_policy": de.TimestampRestrictPolicy}
    normal = keras.initializers.RandomNormal(seed=3)
    used, fresh = (layers.Embedding(DIM, initializer=normal, **options) for _ in range(2))
    first, second = OPTIMIZERS[optimizer](), OPTIMIZERS[optimizer]()
    ids = tf.constant([7, 8, 9], tf.int64)
    for now in range(3):
        used.params.set_clock(10 + now)
        step(used, first, ids, 1.0 + now)
    used.params.set_clock(20)
    used.params.restrict(0)
    assert int(used.params.size()) == 0
    np.testing.assert_array_equal(used.params.lookup(ids), fresh.params.lookup(ids))
    step(used, first, ids, 2.0)
    fresh.build()
    second.build(fresh.trainable_variables)
    second.iterations.assign(3)  # The bias correction of Adam depends on the step.
    step(fresh, second, ids, 2.0)
    for name in ("keys", "values", "slots"):
        mine, expected = content_by_key(used.params)[name], content_by_key(fresh.params)[name]
        np.testing.assert_array_equal(mine, expected)
    assert set(usage_of(used.params).values()) == {(20, 1)}


# --- Policies that users write.


class KeepMostTrained(de.RestrictPolicy):
    """Counts the steps of each key in a table of its own."""

    def __init__(self, var: Any) -> None:
        super().__init__(var)
        self.steps = tf.Variable(0)
        self.counts = de.Variable(
            key_dtype=var.key_dtype, value_dtype=tf.int64, dim=1, name=f"{var.name}_counts"
        )

    def apply_update(self, ids: Any) -> Any:
        self.steps.assign_add(1)
        ids = tf.unique(tf.reshape(ids, [-1]))[0]
        return self.counts.upsert(ids, self.counts.lookup(ids) + 1)

    def score(self, keys: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        return self.counts.lookup(keys)[:, 0]

    @property
    def status(self) -> Any:
        return self.counts


class KeepEven(de.RestrictPolicy):
    """A policy that implements all methods itself."""

    def apply_restriction(self, num_reserved: int, **kwargs: Any) -> Any:
        keys = self.var.export()[0]
        odd = tf.boolean_mask(keys, keys % 2 == 1)
        self.var.remove(odd)
        return tf.size(odd), num_reserved, kwargs


@pytest.mark.parametrize("types", [("int64", "float32"), ("string", "float16")])
@pytest.mark.parametrize("graph", [False, True])
def test_a_policy_by_norm(graph: bool, types: tuple[str, str], devices: list[str] | None) -> None:
    variable = de.Variable(
        tf.as_dtype(types[0]), tf.as_dtype(types[1]), DIM, devices, restrict_policy=KeepLongRows
    )
    keys = keys_for(variable, np.arange(40))
    norms = np.random.default_rng(1).permutation(40)
    rows = tf.constant(np.stack([norms, 0 * norms], axis=1), variable.value_dtype)
    variable.upsert(keys, rows)
    by_key = dict(zip(keys.numpy().tolist(), norms.tolist(), strict=True))
    restrict = tf.function(lambda: variable.restrict(9)) if graph else lambda: variable.restrict(9)
    left = int(restrict())
    assert_best_stay(variable, {key: (norm, 0) for key, norm in by_key.items()}, 9, "time")
    assert left == 40 - int(variable.size())


def test_a_policy_by_norm_in_a_session(session: v1.Session) -> None:
    variable = de.get_variable("table", dim=1, restrict_policy=KeepLongRows)
    fill = variable.upsert(tf.range(5, dtype=tf.int64), tf.constant([[3.0], [1], [-4], [2], [0]]))
    restrict, exported = variable.restrict(2), variable.export()[0]
    session.run(fill)
    assert session.run(restrict) == 3
    assert sorted(session.run(exported).tolist()) == [0, 2]


def test_a_policy_sees_all_parts_of_a_large_table() -> None:
    sizes: list[int] = []

    class KeepLargeKeys(de.RestrictPolicy):
        def score(self, keys: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
            sizes.append(len(keys))
            np.testing.assert_array_equal(tf.cast(keys, tf.float32), values[:, 0])
            return keys

    variable = de.Variable(dim=1, restrict_policy=KeepLargeKeys)
    keys = tf.random.experimental.stateless_shuffle(tf.range(150_000, dtype=tf.int64), [1, 2])
    variable.upsert(keys, tf.cast(keys[:, tf.newaxis], tf.float32))
    assert int(variable.restrict(1000)) == 149_000
    assert key_set(variable) == set(range(149_000, 150_000))
    assert sum(sizes) == 150_000
    assert max(sizes) < 100_000


def test_scores_must_be_as_many_as_keys() -> None:
    class OneForAll(de.RestrictPolicy):
        def score(self, keys: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
            return tf.constant([1.0])

    variable = de.Variable(dim=DIM, restrict_policy=OneForAll)
    variable.upsert([1, 2, 3], np.zeros((3, DIM), np.float32))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"OneForAll\.score"):
        variable.restrict(1)
    assert int(variable.size()) == 3


@pytest.mark.parametrize("optimizer", ["adam", "own"])
def test_every_step_calls_apply_update(optimizer: str, devices: list[str] | None) -> None:
    layer = layers.Embedding(DIM, devices=devices, restrict_policy=KeepMostTrained)
    model = model_of(layer, 4, OPTIMIZERS[optimizer]())
    model.fit(np.array(STEPS), targets(4), batch_size=1, shuffle=False, verbose=0)
    policy = layer.params.restrict_policy
    assert int(policy.steps) == len(STEPS)
    keys, counts = (tensor.numpy() for tensor in policy.status.export())
    found = dict(zip(keys.tolist(), counts[:, 0].tolist(), strict=True))
    assert found == {key: count for key, (_, count) in expected_usage().items()}
    model.predict(np.array(STEPS), verbose=0)
    assert int(policy.steps) == len(STEPS)
    if devices is None:
        layer.params.restrict(2)
        assert key_set(layer.params) == {0, 2}


def test_every_step_of_tf1_calls_apply_update(session: v1.Session) -> None:
    variable = de.get_variable("table", dim=DIM, restrict_policy=KeepMostTrained)
    ids = v1.placeholder(tf.int64, [None])
    optimizer = de.DynamicEmbeddingOptimizer(v1.train.GradientDescentOptimizer(0.1))
    train = optimizer.minimize(tf.reduce_sum(de.embedding_lookup(variable, ids)))
    counts = variable.restrict_policy.status.lookup(tf.range(8, dtype=tf.int64))
    session.run(v1.global_variables_initializer())
    for batch in STEPS:
        session.run(train, {ids: batch})
    expected = expected_usage()
    assert session.run(counts)[:, 0].tolist() == [expected[key][1] for key in range(8)]


def test_a_restriction_of_ones_own() -> None:
    variable = de.Variable(dim=DIM, restrict_policy=KeepEven)
    variable.upsert([1, 2, 3, 4], np.zeros((4, DIM), np.float32))
    left, keep, options = variable.restrict(5, trigger=1, anything="else")
    assert (int(left), keep, options) == (2, 5, {"trigger": 1, "anything": "else"})
    assert key_set(variable) == {2, 4}
