"""After a reload, restrict keeps the same keys as without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from upkeep_support import (
    DIM,
    FORMATS,
    KERAS_WARNS,
    POLICIES,
    THREE,
    KeepLongRows,
    assert_best_stay,
    content_by_key,
    de,
    key_set,
    keys_for,
    layers,
    load,
    model_of,
    save,
    targets,
    usage_of,
)

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

v1 = tf.compat.v1


def build(by: str, devices: Any, key_dtype: str = "int64", value_dtype: str = "float32") -> Any:
    """A model over one table, which is named so that all of them begin alike."""
    layer = layers.Embedding(
        DIM, tf.as_dtype(key_dtype), tf.as_dtype(value_dtype), devices=devices, name="ids",
        restrict_policy=POLICIES[by], initializer=keras.initializers.RandomNormal(seed=3),
    )  # fmt: skip
    return model_of(layer, 3)


def params_of(model: Any) -> Any:
    return model.get_layer("ids").params


def train(model: Any, seconds: range) -> None:
    """One step in each second, with ids that drift and ids that stay."""
    variable = params_of(model)
    for second in seconds:
        rng = np.random.default_rng(second)
        ids = np.concatenate([rng.integers(0, 9, (4, 1)), rng.integers(0, 9, (4, 2)) + second], 1)
        variable.set_clock(second)
        model.train_on_batch(keys_for(variable, ids), targets(4, second))


@pytest.mark.parametrize(
    ("by", "how", "types", "before", "after"),
    [
        ("time", "keras", ("int64", "float32"), None, None),
        ("count", "keras", ("string", "float16"), THREE, None),
        ("count", "weights", ("string", "float16"), None, None),
        ("time", "weights", ("int64", "float32"), THREE, ["/CPU:0"] * 2),
        ("time", "checkpoint", ("int64", "float32"), THREE, THREE),
        ("count", "checkpoint", ("string", "float32"), None, THREE),
        ("count", "checkpoint", ("int32", "float64"), None, None),
    ],
)
def test_restrict_after_a_reload(
    tmp_path: Path, by: str, how: str, types: tuple[str, str], before: Any, after: Any
) -> None:
    model = build(by, before, *types)
    train(model, range(1, 12))
    save(model, how, tmp_path)
    loaded = load(how, tmp_path, lambda: build(by, after, *types))
    usage = usage_of(params_of(model))
    assert usage_of(params_of(loaded)) == usage
    assert len(set(usage.values())) < len(usage), "no two rows are alike"
    for one in (model, loaded):
        train(one, range(12, 15))
    usage = usage_of(params_of(model))
    assert usage_of(params_of(loaded)) == usage
    keep = len(usage) // 2
    for one in (model, loaded):
        params_of(one).restrict(keep)
        assert_best_stay(params_of(one), usage, keep, by)
    if params_of(model).shard_num == params_of(loaded).shard_num:
        assert key_set(params_of(loaded)) == key_set(params_of(model))
        train(model, range(15, 18))
        train(loaded, range(15, 18))
        content = content_by_key(params_of(loaded))
        for name, tensor in content_by_key(params_of(model)).items():
            np.testing.assert_array_equal(tensor, content[name], name)


@pytest.mark.parametrize("how", FORMATS)
def test_a_layer_is_loaded_with_its_policy(tmp_path: Path, how: str) -> None:
    model = build("count", None)
    config = model.get_layer("ids").get_config()
    again = layers.Embedding.from_config(config)
    assert isinstance(again.params.restrict_policy, de.FrequencyRestrictPolicy)
    assert again.get_config() == config
    train(model, range(1, 2))
    save(model, how, tmp_path)
    loaded = load(how, tmp_path, lambda: build("count", None))
    assert isinstance(params_of(loaded).restrict_policy, de.FrequencyRestrictPolicy)


class Unknown(KeepLongRows):
    """A policy that is not registered in Keras."""


def test_a_policy_of_ones_own_in_a_file_of_keras(tmp_path: Path) -> None:
    model = model_of(layers.Embedding(DIM, name="ids", restrict_policy=KeepLongRows), 3)
    train(model, range(1, 2))
    save(model, "keras", tmp_path)
    loaded = load("keras", tmp_path, None)
    assert type(params_of(loaded).restrict_policy) is KeepLongRows
    config = layers.Embedding(DIM, restrict_policy=Unknown).get_config()
    with pytest.raises(ValueError, match="register_keras_serializable"):
        layers.Embedding.from_config(config)


def fill(variable: Any) -> None:
    for second, ids in enumerate(([5, 6, 7, 8], [6, 7], [7, 9, 9], [1, 2, 3]), 1):
        variable.set_clock(second)
        keys = keys_for(variable, ids)
        variable.upsert(keys, tf.ones([len(ids), DIM], variable.value_dtype))


@pytest.mark.parametrize("by", POLICIES)
@pytest.mark.parametrize("types", [("int32", "float32"), ("string", "float16"), ("int64", "int64")])
def test_a_variable_in_a_checkpoint(tmp_path: Path, by: str, types: tuple[str, str]) -> None:
    kind = {"key_dtype": tf.as_dtype(types[0]), "value_dtype": tf.as_dtype(types[1])}

    def make(devices: Any = None) -> Any:
        return de.Variable(dim=DIM, restrict_policy=POLICIES[by], devices=devices, **kind)

    saved, same, spread = make(), make(), make(THREE)
    fill(saved)
    usage = usage_of(saved)
    path = tf.train.Checkpoint(variable=saved).save(str(tmp_path / "checkpoint"))
    for loaded in (same, spread):
        loaded.upsert(keys_for(loaded, [77]), tf.ones([1, DIM], loaded.value_dtype))
        tf.train.Checkpoint(variable=loaded).restore(path).assert_consumed()
        assert usage_of(loaded) == usage
    for variable in (saved, same, spread):
        variable.restrict(4)
        assert_best_stay(variable, usage, 4, by)
    assert key_set(same) == key_set(saved)


@pytest.mark.parametrize("by", POLICIES)
def test_a_saver_of_tf1(tmp_path: Path, by: str, devices: list[str] | None) -> None:
    def program(act: Any) -> Any:
        with tf.Graph().as_default(), v1.Session() as session:
            variable = de.get_variable(
                "table", dim=DIM, devices=devices, restrict_policy=POLICIES[by]
            )
            keys, now = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.int64, [])
            clock = variable.set_clock(now)
            update, restrict = variable.restrict_policy.apply_update(keys), variable.restrict(3)
            exported, saver = variable.export()[0], v1.train.Saver()
            session.run(v1.global_variables_initializer())
            act(session, saver, lambda t, ids: session.run([clock], {now: t}) and session.run(
                update, {keys: ids}))  # fmt: skip
            session.run(restrict)
            return sorted(session.run(exported).tolist())

    def first(session: Any, saver: Any, touch: Any) -> None:
        for second, ids in enumerate(([3, 6, 9, 1], [6, 9, 2], [9, 4, 4]), 1):
            touch(second, ids)
        saver.save(session, str(tmp_path / "model"))

    def second(session: Any, saver: Any, touch: Any) -> None:
        saver.restore(session, str(tmp_path / "model"))

    kept = program(first)
    assert program(second) == kept
    assert 9 in kept


class Served(tf.Module):
    """What is saved and loaded again with its functions."""

    def __init__(self, by: str, devices: Any) -> None:
        super().__init__()
        self.table = de.Variable(dim=DIM, devices=devices, restrict_policy=POLICIES[by])

    @tf.function(input_signature=[])
    def restrict(self) -> tf.Tensor:
        return self.table.restrict(4)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.int64)])
    def touch(self, keys: tf.Tensor, now: tf.Tensor) -> None:
        self.table.set_clock(now)
        self.table.restrict_policy.apply_update(keys)

    @tf.function(input_signature=[])
    def keys(self) -> tf.Tensor:
        return self.table.export()[0]


@pytest.mark.parametrize("by", POLICIES)
def test_a_saved_model(tmp_path: Path, by: str, devices: list[str] | None) -> None:
    module = Served(by, devices)
    fill(module.table)
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    for one in (module, loaded):
        one.touch(tf.constant([8, 3, 40], tf.int64), tf.constant(9, tf.int64))
    usage = usage_of(module.table)
    left = [int(one.restrict()) for one in (module, loaded)]
    assert left == [len(usage) - int(module.table.size())] * 2
    assert_best_stay(module.table, usage, 4, by)
    assert set(loaded.keys().numpy().tolist()) == key_set(module.table)
