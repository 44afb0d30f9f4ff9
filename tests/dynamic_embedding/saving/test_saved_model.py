"""SavedModels: loaded in fresh processes and in this one, by both loaders of TensorFlow."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from programs import run_program
from programs.common import content, cpu_devices, de, ids, numbered_rows, rows

v1 = tf.compat.v1

USERS_SPEC = tf.TensorSpec([None], tf.int64)


class Model(tf.Module):
    """Tables of several types, one of which is not saved, and a dense variable."""

    def __init__(self, partitions: int) -> None:
        super().__init__()
        devices = cpu_devices(partitions)
        self.users = de.Variable(dim=4, devices=devices, name="users", initializer=-1.0)
        self.words = de.Variable(tf.string, tf.float64, dim=2, devices=devices, name="words")
        self.items = de.CuckooHashTable(tf.int64, tf.int64, [-1, -2, -3], name="items")
        self.left_out = de.Variable(dim=1, checkpoint=False, name="left_out")
        self.scale = tf.Variable(2.0)

    @tf.function(input_signature=[USERS_SPEC, tf.TensorSpec([None], tf.string)])
    def ask(self, users: tf.Tensor, words: tf.Tensor) -> dict[str, tf.Tensor]:
        return {
            "users": self.users.lookup(users) * self.scale,
            "words": self.words.lookup(words),
            "items": self.items.lookup(users),
            "left_out": self.left_out.lookup(users),
        }

    @tf.function(input_signature=[USERS_SPEC, tf.TensorSpec([None, 4], tf.float32)])
    def train(self, users: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        self.users.upsert(users, values)
        return self.users.size()


# What `Model.ask` says of users 1, 5, 777 and the words of programs/load_saved_model.py.
SAVED = {
    "users": [[2.0] * 4, [10.0] * 4, [-2.0] * 4],
    "words": [[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]],
    "items": [[7, 8, 9], [-1, -2, -3], [-1, -2, -3]],
    "left_out": [[0.0]] * 3,
}
TRAINED = {**SAVED, "users": [[2.0] * 4, [18.0] * 4, [18.0] * 4]}


def filled_model(partitions: int) -> Model:
    model = Model(partitions)
    keys = tf.range(100, dtype=tf.int64)
    model.users.upsert(keys, numbered_rows(keys))
    words = tf.constant(["short", "long" * 30])
    model.words.upsert(words, tf.constant([[1, 2], [3, 4]], tf.float64))
    model.items.insert(ids(1), tf.constant([[7, 8, 9]], tf.int64))
    model.left_out.upsert(ids(1, 5), rows(2, 6.0, 1))
    return model


def save(model: Model, folder: str) -> None:
    signatures = {"serving_default": model.ask, "train": model.train}
    tf.saved_model.save(model, folder, signatures=signatures)


@pytest.fixture(scope="module", params=[(1, 1), (3, 1), (1, 2), (3, 3)], ids=str)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A SavedModel; the model it was made of was trained afterwards.

    By the number of partitions, and of times it was saved: each time what was loaded of the last.
    """
    partitions, times = request.param
    model = filled_model(partitions)
    for _ in range(times):
        folder = str(tmp_path_factory.mktemp("saved"))
        save(model, folder)
        model.train(ids(5, 6), rows(2, -5.0))
        model = tf.saved_model.load(folder)
    return folder


@pytest.fixture(scope="module")
def answers(folder: str) -> dict[str, Any]:
    """The results of the model in a new process."""
    return run_program("load_saved_model", folder)


def test_a_fresh_process_loads_it(answers: dict[str, Any]) -> None:
    assert answers["v2"]["first"] == SAVED


def test_signatures_answer_as_the_function(answers: dict[str, Any]) -> None:
    assert answers["v2"]["signature"] == SAVED


def test_a_loaded_model_can_be_trained(answers: dict[str, Any]) -> None:
    assert answers["v2"]["size"] == 101
    assert answers["v2"]["trained"] == TRAINED


def test_every_load_has_tables_of_its_own(answers: dict[str, Any]) -> None:
    assert answers["v2"]["second"] == SAVED
    assert answers["v2"]["third"] == SAVED


def test_the_loader_of_tensorflow_1(answers: dict[str, Any]) -> None:
    first = answers["v1"][:3]
    assert first[0] == SAVED
    assert list(first[1].values()) == [101]
    assert first[2] == TRAINED


def test_sessions_of_the_loader_of_tensorflow_1_are_independent(answers: dict[str, Any]) -> None:
    assert answers["v1"][3:] == answers["v1"][:3]


@pytest.mark.parametrize("partitions", [1, 3])
def test_saving_and_loading_here_leaves_the_original_alone(partitions: int, tmp_path: Path) -> None:
    model = filled_model(partitions)
    before = content(model.users)
    save(model, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    assert int(loaded.train(ids(5, 1000), rows(2, 9.0))) == 101
    assert content(model.users) == before
    assert int(model.left_out.size()) == 2
    assert int(model.train(ids(2000, 2001), rows(2, 9.0))) == 102
    assert int(loaded.train(ids(5), rows(1, 9.0))) == 101


def test_a_checkpoint_of_a_loaded_model_holds_what_it_learned(tmp_path: Path) -> None:
    folder, path = str(tmp_path / "model"), str(tmp_path / "checkpoint")
    save(filled_model(1), folder)
    loaded, again = tf.saved_model.load(folder), tf.saved_model.load(folder)
    loaded.train(ids(777), rows(1, 9.0))
    tf.train.Checkpoint(model=loaded).write(path)
    tf.train.Checkpoint(model=again).read(path).expect_partial()
    found = again.ask(ids(777, 5), tf.constant(["short"]))["users"]
    np.testing.assert_array_equal(found, [[18.0] * 4, [10.0] * 4])


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_loaded_model_is_saved_again_as_it_is_now(partitions: int, tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    save(filled_model(partitions), first)
    loaded = tf.saved_model.load(first)
    loaded.train(ids(777), rows(1, 9.0))
    save(loaded, second)
    gc.collect()
    assert int(loaded.train(ids(1000), rows(1, 9.0))) == 102  # It still works.
    again = tf.saved_model.load(second)
    found = again.ask(ids(777, 1000), tf.constant(["short"]))
    np.testing.assert_array_equal(found["users"], [[18.0] * 4, [-2.0] * 4])
    np.testing.assert_array_equal(found["words"], [[1.0, 2.0]])
    assert int(again.train(ids(5), rows(1, 9.0))) == 101


def test_functions_of_a_model_keep_its_tables(tmp_path: Path) -> None:
    model = tf.Module()
    model.users = de.Variable(dim=4, devices=cpu_devices(3))
    model.users.upsert(ids(5), rows(1, 3.0))
    model.ask = tf.function(lambda users: model.users.lookup(users), input_signature=[USERS_SPEC])
    tf.saved_model.save(model, str(tmp_path))
    ask = tf.saved_model.load(str(tmp_path)).ask
    signature = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    gc.collect()
    for found in (ask(ids(5)), signature(users=ids(5))["output_0"]):
        np.testing.assert_array_equal(found, [[3.0] * 4])


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_model_saved_by_a_session(partitions: int, tmp_path: Path) -> None:
    folder = str(tmp_path / "model")
    with tf.Graph().as_default(), v1.Session() as session:
        variable = de.get_variable("users", dim=4, devices=cpu_devices(partitions))
        keys = v1.placeholder(tf.int64, [None])
        found = variable.lookup(keys)
        session.run(variable.upsert(ids(1, 2, 3), numbered_rows([1, 2, 3])))
        v1.saved_model.simple_save(session, folder, {"keys": keys}, {"found": found})
    for _ in range(2):
        with tf.Graph().as_default(), v1.Session() as session:
            model = v1.saved_model.load(session, ["serve"], folder)
            signature = model.signature_def["serving_default"]
            feeds = {signature.inputs["keys"].name: [3, 1, 9]}
            found = session.run(signature.outputs["found"].name, feeds)
            assert found.tolist() == [[3.0] * 4, [1.0] * 4, [0.0] * 4]
