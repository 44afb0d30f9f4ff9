"""Training with bounded tables: evicted keys, epochs, and how good models get."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hkv_support import Strategy, by_key, de

from own_optimizer import OwnOptimizer

layers = de.keras.layers

# Keras itself asks TensorFlow's variables for arrays in a way that NumPy 2 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


OPTIMIZERS = {
    "by the engine": lambda: keras.optimizers.Adam(0.1),
    "by Keras": lambda: OwnOptimizer(0.1),
}


def creator(max_capacity: int, strategy: Any = Strategy.LRU, **options: Any) -> Any:
    if strategy == Strategy.CUSTOMIZED:
        options.setdefault("gen_scores_fn", by_key)
    return de.HkvHashTableCreator(
        de.HkvHashTableConfig(
            init_capacity=0, max_capacity=max_capacity, evict_strategy=strategy, **options
        )
    )


def variable_of(kv_creator: Any, **options: Any) -> Any:
    return de.Variable(dim=2, initializer=1.0, kv_creator=kv_creator, **options)


def keys_of(variable: Any) -> set[int]:
    return set(variable.export()[0].numpy().tolist())


def train_step(variable: Any, optimizer: Any, key: int, between: Any = None) -> None:
    """A step on one key; `between` is called after the lookup and before the update."""
    with tf.GradientTape() as tape:
        rows, trainable = de.embedding_lookup(
            variable, tf.constant([key], tf.int64), return_trainable=True
        )
        loss = tf.reduce_sum(rows)
    gradients = tape.gradient(loss, [trainable])
    if between is not None:
        between()
    optimizer.apply_gradients(zip(gradients, [trainable], strict=True))


@pytest.mark.parametrize("bp_v2", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_key_evicted_before_its_update_comes_back_from_its_initial_value(
    kind: str, bp_v2: bool
) -> None:
    optimizer = OPTIMIZERS[kind]()
    variable = variable_of(creator(2), bp_v2=bp_v2)
    train_step(variable, optimizer, 1)
    once = variable.lookup([1]).numpy()
    variable.upsert([1], [[50.0, 50.0]])

    def evict() -> None:
        variable.upsert([2, 3], tf.zeros([2, 2]))
        assert keys_of(variable) == {2, 3}

    train_step(variable, optimizer, 1, evict)
    assert keys_of(variable) == {1, 3}
    again = variable.lookup([1]).numpy()
    # One step from the initial row, of about the size of the first, and not from 50.
    assert np.all(np.abs(again - 1.0) < 0.5)
    assert np.all(again != 1.0)
    assert np.all(once != 1.0)


@pytest.mark.parametrize("bp_v2", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_update_of_a_key_with_too_low_a_score_is_dropped(kind: str, bp_v2: bool) -> None:
    optimizer = OPTIMIZERS[kind]()
    variable = variable_of(creator(2, Strategy.CUSTOMIZED), bp_v2=bp_v2)
    train_step(variable, optimizer, 1)
    assert keys_of(variable) == {1}
    train_step(variable, optimizer, 1, lambda: variable.upsert([5, 6], tf.zeros([2, 2])))
    assert keys_of(variable) == {5, 6}
    assert variable.lookup([1]).numpy().tolist() == [[1.0, 1.0]]
    assert variable.lookup([5, 6]).numpy().tolist() == [[0.0, 0.0]] * 2


def test_slots_go_with_an_evicted_key() -> None:
    variable = variable_of(creator(1))
    optimizer = keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.1)
    train_step(variable, optimizer, 1)
    first = variable.lookup([1]).numpy()
    train_step(variable, optimizer, 1)
    train_step(variable, optimizer, 2)
    train_step(variable, optimizer, 1)  # Slots kept from before would make a smaller step.
    np.testing.assert_array_equal(variable.lookup([1]).numpy(), first)


def test_an_initializer_of_the_users_own_is_stored_by_the_lookup() -> None:
    variable = de.Variable(
        dim=2, initializer=lambda shape: tf.fill(shape, 7.0), kv_creator=creator(3)
    )
    optimizer = keras.optimizers.SGD(1.0)
    for key in range(5):
        train_step(variable, optimizer, key)
    assert keys_of(variable) == {2, 3, 4}
    assert variable.lookup([4]).numpy().tolist() == [[6.0, 6.0]]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizer_steps_make_epochs(kind: str) -> None:
    variable = variable_of(creator(10, Strategy.EPOCHLRU, step_per_epoch=4))
    optimizer = OPTIMIZERS[kind]()
    for step in range(10):
        assert int(variable.tables[0].epoch()) == step // 4
        train_step(variable, optimizer, step)
    keys, _, scores = variable.tables[0].export_with_scores()
    epochs = dict(zip(keys.numpy().tolist(), (scores.numpy() >> 32).tolist(), strict=True))
    assert epochs == {step: step // 4 for step in range(10)}


def test_optimizers_of_tensorflow_1() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = variable_of(creator(4, Strategy.CUSTOMIZED), name="v1_bounded")
        ids = tf.compat.v1.placeholder(tf.int64, [None])
        rows, trainable = de.embedding_lookup(variable, ids, return_trainable=True)
        optimizer = de.DynamicEmbeddingOptimizer(tf.compat.v1.train.AdamOptimizer(0.1))
        step = optimizer.minimize(tf.reduce_sum(rows), var_list=[trainable])
        session.run(tf.compat.v1.global_variables_initializer())
        for start in range(0, 20, 2):
            session.run(step, {ids: [start, start + 1]})
        assert set(session.run(variable.export()[0]).tolist()) == {16, 17, 18, 19}


# --- Models. Each id has its own preference; ids follow a Zipf distribution.

IDS, ROWS = 2000, 40_000


def data(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    tastes = np.random.default_rng(99).standard_normal(IDS) * 2
    weights = 1 / np.arange(1, IDS + 1)
    ids = rng.choice(IDS, ROWS, p=weights / weights.sum())
    likes = rng.random(ROWS) < 1 / (1 + np.exp(-tastes[ids]))
    return ids[:, None] * 7919, likes.astype(np.float32)


def trained(kv_creator: Any) -> tuple[keras.Model, float]:
    """A model after one epoch, and its AUC on other data."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((1,), dtype="int64")
    embedding = layers.Embedding(
        4, initializer=keras.initializers.RandomNormal(seed=3), kv_creator=kv_creator
    )
    outputs = keras.layers.Dense(1, activation="sigmoid")(keras.layers.Flatten()(embedding(inputs)))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["auc"])
    model.fit(*data(0), batch_size=256, epochs=1, shuffle=False, verbose=0)
    auc = model.evaluate(*data(1), batch_size=4096, verbose=0, return_dict=True)["auc"]
    return model, auc


@pytest.fixture(scope="module")
def unbounded() -> tuple[keras.Model, float]:
    return trained(None)


@pytest.mark.parametrize("strategy", [Strategy.LRU, Strategy.LFU, Strategy.EPOCHLFU])
def test_a_working_set_that_fits_trains_to_the_same_bits(strategy: Any, unbounded: Any) -> None:
    model, auc = trained(creator(IDS, strategy))
    assert auc == unbounded[1]
    ids = data(2)[0]
    expected = unbounded[0].predict(ids, batch_size=4096, verbose=0)
    np.testing.assert_array_equal(model.predict(ids, batch_size=4096, verbose=0), expected)


def test_a_working_set_that_does_not_fit_costs_little_at_first(unbounded: Any) -> None:
    full = unbounded[1]
    half, tenth, few = (
        trained(creator(int(IDS * part), Strategy.LFU)) for part in (0.5, 0.1, 0.01)
    )
    for (model, _), capacity in zip((half, tenth, few), (1000, 200, 20), strict=True):
        assert int(model.layers[1].params.size()) == capacity
    assert full > 0.75
    assert full >= half[1] >= tenth[1] >= few[1]
    assert half[1] > full - 0.02
    assert tenth[1] > full - 0.09
    assert few[1] > 0.6
