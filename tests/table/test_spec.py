"""`tfra.TableSpec`: one description of a table, the same in Python and in the engine."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_errors import raises

import tfra
from tfra import _native
from tfra._shared.rule import Rule, RuleSlot

SPECS = [
    tfra.TableSpec(dim=1),
    tfra.TableSpec(dim=3, key_dtype="string", value_dtype="float64", seed=2**64 - 1),
    tfra.TableSpec(dim=2, key_dtype="int32", value_dtype="bfloat16", metadata=True, capacity=9),
    tfra.TableSpec(dim=1, scalar=True, value_dtype="int64"),
    tfra.TableSpec(dim=2, initializer=tfra.initializers.Uniform(-1e-300, 0.1), seed=5),
    tfra.TableSpec(dim=2, initializer=tfra.initializers.Normal(0.5, 2.0)),
    tfra.TableSpec(dim=2, initializer=tfra.initializers.TruncatedNormal(0.0, 1e10)),
    tfra.TableSpec(dim=2, initializer=tfra.initializers.External()),
    tfra.TableSpec(dim=2, initializer=tfra.initializers.Ones(), value_dtype="bool"),
    tfra.TableSpec(dim=2, rule=tfra.optimizers.SGD(momentum=0.9, nesterov=True).rule()),
    tfra.TableSpec(dim=2, rule=tfra.optimizers.Adam(amsgrad=True).rule()),
    tfra.TableSpec(dim=2, rule=tfra.optimizers.Ftrl(initial_accumulator_value=0.25).rule()),
    tfra.TableSpec(
        dim=2, rule=Rule("custom", slots=(RuleSlot("a", True, math.inf), RuleSlot("b\udcff")))
    ),
    tfra.TableSpec(dim=2, admission=tfra.admission.MinCount(3)),
    tfra.TableSpec(dim=2, admission=tfra.admission.CountingBloomFilter(2, 1000, 0.125)),
    tfra.TableSpec(dim=2, admission=tfra.admission.Probability(0.5, 2**64 - 1)),
    tfra.TableSpec(
        dim=2, max_capacity=7, evict_strategy="epochlfu", remember_counts=False, steps_per_epoch=3
    ),
    tfra.TableSpec(dim=2, fast_bytes=1 << 20),
    tfra.TableSpec(dim=2, fast_bytes=1, tier_directory="/tmp"),
    tfra.TableSpec(dim=2, seed=-1),
    tfra.TableSpec(dim=2, rule=Rule("custom", slots=(RuleSlot("a", initial=math.nan),))),
    tfra.TableSpec(dim=2, initializer=1),
    tfra.TableSpec(dim=2, initializer=0.1),
    tfra.TableSpec(dim=2, initializer=-0.0),
    tfra.TableSpec(dim=2, initializer=-math.nan),
    tfra.TableSpec(dim=2, initializer=[math.inf, math.nan], value_dtype="float64"),
    tfra.TableSpec(dim=2, initializer=(2.5, 2.5)),
    tfra.TableSpec(dim=2, initializer=np.array([0.1, 0.2])),
    tfra.TableSpec(dim=2, initializer=np.array([1, 2], np.uint8), value_dtype="bfloat16"),
    tfra.TableSpec(dim=2, initializer=[True, False], value_dtype="int8"),
    tfra.TableSpec(dim=2, initializer=["a", b"\xff"], value_dtype="string"),
    tfra.TableSpec(dim=2, initializer=tfra.initializers.Uniform(np.float32(0.1), np.int8(1))),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.to_json()[:100])
def test_python_and_the_engine_agree(spec: tfra.TableSpec) -> None:
    table = _native.NativeTable(spec.to_json())
    assert tfra.TableSpec.from_json(table.spec()) == spec
    assert tfra.TableSpec.from_json(spec.to_json()) == spec
    again = _native.NativeTable(table.spec())
    assert again.spec() == table.spec()


def test_slots_are_equal_if_the_engine_finds_them_equal() -> None:
    initials = [0.0, -0.0, 1.0, math.inf, math.nan]
    rules = [Rule("custom", slots=(RuleSlot("a", initial=initial),)) for initial in initials]
    again = [Rule.from_config(json.loads(rule.to_json())) for rule in rules]
    for i, rule in enumerate(rules):
        assert [rule == other for other in again] == [i == j for j in range(len(again))]
        assert hash(rule) == hash(again[i])
    assert RuleSlot("a", initial=0) == RuleSlot("a")  # type: ignore[arg-type]
    assert RuleSlot("a") != RuleSlot("b")
    assert RuleSlot("a") != RuleSlot("a", scalar=True)
    assert RuleSlot("a") != "a"


@pytest.mark.parametrize(
    ("dtype", "row"),
    [
        ("float32", [0.1, -0.0, math.inf]),
        ("float64", [5e-324, math.nan, -math.inf]),
        ("float16", [65504.0, 6e-8, 1.0]),
        ("bfloat16", [3e38, 0.1, -1.0]),
        ("int8", [-128, 127, 0]),
        ("int64", [-(2**63), 2**63 - 1, 2**53 + 1]),
        ("bool", [True, False, True]),
        ("string", [b"a", b"\xff\x00", ""]),
    ],
)
def test_constant_rows_are_exact(dtype: str, row: list) -> None:
    table = tfra.Table(dim=3, value_dtype=dtype, initializer=tfra.initializers.Constant(row))
    again = tfra.TableSpec.from_json(table.spec.to_json())
    copy = tfra.Table(dim=3, value_dtype=dtype, initializer=again.initializer)
    if dtype == "string":
        assert copy.lookup(1).tolist() == table.lookup(1).tolist() == [b"a", b"\xff\x00", b""]
    else:
        assert copy.lookup(1).tobytes() == table.lookup(1).tobytes()
        np.testing.assert_array_equal(table.lookup(1), np.array(row).astype(table.value_dtype))


def test_the_spec_of_a_table_has_what_it_was_made_with() -> None:
    table = tfra.Table(
        dim=4, key_dtype="string", initializer="normal", seed=-1, optimizer="adagrad",
        max_capacity=100, evict_strategy="lfu", admission=tfra.admission.MinCount(2), ttl=60,
    )  # fmt: skip
    spec = table.spec
    assert (spec.dim, spec.key_dtype, spec.value_dtype) == (4, "string", "float32")
    assert spec.initializer == table.initializer
    assert spec.seed == 2**64 - 1
    assert spec.rule == tfra.optimizers.Adagrad().rule()
    assert spec.metadata
    assert spec.admission == table.admission
    assert (spec.max_capacity, spec.evict_strategy) == (100, "lfu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "`version`: expected 1"),
        ({"colour": 1}, "`colour`: expected no such field"),
        ({"dim": 0}, "`dim`: expected an integer from 1"),
        ({"rule": {"kind": "adam", "nesterov": True}}, "`rule.nesterov`"),
        ({"initializer": {"kind": "constant", "row": [1.0, 2.0, 3.0]}}, "1 or 2 elements"),
    ],
)
def test_the_engine_names_the_wrong_field(change: dict, message: str) -> None:
    config = json.loads(tfra.TableSpec(dim=2).to_json()) | change
    with pytest.raises(ValueError, match=message):
        _native.NativeTable(json.dumps(config))


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"version": 1}', '{"version": 9}'])
def test_texts_that_are_no_specs_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"the JSON text of a table's spec: .*expected"):
        tfra.TableSpec.from_json(text)


def test_a_table_is_found_by_its_handle() -> None:
    table = tfra.Table(dim=2, optimizer="sgd")
    other = tfra.Table.from_handle(table.handle, optimizer=tfra.optimizers.SGD(learning_rate=1.0))
    table.upsert([7], [[1.0, 2.0]])
    other.apply_gradients([7], np.ones((1, 2), np.float32))
    assert table.lookup([7]).tolist() == [[0.0, 1.0]]
    assert (table.step, other.step, other.handle) == (1, 1, table.handle)
    # The table lives as long as one of its objects.
    del table
    assert other.lookup([7]).tolist() == [[0.0, 1.0]]


def test_handles_of_no_table_are_refused() -> None:
    table = tfra.Table(dim=2)
    handle = table.handle
    del table
    with pytest.raises(ValueError, match=f"received {handle}, whose table is gone"):
        tfra.Table.from_handle(handle)
    with pytest.raises(TypeError, match="handle"):
        tfra.Table.from_handle("7")  # type: ignore[arg-type]


def test_another_optimizer_does_not_take_the_slots_of_a_table() -> None:
    table = tfra.Table(dim=2, optimizer="adam")
    with pytest.raises(ValueError, match="`optimizer`: expected one of the rule"):
        tfra.Table.from_handle(table.handle, optimizer="adagrad")
    assert tfra.Table.from_handle(table.handle).slot_names == table.slot_names


def test_specs_differ_where_their_initializers_do() -> None:
    rows = [1.0, 2.0, [1.0, 2.0], [2.0, 1.0], 0.0, -0.0, math.nan, math.inf]
    specs = [tfra.TableSpec(dim=2, initializer=row) for row in rows]
    again = [tfra.TableSpec(dim=2, initializer=np.array(row)) for row in rows]
    assert len(set(specs)) == len(rows)
    for number, spec in enumerate(specs):
        assert [spec == other for other in again] == [number == i for i in range(len(rows))]
        assert hash(spec) == hash(again[number])
    assert specs[0] != "TableSpec"


def test_a_spec_does_not_change_with_the_array_that_it_was_made_from() -> None:
    row = np.array([1.0, 2.0])
    spec = tfra.TableSpec(dim=2, initializer=row)
    row[:] = 7
    assert tfra.Table.from_spec(spec).lookup(1).tolist() == [1.0, 2.0]


def test_a_spec_takes_what_a_table_takes() -> None:
    spec = tfra.TableSpec(
        dim=np.int64(2), key_dtype=np.int64, value_dtype=np.float64, initializer="normal",
        seed=np.int64(3), rule="adam", metadata=np.True_, capacity=np.int32(4),
        max_capacity=np.uint8(9), fast_bytes=np.int64(1000), tier_directory=Path("/tmp"),
    )  # fmt: skip
    assert (spec.dim, spec.key_dtype, spec.value_dtype) == (2, "int64", "float64")
    assert (spec.initializer, spec.seed) == (tfra.initializers.Normal(), 3)
    assert spec.rule == tfra.optimizers.Adam().rule()
    assert (spec.metadata, spec.capacity, spec.max_capacity) == (True, 4, 9)
    assert (spec.fast_bytes, spec.tier_directory) == (1000, "/tmp")
    assert tfra.TableSpec.from_json(spec.to_json()) == spec == tfra.Table.from_spec(spec).spec
    assert tfra.TableSpec(dim=2, rule=tfra.optimizers.Adam(0.5)).rule == spec.rule
    assert tfra.TableSpec(dim=2, rule=None).rule == Rule()
    assert tfra.TableSpec(dim=2, key_dtype=np.int32).key_dtype == "int32"
    assert tfra.TableSpec(dim=2, key_dtype=bytes).key_dtype == "string"


class Unknown(tfra.initializers.Initializer):
    """Not one of tfra's."""


class UnknownAdmission(tfra.admission.Admission):
    """Not one of tfra's."""


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"dim": 2.0}, TypeError, "`dim` integer 2.0"),
    ({"dim": True}, TypeError, "`dim` integer True"),
    ({"dim": 0}, ValueError, "`dim` 1 16777216 0"),
    ({"scalar": True}, ValueError, "`dim` 1 `scalar` 2"),
    ({"scalar": 1}, TypeError, "`scalar` bool 1"),
    ({"metadata": None}, TypeError, "`metadata` bool None"),
    ({"key_dtype": "int16"}, TypeError, "`key_dtype` int64 int32 string int16"),
    ({"value_dtype": "float33"}, TypeError, "`value_dtype` float33"),
    ({"initializer": "nonsense"}, ValueError, "`initializer` nonsense"),
    ({"initializer": Unknown()}, TypeError, "`initializer` Unknown"),
    ({"initializer": [1.0, 2.0, 3.0]}, ValueError, "`initializer` (2,) (3,)"),
    ({"initializer": [[1.0], [1.0, 2.0]]}, ValueError, "`initializer` regular"),
    ({"initializer": "\ud800", "value_dtype": "string"}, ValueError, "`initializer` UTF-8"),
    ({"seed": 1.5}, TypeError, "`seed` integer 1.5"),
    ({"seed": 2**64}, ValueError, f"`seed` {2**64 - 1} {2**64}"),
    ({"seed": -(2**63) - 1}, ValueError, "`seed`"),
    ({"rule": "nonsense"}, ValueError, "`rule` adam nonsense"),
    ({"rule": 5}, TypeError, "`rule` optimizer 5"),
    ({"admission": "x"}, TypeError, "`admission` MinCount x"),
    ({"admission": UnknownAdmission()}, TypeError, "`admission` MinCount UnknownAdmission"),
    ({"capacity": -1}, ValueError, "`capacity` -1"),
    ({"capacity": 1.5}, TypeError, "`capacity` integer 1.5"),
    ({"capacity": 9, "max_capacity": 5}, ValueError, "`max_capacity` 9 5"),
    ({"max_capacity": 0}, ValueError, "`max_capacity` 0"),
    ({"evict_strategy": "nonsense"}, ValueError, "`evict_strategy` lru nonsense"),
    ({"evict_strategy": "lfu"}, ValueError, "`evict_strategy` `max_capacity` lfu"),
    ({"remember_counts": False}, ValueError, "`remember_counts` `max_capacity` False"),
    ({"steps_per_epoch": 5}, ValueError, "`steps_per_epoch` `max_capacity` 5"),
    ({"steps_per_epoch": -1, "max_capacity": 5}, ValueError, "`steps_per_epoch` -1"),
    ({"remember_counts": 1, "max_capacity": 5}, TypeError, "`remember_counts` bool 1"),
    ({"fast_bytes": 0}, ValueError, "`fast_bytes` 0"),
    ({"fast_bytes": 1, "value_dtype": "string"}, TypeError, "`fast_bytes` string"),
    ({"tier_directory": "/tmp"}, ValueError, "`tier_directory` `fast_bytes` /tmp"),
    ({"fast_bytes": 1, "tier_directory": b"/tmp"}, TypeError, "`tier_directory` b'/tmp'"),
    ({"fast_bytes": 1, "tier_directory": "/tmp\0zzz"}, ValueError, "`tier_directory` zzz"),
]


@pytest.mark.parametrize(("fields", "error", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_fields_are_refused_when_a_spec_is_made(
    fields: dict[str, Any], error: type[Exception], words: str
) -> None:
    raises(lambda: tfra.TableSpec(**{"dim": 2, **fields}), error, words)


def test_nothing_of_a_bound_is_dropped_by_a_table_without_one() -> None:
    raises(lambda: tfra.Table(2, evict_strategy="lfu"), ValueError, "`evict_strategy` lfu")
    raises(lambda: tfra.Table(2, remember_counts=False), ValueError, "`remember_counts` False")


def test_what_is_no_spec_is_refused() -> None:
    for wrong in (None, {"dim": 2}, '{"version": 1}'):
        raises(lambda wrong=wrong: tfra.Table.from_spec(wrong), TypeError, "`spec` TableSpec")
    for wrong in (None, b"{}", {}):
        raises(lambda wrong=wrong: tfra.TableSpec.from_json(wrong), TypeError, "`text` str")
    raises(lambda: tfra.TableSpec.from_json('{"\udcff": 1}'), ValueError, "`text` UTF-8")
    int32 = tfra.TableSpec(dim=2, key_dtype="int32")
    raises(lambda: tfra.Table.from_spec(int32), TypeError, "`spec` int64 string int32")


TEXT = tfra.TableSpec(dim=2).to_json()


def test_other_texts_of_one_spec_are_refused() -> None:
    for text, words in (
        ("\ufeff" + TEXT, "byte order mark"),
        (TEXT.replace('"version": 1', '"version": 1.0'), "`version` 1 1.0"),
        (
            TEXT[:-1] + ', "tiers": {"fast_bytes": 1, "directory": {"hex": "ff"}}}',
            "`tier_directory`",
        ),
        (TEXT[:-1] + ', "tiers": {"fast_bytes": 1, "directory": "a\\u0000"}}', "`tier_directory`"),
    ):
        raises(lambda text=text: tfra.TableSpec.from_json(text), ValueError, words)


def test_a_rule_that_comes_later_leaves_the_rest_of_the_spec() -> None:
    for bound in ({}, {"max_capacity": 5000}, {"fast_bytes": 10_000}):
        spec = tfra.TableSpec(dim=2, capacity=7, **bound)
        table = tfra.Table.from_spec(spec, optimizer="adam")
        keys = np.arange(3000)
        table.upsert(keys, np.ones((3000, 2), np.float32))
        table.apply_gradients(keys[:1], np.ones((1, 2), np.float32))
        assert table.spec == dataclasses.replace(spec, rule="adam")
        assert len(table) == 3000
        assert table.lookup(keys[1:]).min() == 1.0
