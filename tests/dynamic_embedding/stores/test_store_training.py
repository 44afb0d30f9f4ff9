"""Models of Keras whose rows are in a store written in Python: trained, saved and restored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from dict_store import DictStore
from tf_support import content
from training_support import COUNT, KERAS_WARNS, KEYS, make_batches

import tfra
from own_optimizer import OwnOptimizer
from tfra.store import split_rows

de = tfra.dynamic_embedding
pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

DIM = 4
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "Adam": lambda: keras.optimizers.Adam(0.1),
    "SGD": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.1, weight_decay=0.01),
    "RowwiseAdagrad": lambda: de.keras.optimizers.RowwiseAdagrad(0.1),
    "clipped": lambda: keras.optimizers.RMSprop(0.1, global_clipnorm=0.5),
    "accumulated": lambda: keras.optimizers.Adam(0.1, gradient_accumulation_steps=2),
    "own": lambda: OwnOptimizer(0.1),
}


def in_dict() -> Any:
    return de.StoreCreator(DictStore)


def make_model(creator: Any, optimizer: Any, strings: bool = False, **options: Any) -> Any:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((5,), dtype="string" if strings else "int64")
    embedding = de.keras.layers.Embedding(
        DIM,
        key_dtype=tf.string if strings else tf.int64,
        initializer=keras.initializers.RandomNormal(seed=3),
        kv_creator=creator,
        name="rows",
        **options,
    )
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(embedding(inputs)))
    model = keras.Model(inputs, outputs)
    model.compile(optimizer, "mse")
    return model


def train(model: Any, steps: int = 4, seed: int = 0, strings: bool = False) -> list[float]:
    losses = []
    for x, y in make_batches(steps, seed):
        keys = tf.strings.as_string(x) if strings else x
        losses.append(float(model.train_on_batch(keys, y)))
    return losses


def variable_of(model: Any) -> Any:
    return model.get_layer("rows").params


def saved(variable: Any) -> dict[str, Any]:
    """All that is saved of a Variable, rows in the order of their keys."""
    arrays = {name: tensor.numpy() for name, tensor in variable.content().items()}
    order = np.argsort(arrays["keys"])
    arrays |= {name: arrays[name][order] for name in ("keys", "values", "slots")}
    specs = [json.loads(text) for text in arrays.pop("rule")]
    return arrays | {"rule": np.array([str(spec["rule"]) for spec in specs])}


def assert_same(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert mine.keys() == theirs.keys()
    for name, array in mine.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_model_is_trained_as_with_tables_of_the_engine(optimizer: str) -> None:
    engine = make_model(None, OPTIMIZERS[optimizer]())
    stored = make_model(in_dict(), OPTIMIZERS[optimizer]())
    np.testing.assert_allclose(train(stored), train(engine), rtol=1e-6)
    assert_same(saved(variable_of(stored)), saved(variable_of(engine)))


def test_string_keys_and_two_tables() -> None:
    options = {"strings": True, "devices": ["/CPU:0"] * 2}
    engine = make_model(None, OPTIMIZERS["Adam"](), **options)
    stored = make_model(in_dict(), OPTIMIZERS["Adam"](), **options)
    np.testing.assert_allclose(train(stored, strings=True), train(engine, strings=True), rtol=1e-6)
    assert content(variable_of(stored)) == content(variable_of(engine))
    sizes = [table.store.size() for table in variable_of(stored).tables]
    assert sum(sizes) == COUNT and min(sizes) > 0


def test_fit_evaluate_and_predict() -> None:
    model = make_model(in_dict(), OPTIMIZERS["Adam"]())
    [(x, y)] = make_batches(1)
    history = model.fit(x, y, batch_size=2, epochs=10, verbose=0).history["loss"]
    assert history[-1] < history[0]
    assert model.predict(x, verbose=0).shape == y.shape
    assert model.evaluate(x, y, verbose=0) < history[0]


def test_bags_of_keys_are_pooled_and_trained() -> None:
    losses = []
    for creator in (None, in_dict()):
        layer = de.keras.layers.SquashedEmbedding(
            DIM, combiner="mean", initializer=0.5, name="rows", kv_creator=creator
        )
        model = keras.Sequential([keras.Input((5,), dtype="int64"), layer])
        model.compile(keras.optimizers.Adam(0.1), "mse")
        losses.append([float(model.train_on_batch(x, y)) for x, y in make_batches(3)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)


def test_slots_are_in_the_rows_of_the_store() -> None:
    model = make_model(in_dict(), OPTIMIZERS["Adam"]())
    variable = variable_of(model)
    store = variable.tables[0].store
    assert store.spec.slots == {}
    assert store.spec.row_bytes == DIM * 4
    train(model)
    assert store.spec.rule.kind == "adam"
    assert store.spec.row_bytes == 3 * DIM * 4
    rows, exists = store.lookup(KEYS)
    assert exists.all()
    values, slots = split_rows(store.spec, rows)
    np.testing.assert_array_equal(values, variable.lookup(KEYS))
    for slot in variable.get_slot_variables(model.optimizer):
        np.testing.assert_array_equal(slots[slot.slot_name], slot.lookup(KEYS))
        assert np.any(slots[slot.slot_name] != 0)


def test_another_optimizer_starts_its_slots_anew() -> None:
    found = []
    for creator in (None, in_dict()):
        variable = de.Variable(dim=DIM, name="rows", initializer=0.5, kv_creator=creator)
        first, *others = (OPTIMIZERS[name]() for name in ("Adam", "Adam", "Adagrad"))
        for optimizer in (first, *others):  # With the same slots, and with others.
            for _ in range(2):
                _step(variable, optimizer)
            found.append(saved(variable))
        with pytest.raises(tf.errors.FailedPreconditionError, match="slots of one optimizer"):
            variable.get_slot_variables(first)[0].lookup(KEYS)
        with pytest.raises(tf.errors.FailedPreconditionError, match="slots of one optimizer"):
            _step(variable, first)
        found.append(saved(variable))
    for mine, theirs in zip(found[4:], found[:4], strict=True):
        assert_same(mine, theirs)


def _step(variable: Any, optimizer: Any) -> None:
    with tf.GradientTape() as tape:
        rows, trainable = de.embedding_lookup(variable, KEYS, return_trainable=True)
    optimizer.apply([tape.gradient(rows, trainable)], [trainable])


class Averaging(keras.optimizers.Optimizer):
    """An optimizer with a slot that starts as a copy of the row."""

    def build(self, variables: Any) -> None:
        if self.built:
            return
        super().build(variables)
        self.averages = [self.add_variable_from_reference(v, "average") for v in variables]
        for average, variable in zip(self.averages, variables, strict=True):
            average.assign(variable)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        average = self.averages[self._get_variable_index(variable)]
        self.assign_sub(variable, learning_rate * gradient)
        self.assign(average, 0.5 * average + 0.5 * tf.convert_to_tensor(variable))


@pytest.mark.parametrize("make_optimizer", [OPTIMIZERS["Adam"], lambda: Averaging(0.1)])
def test_rows_get_the_slots_of_an_optimizer_once(make_optimizer: Callable[[], Any]) -> None:
    conversions = []

    class Counting(DictStore):
        def change_spec(self, spec: tfra.TableSpec, convert: Any) -> None:
            conversions.append(spec.rule)
            super().change_spec(spec, convert)

    found = []
    for creator in (None, de.StoreCreator(Counting)):
        variable = de.Variable(dim=DIM, name="rows", initializer=0.5, kv_creator=creator)
        optimizer = make_optimizer()
        for _ in range(3):
            _step(variable, optimizer)
        found.append(saved(variable))
    assert_same(found[1], found[0])
    assert len(conversions) == 1


@pytest.mark.parametrize("add", [False, True])
def test_a_variable_is_trained_by_a_tape(add: bool) -> None:
    found = []
    for creator in (None, in_dict()):
        variable = de.Variable(dim=DIM, initializer=0.5, bp_v2=add, kv_creator=creator)
        optimizer = OwnOptimizer(0.1)
        for _ in range(3):
            _step(variable, optimizer)
        found.append(variable.lookup(KEYS).numpy())
    np.testing.assert_array_equal(found[1], found[0])
    assert np.all(found[0] < 0.5)


FORMATS = ("checkpoint", "weights", "weights_array")


def copy_content(source: Any, target: Any, how: str, path: Path) -> None:
    if how == "checkpoint":
        written = tf.train.Checkpoint(model=source, optimizer=source.optimizer).write(path / "c")
        checkpoint = tf.train.Checkpoint(model=target, optimizer=target.optimizer)
        checkpoint.read(written).assert_consumed()
    elif how == "weights":
        source.save_weights(path / "saved.weights.h5")
        target.load_weights(path / "saved.weights.h5")
        target.optimizer.set_weights([w.numpy() for w in source.optimizer.variables])
    else:
        target.set_weights(source.get_weights())
        target.optimizer.set_weights([w.numpy() for w in source.optimizer.variables])


@pytest.mark.parametrize("how", FORMATS)
@pytest.mark.parametrize(
    ("of_source", "of_target"), [("dict", "dict"), ("dict", "engine"), ("engine", "dict")]
)
def test_training_goes_on_exactly_in_a_new_model(
    how: str, of_source: str, of_target: str, tmp_path: Path
) -> None:
    makers = {"dict": in_dict, "engine": lambda: None}
    source = make_model(makers[of_source](), OPTIMIZERS["Adam"]())
    train(source)
    target = make_model(makers[of_target](), OPTIMIZERS["Adam"]())
    train(target, 1, seed=5)  # The restore must replace this.
    copy_content(source, target, how, tmp_path)
    assert_same(saved(variable_of(target)), saved(variable_of(source)))
    assert train(target, seed=1) == train(source, seed=1)
    assert_same(saved(variable_of(target)), saved(variable_of(source)))


@keras.saving.register_keras_serializable("tests")
def make_store(spec: tfra.TableSpec, name: str) -> tfra.Store:
    return DictStore(spec, name)


def test_a_model_is_saved_in_a_file_of_keras(tmp_path: Path) -> None:
    model = make_model(de.StoreCreator(make_store), OPTIMIZERS["Adam"]())
    train(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    store = variable_of(loaded).tables[0].store
    assert isinstance(store, DictStore)
    assert store.size() == COUNT
    assert train(loaded, seed=1) == train(model, seed=1)


def test_a_file_of_keras_needs_the_function(tmp_path: Path) -> None:
    def unknown(spec: tfra.TableSpec, name: str) -> tfra.Store:
        return DictStore(spec, name)

    model = make_model(de.StoreCreator(unknown), OPTIMIZERS["SGD"]())
    train(model, 1)
    model.save(tmp_path / "model.keras")
    with pytest.raises(Exception, match="expected a function or class that Keras knows"):
        keras.models.load_model(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", custom_objects={"unknown": unknown})
    assert variable_of(loaded).tables[0].store.size() == COUNT


def test_a_store_that_has_rows_is_trained_on(tmp_path: Path) -> None:
    kept: dict[str, tfra.Store] = {}

    def same(spec: tfra.TableSpec, name: str) -> tfra.Store:
        return kept.setdefault(name, DictStore(spec, name))

    first = make_model(de.StoreCreator(same), OPTIMIZERS["Adam"]())
    train(first)
    second = make_model(de.StoreCreator(same), OPTIMIZERS["Adam"]())
    assert_same(saved(variable_of(second)), saved(variable_of(first)))
    second.set_weights(first.get_weights())
    second.optimizer.build(second.trainable_variables)
    second.optimizer.set_weights([w.numpy() for w in first.optimizer.variables])
    reference = make_model(None, OPTIMIZERS["Adam"]())
    train(reference)
    assert train(second, seed=1) == train(reference, seed=1)


def test_a_damaged_checkpoint_changes_nothing() -> None:
    variable = de.Variable(dim=2, kv_creator=in_dict())
    variable.upsert([1, 2], [[1.0, 2.0], [3.0, 4.0]])
    before = content(variable)
    damaged = {**variable.content(), "values": tf.zeros([3, 2])}
    with pytest.raises(tf.errors.OpError):
        variable.restore(damaged)
    assert content(variable) == before


def test_a_saved_model_is_refused(tmp_path: Path) -> None:
    model = make_model(in_dict(), OPTIMIZERS["Adam"]())
    train(model, 1)
    with pytest.raises(NotImplementedError, match="A SavedModel can't hold 'rows"):
        model.export(tmp_path / "exported", verbose=False)
