"""The optimizer slots of a table whose rule another object changes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import tfra
from tfra._shared.rule import Rule, RuleSlot

F32 = np.float32
KEYS = np.arange(1, 41)


def users(table: tfra.Table, *names: str) -> list[tfra.Table]:
    """Returns objects that train one table, which has no rule yet, by different rules."""
    return [tfra.Table.from_handle(table.handle, optimizer=name) for name in names]


def step(table: tfra.Table, gradient: float = 1.0) -> None:
    table.apply_gradients(KEYS, np.full((len(KEYS), table.dim), gradient, F32), step=1)


def test_the_slots_of_the_first_step_are_seen_by_all_objects() -> None:
    table = tfra.Table(dim=2)
    table.upsert(KEYS, np.ones((len(KEYS), 2), F32))
    (other,) = users(table, "adam")
    assert table.slot_names == other.slot_names == ()
    assert table.export(slots=True)[2] == table.lookup_with_slots(KEYS)[1] == {}
    step(other)
    momentum = np.full((len(KEYS), 2), 1 - 0.9, F32)
    for user in (table, other, tfra.Table.from_spec(table.spec, optimizer="adam")):
        if len(user) == 0:
            step(user)
        assert user.slot_names == ("momentum", "velocity")
        for slots in (user.export(slots=True)[2], user.lookup_with_slots(KEYS)[1]):
            assert list(slots) == ["momentum", "velocity"]
            np.testing.assert_allclose(slots["momentum"], momentum, rtol=1e-6)
        (batch,) = user.iterate(slots=True)
        np.testing.assert_allclose(batch[2]["momentum"], momentum, rtol=1e-6)
        (rows,) = tfra.TableStore(user).export()
        assert rows[1].shape == (len(KEYS), user.spec.row_bytes) == (len(KEYS), 24)


def test_slots_have_the_names_of_the_rule_that_the_table_has_now() -> None:
    table = tfra.Table(dim=2)
    adam, adagrad, ftrl = users(table, "adam", "adagrad", "ftrl")
    step(adam)
    assert adam.slot_names == ("momentum", "velocity")
    step(adagrad)  # Rows are half as wide.
    for user in (table, adam, adagrad):
        slots = user.export(slots=True)[2]
        assert {name: slot.shape for name, slot in slots.items()} == {"accumulator": (40, 2)}
        np.testing.assert_allclose(slots["accumulator"], 1.1)
    step(ftrl)  # As wide as those of Adam.
    expected = dict(zip(("accumulator", "linear"), split(ftrl), strict=True))
    for user in (table, adam, adagrad):
        assert user.slot_names == ("accumulator", "linear")
        slots = user.lookup_with_slots(KEYS)[1]
        assert list(slots) == ["accumulator", "linear"]
        for name, slot in slots.items():
            np.testing.assert_array_equal(slot, expected[name])


def split(table: tfra.Table) -> list[np.ndarray]:
    """The two slots of each row, from the bytes of a store."""
    rows, _ = tfra.TableStore(table).lookup(KEYS)
    floats = rows.view(F32)
    return [floats[:, 2:4], floats[:, 4:6]]


def test_slots_of_a_former_rule_are_refused() -> None:
    table = tfra.Table(dim=2)
    adam, ftrl = users(table, "adam", "ftrl")
    step(adam)
    slots = adam.lookup_with_slots(KEYS)[1]
    step(ftrl)
    before = adam.lookup_with_slots(KEYS)
    with pytest.raises(ValueError, match=r"`slots` must be \['accumulator', 'linear'\]"):
        adam.upsert(KEYS, np.zeros((len(KEYS), 2), F32), slots=slots)
    with pytest.raises(ValueError, match=r"`slots` must be \['accumulator', 'linear'\]"):
        adam.upsert(KEYS, np.zeros((len(KEYS), 2), F32), slots={})
    after = adam.lookup_with_slots(KEYS)
    np.testing.assert_array_equal(before[0], after[0])
    for name, slot in after[1].items():
        np.testing.assert_array_equal(before[1][name], slot)
    adam.upsert(KEYS, np.zeros((len(KEYS), 2), F32), slots=after[1])


# The slots of these rules do not change with gradients of zero.
CONSTANT = {"momentum": 0.0, "velocity": 0.0, "accumulator": F32(0.1), "linear": 0.0}


def check(slots: dict[str, Any], keys: int) -> None:
    assert tuple(slots) in {("momentum", "velocity"), ("accumulator",), ("accumulator", "linear")}
    for name, slot in slots.items():
        assert slot.shape == (keys, 2)
        assert (slot == CONSTANT[name]).all(), name


def test_slots_are_named_rightly_while_the_rule_changes() -> None:
    table = tfra.Table(dim=2)
    trainers = users(table, "adam", "adagrad", "adam", "ftrl")
    step(trainers[0], 0.0)
    done, errors, calls = threading.Event(), [], [0] * 4

    def repeat(number: int, call: Any) -> None:
        try:
            while not done.is_set():
                call()
                calls[number] += 1
        except BaseException as error:
            errors.append(error)
            done.set()

    def export() -> None:
        check(table.export(slots=True)[2], len(KEYS))

    def iterate() -> None:
        for batch in table.iterate(7, slots=True):
            check(batch[2], len(batch[0]))

    def lookup() -> None:
        check(table.lookup_with_slots(KEYS)[1], len(KEYS))

    def upsert() -> None:
        values, slots = table.lookup_with_slots(KEYS)
        try:
            table.upsert(KEYS, values, slots=slots)
        except ValueError as error:  # The rule has changed in between.
            assert "slots" in str(error)

    threads = [
        threading.Thread(target=repeat, args=each)
        for each in enumerate((export, iterate, lookup, upsert))
    ]
    for thread in threads:
        thread.start()
    for _ in range(200):
        for trainer in trainers:
            step(trainer, 0.0)
            if done.is_set():
                break
    done.set()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    assert min(calls) > 0


def test_names_of_slots_that_are_not_utf8() -> None:
    rule = Rule("custom", slots=(RuleSlot("a\udcff", initial=3.0), RuleSlot("b", scalar=True)))
    spec = tfra.TableSpec(dim=2, rule=rule)
    table = tfra.Table.from_spec(spec)
    assert table.slot_names == tuple(spec.slots) == ("a\udcff", "b")
    slots = table.lookup_with_slots([1])[1]
    assert {name: slot.tolist() for name, slot in slots.items()} == {
        "a\udcff": [[3.0, 3.0]],
        "b": [[0.0]],
    }
    table.upsert([1], [[0.0, 0.0]], slots={"b": [[2.0]], "a\udcff": [[4.0, 5.0]]})
    assert table.export(slots=True)[2]["a\udcff"].tolist() == [[4.0, 5.0]]
