"""Checkpoints that are restored before the model is built: all arrives when it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from layers_support import KERAS_WARNS, de, layers
from programs.common import content, cpu_devices, ids, numbered_rows

import tfra

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

IDS = np.array([[1, 2, 3], [2, 5, 2**40], [1, 2, 9], [7, 7, 1]])
TARGETS = np.array([[1.0], [0.0], [0.5], [-1.0]], np.float32)


class Scores(keras.Model):
    """A model without a `build` of its own: Keras makes all weights in the first call."""

    def __init__(self, partitions: int = 1, size: int = 4) -> None:
        super().__init__()
        devices = cpu_devices(partitions)
        policy, admission = de.FrequencyRestrictPolicy, tfra.admission.MinCount(3)
        self.wide = keras.layers.Dense(2)
        self.users = layers.Embedding(size, devices=devices, name="users", restrict_policy=policy)
        self.items = layers.SquashedEmbedding(
            size, devices=devices, name="items", admission=admission
        )
        self.normal = keras.layers.BatchNormalization()
        self.dense = keras.layers.Dense(1)
        self.compile(keras.optimizers.Adam(0.05), "mse")

    def call(self, ids: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        users = tf.reduce_sum(self.users(ids), axis=1)
        wide = self.wide(tf.cast(ids, tf.float32) / 2**40)
        together = tf.concat([wide, users, self.items(ids)], axis=1)
        return self.dense(self.normal(together, training=training))

    def train(self) -> None:
        """Takes two steps on the ids."""
        self.fit(IDS, TARGETS, batch_size=2, shuffle=False, verbose=0)


def checkpoint(model: Scores) -> tf.train.Checkpoint:
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


def state(model: Scores) -> dict[str, Any]:
    """All that is kept of the tables, by key, and the weights of all other layers."""
    found: dict[str, Any] = {}
    for layer in (model.users, model.items):
        parts = {name: tensor.numpy().tolist() for name, tensor in layer.params.content().items()}
        rows = zip(parts["values"], parts["slots"], parts["metadata"], strict=True)
        found[layer.name] = dict(zip(parts["keys"], rows, strict=True))
        waiting = zip(parts["waiting_keys"], parts["waiting_seen"], strict=True)
        found[f"{layer.name} wait"] = dict(waiting)
    dense = [*model.wide.weights, *model.normal.weights, *model.dense.weights]
    found["dense"] = [weight.numpy().tolist() for weight in dense]
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The path of a checkpoint, the state that was saved, and predictions after two more steps."""
    model = Scores(2)
    model.train()
    model.train()
    path = checkpoint(model).save(str(tmp_path_factory.mktemp("checkpoint") / "saved"))
    before = state(model)
    assert before["items wait"] and set(before["items"]) < set(before["users"])
    model.train()
    return path, before, model.predict_on_batch(IDS)


def in_function(model: Scores) -> None:
    tf.function(model)(tf.constant(IDS))


def predict(model: Scores) -> None:
    model.predict(IDS, verbose=0)


@pytest.mark.parametrize("first_call", [lambda model: model(IDS), in_function, predict])
def test_all_arrives_with_the_first_call(saved: Any, first_call: Any) -> None:
    path, expected, _ = saved
    model = Scores()
    status = checkpoint(model).restore(path)
    first_call(model)
    status.assert_existing_objects_matched().expect_partial()
    assert state(model) == expected


@pytest.mark.parametrize("partitions", [1, 3])
def test_training_goes_on_at_once(saved: Any, partitions: int) -> None:
    """The optimizer, too, gets its state when it makes its variables."""
    path, _, predicted = saved
    model = Scores(partitions)
    status = checkpoint(model).restore(path)
    with pytest.raises(AssertionError):
        status.assert_consumed()
    model.train()
    status.assert_consumed()
    np.testing.assert_allclose(model.predict_on_batch(IDS), predicted, rtol=1e-6)


def test_the_manager_restores_before_the_first_call(saved: Any, tmp_path: Path) -> None:
    model, again = Scores(), Scores()
    model(IDS)
    model.users.params.upsert(IDS[0], np.ones((3, 4)))
    tf.train.CheckpointManager(checkpoint(model), str(tmp_path), 1).save()
    manager = tf.train.CheckpointManager(checkpoint(again), str(tmp_path), 1)
    assert manager.restore_or_initialize() == manager.latest_checkpoint
    again(IDS)
    assert state(again) == state(model)


def test_a_layer_of_its_own(tmp_path: Path) -> None:
    """`params` and `shadow` make the Variable, too."""
    layer = layers.Embedding(4, name="users")
    layer.params.upsert([1, 2], np.ones((2, 4)))
    path = tf.train.Checkpoint(layer=layer).save(str(tmp_path / "saved"))
    for make in (lambda new: new.params, lambda new: new.shadow, lambda new: new([1])):
        new = layers.Embedding(4, name="users")
        status = tf.train.Checkpoint(layer=new).restore(path)
        make(new)
        status.assert_consumed()
        assert content(new.params) == {1: 1.0, 2: 1.0}


def test_rows_of_another_length_are_not_lost_silently(saved: Any) -> None:
    model = Scores(size=8)
    checkpoint(model).restore(saved[0]).expect_partial()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"rows of length 8.*checkpoint with rows of length 4"):
            model(IDS)


class Later(tf.Module):
    """A module that makes its Variable when it is first called."""

    users: Any = None

    @tf.function
    def __call__(self, keys: tf.Tensor) -> tf.Tensor:
        if self.users is None:
            self.users = de.Variable(dim=4, devices=cpu_devices(2), name="users")
        return self.users.lookup(keys)


def test_a_variable_that_a_module_makes_later(tmp_path: Path) -> None:
    saved, restored = Later(), Later()
    saved(ids(1))
    saved.users.upsert(ids(1, 2, 3), numbered_rows([1, 2, 3]))
    path = tf.train.Checkpoint(module=saved).save(str(tmp_path / "saved"))
    status = tf.train.Checkpoint(module=restored).restore(path)
    np.testing.assert_array_equal(restored(ids(3, 1, 9))[:, 0], [3.0, 1.0, 0.0])
    status.assert_consumed()
    assert content(restored.users) == {1: 1.0, 2: 2.0, 3: 3.0}


@pytest.mark.parametrize("restored", [False, True])
def test_a_strategy_predicts_first(tmp_path: Path, restored: bool) -> None:
    """Keras builds such a model inside a replica."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    path = None
    if restored:
        model = Scores()
        model.train()
        path = checkpoint(model).save(str(tmp_path / "model"))
        expected = model(IDS)
    with strategy.scope():
        model = Scores()
    if path is not None:
        checkpoint(model).restore(path)
    predicted = model.predict(IDS, verbose=0)
    if path is not None:
        np.testing.assert_allclose(predicted, expected, rtol=1e-5)
    model.train()
    assert int(model.users.params.size()) == 7
