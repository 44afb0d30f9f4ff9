"""Wrong arguments of `tfra.Table` and of the functions beside it, and tables too big for memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_errors import raises

import tfra
from support import run_python

EITHER = (TypeError, ValueError)

WRONG_TABLES: dict[str, tuple[dict[str, Any], Any, str]] = {
    "dim 0": ({"dim": 0}, ValueError, "dim received 0"),
    "dim -1": ({"dim": -1}, ValueError, "dim received -1"),
    "dim 2**40": ({"dim": 2**40}, ValueError, f"dim received {2**40}"),
    "dim 2**70": ({"dim": 2**70}, ValueError, f"dim received {2**70}"),
    "dim 1.5": ({"dim": 1.5}, EITHER, "dim int received 1.5"),
    "dim string": ({"dim": "3"}, EITHER, "dim int received 3"),
    "dim None": ({"dim": None}, EITHER, "dim int received none"),
    "key_dtype float32": ({"key_dtype": "float32"}, EITHER, "int64 string received float32"),
    "key_dtype unknown": ({"key_dtype": "nonsense"}, EITHER, "int64 string received nonsense"),
    "key_dtype None": ({"key_dtype": None}, EITHER, "int64 string received none"),
    "value_dtype complex": ({"value_dtype": "complex64"}, EITHER, "float32 received complex64"),
    "value_dtype uint8": ({"value_dtype": np.uint8}, EITHER, "float32 received uint8"),
    "value_dtype unknown": ({"value_dtype": "nonsense"}, EITHER, "float32 received nonsense"),
    "value_dtype None": ({"value_dtype": None}, EITHER, "float32 received none"),
    "optimizer unknown": ({"optimizer": "adamm"}, ValueError, "adam received adamm"),
    "optimizer number": ({"optimizer": 3}, TypeError, "optimizer received 3"),
    "optimizer class": ({"optimizer": tfra.optimizers.Adam}, TypeError, "optimizer received"),
    "initializer unknown": ({"initializer": "nonsense"}, ValueError, "uniform received nonsense"),
    "initializer dict": ({"initializer": {}}, TypeError, "initializer received {}"),
    "initializer class": ({"initializer": tfra.initializers.Ones}, EITHER, "initializer received"),
    "initializer shape": ({"initializer": np.ones(4, np.float32)}, ValueError, "3 received 4"),
    "initializer rank": ({"initializer": np.ones((1, 3), np.float32)}, ValueError, "received (1,"),
    "initializer number of strings": (
        {"initializer": ["a", "b"], "value_dtype": "string"}, ValueError, "3 received 2"),
    "initializer number for strings": (
        {"initializer": 1.0, "value_dtype": "string"}, TypeError, "str received float"),
    "capacity -1": ({"capacity": -1}, ValueError, "capacity received -1"),
    "capacity 2**60": ({"capacity": 2**60}, ValueError, f"received {2**60}"),
    "capacity 2**70": ({"capacity": 2**70}, (ValueError, OverflowError), "received"),
    "capacity 1.5": ({"capacity": 1.5}, EITHER, "capacity int received 1.5"),
    "seed string": ({"seed": "x"}, EITHER, "seed int received x"),
    "seed 1.5": ({"seed": 1.5}, EITHER, "seed int received 1.5"),
    "unknown argument": ({"dtype": "float32"}, TypeError, "dtype"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_TABLES)
def test_wrong_arguments(name: str) -> None:
    options, error, words = WRONG_TABLES[name]
    raises(lambda: tfra.Table(**{"dim": 3, **options}), error, words)


def test_dim_is_the_only_argument_by_position() -> None:
    raises(lambda: tfra.Table(), TypeError, "dim")
    raises(lambda: tfra.Table(3, "int64"), TypeError, "")


@pytest.mark.parametrize("value_dtype", ["int8", "int32", "int64", "bool", "string"])
def test_what_only_floating_values_have(value_dtype: str) -> None:
    raises(
        lambda: tfra.Table(3, value_dtype=value_dtype, optimizer="adam"),
        TypeError,
        f"adam float32 received {value_dtype}",
    )
    for initializer in (
        tfra.initializers.Normal(),
        tfra.initializers.Uniform(),
        tfra.initializers.TruncatedNormal(),
    ):
        raises(
            lambda initializer=initializer: tfra.Table(
                3, value_dtype=value_dtype, initializer=initializer
            ),
            TypeError,
            f"floating received {value_dtype}",
        )


@pytest.mark.parametrize("value_dtype", ["int8", "int32", "int64", "bool"])
def test_names_of_random_initializers_for_whole_numbers(value_dtype: str) -> None:
    for name in ("uniform", "normal", "truncated_normal"):
        raises(
            lambda name=name: tfra.Table(3, value_dtype=value_dtype, initializer=name),
            TypeError,
            f"floating received {value_dtype}",
        )


WRONG_FUNCTION_CALLS: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "0 threads": (lambda: tfra.set_num_threads(0), ValueError, "received 0"),
    "-2 threads": (lambda: tfra.set_num_threads(-2), ValueError, "received -2"),
    "threads string": (lambda: tfra.set_num_threads("two"), TypeError, "int received two"),
    "1.5 threads": (lambda: tfra.set_num_threads(1.5), TypeError, "int received 1.5"),
    "2**40 threads": (lambda: tfra.set_num_threads(2**40), ValueError, f"received {2**40}"),
    "keys -1": (lambda: tfra.estimate_memory(-1, 4), ValueError, "keys received -1"),
    "dim 0": (lambda: tfra.estimate_memory(10, 0), ValueError, "dim received 0"),
    "value_dtype": (
        lambda: tfra.estimate_memory(10, 4, "nonsense"), EITHER, "float32 received nonsense"),
    "optimizer": (
        lambda: tfra.estimate_memory(10, 4, optimizer="adamm"), ValueError, "received adamm"),
    "optimizer of integers": (
        lambda: tfra.estimate_memory(10, 4, "int32", "adam"), TypeError, "float32 received int32"),
    "key_dtype": (
        lambda: tfra.estimate_memory(10, 4, key_dtype="f4"), EITHER, "int64 string received f4"),
    "key_bytes -1": (
        lambda: tfra.estimate_memory(10, 4, key_dtype="string", key_bytes=-1),
        ValueError, "key_bytes received -1"),
    "key_bytes NaN": (
        lambda: tfra.estimate_memory(10, 4, key_dtype="string", key_bytes=float("nan")),
        ValueError, "key_bytes received nan"),
}  # fmt: skip


@pytest.mark.usefixtures("keep_num_threads")
@pytest.mark.parametrize("name", WRONG_FUNCTION_CALLS)
def test_wrong_arguments_of_functions(name: str) -> None:
    call, error, words = WRONG_FUNCTION_CALLS[name]
    before = tfra.get_num_threads()
    raises(call, error, words)
    assert tfra.get_num_threads() == before


# What cannot fit, in a process that may take about 200 MB more than it has.
TOO_BIG = {
    "reserve": "table.reserve(200_000_000)",
    "capacity": "tfra.Table(64, capacity=200_000_000)",
    "upsert": "table.upsert(keys, values)",
    "accum": "table.accum(keys, values, np.zeros(len(keys), bool))",
    "apply_gradients": "table.apply_gradients(keys, values)",
    "lookup": "table.lookup(np.zeros((64, len(keys)), np.int8))",
}


@pytest.mark.parametrize("name", TOO_BIG)
def test_out_of_memory_leaves_a_usable_table(name: str) -> None:
    printed = run_python(f"""
        import re
        import resource

        import numpy as np
        import tfra

        keys = np.arange(1_500_000)
        values = np.ones((len(keys), 64), np.float32)
        few = np.arange(1000)
        table = tfra.Table(64, optimizer="sgd")
        table.upsert(few, 5 * values[:1000])
        table.lookup(keys[:200_000])  # Starts the threads, whose stacks count.
        size = int(re.search(r"VmSize:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
        resource.setrlimit(resource.RLIMIT_AS, (size + 200 * 2**20, resource.RLIM_INFINITY))
        try:
            {TOO_BIG[name]}
        except MemoryError as error:
            print("MemoryError", error)
        assert len(table) == 1000, len(table)
        assert table.step == 0
        exported_keys, exported_values = table.export()
        assert sorted(exported_keys.tolist()) == few.tolist()
        assert (exported_values == 5).all()
        assert not table.contains(keys[1000:100_000]).any()
        table.upsert(few + 500, 7 * values[:1000])
        assert len(table) == 1500
        assert table.lookup(few)[:, 0].tolist() == [5] * 500 + [7] * 500
        assert table.remove(few) == 1000
    """)
    assert printed.startswith("MemoryError")
