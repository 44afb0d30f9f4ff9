"""`tfra.TableSpec`: one description of a table, the same in Python and in the engine."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

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
