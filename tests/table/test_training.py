"""What surrounds an update rule: steps, overrides, slots that are saved and restored."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import tfra
from support import Array, assert_identical, make_keys, numpy_dtype, sorted_export
from tfra import optimizers as opt

ALL_OPTIMIZERS = [
    member
    for _, member in inspect.getmembers(opt, inspect.isclass)
    if issubclass(member, opt.Optimizer) and member is not opt.Optimizer
]
DIM = 4


def batch(rng: np.random.Generator, size: int = 30) -> tuple[Array, Array]:
    return rng.integers(0, 25, size), rng.standard_normal((size, DIM)).astype(np.float32)


def assert_same_tables(one: tfra.Table, other: tfra.Table) -> None:
    (keys, values, slots), (keys_2, values_2, slots_2) = sorted_export(one), sorted_export(other)
    assert_identical(keys, keys_2)
    assert_identical(values, values_2)
    assert tuple(slots) == tuple(slots_2)
    for name in slots:
        assert_identical(slots[name], slots_2[name])


def test_all_eleven_optimizers_are_tested() -> None:
    assert {cls.__name__ for cls in ALL_OPTIMIZERS} == {
        "SGD", "Adagrad", "RowwiseAdagrad", "Adam", "AdamW", "Adamax", "Nadam", "RMSprop",
        "Adadelta", "Ftrl", "Lion",
    }  # fmt: skip


@pytest.mark.parametrize("cls", ALL_OPTIMIZERS)
def test_a_name_means_all_defaults(cls: type[opt.Optimizer], rng: np.random.Generator) -> None:
    named, made = tfra.Table(DIM, optimizer=cls.kind), tfra.Table(DIM, optimizer=cls())
    assert named.optimizer == made.optimizer == cls()
    assert named.slot_names == cls().slot_names()
    for _ in range(3):
        keys, gradients = batch(rng)
        named.apply_gradients(keys, gradients)
        made.apply_gradients(keys, gradients)
    assert_same_tables(named, made)


@pytest.mark.parametrize("cls", ALL_OPTIMIZERS)
def test_restored_values_and_slots_continue_bit_for_bit(
    cls: type[opt.Optimizer], floating_dtype: str, key_dtype: str, rng: np.random.Generator
) -> None:
    options: dict[str, Any] = {
        "key_dtype": key_dtype, "value_dtype": floating_dtype, "optimizer": cls(0.1),
        "initializer": "normal", "seed": 11,
    }  # fmt: skip
    gradient_dtype = "float64" if floating_dtype == "float64" else "float32"
    original, restored = tfra.Table(DIM, **options), tfra.Table(DIM, **options)
    for _ in range(5):
        numbers, gradients = batch(rng)
        original.apply_gradients(make_keys(key_dtype, numbers), gradients.astype(gradient_dtype))
    for keys, values, slots in original.iterate(4, slots=True):
        restored.upsert(keys, values, slots=slots)
    restored.step = original.step
    assert_same_tables(original, restored)
    for _ in range(5):
        numbers, gradients = batch(rng)
        for table in (original, restored):
            table.apply_gradients(make_keys(key_dtype, numbers), gradients.astype(gradient_dtype))
    assert_same_tables(original, restored)
    assert original.step == restored.step == 10


def test_slots_have_the_shape_of_the_values_or_one_column() -> None:
    for optimizer, width in (("adam", DIM), ("rowwise_adagrad", 1)):
        table = tfra.Table(DIM, optimizer=optimizer)
        keys = np.arange(6).reshape(2, 3)
        rng = np.random.default_rng(0)
        values = rng.random((2, 3, DIM)).astype(np.float32)
        slots = {
            name: rng.random((2, 3, width)).astype(np.float32)
            for name in reversed(table.slot_names)
        }
        table.upsert(keys, values, slots=slots)
        _, exported_values, exported = sorted_export(table)
        assert_identical(exported_values, values.reshape(6, DIM))
        for name in table.slot_names:
            assert_identical(exported[name], slots[name].reshape(6, width))


def test_slots_of_16_bit_tables_are_float32(floating_dtype: str) -> None:
    table = tfra.Table(DIM, value_dtype=floating_dtype, optimizer="adam")
    table.apply_gradients([1], np.full((1, DIM), 1e-3, np.float64).astype(
        "float64" if floating_dtype == "float64" else "float32"
    ))  # fmt: skip
    _, values, slots = table.export(slots=True)
    assert values.dtype == numpy_dtype(floating_dtype)
    expected = np.dtype("float64" if floating_dtype == "float64" else "float32")
    assert {slot.dtype for slot in slots.values()} == {expected}
    # 1e-9 is nothing in float16, whose smallest number is 6e-8.
    np.testing.assert_allclose(slots["velocity"], 1e-9, rtol=1e-5)


def test_upsert_without_slots_keeps_those_that_are_there() -> None:
    table = tfra.Table(2, optimizer="adagrad")
    table.apply_gradients([1], [[1.0, 2.0]])
    before = sorted_export(table)[2]["accumulator"]
    table.upsert([1, 2], np.zeros((2, 2), np.float32))
    after = sorted_export(table)[2]["accumulator"]
    assert_identical(after[:1], before)
    np.testing.assert_array_equal(after[1:], np.full((1, 2), 0.1, np.float32))


def test_a_removed_key_comes_back_with_initial_slots() -> None:
    table = tfra.Table(2, optimizer="adam", initializer="ones")
    table.apply_gradients([1], [[1.0, 2.0]])
    table.remove([1])
    table.upsert([1], np.ones((1, 2), np.float32))
    for slot in sorted_export(table)[2].values():
        np.testing.assert_array_equal(slot, 0)


def test_steps_count_calls_and_can_be_set() -> None:
    table = tfra.Table(1, optimizer="adam")
    gradients = np.ones((1, 1), np.float32)
    for expected in (1, 2, 3):
        table.apply_gradients([1], gradients)
        assert table.step == expected
    table.apply_gradients([1], gradients, step=10)
    assert table.step == 10
    table.apply_gradients([1], gradients)
    assert table.step == 11
    table.step = 4
    table.apply_gradients([1], gradients)
    assert table.step == 5


def test_the_step_is_what_the_rule_uses() -> None:
    gradients = np.array([[0.5]], np.float32)
    given, counted, first = (tfra.Table(1, optimizer=opt.Adam(0.1)) for _ in range(3))
    given.apply_gradients([1], gradients, step=7)
    counted.step = 6
    counted.apply_gradients([1], gradients)
    first.apply_gradients([1], gradients)
    assert_same_tables(given, counted)
    assert given.lookup(1).tobytes() != first.lookup(1).tobytes()


OVERRIDES = [
    (opt.SGD(), opt.SGD(0.3), {"learning_rate": 0.3}),
    (opt.SGD(0.1), opt.SGD(0.1, weight_decay=0.5), {"weight_decay": 0.5}),
    (opt.SGD(0.1), opt.SGD(0.1, clipnorm=0.5), {"clipnorm": 0.5}),
    (opt.SGD(0.1), opt.SGD(0.1, clipvalue=0.5), {"clipvalue": 0.5}),
    (opt.SGD(0.1, momentum=0.9), opt.SGD(0.1, momentum=0.5), {"momentum": 0.5}),
    (opt.Adam(), opt.Adam(0.1, beta_1=0.5), {"learning_rate": 0.1, "beta_1": 0.5}),
    (opt.Adam(0.1), opt.Adam(0.1, beta_2=0.5, epsilon=0.1), {"beta_2": 0.5, "epsilon": 0.1}),
    (opt.RMSprop(0.1), opt.RMSprop(0.1, rho=0.5), {"rho": 0.5}),
    (
        opt.Ftrl(0.1),
        opt.Ftrl(0.1, l1_regularization_strength=0.5, learning_rate_power=-0.8, beta=0.2),
        {"l1_regularization_strength": 0.5, "learning_rate_power": -0.8, "beta": 0.2},
    ),
]


@pytest.mark.parametrize(("built", "meant", "overrides"), OVERRIDES)
def test_overrides_hold_for_one_call(
    built: opt.Optimizer, meant: opt.Optimizer, overrides: dict[str, float]
) -> None:
    rng = np.random.default_rng(5)
    overridden, direct, plain = (
        tfra.Table(DIM, optimizer=optimizer, initializer="normal")
        for optimizer in (built, meant, built)
    )
    for _ in range(2):  # Momentum shows in the second step only.
        keys, gradients = batch(rng)
        overridden.apply_gradients(keys, gradients, **overrides)
        direct.apply_gradients(keys, gradients)
        plain.apply_gradients(keys, gradients)
    assert_same_tables(overridden, direct)
    assert sorted_export(plain)[1].tobytes() != sorted_export(overridden)[1].tobytes()
    # The next call is back to what the table was made with.
    keys, gradients = batch(rng)
    overridden.apply_gradients(keys, gradients)
    direct.apply_gradients(keys, gradients)
    assert overridden.optimizer == built
    assert sorted_export(direct)[1].tobytes() != sorted_export(overridden)[1].tobytes()


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0)], ids=str)
def test_gradients_of_keys_of_any_shape(shape: tuple[int, ...], key_dtype: str) -> None:
    table = tfra.Table(DIM, key_dtype=key_dtype, optimizer=opt.SGD(1.0), initializer="ones")
    keys = make_keys(key_dtype, np.arange(int(np.prod(shape))).reshape(shape))
    table.apply_gradients(keys, np.full((*shape, DIM), 0.25, np.float32))
    assert len(table) == keys.size
    assert table.step == 1
    np.testing.assert_array_equal(table.lookup(keys), np.full((*shape, DIM), 0.75))


def test_gradients_of_equal_keys_are_summed_before_the_step() -> None:
    table = tfra.Table(1, optimizer=opt.Adagrad(1.0, initial_accumulator_value=0.0, epsilon=0.0))
    table.apply_gradients([7, 8, 7, 7], np.array([[1], [5], [2], [4]], np.float32))
    keys, values, slots = sorted_export(table)
    assert keys.tolist() == [7, 8]
    np.testing.assert_array_equal(slots["accumulator"], [[49], [25]])
    np.testing.assert_array_equal(values, [[-1], [-1]])


def test_lists_of_gradients_are_converted() -> None:
    table = tfra.Table(2, optimizer=opt.SGD(0.5))
    table.apply_gradients([[1], [2]], [[[1, 2]], [[3.0, 4.0]]])
    np.testing.assert_array_equal(table.lookup([1, 2]), [[-0.5, -1], [-1.5, -2]])
