"""A Variable in tf.function, control flow, tf.data and threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from programs.common import DIM, content, de, ids, numbered_rows, rows

MANY = 2000  # Enough calls to overlap, unless something orders them.


@pytest.fixture
def variable(devices: list[str] | None) -> Any:
    return de.Variable(dim=DIM, devices=devices, name="variable")


@pytest.fixture(params=["eager", "function"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Calls a function as it is, or as a tf.function."""
    if request.param == "eager":
        return lambda function, *arguments: function(*arguments)
    return lambda function, *arguments: tf.function(function)(*arguments)


def test_calls_in_one_function_run_in_program_order(variable: Any) -> None:
    keys = tf.range(MANY, dtype=tf.int64)
    some = keys[: MANY // 4]

    @tf.function
    def step(first: tf.Tensor, second: tf.Tensor) -> dict[str, tf.Tensor]:
        seen = {"before": variable.lookup(keys)}
        variable.upsert(keys, rows(MANY, first))
        seen["first"] = variable.lookup(keys)
        seen["again"] = variable.lookup(keys)
        variable.upsert(keys, rows(MANY, second))
        seen["second"] = variable.lookup(keys)
        ones, all_known = rows(MANY, 1.0), tf.ones([MANY], tf.bool)
        variable.accum(keys, ones, 3 * ones, all_known)
        seen["sum"] = variable.lookup(keys)
        variable.remove(some)
        seen["left"] = variable.size()
        seen["exported"] = tf.sort(variable.export()[0])
        variable.clear()
        seen["none"] = variable.size()
        variable.upsert(some, rows(MANY // 4, second))
        seen["last"] = variable.size()
        return seen

    before = np.zeros((MANY, DIM))
    for first in range(1, 301):
        seen = step(tf.constant(float(first)), tf.constant(-float(first)))
        np.testing.assert_array_equal(seen["before"], before)
        for name, number in {"first": first, "again": first, "second": -first}.items():
            np.testing.assert_array_equal(seen[name], np.full((MANY, DIM), number))
        np.testing.assert_array_equal(seen["sum"], np.full((MANY, DIM), 2 - first))
        np.testing.assert_array_equal(seen["exported"], np.arange(MANY // 4, MANY))
        sizes = [int(seen[name]) for name in ("left", "none", "last")]
        assert sizes == [MANY - MANY // 4, 0, MANY // 4]
        before[: MANY // 4] = -first


WRITES = {
    "upsert": (lambda v, keys: v.upsert(keys, rows(2, 5.0)), {1: 5.0, 2: 5.0, 3: 1.0}),
    "accum": (
        lambda v, keys: v.accum(keys, rows(2, 1.0), rows(2, 3.0), [True, True]),
        {1: 3.0, 2: 3.0, 3: 1.0},
    ),
    "remove": (lambda v, keys: v.remove(keys), {3: 1.0}),
    "clear": (lambda v, keys: v.clear(), {}),
}


@pytest.mark.parametrize("write, expected", WRITES.values(), ids=WRITES.keys())
def test_writes_happen_although_nothing_depends_on_them(
    variable: Any, write: Callable[..., Any], expected: dict[int, float]
) -> None:
    variable.upsert(ids(1, 2, 3), rows(3, 1.0))

    @tf.function
    def silent(keys: tf.Tensor) -> None:
        write(variable, keys)

    silent(ids(1, 2))
    assert content(variable) == expected


def table_ops_before(tensor: tf.Tensor) -> set[str]:
    """The operations on resources that must run before `tensor` is computed."""
    found, waiting, seen = set(), [tensor.op], set()
    while waiting:
        op = waiting.pop()
        if op.name not in seen:
            seen.add(op.name)
            if any(source.dtype == tf.resource for source in op.inputs):
                found.add(op.name)
            waiting += [source.op for source in op.inputs] + op.control_inputs
    return found


def test_lookups_of_one_table_do_not_wait_for_each_other(variable: Any) -> None:
    @tf.function
    def step(keys: tf.Tensor) -> tuple[tf.Tensor, ...]:
        first, second = variable.lookup(keys), variable.lookup(keys + 1)
        variable.upsert(keys, second)
        third = variable.lookup(keys)
        traced.extend((first, second, third))
        return first, second, third

    traced: list[tf.Tensor] = []
    step(ids(1, 2))
    first, second, third = map(table_ops_before, traced)
    assert first.isdisjoint(second)
    assert set() < first | second < third


def test_tables_in_one_function_are_independent() -> None:
    variables = [de.Variable(dim=DIM, name="twin") for _ in range(3)]

    @tf.function
    def step(keys: tf.Tensor) -> list[tf.Tensor]:
        for number, variable in enumerate(variables):
            variable.upsert(keys + number, rows(1, number))
        variables[0].upsert(keys, variables[2].lookup(keys + 2))
        return [variable.lookup(keys)[0, 0] for variable in variables]

    assert [float(number) for number in step(ids(10))] == [2.0, 0.0, 0.0]
    assert [content(v) for v in variables] == [{10: 2.0}, {11: 1.0}, {12: 2.0}]


def test_a_variable_can_be_made_in_the_first_trace(devices: list[str] | None) -> None:
    made: list[Any] = []

    @tf.function
    def step(keys: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        if not made:
            made.append(de.Variable(dim=DIM, devices=devices, name="made_inside"))
        made[0].upsert(keys, rows(tf.size(keys), number))
        return made[0].size()

    assert [int(step(keys, tf.constant(2.0))) for keys in (ids(1), ids(2), ids(3, 4))] == [1, 2, 4]
    assert [content(each) for each in made] == [dict.fromkeys((1, 2, 3, 4), 2.0)]


def test_every_trace_uses_the_same_table(variable: Any) -> None:
    @tf.function
    def add(keys: tf.Tensor) -> tf.Tensor:
        variable.upsert(keys, variable.lookup(keys) + 1)
        return variable.size()

    assert [int(add(tf.range(n, dtype=tf.int64))) for n in range(1, 6)] == [1, 2, 3, 4, 5]
    assert add.experimental_get_tracing_count() == 5
    assert content(variable) == {key: 5.0 - key for key in range(5)}


@pytest.mark.parametrize("shape", [[None], [None, 3], [2, None], [None, None], [2, 3], [], None])
def test_static_shapes(variable: Any, shape: list[int | None] | None) -> None:
    variable.upsert(ids(0, 1, 2, 3), numbered_rows(ids(0, 1, 2, 3)))
    function = tf.function(
        lambda keys: variable.lookup(keys, return_exists=True),
        input_signature=[tf.TensorSpec(shape, tf.int64)],
    )
    found, exists = function.get_concrete_function().output_shapes
    if shape is None:
        keys = tf.range(6, dtype=tf.int64)[:, None, None]
    else:
        assert [found.as_list(), exists.as_list()] == [[*shape, DIM], shape]
        real = [size or default for size, default in zip(shape, (2, 3), strict=False)]
        keys = tf.constant(np.arange(np.prod(real, dtype=int)).reshape(real))
    found, exists = function(keys)
    np.testing.assert_array_equal(exists, keys < 4)
    np.testing.assert_array_equal(found, numbered_rows(tf.where(exists, keys, 0)))


def test_only_the_branch_taken_writes(variable: Any, run: Callable[..., Any]) -> None:
    def step(is_new: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        def insert() -> tf.Tensor:
            variable.upsert(keys, rows(1, 3.0))
            return variable.lookup(keys)

        def remove() -> tf.Tensor:
            before = variable.lookup(keys)
            variable.remove(keys)
            return before + variable.lookup(keys) + 10

        return tf.cond(is_new, insert, remove)

    for key in (1, 2):
        assert run(step, tf.constant(True), ids(key)).numpy().tolist() == [[3.0] * DIM]
        assert content(variable) == dict.fromkeys(range(1, key + 1), 3.0)
    assert run(step, tf.constant(False), ids(1)).numpy().tolist() == [[13.0] * DIM]
    assert content(variable) == {2: 3.0}


def test_while_loops_read_what_they_wrote(variable: Any, run: Callable[..., Any]) -> None:
    def count_up(times: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            variable.upsert(ids(7), variable.lookup(ids(7)) + 1)
            variable.upsert(tf.cast(i, tf.int64)[None] + 100, rows(1, i))
            return i + 1, total + variable.lookup(ids(7))[0, 0]

        return tf.while_loop(lambda i, _: i < times, body, [0, 0.0])[1]

    assert float(run(count_up, tf.constant(100))) == 5050.0
    assert content(variable) == {7: 100.0, **{100 + i: float(i) for i in range(100)}}


def test_autograph_loops_and_conditions(variable: Any) -> None:
    @tf.function
    def step(limit: tf.Tensor) -> tf.Tensor:
        total = tf.constant(0.0)
        for i in tf.range(limit, dtype=tf.int64):
            if i % 3 == 0:
                variable.upsert(i[None], rows(1, i))
            elif i > 90:
                break
            j = i
            while j % 3 == 1:
                variable.remove((j - 1)[None])
                j += 1
            total += tf.reduce_sum(variable.lookup(i[None]))
        return total

    # 0, 3, ..., 90 are upserted and looked up; 1, 4, ..., 88 remove the one before.
    assert float(step(tf.constant(1000, tf.int64))) == DIM * sum(range(0, 91, 3))
    assert content(variable) == {90: 90.0}


def test_map_fn(variable: Any, run: Callable[..., Any]) -> None:
    def step(keys: tf.Tensor) -> tf.Tensor:
        def one(key: tf.Tensor) -> tf.Tensor:
            variable.upsert(key[None] + 1000, rows(1, key))
            return variable.lookup(key)

        return tf.map_fn(one, keys, fn_output_signature=tf.float32)

    keys = tf.range(50, dtype=tf.int64)
    variable.upsert(keys, numbered_rows(keys))
    np.testing.assert_array_equal(run(step, keys), numbered_rows(keys))
    assert content(variable) == {k + n: float(k) for k in range(50) for n in (0, 1000)}


def test_datasets_look_up_in_parallel(variable: Any) -> None:
    keys = tf.range(10_000, dtype=tf.int64)
    variable.upsert(keys, numbered_rows(keys))
    dataset = (
        tf.data.Dataset.range(10_000)
        .batch(64)
        .map(lambda some: (some, variable.lookup(some)), num_parallel_calls=4)
    )
    assert dataset.element_spec[1].shape.as_list() == [None, DIM]
    some, found = (np.concatenate(parts) for parts in zip(*dataset.prefetch(4), strict=True))
    assert some.tolist() == list(range(10_000))
    np.testing.assert_array_equal(found, numbered_rows(keys))


@pytest.mark.parametrize("parallel", [None, 4])
def test_datasets_write(variable: Any, parallel: int | None) -> None:
    def insert(key: tf.Tensor) -> tf.Tensor:
        variable.upsert(key[None], rows(1, key))
        return key

    dataset = tf.data.Dataset.range(200).map(insert, num_parallel_calls=parallel)
    assert [int(key) for key in dataset] == list(range(200))
    assert content(variable) == {key: float(key) for key in range(200)}


def test_a_dataset_in_a_function(variable: Any) -> None:
    variable.upsert(tf.range(1000, dtype=tf.int64), rows(1000, 1.0))

    @tf.function
    def total() -> tf.Tensor:
        result = tf.constant(0.0)
        dataset = tf.data.Dataset.range(1000).batch(10)
        for some in dataset.map(lambda some: (some, variable.lookup(some))):
            variable.upsert(some[0], 2 * some[1])
            result += tf.reduce_sum(variable.lookup(some[0]))
        return result

    assert float(total()) == 2.0 * DIM * 1000
    assert content(variable) == dict.fromkeys(range(1000), 2.0)


def test_python_threads_share_a_table(variable: Any) -> None:
    lookup = tf.function(variable.lookup)
    failures: list[Any] = []

    def work(thread: int) -> None:
        try:
            for number in range(100):
                key = ids(1000 * thread + number + 10)
                variable.upsert(key, rows(1, number))
                np.testing.assert_array_equal(lookup(key), rows(1, number))
                variable.accum(ids(0), rows(1, 0.0), rows(1, 1.0), [True])
        except Exception as error:
            failures.append(error)

    variable.upsert(ids(0), rows(1, 0.0))
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [float(variable.lookup(ids(0))[0, 0]), int(variable.size())] == [400.0, 401]


def test_python_called_from_a_graph_uses_the_same_table(variable: Any) -> None:
    @tf.function
    def step(keys: tf.Tensor) -> tf.Tensor:
        return tf.py_function(variable.lookup, [keys], tf.float32) + variable.lookup(keys)

    variable.upsert(ids(3, 4), rows(2, 6.0))
    np.testing.assert_array_equal(step(ids(3, 4)), rows(2, 12.0))


WRONG_SHAPES = [((2,), (2, 77)), ((2,), (33, DIM)), ((2,), (2,)), ((2, 2), (22, DIM))]


@pytest.mark.parametrize("keys_shape, values_shape", WRONG_SHAPES, ids=str)
def test_wrong_shapes_found_at_run_time(
    variable: Any, keys_shape: tuple[int, ...], values_shape: tuple[int, ...]
) -> None:
    @tf.function(input_signature=[tf.TensorSpec(None, tf.int64), tf.TensorSpec(None, tf.float32)])
    def upsert(keys: tf.Tensor, values: tf.Tensor) -> None:
        variable.upsert(keys, values)

    upsert(ids(1), rows(1, 1.0))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        upsert(tf.fill(keys_shape, tf.constant(5, tf.int64)), tf.zeros(values_shape))
    expected, received = str(caught.value).lower().split("received", 1)
    assert "expected" in expected
    assert max(values_shape) == 2 or str(max(values_shape)) in received
    assert content(variable) == {1: 1.0}
    upsert(ids(2), rows(1, 2.0))
    assert content(variable) == {1: 1.0, 2: 2.0}


def test_compiling_with_xla_is_an_error_that_names_the_op(variable: Any) -> None:
    variable.upsert(ids(1), rows(1, 2.0))
    compiled = tf.function(lambda: variable.lookup(ids(1)), jit_compile=True)
    with pytest.raises((tf.errors.OpError, NotImplementedError), match=r"(?i)tfra|lookup"):
        compiled()
    assert content(variable) == {1: 2.0}
