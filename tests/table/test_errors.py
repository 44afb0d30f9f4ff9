"""Wrong arguments: the message says what was expected and received, and nothing has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tfra
from support import Case, full_state, object_array
from tfra import initializers as init
from tfra import optimizers as opt

Call = Callable[[tfra.Table], Any]
F32 = np.float32
NAN = float("nan")


def raises(
    call: Callable[[], Any], errors: type[Exception] | tuple[type[Exception], ...], words: str
) -> None:
    """Checks that `call` fails, with a message that contains every one of the words."""
    with pytest.raises(errors) as caught:
        call()
    message = str(caught.value).lower()
    missing = [word for word in words.lower().split() if word not in message]
    assert not missing, f"{missing} not in: {caught.value}"


def int_table() -> tfra.Table:
    table = tfra.Table(4, optimizer="adam")
    table.apply_gradients([1, 2, 3], np.ones((3, 4), F32))
    return table


def string_table() -> tfra.Table:
    table = tfra.Table(4, key_dtype="string", value_dtype="string")
    table.upsert(["a", "b"], [["p", "q", "r", "s"], ["", "", "t", "u"]])
    return table


WRONG_INT_KEYS = [
    pytest.param(np.array([1.0, 2.0]), TypeError, "int64 received float64", id="float array"),
    pytest.param([1.5, 2.0], TypeError, "int64 received", id="floats"),
    pytest.param(1.0, TypeError, "int64 received", id="float"),
    pytest.param(np.array([True, False]), TypeError, "int64 received bool", id="bool array"),
    pytest.param([True, False], TypeError, "int64 received bool", id="bools"),
    pytest.param(True, TypeError, "int64 received", id="bool"),
    pytest.param(np.array([1, 2], np.uint64), TypeError, "int64 received uint64", id="uint64"),
    pytest.param("a", TypeError, "int64 received", id="str"),
    pytest.param(b"a", TypeError, "int64 received", id="bytes"),
    pytest.param(["a", "b"], TypeError, "int64 received", id="strs"),
    pytest.param(np.array([b"a"]), TypeError, "int64 received", id="bytes_ array"),
    pytest.param([1, "b"], TypeError, "int64 received", id="str among ints"),
    pytest.param(None, TypeError, "int64 received", id="None"),
    pytest.param([1, None], TypeError, "int64 received", id="None among ints"),
    pytest.param({1, 2}, TypeError, "int64 received", id="set"),
    pytest.param(np.array([1j]), TypeError, "int64 received complex", id="complex array"),
    pytest.param(np.array(["2024-01-01"], "M8[s]"), TypeError, "received datetime64", id="dates"),
    pytest.param([[1], [2, 3]], (TypeError, ValueError), "received", id="ragged"),
    pytest.param(2**63, (TypeError, ValueError, OverflowError), "int64 received", id="2**63"),
    pytest.param([2**70], (TypeError, ValueError, OverflowError), "int64 received", id="2**70"),
    pytest.param([-(2**63) - 1], (TypeError, ValueError, OverflowError), "int64 received",
                 id="-2**63 - 1"),
]  # fmt: skip

WRONG_STRING_KEYS = [
    pytest.param(1, TypeError, "string received", id="int"),
    pytest.param([1, 2], TypeError, "string received", id="ints"),
    pytest.param(np.array([1, 2]), TypeError, "string received int64", id="int array"),
    pytest.param(np.array([1.0]), TypeError, "string received float64", id="float array"),
    pytest.param(None, TypeError, "string received", id="None"),
    pytest.param(["a", 1], TypeError, "string received", id="int among strings"),
    pytest.param(object_array(["a", None], (2,)), TypeError, "string received", id="None inside"),
    pytest.param(object_array([["a"]], (1,)), TypeError, "string received", id="list inside"),
    pytest.param([["a"], ["b", "c"]], (TypeError, ValueError), "received", id="ragged"),
]

METHODS_WITH_KEYS: dict[str, Callable[[tfra.Table, Any, Any], Any]] = {
    "lookup": lambda table, keys, rows: table.lookup(keys),
    "contains": lambda table, keys, rows: table.contains(keys),
    "upsert": lambda table, keys, rows: table.upsert(keys, rows),
    "remove": lambda table, keys, rows: table.remove(keys),
}
METHODS_WITH_NUMBERS: dict[str, Callable[[tfra.Table, Any, Any], Any]] = {
    "accum": lambda table, keys, rows: table.accum(keys, rows, np.ones(np.shape(rows)[:-1], bool)),
    "apply_gradients": lambda table, keys, rows: table.apply_gradients(keys, rows),
}


def shape_of(keys: Any) -> tuple[int, ...]:
    try:
        return np.shape(keys)
    except ValueError:  # A ragged list.
        return (len(keys),)


@pytest.mark.parametrize("method", [*METHODS_WITH_KEYS, *METHODS_WITH_NUMBERS])
@pytest.mark.parametrize(("keys", "error", "words"), WRONG_INT_KEYS)
def test_wrong_keys_for_an_int_table(method: str, keys: Any, error: Any, words: str) -> None:
    table = int_table()
    before = full_state(table)
    call = {**METHODS_WITH_KEYS, **METHODS_WITH_NUMBERS}[method]
    raises(lambda: call(table, keys, np.zeros((*shape_of(keys), 4), F32)), error, words)
    assert full_state(table) == before


@pytest.mark.parametrize("method", METHODS_WITH_KEYS)
@pytest.mark.parametrize(("keys", "error", "words"), WRONG_STRING_KEYS)
def test_wrong_keys_for_a_string_table(method: str, keys: Any, error: Any, words: str) -> None:
    table = string_table()
    before = full_state(table)
    rows = np.full((*shape_of(keys), 4), b"x", object)
    raises(lambda: METHODS_WITH_KEYS[method](table, keys, rows), error, words)
    assert full_state(table) == before


def test_in_takes_a_key_of_the_right_type() -> None:
    for table, wrong in ((int_table(), "a"), (int_table(), 1.5), (string_table(), 1)):
        raises(lambda table=table, wrong=wrong: wrong in table, TypeError, "received")


def ones(*shape: int, dtype: Any = F32) -> np.ndarray:
    return np.ones(shape, dtype)


def adam_slots(**changes: Any) -> dict[str, np.ndarray]:
    slots = {"momentum": ones(2, 4), "velocity": ones(2, 4), **changes}
    return {name: slot for name, slot in slots.items() if slot is not None}


# Calls to the int table above, and what their message has to mention.
WRONG_CALLS: dict[str, tuple[Call, Any, str]] = {
    # Values
    "values: dtype": (
        lambda t: t.upsert([1, 2], ones(2, 4, dtype="f8")), TypeError, "float32 float64"),
    "values: int array": (
        lambda t: t.upsert([1, 2], ones(2, 4, dtype="i4")), TypeError, "float32 int32"),
    "values: width": (lambda t: t.upsert([1, 2], ones(2, 3)), ValueError, "(2, 4) (2, 3)"),
    "values: number": (lambda t: t.upsert([1, 2], ones(3, 4)), ValueError, "(2, 4) (3, 4)"),
    "values: rank": (lambda t: t.upsert([1, 2], ones(2, 1, 4)), ValueError, "(2, 4) (2, 1, 4)"),
    "values: one row": (lambda t: t.upsert([1, 2], ones(4)), ValueError, "(2, 4) (4,)"),
    "values: transposed": (lambda t: t.upsert([1, 2, 3], ones(4, 3)), ValueError, "(3, 4) (4, 3)"),
    "values: for a scalar": (lambda t: t.upsert(1, ones(1, 4)), ValueError, "(4,) (1, 4)"),
    "values: a number": (lambda t: t.upsert([1], 5.0), ValueError, "(1, 4) ()"),
    "values: strings": (lambda t: t.upsert([1], [["a"] * 4]), (TypeError, ValueError), "float32"),
    "values: None": (lambda t: t.upsert([1], None), (TypeError, ValueError), "received"),
    "values: ragged": (lambda t: t.upsert([1, 2], [[1.0], [1.0, 2.0]]), ValueError, "received"),
    "values: for nothing": (lambda t: t.upsert([], ones(1, 4)), ValueError, "(0, 4) (1, 4)"),
    # Lookup
    "default: dtype": (
        lambda t: t.lookup([1, 9], ones(4, dtype="f8")), TypeError, "float32 float64"),
    "default: width": (lambda t: t.lookup([1, 9], ones(5)), ValueError, "4 (5,)"),
    "default: number": (lambda t: t.lookup([1, 9], ones(3, 4)), ValueError, "(2, 4) (3, 4)"),
    "default: string": (lambda t: t.lookup([1], "a"), TypeError, "float32 received"),
    "default: strings": (lambda t: t.lookup([1], ["a"] * 4), TypeError, "float32 received"),
    "default: ragged": (lambda t: t.lookup([1, 2], [[1.0], [1.0, 2.0]]), ValueError, "received"),
    "out: dtype": (
        lambda t: t.lookup([1, 9], out=ones(2, 4, dtype="f8")), TypeError, "float32 float64"),
    "out: shape": (lambda t: t.lookup([1, 9], out=ones(2, 5)), ValueError, "(2, 4) (2, 5)"),
    "out: order": (
        lambda t: t.lookup([1, 9], out=np.asfortranarray(ones(2, 4))), ValueError, "contiguous"),
    "out: strided": (lambda t: t.lookup([1, 9], out=ones(2, 8)[:, ::2]), ValueError, "contiguous"),
    "out: list": (lambda t: t.lookup([1], out=[[0.0] * 4]), TypeError, "array received list"),
    # Slots
    "slots: missing": (
        lambda t: t.upsert([1, 2], ones(2, 4), slots=adam_slots(velocity=None)),
        ValueError, "velocity received"),
    "slots: none": (lambda t: t.upsert([1, 2], ones(2, 4), slots={}), ValueError, "momentum"),
    "slots: unknown": (
        lambda t: t.upsert([1, 2], ones(2, 4), slots=adam_slots(linear=ones(2, 4))),
        ValueError, "momentum velocity linear"),
    "slots: shape": (
        lambda t: t.upsert([1, 2], ones(2, 4), slots=adam_slots(velocity=ones(2, 1))),
        ValueError, "velocity (2, 4) (2, 1)"),
    "slots: dtype": (
        lambda t: t.upsert([1, 2], ones(2, 4), slots=adam_slots(momentum=ones(2, 4, dtype="f8"))),
        TypeError, "momentum float32 float64"),
    "slots: list": (
        lambda t: t.upsert([1, 2], ones(2, 4), slots=[ones(2, 4)] * 2), TypeError, "dict list"),
    # Accum
    "exists: shape": (lambda t: t.accum([1, 2], ones(2, 4), [True]), ValueError, "(2,) (1,)"),
    "exists: dtype": (
        lambda t: t.accum([1, 2], ones(2, 4), np.array([1, 0])), TypeError, "bool int64"),
    "exists: missing": (lambda t: t.accum([1, 2], ones(2, 4)), TypeError, "exists"),
    "deltas: dtype": (
        lambda t: t.accum([1, 2], ones(2, 4, dtype="f2"), [True, True]),
        TypeError, "float32 float16"),
    "deltas: shape": (
        lambda t: t.accum([1, 2], ones(2, 5), [True, True]), ValueError, "(2, 4) (2, 5)"),
    # Gradients
    "gradients: dtype": (
        lambda t: t.apply_gradients([1], ones(1, 4, dtype="f8")), TypeError, "float32 float64"),
    "gradients: shape": (
        lambda t: t.apply_gradients([1, 9], ones(1, 4)), ValueError, "(2, 4) (1, 4)"),
    "gradients: step 0": (lambda t: t.apply_gradients([1], ones(1, 4), step=0), ValueError,
                          "step 1 received 0"),
    "gradients: step -5": (lambda t: t.apply_gradients([9], ones(1, 4), step=-5), ValueError,
                           "step 1 received -5"),
    "gradients: step 1.5": (lambda t: t.apply_gradients([9], ones(1, 4), step=1.5),
                            (TypeError, ValueError), "step integer received 1.5"),
    "gradients: step True": (lambda t: t.apply_gradients([9], ones(1, 4), step=True),
                             (TypeError, ValueError), "step integer received true"),
    "hyper: unknown": (lambda t: t.apply_gradients([9], ones(1, 4), rho=0.5), TypeError,
                       "beta_1 received rho"),
    "hyper: decides slots": (lambda t: t.apply_gradients([9], ones(1, 4), amsgrad=True),
                             TypeError, "beta_1 received amsgrad"),
    "hyper: negative": (lambda t: t.apply_gradients([9], ones(1, 4), learning_rate=-1.0),
                        ValueError, "learning_rate received -1"),
    "hyper: NaN": (lambda t: t.apply_gradients([9], ones(1, 4), learning_rate=NAN),
                   ValueError, "learning_rate received nan"),
    "hyper: string": (lambda t: t.apply_gradients([9], ones(1, 4), learning_rate="high"),
                      (TypeError, ValueError), "learning_rate received high"),
    "hyper: both clips": (lambda t: t.apply_gradients([9], ones(1, 4), clipnorm=1, clipvalue=1),
                          ValueError, "clipnorm clipvalue received"),
    # The rest
    "batch_size: 0": (lambda t: list(t.iterate(0)), ValueError, "batch_size received 0"),
    "batch_size: -1": (lambda t: list(t.iterate(-1)), ValueError, "batch_size received -1"),
    "batch_size: 1.5": (lambda t: list(t.iterate(1.5)), TypeError, "batch_size int received 1.5"),
    "reserve: -1": (lambda t: t.reserve(-1), ValueError, "received -1"),
    "reserve: 2**60": (lambda t: t.reserve(2**60), (ValueError, MemoryError), str(2**60)),
    "reserve: 2**70": (lambda t: t.reserve(2**70), (ValueError, OverflowError), "received"),
    "reserve: 1.5": (lambda t: t.reserve(1.5), TypeError, "int received 1.5"),
    "step: -1": (lambda t: setattr(t, "step", -1), ValueError, "step received -1"),
    "step: 1.5": (lambda t: setattr(t, "step", 1.5), (TypeError, ValueError), "step received 1.5"),
    "step: string": (lambda t: setattr(t, "step", "x"), (TypeError, ValueError), "step received"),
    "count_if": (lambda t: t.count_if(count_below=1), ValueError, "metadata"),
    "unknown argument": (lambda t: t.lookup([1], defaults=0.0), TypeError, "defaults"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_wrong_calls(name: str) -> None:
    call, error, words = WRONG_CALLS[name]
    table = int_table()
    before = full_state(table)
    raises(lambda: call(table), error, words)
    assert full_state(table) == before


@pytest.mark.parametrize(
    "name", ["dim", "key_dtype", "value_dtype", "optimizer", "initializer", "seed", "metadata",
             "slot_names"],
)  # fmt: skip
def test_attributes_are_read_only(name: str) -> None:
    table = int_table()
    with pytest.raises(AttributeError):
        setattr(table, name, getattr(table, name))


def test_out_that_cannot_be_written() -> None:
    out = ones(1, 4)
    out.setflags(write=False)
    raises(lambda: int_table().lookup([9], out=out), ValueError, "writ")
    np.testing.assert_array_equal(out, 1)


def test_tables_without_optimizer_have_no_gradients_and_no_slots() -> None:
    table = tfra.Table(4)
    raises(lambda: table.apply_gradients([1], ones(1, 4)), ValueError, "optimizer")
    slots = {"momentum": ones(1, 4)}
    raises(lambda: table.upsert([1], ones(1, 4), slots=slots), ValueError, "slots momentum")
    assert (len(table), table.step) == (0, 0)


@pytest.mark.parametrize("optimizer", [opt.SGD(), opt.RMSprop()], ids=["SGD", "RMSprop"])
def test_momentum_cannot_be_overridden_where_rows_have_no_slot_for_it(
    optimizer: opt.Optimizer,
) -> None:
    table = tfra.Table(4, optimizer=optimizer)
    errors = (TypeError, ValueError)
    raises(lambda: table.apply_gradients([1], ones(1, 4), momentum=0.9), errors, "momentum 0.9")
    assert (len(table), table.step) == (0, 0)


def test_a_wrong_value_late_in_a_batch_changes_nothing() -> None:
    table = string_table()
    before = full_state(table)
    values = np.full((3, 4), b"new", object)
    values[2, 3] = 5
    raises(lambda: table.upsert(["a", "b", "c"], values), TypeError, "str received int")
    raises(lambda: table.upsert(["a", "b", 3], values), TypeError, "str received int")
    raises(lambda: table.upsert(["a", "\ud800"], values[:2]), ValueError, "")
    assert full_state(table) == before


def test_values_of_the_wrong_type(case: Case) -> None:
    table = case.table()
    table.upsert(case.keys([1]), case.values(1))
    before = full_state(table)
    wrong = np.ones((1, case.dim), np.complex64)
    words = f"{case.value_dtype} complex64"
    raises(lambda: table.upsert(case.keys([1]), wrong), TypeError, words)
    raises(lambda: table.lookup(case.keys([2]), wrong), TypeError, words)
    raises(lambda: table.lookup(case.keys([2]), out=wrong), TypeError, "")
    assert full_state(table) == before


@pytest.mark.parametrize("value_dtype", ["int8", "int32", "int64"])
def test_numbers_that_are_no_integers_of_the_value_type(value_dtype: str) -> None:
    table = tfra.Table(2, value_dtype=value_dtype)
    table.upsert([1], [[5, 6]])
    before = full_state(table)
    errors = (TypeError, ValueError, OverflowError)
    for wrong in (1.5, 2 ** (8 * table.value_dtype.itemsize - 1), "7"):
        words = f"{value_dtype} received {wrong}"
        raises(lambda wrong=wrong: table.upsert([1], [[0, wrong]]), errors, words)
        raises(lambda wrong=wrong: table.lookup([2], [0, wrong]), errors, words)
        raises(lambda wrong=wrong: table.lookup([2], wrong), errors, words)
    assert full_state(table) == before


def test_wrong_conditions_on_metadata() -> None:
    table = tfra.Table(4, metadata=True)
    table.upsert([1, 2], ones(2, 4))
    for method in (table.count_if, table.select, table.remove_if):
        for wrong in ("x", 1.5, [1]):
            raises(lambda m=method, w=wrong: m(written_before=w), TypeError, "int")
        raises(lambda m=method: m(5), TypeError, "")
        raises(lambda m=method: m(older_than=5), TypeError, "older_than")
    for wrong in ("x", 1.5, -1, 2**32, None):
        raises(
            lambda w=wrong: setattr(table, "clock", w), (TypeError, ValueError), "clock received"
        )
    assert len(table) == 2


def test_optimizer_and_initializer_arguments() -> None:
    for call, words in (
        (lambda: opt.Adam(learning_rate=-1.0), "learning_rate received -1"),
        (lambda: opt.Adam(beta_1=1.0), "beta_1 received 1"),
        (lambda: opt.Ftrl(learning_rate=0.0), "learning_rate received 0"),
        (lambda: opt.SGD(nesterov=1), "nesterov bool received 1"),
        (lambda: opt.SGD(clipnorm=0.0), "clipnorm received 0"),
        (lambda: init.Normal(stddev=-1.0), "stddev received -1"),
        (lambda: init.TruncatedNormal(stddev=NAN), "stddev received nan"),
        (lambda: init.Normal(mean=float("inf")), "mean received inf"),
        (lambda: init.Uniform(minval=1.0, maxval=0.0), "minval maxval received 1.0 0.0"),
        (lambda: init.Uniform(minval=NAN), "minval received nan"),
    ):
        raises(call, ValueError, words)
    raises(lambda: opt.Optimizer(), TypeError, "base class")
    raises(lambda: opt.get("adamm"), ValueError, "adam received adamm")
    raises(lambda: opt.get(3), TypeError, "received 3")
