"""Every optimizer against its definition in NumPy, step by step."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from reference_rules import Reference

import tfra
from support import Array, make_keys, numpy_dtype, sorted_export
from tfra import optimizers as opt

DIM = 5
STEPS = 30

# Rates are high, so that 16-bit values move at every step and mistakes show.
OPTIMIZERS = [
    opt.SGD(0.05),
    opt.SGD(0.05, momentum=0.9),
    opt.SGD(0.05, momentum=0.9, nesterov=True),
    opt.SGD(0.05, nesterov=True),
    opt.SGD(0.05, weight_decay=0.1, clipvalue=0.5),
    opt.Adagrad(0.1),
    opt.Adagrad(0.1, initial_accumulator_value=0.0, epsilon=1e-3, clipnorm=1.0),
    opt.RowwiseAdagrad(0.1),
    opt.RowwiseAdagrad(0.1, initial_accumulator_value=1.0, weight_decay=0.05, clipvalue=0.7),
    opt.Adam(0.05),
    opt.Adam(0.05, beta_1=0.5, beta_2=0.9, epsilon=1e-3, weight_decay=0.1),
    opt.Adam(0.05, amsgrad=True, clipnorm=0.8),
    opt.AdamW(0.05),
    opt.AdamW(0.05, weight_decay=0.2, amsgrad=True, clipvalue=0.5),
    opt.Adamax(0.05),
    opt.Adamax(0.05, beta_1=0.8, beta_2=0.95, epsilon=1e-4, weight_decay=0.1, clipnorm=1.0),
    opt.Nadam(0.05),
    opt.Nadam(0.05, beta_1=0.8, beta_2=0.95, epsilon=1e-4, weight_decay=0.1, clipvalue=0.6),
    opt.RMSprop(0.02),
    opt.RMSprop(0.02, momentum=0.8),
    # A large epsilon: a centered variance near zero magnifies the last bit of the slots.
    opt.RMSprop(0.02, centered=True, epsilon=1e-2),
    opt.RMSprop(0.02, rho=0.7, momentum=0.5, centered=True, epsilon=1e-2, weight_decay=0.1),
    opt.RMSprop(0.02, clipnorm=1.0),
    opt.Adadelta(1.0, epsilon=1e-3),
    opt.Adadelta(1.0, rho=0.8, epsilon=1e-2, weight_decay=0.02, clipvalue=0.5),
    opt.Ftrl(0.1),
    opt.Ftrl(0.1, learning_rate_power=-0.7, initial_accumulator_value=0.5, beta=0.5),
    opt.Ftrl(0.1, l1_regularization_strength=0.3, l2_regularization_strength=0.2),
    opt.Ftrl(0.1, l2_shrinkage_regularization_strength=0.1, weight_decay=0.1, clipnorm=1.0),
    opt.Lion(0.02),
    opt.Lion(0.02, beta_1=0.6, beta_2=0.8, weight_decay=0.1, clipvalue=0.5),
]

# Of the largest entry: what the different order of a few roundings may add up to.
COMPUTE_TOLERANCE = {"float64": 1e-12, "float32": 2e-6}
# Of each entry: one unit in the last place of a 16-bit value.
STORAGE_TOLERANCE = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


def describe(optimizer: opt.Optimizer) -> str:
    defaults = type(optimizer)()
    hyper = dataclasses.asdict(optimizer).items()
    changed = [f"{k}={v}" for k, v in hyper if k != "learning_rate" and v != getattr(defaults, k)]
    return "-".join([optimizer.kind, *changed])


@pytest.fixture(params=OPTIMIZERS, ids=describe)
def optimizer(request: pytest.FixtureRequest) -> opt.Optimizer:
    return request.param


def compute_dtype(value_dtype: str) -> str:
    return "float64" if value_dtype == "float64" else "float32"


def assert_close(actual: Array, expected: Array, value_dtype: str, storage: float = 0.0) -> None:
    assert actual.shape == expected.shape
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    relative = COMPUTE_TOLERANCE[compute_dtype(value_dtype)]
    limit = relative * np.abs(expected).max() + storage * np.abs(expected)
    wrong = np.abs(actual - expected) > limit
    assert not wrong.any(), f"{actual[wrong]} instead of {expected[wrong]}"


class ReferenceTable:
    """Rows and slots of the keys seen so far, as NumPy arrays that the reference updates."""

    def __init__(self, optimizer: opt.Optimizer, value_dtype: str, keys: int) -> None:
        hyper = dataclasses.asdict(optimizer)
        self.rule = Reference(optimizer.kind, DIM, value_dtype, **hyper)
        self.values = np.zeros((keys, DIM), self.rule._store(np.zeros(1)).dtype)
        self.slots = self.rule.slots(keys)
        self.seen = np.zeros(keys, bool)

    def update(self, numbers: Array, gradients: Array, initial: Array, step: int) -> None:
        unique, inverse = np.unique(numbers, return_inverse=True)
        sums = np.zeros((len(unique), DIM), self.rule.dtype)
        np.add.at(sums, inverse.ravel(), gradients.astype(self.rule.dtype))
        new = ~self.seen[unique]
        self.values[unique[new]] = initial[unique[new]]
        self.seen[unique] = True
        slots = {name: slot[unique] for name, slot in self.slots.items()}
        values, slots = self.rule.step(self.values[unique], slots, sums, step)
        self.values[unique] = values
        for name, slot in slots.items():
            self.slots[name][unique] = slot


@pytest.mark.parametrize("key_dtype", ["int64", "string"])
def test_rule_computes_what_its_definition_says(
    optimizer: opt.Optimizer, floating_dtype: str, key_dtype: str, rng: np.random.Generator
) -> None:
    """Batches have duplicates and new keys.

    A 16-bit table may round a value up where the reference rounds it down, so each of its steps
    starts from the table's own rows; others run freely, and deviations add up.
    """
    count = 24
    keys = make_keys(key_dtype, range(count))
    order = np.argsort(keys, kind="stable")
    table = tfra.Table(
        DIM,
        key_dtype=key_dtype,
        value_dtype=floating_dtype,
        optimizer=optimizer,
        initializer=tfra.initializers.Uniform(-1.0, 1.0),
        seed=3,
    )
    initial = table.lookup(keys).astype(np.float64)
    reference = ReferenceTable(optimizer, floating_dtype, count)
    storage = STORAGE_TOLERANCE.get(floating_dtype, 0.0)
    for step in range(1, STEPS + 1):
        # Later batches reach keys that earlier ones could not.
        numbers = rng.integers(0, min(count, 8 + step), 20)
        gradients = rng.standard_normal((20, DIM)).astype(compute_dtype(floating_dtype))
        table.apply_gradients(keys[numbers], gradients)
        reference.update(numbers, gradients, initial, step)
        assert table.step == step
        seen = order[reference.seen[order]]
        exported, values, slots = sorted_export(table)
        assert exported.tolist() == keys[seen].tolist()
        assert_close(values, reference.values[seen], floating_dtype, storage)
        assert tuple(slots) == table.slot_names == tuple(reference.slots)
        for name, slot in slots.items():
            assert slot.dtype == compute_dtype(floating_dtype)
            assert_close(slot, reference.slots[name][seen], floating_dtype)
        if storage:
            reference.values[seen] = values.astype(np.float32)
            for name, slot in slots.items():
                reference.slots[name][seen] = slot
    assert reference.seen.all()
    assert np.abs(table.lookup(keys).astype(np.float64) - initial).max() > 0.1


@pytest.mark.parametrize("dim", [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100])
def test_rule_computes_the_same_in_rows_of_any_width(
    optimizer: opt.Optimizer, dim: int, rng: np.random.Generator
) -> None:
    """Vector instructions take several elements at once, and leave a rest."""
    table = tfra.Table(dim, optimizer=optimizer)
    reference = Reference(optimizer.kind, dim, "float32", **dataclasses.asdict(optimizer))
    values = rng.uniform(-1, 1, (6, dim)).astype(np.float32)
    table.upsert(range(6), values)
    slots = reference.slots(6)
    for step in range(1, 4):
        gradients = rng.standard_normal((6, dim)).astype(np.float32)
        table.apply_gradients(range(6), gradients)
        values, slots = reference.step(values, slots, gradients, step)
        assert_close(table.lookup(range(6)), values, "float32")


def test_gradients_of_the_value_type_are_widened(
    optimizer: opt.Optimizer, rng: np.random.Generator
) -> None:
    for value_dtype in ("float16", "bfloat16"):
        narrow, wide = (
            tfra.Table(DIM, value_dtype=value_dtype, optimizer=optimizer) for _ in range(2)
        )
        for _ in range(3):
            keys = rng.integers(0, 9, 20)
            gradients = rng.standard_normal((20, DIM)).astype(numpy_dtype(value_dtype))
            narrow.apply_gradients(keys, gradients)
            wide.apply_gradients(keys, gradients.astype(np.float32))
        for one, other in zip(sorted_export(narrow)[:2], sorted_export(wide)[:2], strict=True):
            assert one.tobytes() == other.tobytes()


def test_only_the_keys_of_the_batch_change(optimizer: opt.Optimizer) -> None:
    table = tfra.Table(2, optimizer=optimizer, initializer="normal")
    table.apply_gradients([1, 2, 3], np.ones((3, 2), np.float32))
    before = table.lookup([1, 3])
    rows_before = sorted_export(table)
    table.apply_gradients([2, 4], np.ones((2, 2), np.float32))
    assert table.lookup([1, 3]).tobytes() == before.tobytes()
    rows_after = sorted_export(table)
    for name in table.slot_names:
        untouched = rows_after[2][name][[0, 2]]
        assert untouched.tobytes() == rows_before[2][name][[0, 2]].tobytes()
    assert table.lookup(2).tobytes() != rows_before[1][1].tobytes()
