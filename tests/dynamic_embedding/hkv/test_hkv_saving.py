"""Scores, the epoch and the bound in every format that tables and models are saved in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hkv_support import TYPES, Mode, Strategy, by_key, de, keys, rows, scores_of, typed_table

v1 = tf.compat.v1
layers = de.keras.layers

# Keras itself asks TensorFlow's variables for arrays in a way that NumPy 2 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

STRATEGIES = list(Strategy)
THREE = ["/CPU:0"] * 3


@pytest.fixture(params=STRATEGIES, ids=lambda strategy: strategy.name)
def strategy(request: pytest.FixtureRequest) -> Any:
    return request.param


@keras.saving.register_keras_serializable("test_hkv_saving")
def registered_scores(some: tf.Tensor) -> tf.Tensor:
    """A function of scores that Keras can save."""
    return by_key(some) * 2


def config_of(strategy: Any, max_capacity: int = 40) -> Any:
    return de.HkvHashTableConfig(
        init_capacity=4,
        max_capacity=max_capacity,
        evict_strategy=strategy,
        step_per_epoch=2 if strategy.name.startswith("EPOCH") else 0,
        gen_scores_fn=registered_scores if strategy == Strategy.CUSTOMIZED else None,
    )


def variable_of(strategy: Any, devices: Any = None, max_capacity: int = 40) -> Any:
    creator = de.HkvHashTableCreator(config_of(strategy, max_capacity))
    return de.Variable(dim=2, name="bounded", kv_creator=creator, devices=devices)


def fill(variable: Any) -> None:
    """More keys than the table can hold, some written more often than others."""
    rng = np.random.default_rng(0)
    for _ in range(7):
        some = np.minimum(rng.geometric(0.02, 50), 300) - 1
        variable.upsert(some, rng.standard_normal((50, 2)).astype(np.float32))


def state_of(variable: Any) -> dict[Any, Any]:
    """Row and score of each key."""
    state = {}
    for table in variable.tables:
        parts = (part.numpy() for part in table.export_with_scores())
        for key, row, score in zip(*parts, strict=True):
            state[key] = (row.tobytes(), int(score))
    return state


def write_alike(*variables: Any) -> None:
    """Writes the same rows to all Variables, which must stay equal."""
    rng = np.random.default_rng(5)
    for _ in range(5):
        some = rng.integers(0, 200, 30)
        values = rng.standard_normal((30, 2)).astype(np.float32)
        for variable in variables:
            variable.upsert(some, values)


@pytest.mark.parametrize("devices", [None, THREE], ids=["one", "three"])
def test_a_checkpoint_has_scores_and_the_table_goes_on(
    strategy: Any, devices: Any, tmp_path: Path
) -> None:
    saved = variable_of(strategy, devices)
    fill(saved)
    path = tf.train.Checkpoint(variable=saved).save(str(tmp_path / "saved"))
    restored = variable_of(strategy, devices)
    restored.upsert([999], [[1.0, 1.0]])
    tf.train.Checkpoint(variable=restored).restore(path).assert_consumed()
    assert state_of(restored) == state_of(saved)
    epochs = [[int(table.epoch()) for table in v.tables] for v in (saved, restored)]
    assert epochs[0] == epochs[1]
    assert (max(epochs[0]) > 0) == strategy.name.startswith("EPOCH")
    write_alike(saved, restored)
    epochs = [[int(table.epoch()) for table in v.tables] for v in (saved, restored)]
    assert epochs[0] == epochs[1]
    if strategy in (Strategy.LRU, Strategy.CUSTOMIZED):  # Their scores have no ties.
        assert state_of(restored) == state_of(saved)


@pytest.mark.parametrize(("before", "after"), [(None, THREE), (THREE, None)])
def test_scores_find_their_way_into_other_numbers_of_tables(
    before: Any, after: Any, tmp_path: Path
) -> None:
    saved, restored = (variable_of(Strategy.LFU, d, max_capacity=400) for d in (before, after))
    fill(saved)
    path = tf.train.Checkpoint(variable=saved).save(str(tmp_path / "saved"))
    tf.train.Checkpoint(variable=restored).restore(path).assert_consumed()
    assert state_of(restored) == state_of(saved)


def test_a_smaller_table_keeps_the_best_of_a_checkpoint(tmp_path: Path) -> None:
    saved, restored = variable_of(Strategy.LRU), variable_of(Strategy.LRU, max_capacity=10)
    fill(saved)
    path = tf.train.Checkpoint(variable=saved).save(str(tmp_path / "saved"))
    tf.train.Checkpoint(variable=restored).restore(path).assert_consumed()
    best = sorted(state_of(saved).items(), key=lambda item: item[1][1])[-10:]
    assert state_of(restored) == dict(best)


@pytest.mark.parametrize("direction", ["bounded to unbounded", "unbounded to bounded"])
def test_checkpoints_between_bounded_and_unbounded_tables(direction: str, tmp_path: Path) -> None:
    bounded = variable_of(Strategy.LFU)
    unbounded = de.Variable(dim=2, name="bounded")
    saved, restored = (bounded, unbounded) if direction[0] == "b" else (unbounded, bounded)
    saved.upsert(tf.range(30, dtype=tf.int64), tf.random.normal([30, 2]))
    path = tf.train.Checkpoint(variable=saved).save(str(tmp_path / "saved"))
    tf.train.Checkpoint(variable=restored).restore(path).assert_consumed()
    states = [
        {key: row.tobytes() for key, row in zip(*map(np.array, v.export()), strict=True)}
        for v in (saved, restored)
    ]
    assert len(states[0]) == 30
    assert states[0] == states[1]


def test_a_saver_of_tensorflow_1(strategy: Any, tmp_path: Path) -> None:
    states = []
    for restore in (False, True):
        with tf.Graph().as_default(), v1.Session() as session:
            variable = variable_of(strategy)
            saver = v1.train.Saver()
            some = tf.constant(np.random.default_rng(1).integers(0, 90, 120))
            insert = variable.upsert(some, tf.zeros([120, 2]))
            if restore:
                saver.restore(session, str(tmp_path / "saved"))
            else:
                session.run(insert)
                saver.save(session, str(tmp_path / "saved"))
            found, _, scores = session.run(variable.tables[0].export_with_scores())
            states.append(dict(zip(found.tolist(), scores.tolist(), strict=True)))
    assert states[0] == states[1]
    assert len(states[0]) == 40


def model_of(strategy: Any) -> keras.Model:
    creator = de.HkvHashTableCreator(config_of(strategy))
    inputs = keras.Input((3,), dtype="int64")
    embedded = layers.Embedding(
        2, name="ids", initializer=keras.initializers.RandomNormal(seed=1), kv_creator=creator
    )(inputs)
    outputs = keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Flatten()(embedded))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adam(0.05), "mse")
    return model


def train(model: keras.Model, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 100, (48, 3))
    model.fit(ids, rng.standard_normal(48), batch_size=8, shuffle=False, verbose=0)


def model_state(model: keras.Model) -> Any:
    params = model.get_layer("ids").params
    return state_of(params), int(params.tables[0].epoch())


@pytest.mark.parametrize("kind", ["keras", "weights", "checkpoint"])
def test_models_are_saved_with_scores(strategy: Any, kind: str, tmp_path: Path) -> None:
    model = model_of(strategy)
    train(model, 0)
    path = str(tmp_path / {"keras": "m.keras", "weights": "m.weights.h5"}.get(kind, "saved"))
    if kind == "keras":
        model.save(path)
        loaded = keras.models.load_model(path)
    elif kind == "weights":
        model.save_weights(path)
        loaded = model_of(strategy)
        loaded.optimizer.build(loaded.trainable_variables)
        loaded.load_weights(path)
    else:
        tf.train.Checkpoint(model=model).write(path)
        loaded = model_of(strategy)
        tf.train.Checkpoint(model=loaded).read(path).expect_partial()
    assert model_state(loaded) == model_state(model)
    assert len(model_state(model)[0]) == 40
    table = loaded.get_layer("ids").params.tables[0]
    assert (table.max_capacity, table.evict_strategy) == (40, strategy)
    if strategy == Strategy.LRU:
        train(model, 1)
        train(loaded, 1)
        assert set(model_state(loaded)[0]) == set(model_state(model)[0])


def test_a_saved_model_has_the_rows_and_keeps_the_bound(tmp_path: Path) -> None:
    class Served(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.variable = variable_of(Strategy.CUSTOMIZED, max_capacity=5)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def add(self, some: tf.Tensor) -> tf.Tensor:
            rows = tf.ones([tf.size(some), 2])
            self.variable.upsert(some, rows)
            return self.variable.size()

        @tf.function(input_signature=[])
        def scores(self) -> Any:
            found = self.variable.tables[0].export_with_scores()
            return found[0], found[2]

    served = Served()
    served.add(tf.range(10, dtype=tf.int64))
    tf.saved_model.save(served, str(tmp_path / "served"))
    loaded = tf.saved_model.load(str(tmp_path / "served"))

    def scores(of: Any) -> dict[int, int]:
        return dict(zip(*(part.numpy().tolist() for part in of.scores()), strict=True))

    assert scores(loaded) == scores(served) == {key: 2 * key for key in range(5, 10)}
    assert int(loaded.add([3, 20])) == 5
    assert set(scores(loaded)) == {6, 7, 8, 9, 20}


@pytest.mark.parametrize("types", TYPES, ids=str)
def test_files_of_a_table(types: Any, mode: Mode, tmp_path: Path) -> None:
    key_dtype, value_dtype, dim = types
    saved = typed_table(*types, max_capacity=30, name="saved")
    values = rows(value_dtype, 50, dim)
    mode.run(lambda: saved.insert(keys(key_dtype, range(50)), values))
    mode.run(lambda: saved.save(tmp_path / "folder" / "of tables"))
    assert [file.name for file in (tmp_path / "folder" / "of tables").iterdir()] == ["saved.npz"]
    loaded = typed_table(*types, max_capacity=30, name="loaded")
    mode.run(lambda: loaded.insert(keys(key_dtype, [999]), values[:1]))
    mode.run(lambda: loaded.load(str(tmp_path / "folder" / "of tables"), "saved"))
    assert scores_of(loaded, mode) == scores_of(saved, mode)
    assert len(scores_of(saved, mode)) == 30
    some = keys(key_dtype, range(50))
    before, after = (mode.run(lambda t=t: t.lookup(some)) for t in (saved, loaded))
    assert before.tolist() == after.tolist()


def test_files_have_slots_and_epochs(tmp_path: Path) -> None:
    model = model_of(Strategy.EPOCHLFU)
    train(model, 0)
    table = model.get_layer("ids").params.tables[0]
    table.save(tmp_path, "ids")
    before = model_state(model), model.get_layer("ids").params.content()
    table.clear()
    table.set_epoch(0)
    table.load(tmp_path, "ids")
    after = model_state(model), model.get_layer("ids").params.content()
    assert after[0] == before[0]
    order = [np.argsort(content["keys"].numpy()) for _, content in (before, after)]
    slots = [content["slots"].numpy() for _, content in (before, after)]
    assert slots[0][order[0]].tolist() == slots[1][order[1]].tolist()
    assert np.abs(slots[0]).max() > 0


def test_files_have_no_gradients_that_wait(tmp_path: Path) -> None:
    model = model_of(Strategy.LRU)
    model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "mse")
    table = model.get_layer("ids").params.tables[0]
    ids, targets = np.array([[1, 2, 3]]), np.array([1.0])
    model.train_on_batch(ids, targets)
    with pytest.warns(UserWarning, match="'ids-parameter' wait for the end of"):
        table.save(tmp_path, "ids")
    model.train_on_batch(ids, targets)
    table.save(tmp_path, "ids")


def test_an_empty_table_as_a_file(tmp_path: Path) -> None:
    for types in TYPES:
        table = typed_table(*types)
        table.save(tmp_path)
        table.load(tmp_path)
        assert int(table.size()) == 0


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    table = typed_table("int64", "float32", 3)
    table.insert([1], [[1.0, 2.0, 3.0]])
    with pytest.raises(FileNotFoundError):
        table.load(tmp_path)
    for types in (("int32", "float32", 3), ("int64", "float64", 3), ("int64", "float32", 2),
                  ("string", "float32", 3)):  # fmt: skip
        typed_table(*types).save(tmp_path, "other")
        with pytest.raises(ValueError, match=r"expected keys of int64 and rows of 3 float32, rec"):
            table.load(tmp_path, "other")
    (tmp_path / "broken.npz").write_bytes(b"not a file of NumPy")
    with pytest.raises(ValueError, match="pickle"):
        table.load(tmp_path, "broken")
    assert scores_of(table) == {1: 1}


def test_files_that_are_damaged(tmp_path: Path) -> None:
    table = de.HkvHashTable(tf.int64, tf.float32, 0.0, name="table", max_capacity=10)
    table.insert([1], [1.0])
    table.save(tmp_path)
    path = tmp_path / "table.npz"
    whole = path.read_bytes()
    for content in (b"junk", whole[: len(whole) // 2], b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"table\.npz: expected a file that `save` wrote"):
            table.load(tmp_path)
    assert table.lookup([1]).numpy().tolist() == [1.0]


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_smaller_table_keeps_the_best_of_many(partitions: int, tmp_path: Path) -> None:
    """Rows are saved in the order of hashes, which must not decide which keys stay."""

    def make(max_capacity: int) -> Any:
        creator = de.HkvHashTableCreator(config_of(Strategy.CUSTOMIZED, max_capacity))
        devices = ["/CPU:0"] * partitions
        return de.Variable(kv_creator=creator, devices=devices, name="many")

    large, small = make(30_000), make(5_000)
    numbers = tf.random.shuffle(tf.range(15_000, dtype=tf.int64), seed=1)
    large.upsert(numbers, tf.ones([15_000, 1]))
    path = tf.train.Checkpoint(many=large).write(str(tmp_path / "many"))
    tf.train.Checkpoint(many=small).read(path).assert_consumed()
    room = 5_000 * partitions
    there = small.lookup(tf.range(15_000 - room, 15_000, dtype=tf.int64)).numpy()
    assert there.mean() > 0.98
