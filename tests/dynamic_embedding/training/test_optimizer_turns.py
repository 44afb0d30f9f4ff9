"""A table has the slots of one optimizer: what happens when several train it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_support import KERAS_WARNS, de, embedding, head, rows_of

import tfra
from own_optimizer import OwnOptimizer
from tfra.dynamic_embedding._tables.rules import BoundOptimizer, params_text, rule_text

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

IDS = np.array([[1, 2, 3, 4, 5], [5, 4, 3, 2, 6]])
TARGETS = np.array([[1.0], [-1.0]], np.float32)
MAKE: dict[str, Callable[..., Any]] = {
    "Adam": lambda **options: keras.optimizers.Adam(0.05, **options),
    "SGD": lambda **options: keras.optimizers.SGD(0.05, **options),
    "own": lambda **options: OwnOptimizer(0.05, **options),
}
TAKEN = "a step of 'first .*', which trained it before that one took its place"


def model_over(layer: Any, optimizer: Any, **options: Any) -> keras.Model:
    """A model with a dense part of its own."""
    ids = keras.Input((5,), dtype="int64")
    model = keras.Model(ids, head()(keras.layers.Flatten()(layer(ids))))
    model.compile(optimizer, "mse", **options)
    return model


def step(model: keras.Model, ids: Any = IDS) -> None:
    model.train_on_batch(ids, TARGETS)


def state(*models: keras.Model) -> list[Any]:
    """Rows, slots and dense weights, in an order of their own, and the steps taken."""
    found: list[Any] = []
    for model in models:
        content = model.layers[1].params.content()
        order = np.argsort(content["keys"].numpy())
        found += [content[name].numpy()[order].tolist() for name in ("keys", "values", "slots")]
        found += [weight.tolist() for weight in model.layers[-1].get_weights()]
        found.append(int(model.optimizer.variables[0]))
    return found


@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize(
    "kinds", [("Adam", "Adam"), ("own", "own"), ("Adam", "own"), ("Adam", "SGD"), ("SGD", "Adam")]
)
def test_an_optimizer_whose_place_was_taken_is_refused(
    kinds: tuple[str, str], eagerly: bool
) -> None:
    layer = embedding(name="items")
    first, second = (
        model_over(layer, MAKE[kind](name=name), run_eagerly=eagerly)
        for kind, name in zip(kinds, ("first", "second"), strict=True)
    )
    step(first)
    step(first)
    step(second)
    before = state(first, second)
    with pytest.raises(tf.errors.FailedPreconditionError, match=TAKEN) as caught:
        step(first)
    assert "Expected a step of 'second " in str(caught.value)
    assert "'items-parameter'" in str(caught.value)
    assert state(first, second) == before
    step(second)
    first.compile(MAKE[kinds[0]](), "mse", run_eagerly=eagerly)
    step(first)
    assert state(first, second) != before


@pytest.mark.parametrize("kind", ["Adam", "own"])
def test_the_second_optimizer_starts_anew(kind: str) -> None:
    layer, fresh = embedding(), embedding()
    step(model_over(layer, MAKE[kind]()))
    fresh.set_weights(layer.get_weights())
    models = [model_over(one, MAKE[kind]()) for one in (layer, fresh)]
    for model in models:
        step(model)
        step(model, IDS + 3)
    assert state(models[0]) == state(models[1])


class FailsInItsStep(OwnOptimizer):
    """Raises when it updates the rows of a table."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        raise RuntimeError("no step today")


def fail(variable: Any, optimizer: Any, gradient_dim: int) -> None:
    """Takes a step that raises."""
    keys = tf.constant([1, 2], tf.int64)
    _, shadow = de.embedding_lookup(variable, keys, return_trainable=True)
    gradient = tf.IndexedSlices(tf.ones([2, gradient_dim]), keys, tf.constant([0, gradient_dim]))
    with pytest.raises((RuntimeError, tf.errors.InvalidArgumentError)):
        optimizer.apply([gradient], [shadow])


def test_a_first_step_that_fails_takes_no_place() -> None:
    first = MAKE["Adam"](name="first")
    model = model_over(embedding(4), first)
    step(model)
    variable = model.layers[1].params
    before = state(model)
    fail(variable, keras.optimizers.Adam(float("nan")), 4)
    fail(variable, keras.optimizers.Adam(), 3)
    fail(variable, FailsInItsStep(0.1), 4)
    assert state(model) == before
    step(model)  # It is not refused.
    assert state(model) != before


def test_optimizers_without_slots_may_take_turns() -> None:
    layer = embedding()
    dense_layer = keras.layers.Embedding(10, 4)
    dense_layer.build(())
    dense_layer.embeddings.assign(rows_of(layer))
    turns = [[model_over(one, MAKE["SGD"]()) for _ in range(2)] for one in (layer, dense_layer)]
    for models in turns:
        for model in (models[0], models[1], models[0], models[1], models[1], models[0]):
            step(model)
    np.testing.assert_allclose(rows_of(layer), dense_layer.embeddings.numpy(), atol=1e-6)


def test_one_optimizer_may_train_several_models() -> None:
    layer = embedding()
    optimizer = MAKE["Adam"]()
    models = [model_over(layer, "sgd") for _ in range(2)]
    variables = [*models[0].trainable_variables, *models[1].layers[-1].trainable_variables]
    optimizer.build(variables)
    for model in models:
        model.compile(optimizer, "mse")
    for model in (*models, *models):
        step(model)
    assert int(optimizer.iterations) == 4
    assert layer.params.content()["slots"].numpy().any()


@pytest.mark.parametrize("kind", ["Adam", "own"])
def test_what_is_restored_is_nobodys_until_the_next_step(kind: str, tmp_path: Path) -> None:
    path = str(tmp_path / "model.weights.h5")
    layer = embedding()
    first, second = (model_over(layer, MAKE[kind](name=name)) for name in ("first", "second"))
    step(first)
    first.save_weights(path)
    step(first, IDS + 1)
    expected = state(first)
    step(second)
    first.load_weights(path)  # Its slots are restored.
    step(first, IDS + 1)
    assert state(first) == expected
    with pytest.raises(tf.errors.FailedPreconditionError, match="a step of 'second "):
        step(second)

    loaded = MAKE[kind]()  # Like another process, but with the same table.
    first.compile(loaded, "mse")
    loaded.build(first.trainable_variables)
    first.load_weights(path)
    step(first, IDS + 1)
    assert state(first) == expected


def test_an_optimizer_with_the_state_of_another_goes_on_for_it() -> None:
    def train(changes: bool) -> list[Any]:
        model = model_over(embedding(), MAKE["Adam"]())
        step(model)
        if changes:
            copy = MAKE["Adam"]()
            copy.build(model.trainable_variables)
            copy.set_weights([variable.numpy() for variable in model.optimizer.variables])
            model.compile(copy, "mse")
        step(model)
        return state(model)

    assert train(changes=True) == train(changes=False)


def test_sums_of_gradients_are_of_one_optimizer_too() -> None:
    layer = embedding()
    first, second = (
        model_over(layer, MAKE["SGD"](name=name, gradient_accumulation_steps=3))
        for name in ("first", "second")
    )
    step(first)
    step(second, IDS + 10)
    sums = layer.params.content()["sum_keys"].numpy()
    assert set(sums.tolist()) == set((IDS + 10).ravel().tolist())
    with pytest.raises(tf.errors.FailedPreconditionError, match=TAKEN):
        step(first)
    for _ in range(2):
        step(second, IDS + 10)
    assert int(layer.params.size()) == len(sums)


@pytest.mark.parametrize("make", ["AdamOptimizer", "GradientDescentOptimizer"])
def test_optimizers_of_v1(make: str) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = de.get_variable("taken", dim=2)
        rows = de.embedding_lookup(variable, tf.constant([1, 2], tf.int64))
        first, second = (
            de.DynamicEmbeddingOptimizer(getattr(tf.compat.v1.train, make)(0.1)).minimize(
                tf.reduce_sum(rows)
            )
            for _ in range(2)
        )
        session.run(tf.compat.v1.global_variables_initializer())
        for train in (first, first, second, second):
            session.run(train)
        if make == "GradientDescentOptimizer":
            session.run(first)
            np.testing.assert_allclose(session.run(rows), np.full((2, 2), -0.5), rtol=1e-6)
            return
        before = session.run(rows)
        with pytest.raises(tf.errors.FailedPreconditionError, match="took its place"):
            session.run(first)
        np.testing.assert_array_equal(session.run(rows), before)


def test_workers_of_one_program_share_slots() -> None:
    """Each process has an optimizer of its own, which has the same name as those of the others."""
    layer = embedding(name="items")
    table, rows = layer.params.tables[0], np.ones((2, layer.params.dim), np.float32)
    workers = [BoundOptimizer("adam", f"adam {i}", f"worker {i}") for i in range(3)]
    rule = tfra.optimizers.Adam(0.1)

    def step(bound_optimizer: BoundOptimizer, number: int) -> None:
        table.training.bind(bound_optimizer, number, "slots")
        table.training.apply_gradients(
            tf.constant([1, 2], tf.int64), rows, rule=rule_text(rule), params=params_text(rule),
            learning_rate=tf.constant(0.1, tf.float64), step=tf.constant(number, tf.int64),
        )  # fmt: skip

    step(workers[0], 1)
    before = layer.params.content()["slots"].numpy()
    assert before.any()
    for number in (2, 3):
        for bound_optimizer in workers[:2]:
            step(
                bound_optimizer, number - (bound_optimizer is workers[1])
            )  # It started one step later.
    slots = layer.params.content()["slots"].numpy()
    assert (np.abs(slots) > np.abs(before)).all()  # The slots were not reset.
    # A new optimizer in one of the workers takes the place of all; the others may follow it.
    new = [BoundOptimizer("adam_1", f"adam_1 {i}", f"worker {i}") for i in range(2)]
    step(new[1], 1)
    np.testing.assert_array_equal(layer.params.content()["slots"].numpy(), before)
    for bound_optimizer in workers[:2]:
        with pytest.raises(tf.errors.FailedPreconditionError, match=bound_optimizer.unique_name):
            step(bound_optimizer, 4)
    step(new[0], 1)
    step(new[1], 2)
    assert (np.abs(layer.params.content()["slots"].numpy()) > np.abs(before)).all()
