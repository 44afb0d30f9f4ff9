"""Every optimizer of Keras and of users: tables get the numbers of dense training."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_support import (
    COUNT,
    DIM,
    KERAS_WARNS,
    KEYS,
    Array,
    Careless,
    HalfAdam,
    Inertia,
    Twins,
    de,
    distinct_batches,
    embedding,
    head,
    heads,
    loop,
    make_batches,
    network,
    rows_of,
    some_batches,
    train_on_batches,
)

O = keras.optimizers  # noqa: E741
STEPS = 4
pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)


ROWWISE: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (O.SGD, {"learning_rate": 0.1}),
    "SGD momentum": (O.SGD, {"learning_rate": 0.1, "momentum": 0.8}),
    "SGD nesterov": (O.SGD, {"learning_rate": 0.1, "momentum": 0.8, "nesterov": True}),
    "RMSprop": (O.RMSprop, {}),
    "RMSprop centered": (O.RMSprop, {"centered": True, "rho": 0.8, "epsilon": 1e-4}),
    "RMSprop momentum": (O.RMSprop, {"momentum": 0.7}),
    "RMSprop all": (O.RMSprop, {"centered": True, "momentum": 0.7}),
    "Adam": (O.Adam, {}),
    "Adam numbers": (O.Adam, {"beta_1": 0.7, "beta_2": 0.9, "epsilon": 1e-2}),
    "Adam amsgrad": (O.Adam, {"amsgrad": True, "beta_2": 0.5}),
    "AdamW": (O.AdamW, {"weight_decay": 0.2}),
    "AdamW amsgrad": (O.AdamW, {"weight_decay": 0.2, "amsgrad": True, "beta_2": 0.5}),
    "Adadelta": (O.Adadelta, {"learning_rate": 1.0, "rho": 0.8, "epsilon": 1e-3}),
    "Adagrad": (O.Adagrad, {"initial_accumulator_value": 0.3, "epsilon": 1e-3}),
    "Adamax": (O.Adamax, {"beta_1": 0.8}),
    "Nadam": (O.Nadam, {}),
    "Ftrl": (O.Ftrl, {"learning_rate": 0.3}),
    "Ftrl numbers": (
        O.Ftrl,
        {
            "learning_rate": 0.3, "l1_regularization_strength": 0.01, "beta": 0.1,
            "l2_regularization_strength": 0.02, "l2_shrinkage_regularization_strength": 0.03,
            "learning_rate_power": -0.6, "initial_accumulator_value": 0.2,
        },
    ),
    "Lion": (O.Lion, {"learning_rate": 0.02, "beta_1": 0.8}),
    "own": (Inertia, {"inertia": 0.7}),
    "own without config": (Careless, {"strength": 3.0}),
    "own Adam": (HalfAdam, {}),
}  # fmt: skip
# One of each.
KINDS = (
    "SGD", "SGD nesterov", "RMSprop all", "Adam", "Adam amsgrad", "AdamW", "Adadelta", "Adagrad",
    "Adamax", "Nadam", "Ftrl numbers", "Lion", "own", "own Adam",
)  # fmt: skip
WHOLE_VARIABLE = [name for name in ("Lamb", "Adafactor", "Muon") if hasattr(O, name)]
WRAPPERS = {"Optimizer", "LossScaleOptimizer", "MultiOptimizer"}
# One for each way to train a table: a kernel of the engine, and the optimizer's own code.
BOTH_WAYS = ("Adam", "own")


def make(name: str, **settings: Any) -> Any:
    """A new optimizer."""
    kind, numbers = ROWWISE[name]
    return kind(**{"learning_rate": 0.05, **numbers, **settings})


def rate(name: str) -> float:
    return ROWWISE[name][1].get("learning_rate", 0.05)


def decaying(name: str) -> Any:
    return O.schedules.ExponentialDecay(2 * rate(name), decay_steps=1, decay_rate=0.6)


SETTINGS: dict[str, Callable[[str], Any]] = {
    "schedule": lambda name: make(name, learning_rate=decaying(name)),
    "clipnorm": lambda name: make(name, clipnorm=0.1),
    "global_clipnorm": lambda name: make(name, global_clipnorm=0.1),
    "clipvalue": lambda name: make(name, clipvalue=0.02),
    "weight_decay": lambda name: make(name, weight_decay=0.3),
    "loss_scale_factor": lambda name: make(name, loss_scale_factor=64.0),
    "LossScaleOptimizer": lambda name: O.LossScaleOptimizer(make(name), initial_scale=1024.0),
}


def test_all_optimizers_of_keras_are_here() -> None:
    public = {
        name for name, value in vars(O).items()
        if inspect.isclass(value) and issubclass(value, O.Optimizer)
    }  # fmt: skip
    tested = {kind.__name__ for kind, _ in ROWWISE.values()}
    assert public <= tested | set(WHOLE_VARIABLE) | WRAPPERS | {"ScheduleFreeAdamW"}


@pytest.mark.parametrize("name", KINDS)
def test_a_compiled_model_trains_as_a_dense_one(name: str) -> None:
    twins = Twins()
    twins.train(lambda: make(name), make_batches(STEPS), train_on_batches).check()
    assert int(twins.params.size()) == COUNT


@pytest.mark.parametrize("name", ROWWISE)
def test_a_loop_trains_as_a_dense_one(name: str) -> None:
    Twins().train(lambda: make(name), make_batches(STEPS)).check()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", KINDS)
def test_settings_in_a_loop(name: str, setting: str) -> None:
    Twins().train(lambda: SETTINGS[setting](name), make_batches(3)).check()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", BOTH_WAYS)
def test_settings_of_a_compiled_model(name: str, setting: str) -> None:
    Twins().train(lambda: SETTINGS[setting](name), make_batches(3), train_on_batches).check()


def test_the_settings_of_these_tests_matter() -> None:
    plain = Twins().train(lambda: make("SGD"), make_batches(3))
    for setting, make_optimizer in SETTINGS.items():
        same = setting in ("loss_scale_factor", "LossScaleOptimizer")
        other = Twins().train(lambda f=make_optimizer: f("SGD"), make_batches(3))
        assert np.allclose(rows_of(plain.layer), rows_of(other.layer), atol=1e-4) == same, setting


@pytest.mark.parametrize("setting", ["plain", "clipnorm"])
def test_the_embedding_of_keras_agrees(setting: str) -> None:
    # Its gradients are sparse: they are well-defined only for batches without duplicates.
    layer = embedding()
    model = network(layer)
    dense = keras.layers.Embedding(COUNT, DIM)
    dense_model = network(dense)
    dense.set_weights([rows_of(layer)])
    batches = distinct_batches(STEPS)
    options = {} if setting == "plain" else {"clipnorm": 0.1}
    before = rows_of(layer)
    loop(model, make("Adam", **options), batches)
    loop(dense_model, make("Adam", **options), batches)
    assert np.abs(rows_of(layer) - before).mean() > 1e-2
    np.testing.assert_allclose(rows_of(layer), dense.embeddings.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("run", [loop, train_on_batches])
@pytest.mark.parametrize("name", WHOLE_VARIABLE)
def test_optimizers_with_statistics_of_whole_variables_are_refused(name: str, run: Any) -> None:
    layer = embedding()
    model = network(layer)
    with pytest.raises((NotImplementedError, ValueError), match=name):
        run(model, getattr(O, name)(learning_rate=0.05), make_batches(1))
    assert int(layer.params.size()) == 0


@pytest.mark.skipif(not hasattr(O, "ScheduleFreeAdamW"), reason="this Keras has no such optimizer")
def test_a_slot_that_starts_as_the_row_is_right_or_refused() -> None:
    twins = Twins()
    try:
        twins.train(lambda: O.ScheduleFreeAdamW(0.05), make_batches(STEPS))
    except (NotImplementedError, ValueError) as error:
        assert "ScheduleFreeAdamW" in str(error)
    else:
        twins.check()


@pytest.mark.parametrize("name", ["SGD", *BOTH_WAYS])
@pytest.mark.parametrize("run", [loop, train_on_batches])
def test_the_rate_can_be_changed_between_steps(name: str, run: Any) -> None:
    def lower(optimizer: Any, number: int) -> None:
        optimizer.learning_rate = 0.2 / (1 + number)

    changed = Twins().train(lambda: make(name), make_batches(STEPS), run, before_step=lower)
    changed.check()
    plain = Twins().train(lambda: make(name), make_batches(STEPS))
    assert np.abs(rows_of(plain.layer) - rows_of(changed.layer)).max() > 1e-2


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_reduce_lr_on_plateau(name: str) -> None:
    twins = Twins()
    batch = make_batches(1)[0]
    for model in (twins.model, twins.dense_model):
        model.compile(make(name), "mse", run_eagerly=model is twins.dense_model)
        plateau = keras.callbacks.ReduceLROnPlateau("loss", 0.1, patience=1, min_delta=100.0)
        fit = {"batch_size": 4, "epochs": 4, "shuffle": False, "verbose": 0}
        model.fit(*batch, callbacks=[plateau], **fit)
        assert float(model.optimizer.learning_rate) < 0.01
    twins.check()


@pytest.mark.parametrize("by", ["variable", "name"])
@pytest.mark.parametrize("name", ["AdamW", "SGD", "own"])
def test_tables_can_be_excluded_from_weight_decay(name: str, by: str) -> None:
    twins = Twins()
    for model, layer in ((twins.model, twins.layer), (twins.dense_model, twins.dense_layers[0])):
        optimizer = make(name, weight_decay=0.5)
        variable = layer.trainable_variables[0]
        chosen = {"var_list": [variable]} if by == "variable" else {"var_names": [variable.name]}
        optimizer.exclude_from_weight_decay(**chosen)
        loop(model, optimizer, make_batches(3))
    twins.check()
    decayed = Twins().train(lambda: make(name, weight_decay=0.5), make_batches(3))
    decayed.check()
    assert np.abs(rows_of(twins.layer) - rows_of(decayed.layer)).max() > 1e-3


@pytest.mark.parametrize("run", [loop, train_on_batches])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Adam", {}), ("SGD", {"global_clipnorm": 0.1}), ("own", {"weight_decay": 0.2}),
        ("SGD momentum", {"loss_scale_factor": 8.0}),
    ],
    ids=str,
)  # fmt: skip
def test_gradients_can_be_accumulated(name: str, options: dict[str, Any], run: Any) -> None:
    twins = Twins()

    def nothing_before_the_third(optimizer: Any, number: int) -> None:
        same = np.array_equal(rows_of(twins.layer), twins.initial[0])
        assert same == (number < 3)

    make_optimizer = lambda: make(name, gradient_accumulation_steps=3, **options)  # noqa: E731
    run(twins.model, make_optimizer(), make_batches(7), before_step=nothing_before_the_third)
    loop(twins.dense_model, make_optimizer(), make_batches(7))
    twins.check()


@pytest.mark.parametrize("run", [loop, train_on_batches])
def test_accumulation_keeps_the_gradients_of_ids_that_do_not_come_back(run: Any) -> None:
    batches = some_batches(4)
    seen = [set(x.ravel().tolist()) for x, _ in batches]
    assert (seen[0] | seen[2]) - (seen[1] | seen[3])
    twins = Twins()
    twins.train(lambda: make("SGD", gradient_accumulation_steps=2), batches, run)
    touched = sorted(set().union(*seen))
    expected = rows_of(twins.dense_layers[0], touched)
    np.testing.assert_allclose(rows_of(twins.layer, touched), expected, rtol=1e-5, atol=1e-5)
    assert np.abs(expected - twins.initial[0][touched]).max(axis=1).min() > 1e-4
    assert int(twins.params.size()) == len(touched)


@pytest.mark.parametrize("run", [loop, train_on_batches])
@pytest.mark.parametrize("name", ["SGD", "own"])
def test_steps_that_overflow_are_skipped(name: str, run: Any) -> None:
    twins = Twins()
    optimizers = []

    def make_optimizer() -> Any:
        inner = make(name, learning_rate=1e-3)
        optimizers.append(O.LossScaleOptimizer(inner, initial_scale=2.0**127))
        return optimizers[-1]

    twins.train(make_optimizer, make_batches(6, targets=30.0), run)
    for optimizer in optimizers:
        assert 0 < int(optimizer.iterations) < 6, "the test should have steps of both kinds"
    twins.check()


@pytest.fixture
def mixed_float16() -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy(before)


@pytest.mark.usefixtures("mixed_float16")
@pytest.mark.parametrize("name", ["SGD", *BOTH_WAYS])
def test_mixed_float16(name: str) -> None:
    twins = Twins()
    assert twins.layer.compute_dtype == "float16"
    assert twins.layer(KEYS[:2]).dtype == tf.float16
    for model in (twins.model, twins.dense_model):
        train_on_batches(model, make(name), make_batches(STEPS))
        assert isinstance(model.optimizer, O.LossScaleOptimizer)
    twins.check(tolerance=2e-3)
    assert twins.params.lookup(KEYS).dtype == tf.float32


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_moving_averages_are_of_the_dense_weights_only(name: str) -> None:
    twins, averaged = Twins(), Twins()
    batch = make_batches(1)[0]
    fit = {"batch_size": 4, "epochs": 3, "shuffle": False, "verbose": 0}
    twins.dense_model.compile(make(name), "mse", run_eagerly=True)
    twins.dense_model.fit(*batch, **fit)
    average = {"use_ema": True, "ema_momentum": 0.5}
    averaged.dense_model.compile(make(name, **average), "mse", run_eagerly=True)
    averaged.dense_model.fit(*batch, **fit)
    twins.model.compile(make(name, **average), "mse")
    with pytest.warns(UserWarning, match=r"(?i)ema|averag"):
        twins.model.fit(*batch, **fit)
    expected = rows_of(twins.dense_layers[0])
    np.testing.assert_allclose(rows_of(twins.layer), expected, rtol=1e-5, atol=1e-5)
    kernels = [heads(m)[0] for m in (twins.model, averaged.dense_model, twins.dense_model)]
    np.testing.assert_allclose(kernels[0], kernels[1], rtol=1e-5, atol=1e-5)
    assert np.abs(kernels[0] - kernels[2]).max() > 1e-3


def test_the_update_step_of_a_user_is_honoured() -> None:
    moved = []
    for name in ("own Adam", "Adam"):
        layer = embedding()
        loop(network(layer), make(name), make_batches(1))
        moved.append(np.abs(rows_of(layer) - rows_of(embedding())).mean())
    np.testing.assert_allclose(2 * moved[0], moved[1], rtol=1e-4)


@pytest.mark.skipif(not hasattr(O, "MultiOptimizer"), reason="this Keras has no MultiOptimizer")
@pytest.mark.parametrize("run", [loop, train_on_batches])
@pytest.mark.parametrize("name", BOTH_WAYS)
def test_multi_optimizer(name: str, run: Any) -> None:
    def make_optimizer() -> Any:
        of_head, of_table = make("SGD"), make(name)
        return O.MultiOptimizer(lambda v: of_head if "head" in v.path else of_table)

    Twins().train(make_optimizer, make_batches(STEPS), run).check()


@pytest.mark.parametrize("name", [*BOTH_WAYS, "SGD"])
@pytest.mark.parametrize("run", [loop, train_on_batches])
def test_the_optimizer_of_the_old_api_is_the_optimizer(name: str, run: Any) -> None:
    optimizer = make(name, weight_decay=0.1)
    kind, config = type(optimizer), optimizer.get_config()
    assert de.DynamicEmbeddingOptimizer(optimizer) is optimizer
    assert de.DynamicEmbeddingOptimizer(optimizer) is optimizer
    assert isinstance(optimizer, kind)
    assert type(optimizer).__name__ == kind.__name__
    assert optimizer.get_config() == config
    twins = Twins()
    run(twins.model, optimizer, make_batches(STEPS))
    loop(twins.dense_model, make(name, weight_decay=0.1), make_batches(STEPS))
    twins.check()


def test_optimizers_by_their_names() -> None:
    twins = Twins()
    twins.model.compile("adam", "mse")
    for x, y in make_batches(3):
        twins.model.train_on_batch(x, y)
    loop(twins.dense_model, O.Adam(), make_batches(3))
    twins.check(tolerance=1e-6)


# The same in NumPy, with keys that come and go.


def adam(row: Array, slots: list[Array], gradient: Array, step: int) -> Array:
    m, v = slots
    m += (gradient - m) * (1 - 0.9)
    v += (gradient**2 - v) * (1 - 0.999)
    alpha = 0.05 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    return row - m * alpha / (np.sqrt(v) + 1e-7)


def momentum(row: Array, slots: list[Array], gradient: Array, step: int) -> Array:
    slots[0][:] = 0.8 * slots[0] - 0.1 * gradient
    return row + slots[0]


def inertia(row: Array, slots: list[Array], gradient: Array, step: int) -> Array:
    speed, total = slots
    total += gradient**2
    speed[:] = 0.7 * speed - 0.05 * gradient / np.sqrt(total + 0.5)
    return row + speed


@pytest.mark.parametrize("function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("devices", [None, ["/CPU:0", "/CPU:0"]], ids=["one table", "two tables"])
@pytest.mark.parametrize(
    ("name", "rule"), [("Adam", adam), ("SGD momentum", momentum), ("own", inertia)]
)
def test_rows_and_slots_of_absent_keys_stay(
    name: str, rule: Any, devices: list[str] | None, function: bool
) -> None:
    layer, optimizer = embedding(devices=devices), make(name)
    rng = np.random.default_rng(11)
    keys = np.array([-(2**60), -5, -1, 0, 1, 2, 3, 40, 500, 6000, 2**62])
    layer(keys)
    rows = {int(key): rows_of(layer, key).astype(np.float64) for key in keys}
    slots = {int(key): [np.zeros(DIM), np.zeros(DIM)] for key in keys}
    touched: set[int] = set()

    def step(ids: Any, weights: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids, training=True) * weights)
        variables = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    step = tf.function(step) if function else step
    for number in range(1, 13):
        ids = rng.choice(rng.choice(keys[: 4 + number], 4), 8)
        weights = rng.standard_normal((8, DIM)).astype(np.float32)
        step(tf.constant(ids), tf.constant(weights))
        for key in set(ids.tolist()):
            gradient = weights[ids == key].sum(axis=0).astype(np.float64)
            rows[key] = rule(rows[key], slots[key], gradient, number)
        touched |= set(ids.tolist())
        expected = np.stack([rows[int(key)] for key in keys])
        np.testing.assert_allclose(rows_of(layer, keys), expected, rtol=1e-4, atol=1e-5)
        assert set(layer.params.export()[0].numpy().tolist()) == touched


def test_a_model_of_heads_only_is_left_to_keras() -> None:
    model = keras.Sequential([keras.Input((3,)), head()])
    optimizer = make("Adam")
    train_on_batches(model, optimizer, [(np.ones((2, 3), "f"), np.ones((2, 1), "f"))])
    assert type(optimizer) is O.Adam
