"""Gradients that wait for the end of `gradient_accumulation_steps` are saved with the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import saving_support as saving
import tensorflow as tf
from layers_support import DIM, KERAS_WARNS, de, layers

from tfra.dynamic_embedding._training.gradient_sums import GradientSums

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

STEPS = 7
RNG = np.random.default_rng(5)
# Some ids are in one batch only, so that their gradients come from the sums alone.
BATCHES = [
    (RNG.integers(4 * i, 4 * i + 8, (4, saving.WIDTH)), RNG.standard_normal((4, 1)))
    for i in range(STEPS)
]
KINDS = ("keras", "weights", "checkpoint")


def train(model: keras.Model, batches: Any) -> None:
    for ids, targets in batches:
        model.train_on_batch(ids, targets.astype(np.float32))


def variant(**options: Any) -> saving.Variant:
    return saving.Variant(**{"accumulated": 3, **options})


def waiting(model: keras.Model) -> list[dict[int, list[float]]]:
    """The sums of each table: key -> what is saved for it."""
    found = []
    for layer in model.layers:
        if isinstance(layer, layers.BasicEmbedding):
            content = layer.params.content()
            keys, sums = content["sum_keys"].numpy().tolist(), content["sums"].numpy().tolist()
            found.append(dict(zip(keys, sums, strict=True)))
    return found


@pytest.fixture(scope="module")
def states() -> list[dict[str, Any]]:
    """The state of a model that is never stopped, after each number of steps."""
    model = variant().model()
    found = [saving.state_of(model)]
    for batch in BATCHES:
        train(model, [batch])
        found.append(saving.state_of(model))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", range(1, STEPS))
def test_training_can_stop_after_any_step(
    states: list[dict[str, Any]], tmp_path: Path, kind: str, stop: int
) -> None:
    model = variant().model()
    train(model, BATCHES[:stop])
    path = str(tmp_path / saving.FILES[kind])
    saving.save(model, kind, path)
    expected = waiting(model)
    assert all(bool(sums) == (stop % 3 > 0) for sums in expected)
    loaded, at_the_end = saving.load(variant(), kind, path)
    assert waiting(loaded) == expected
    train(loaded, BATCHES[stop:])
    at_the_end()
    assert saving.state_of(loaded) == states[-1]
    assert waiting(model) == expected, "the other model's sums changed"


def test_what_is_restored_replaces_what_waited(tmp_path: Path) -> None:
    path = str(tmp_path / "model.weights.h5")
    model = variant().model()
    train(model, BATCHES[:1])
    model.save_weights(path)
    expected = waiting(model)
    train(model, BATCHES[1:2])
    assert waiting(model) != expected
    model.load_weights(path)
    assert waiting(model) == expected
    train(model, BATCHES[1:])
    never_stopped = variant().model()
    train(never_stopped, BATCHES)
    assert saving.state_of(model) == saving.state_of(never_stopped)


def test_weights_in_memory_take_sums_along() -> None:
    model = variant().model()
    train(model, BATCHES[:1])
    kept, expected = model.get_weights(), waiting(model)
    train(model, BATCHES[1:3])
    assert waiting(model) == [{}, {}]
    model.set_weights(kept)
    assert waiting(model) == expected


def test_a_new_optimizer_forgets_what_was_loaded(tmp_path: Path) -> None:
    model = variant().model()
    train(model, BATCHES[:4])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert waiting(loaded) == waiting(model) != [{}, {}]
    loaded.compile(keras.optimizers.SGD(0.5, gradient_accumulation_steps=2), "mse")
    train(loaded, BATCHES[5:6])
    ids = set(BATCHES[5][0].ravel().tolist())
    assert [set(sums) for sums in waiting(loaded)] == [ids, ids]


def test_files_of_before_have_no_sums(tmp_path: Path) -> None:
    path = str(tmp_path / "model.weights.h5")
    model = variant().model()
    train(model, BATCHES[:4])
    model.save_weights(path)
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        sums = [name for name in names if name.endswith(("/sums", "/sum_keys"))]
        assert len(sums) == 4
        for name in sums:
            del file[name]
    model.load_weights(path)
    assert waiting(model) == [{}, {}]
    assert saving.tables_of(model)[0]


def test_checkpoints_of_a_variable_have_its_sums(tmp_path: Path) -> None:
    def make() -> tuple[Any, Any]:
        variable = de.Variable(dim=DIM, name="sums", initializer=1.0)
        return variable, keras.optimizers.Adam(0.5, gradient_accumulation_steps=2)

    def step(variable: Any, optimizer: Any, key: int) -> None:
        with tf.GradientTape() as tape:
            ids = tf.constant([key], tf.int64)
            rows, shadow = de.embedding_lookup(variable, ids, return_trainable=True)
            loss = tf.reduce_sum(rows)
        optimizer.apply([tape.gradient(loss, shadow)], [shadow])

    variable, optimizer = make()
    step(variable, optimizer, 1)
    tf.train.Checkpoint(v=variable, o=optimizer).write(str(tmp_path / "half"))
    again, other = make()
    tf.train.Checkpoint(v=again, o=other).read(str(tmp_path / "half"))
    for pair in ((variable, optimizer), (again, other)):
        step(*pair, 2)
    expected = variable.lookup([1, 2]).numpy()
    assert (expected < 1.0).all()
    np.testing.assert_array_equal(again.lookup([1, 2]), expected)


@pytest.mark.parametrize("key_dtype", ["int64", "int32", "string"])
def test_sums_come_in_one_order_whatever_was_before(key_dtype: str) -> None:
    """A norm of all rows depends on their order, in its last bits."""
    keys = tf.range(300)
    keys = tf.strings.as_string(keys) if key_dtype == "string" else tf.cast(keys, key_dtype)
    made = [GradientSums(tf.as_dtype(key_dtype), tf.float32, 1, "sums") for _ in range(2)]
    for sums, count in zip(made, (20, 300), strict=True):  # One of them has grown before.
        sums.add(keys[:count], tf.ones([count, 1]))
        sums.take()
        assert int(sums.size()) == 0
    gradients = tf.range(20.0)[:, tf.newaxis]
    made[0].add(keys[:20], gradients)
    made[1].add(keys[:20][::-1], gradients[::-1])
    (some_keys, some), (other_keys, other) = (sums.take() for sums in made)
    assert sorted(tf.squeeze(some).numpy().tolist()) == list(range(20))
    np.testing.assert_array_equal(some_keys, other_keys)
    np.testing.assert_array_equal(some, other)


@pytest.mark.filterwarnings("error:.*no optimizer step was taken")
def test_saving_before_the_first_update_warns_of_nothing(tmp_path: Path) -> None:
    model = variant().model()
    model.compile(model.optimizer, "mse", run_eagerly=True)
    train(model, BATCHES[:1])
    assert all(waiting(model))
    model.save_weights(tmp_path / "early.weights.h5")
