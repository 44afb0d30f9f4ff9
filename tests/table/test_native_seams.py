"""Arguments that must not reach the bindings, and lists that Python takes from the engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_errors import raises

import tfra
from support import full_state
from tfra import _native

F32 = np.float32


def trained(**options: Any) -> tfra.Table:
    table = tfra.Table(2, optimizer="adam", metadata=True, **options)
    table.apply_gradients([1, 2, 3], np.ones((3, 2), F32))
    return table


def test_a_step_beyond_the_last() -> None:
    table = trained()
    gradients = np.ones((1, 2), F32)
    table.step = 2**62
    table.apply_gradients([1], gradients)
    assert table.step == 2**62 + 1
    before = full_state(table)
    for step in (2**62 + 1, 2**63 - 1, 2**63):
        raises(
            lambda step=step: table.apply_gradients([1], gradients, step=step),
            ValueError,
            f"`step` must be between 1 and {2**62}",
        )
        raises(lambda step=step: setattr(table, "step", step), ValueError, f"`step` {2**62}")
    assert full_state(table) == before


@pytest.mark.parametrize("path", ["/tmp/\udc80", "\ud800", Path("/tmp/a\udcffb")])
def test_directories_that_are_not_utf8(path: Any) -> None:
    raises(
        lambda: tfra.Table(2, fast_bytes=1000, tier_directory=path),
        ValueError,
        "`tier_directory` utf-8 received",
    )


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"filter": np.zeros((2, 2), np.uint8)}, ValueError, "`filter` shape"),
        ({"filter": [300]}, ValueError, "`filter` fit uint8"),
        ({"filter": "x"}, TypeError, "`filter`"),
        ({"filter": np.ma.array([1, 2], np.uint8)}, TypeError, "`filter` mask"),
        ({"seen": np.ones((1, 3), np.uint32)}, ValueError, "`seen` shape"),
        ({"keys": [1.5]}, TypeError, "`keys`"),
    ],
)
def test_states_of_admission(changes: dict[str, Any], error: Any, words: str) -> None:
    table = trained(admission=tfra.admission.CountingBloomFilter(3, capacity=100))
    state = {**table.admission_state(), **changes}
    raises(lambda: table.restore_admission(state), error, words)


MASK = [False, True]
KEYS = np.ma.array([1, 2], mask=MASK)
ROWS = np.ma.array(np.ones((2, 2), F32), mask=[MASK, MASK])
PLAIN = np.ones((2, 2), F32)
SLOTS = {"momentum": ROWS, "velocity": PLAIN}

MASKED: dict[str, tuple[str, Callable[[tfra.Table], Any]]] = {
    "lookup": ("keys", lambda t: t.lookup(KEYS)),
    "lookup default": ("default", lambda t: t.lookup([1, 2], ROWS)),
    "lookup default row": ("default", lambda t: t.lookup([1, 2], ROWS[0])),
    "lookup default value": ("default", lambda t: t.lookup([1], np.ma.array(1.0, F32))),
    "lookup out": ("out", lambda t: t.lookup([1, 2], out=ROWS.copy())),
    "contains": ("keys", lambda t: t.contains(KEYS)),
    "in": ("keys", lambda t: KEYS in t),
    "upsert": ("keys", lambda t: t.upsert(KEYS, PLAIN)),
    "upsert values": ("values", lambda t: t.upsert([1, 2], ROWS)),
    "upsert slots": ("slots", lambda t: t.upsert([1, 2], PLAIN, slots=SLOTS)),
    "upsert metadata": (
        "metadata", lambda t: t.upsert([1, 2], PLAIN, metadata=np.ma.ones((2, 2), np.uint32))),
    "upsert scores": ("scores", lambda t: t.upsert([1, 2], PLAIN, scores=KEYS)),
    "accum": ("keys", lambda t: t.accum(KEYS, PLAIN, [True, True])),
    "accum deltas": ("deltas", lambda t: t.accum([1, 2], ROWS, [True, True])),
    "accum exists": (
        "exists", lambda t: t.accum([1, 2], PLAIN, np.ma.array([True, True], mask=MASK))),
    "apply_gradients": ("keys", lambda t: t.apply_gradients(KEYS, PLAIN)),
    "apply_gradients gradients": ("gradients", lambda t: t.apply_gradients([1, 2], ROWS)),
    "remove": ("keys", lambda t: t.remove(KEYS)),
    "touch": ("keys", lambda t: t.touch(KEYS)),
    "usage": ("keys", lambda t: t.usage(KEYS)),
    "insert_and_evict": ("keys", lambda t: t.insert_and_evict(KEYS, PLAIN)),
    "insert_and_evict values": ("values", lambda t: t.insert_and_evict([1, 2], ROWS)),
    "find_or_insert": ("keys", lambda t: t.find_or_insert(KEYS)),
    "find_or_insert default": ("default", lambda t: t.find_or_insert([1, 2], ROWS)),
    "assign": ("values", lambda t: t.assign([1, 2], ROWS)),
    "assign_scores": ("scores", lambda t: t.assign_scores([1, 2], KEYS)),
    "scores": ("keys", lambda t: t.scores(KEYS)),
    "initializer": ("initializer", lambda t: tfra.Table(2, initializer=ROWS[0])),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKED)
def test_masked_arrays(name: str) -> None:
    argument, call = MASKED[name]
    table = trained(max_capacity=100, evict_strategy="customized")
    before = full_state(table)
    raises(lambda: call(table), TypeError, f"`{argument} mask received compressed() filled(")
    assert full_state(table) == before


def test_masked_strings() -> None:
    table = tfra.Table(1, key_dtype="string", value_dtype="string")
    masked = np.ma.array(["a", "b"], mask=MASK)
    raises(lambda: table.lookup(masked), TypeError, "`keys` mask")
    raises(lambda: table.upsert(["a", "b"], masked[:, None]), TypeError, "`values` mask")
    raises(lambda: table.lookup(["a", "b"], masked[:, None]), TypeError, "`default` mask")


def test_out_may_not_overlap_with_keys() -> None:
    table = tfra.Table(1, value_dtype="int64")
    table.upsert(np.arange(1000), np.arange(1000, 0, -1)[:, None])
    buffer = np.arange(1001)
    for start in (0, 1):  # The same memory, and memory that begins one key later.
        out = buffer[start : start + 1000, None]
        raises(
            lambda out=out: table.lookup(buffer[:1000], out=out),
            ValueError,
            "`out` `keys` overlap copy",
        )
    assert buffer.tolist() == list(range(1001))
    assert table.lookup(buffer[:500], out=buffer[500:1000, None])[0] == 1000
    # A view with gaps is copied before anything is written.
    buffer = np.arange(20)
    found = table.lookup(buffer[::2], out=buffer[:10, None])
    assert found.ravel().tolist() == list(range(1000, 980, -2))


def test_out_may_not_overlap_with_default() -> None:
    table = tfra.Table(2)
    table.upsert([1], [[5.0, 5.0]])
    buffer = np.zeros((5, 2), F32)
    for default in (buffer[:3], buffer[1:4], buffer[0]):
        raises(
            lambda default=default: table.lookup([1, 2, 3], default, out=buffer[:3]),
            ValueError,
            "`out` `default` overlap copy",
        )
    assert not buffer.any()
    assert table.lookup([1, 2], buffer[2:4], out=buffer[:2])[0].tolist() == [5.0, 5.0]


def test_the_figures_of_a_table_are_those_of_the_engine() -> None:
    given = [each.name for each in dataclasses.fields(tfra.TableStats) if each.init]
    assert sorted(given) == sorted(_native.STATS)
    assert list(tfra.Table(2)._native.stats()) == list(_native.STATS)
