"""Tables with rows in a file, in every format that tables and models are saved in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hkv_support import scores_of
from tier_support import MANY, SMALL, content_of, fill, fit, model_of, step, variable_of

v1 = tf.compat.v1

# Keras itself asks TensorFlow's variables for arrays in a way that NumPy 2 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def filled(budget: int) -> Any:
    variable = variable_of(budget)
    for start in range(0, 3000, 500):
        step(variable, keras.optimizers.Adagrad(0.1), tf.range(start, start + 700, dtype=tf.int64))
    return variable


DIRECTIONS = pytest.mark.parametrize(
    ("before", "after"), [(0, SMALL), (SMALL, 0), (SMALL, SMALL)],
    ids=["to tiers", "from tiers", "tiers"],
)  # fmt: skip


@DIRECTIONS
@pytest.mark.parametrize("devices", [None, ["/CPU:0"] * 3], ids=["one", "three"])
def test_checkpoints(before: int, after: int, devices: Any, tmp_path: Path) -> None:
    saved, restored = filled(before), variable_of(after, devices)
    path = tf.train.Checkpoint(variable=saved).save(str(tmp_path / "saved"))
    tf.train.Checkpoint(variable=restored).restore(path).assert_consumed()
    assert content_of(restored) == content_of(saved)
    assert len(content_of(saved)) == 3200
    restored.lookup(tf.range(3000, dtype=tf.int64))
    stats = restored.stats()
    assert stats.fast_hits + stats.slow_hits == (3000 if after else 0)


def test_a_large_checkpoint_keeps_to_the_budget(tmp_path: Path) -> None:
    saved, restored = (variable_of(budget, capacity=MANY) for budget in (0, SMALL))
    fill(saved, MANY)
    path = tf.train.Checkpoint(variable=saved).save(str(tmp_path / "saved"))
    tf.train.Checkpoint(variable=restored).restore(path).assert_consumed()
    stats = restored.stats()
    assert stats.fast_bytes < MANY * 32 / 3
    assert stats.slow_bytes > MANY * 32 / 2
    assert content_of(restored) == content_of(saved)


@DIRECTIONS
def test_files(before: int, after: int, tmp_path: Path) -> None:
    saved, loaded = filled(before), variable_of(after)
    saved.tables[0].save(tmp_path, "rows")
    loaded.tables[0].load(tmp_path, "rows")
    assert content_of(loaded) == content_of(saved)
    assert scores_of(loaded.tables[0]) == scores_of(saved.tables[0])


def test_keras_files_keep_the_levels(tmp_path: Path) -> None:
    model = model_of(SMALL, tmp_path)
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    table = loaded.get_layer("ids").params.tables[0]
    assert table.fast_bytes == SMALL
    params = [each.get_layer("ids").params for each in (model, loaded)]
    assert content_of(params[0]) == content_of(params[1])
    for each in (model, loaded):
        fit(each)
    assert content_of(params[0]) == content_of(params[1])
    assert params[1].stats().slow_bytes > 0


@DIRECTIONS
def test_weights_between_levels(before: int, after: int, tmp_path: Path) -> None:
    model, loaded = model_of(before), model_of(after)
    fit(model)
    model.save_weights(tmp_path / "m.weights.h5")
    loaded.optimizer.build(loaded.trainable_variables)
    loaded.load_weights(tmp_path / "m.weights.h5")
    params = [each.get_layer("ids").params for each in (model, loaded)]
    assert content_of(params[0]) == content_of(params[1])


def test_saved_models(tmp_path: Path) -> None:
    class Served(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.variable = filled(SMALL)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def rows(self, ids: tf.Tensor) -> tf.Tensor:
            return self.variable.lookup(ids)

        @tf.function(input_signature=[])
        def figures(self) -> Any:
            return self.variable.stats_tensors()

    served = Served()
    tf.saved_model.save(served, str(tmp_path / "served"))
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    ids = tf.range(3500, dtype=tf.int64)
    np.testing.assert_array_equal(loaded.rows(ids), served.rows(ids))
    figures = loaded.figures()
    assert int(figures["fast_hits"] + figures["slow_hits"]) == 3200


def test_a_saver_of_tensorflow_1(tmp_path: Path) -> None:
    found = []
    for budget in (SMALL, 0):
        with tf.Graph().as_default(), v1.Session() as session:
            variable = variable_of(budget)
            saver = v1.train.Saver()
            ids = tf.range(2000, dtype=tf.int64)
            insert = variable.upsert(ids, tf.random.stateless_normal([2000, 8], [1, 2]))
            figures = variable.stats_tensors()
            if budget:
                session.run(insert)
                saver.save(session, str(tmp_path / "saved"))
            else:
                saver.restore(session, str(tmp_path / "saved"))
            found.append(session.run(variable.lookup(ids)))
            now = session.run(figures)
            assert (now["fast_hits"] + now["slow_hits"] > 0) == (budget > 0)
    np.testing.assert_array_equal(found[0], found[1])
