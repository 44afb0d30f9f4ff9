"""A store written in Python as the tables of a Variable: reads, writes, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from dict_store import DictStore
from tf_support import content

import tfra
from support import make_keys
from tfra.store import split_rows

de = tfra.dynamic_embedding
Array = np.ndarray


def in_dict() -> Any:
    return de.StoreCreator(DictStore)


def values_of(count: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((count, 3)).astype(np.float32)


@pytest.mark.parametrize("key_dtype", ["int64", "string"])
@pytest.mark.parametrize("in_function", [False, True])
def test_a_variable_does_what_it_does_with_tables_of_the_engine(
    key_dtype: str, in_function: bool, devices: list[str] | None
) -> None:
    options = {
        "key_dtype": key_dtype,
        "dim": 3,
        "initializer": tf.keras.initializers.RandomNormal(seed=5),
        "devices": devices,
    }
    engine = de.Variable(name="engine", **options)
    stored = de.Variable(name="stored", kv_creator=in_dict(), **options)
    rng = np.random.default_rng(0)
    wrap: Callable[..., Any] = tf.function if in_function else lambda function: function
    calls = {
        method: [wrap(_returning_tensors(getattr(v, method))) for v in (engine, stored)]
        for method in ("upsert", "lookup", "accum", "remove", "size", "clear")
    }

    def both(method: str, *arguments: Any) -> None:
        mine, theirs = (call(*arguments) for call in calls[method])
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(one, other)

    for turn in range(6):
        keys = tf.constant(make_keys(key_dtype, rng.integers(0, 12, (2, 4))))
        rows = tf.constant(values_of(8, turn).reshape(2, 4, 3))
        both("upsert", keys, rows)
        both("lookup", keys + keys if key_dtype == "int64" else keys, True)
        old, exists = engine.lookup(keys, return_exists=True)
        both("accum", keys, old, rows, exists)
        both("remove", keys[:, :2])
        both("size")
        assert content(engine) == content(stored)
    both("clear")
    assert content(stored) == {}


def _returning_tensors(method: Callable[..., Any]) -> Callable[..., list[tf.Tensor]]:
    def call(*arguments: Any) -> list[tf.Tensor]:
        return [each for each in tf.nest.flatten(method(*arguments)) if tf.is_tensor(each)]

    return call


def test_ops_of_a_function_run_in_order() -> None:
    variable = de.Variable(dim=1, kv_creator=in_dict())

    @tf.function
    def steps(keys: tf.Tensor) -> Any:
        variable.upsert(keys, [[1.0], [2.0]])
        before = variable.size()
        if tf.reduce_all(keys > 0):
            variable.remove(keys[:1])
        found = variable.lookup(keys, return_exists=True)
        variable.clear()
        return before, *found, variable.size()

    before, rows, exists, after = steps(tf.constant([7, 8], tf.int64))
    assert (int(before), int(after)) == (2, 0)
    assert rows.numpy().tolist() == [[0.0], [2.0]]
    assert exists.numpy().tolist() == [False, True]


def test_a_store_is_made_for_each_table_and_holds_its_rows() -> None:
    made = []

    def make(spec: tfra.TableSpec, name: str) -> tfra.Store:
        made.append(DictStore(spec, name))
        return made[-1]

    variable = de.Variable(
        dim=2, name="users", devices=["/CPU:0"] * 2, kv_creator=de.StoreCreator(make)
    )
    variable.upsert([1, 2, 3], [[1.0, 1.5], [2.0, 2.5], [3.0, 3.5]])
    assert [store.name for store in made] == ["users-1of2", "users-2of2"]
    assert [table.store for table in variable.tables] == made
    assert [store.size() for store in made] == [1, 2]
    rows, exists = made[1].lookup(np.array([3, 2]))
    assert exists.tolist() == [True, False]
    assert split_rows(made[1].spec, rows)[0][0].tolist() == [3.0, 3.5]


def test_rows_of_an_initializer_in_python_are_stored() -> None:
    drawn: list[int] = []

    def rows(shape: Any) -> Array:
        drawn.append(int(shape[0]))
        return np.full(shape, len(drawn), np.float32)

    variable = de.Variable(dim=2, initializer=rows, kv_creator=in_dict())
    assert variable.lookup([1, 2]).numpy().tolist() == [[1.0, 1.0]] * 2
    trained = variable.lookup_to_train(tf.constant([1, 2], tf.int64))
    assert trained.numpy().tolist() == [[2.0, 2.0]] * 2
    assert variable.lookup([1]).numpy().tolist() == [[2.0, 2.0]]


def test_default_values_of_a_lookup() -> None:
    table = in_dict().create(tf.int64, tf.float32, [0.5, 0.5], name="t")
    table.insert([1], [[1.0, 2.0]])
    assert table.lookup([1, 2]).numpy().tolist() == [[1.0, 2.0], [0.5, 0.5]]
    assert table.lookup([1, 2], [3.0, 4.0]).numpy().tolist() == [[1.0, 2.0], [3.0, 4.0]]
    rows = [[9.0, 9.0], [3.0, 4.0]]
    assert table.lookup([1, 2], rows).numpy().tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_a_table_of_scalars() -> None:
    table = in_dict().create(tf.string, tf.int64, -1, name="t")
    table.insert(["a", "b", "a"], tf.constant([1, 2, 3], tf.int64))
    assert table.lookup(["a", "c"]).numpy().tolist() == [3, -1]
    keys, values = table.export()
    assert dict(zip(keys.numpy().tolist(), values.numpy().tolist(), strict=True)) == {
        b"a": 3,
        b"b": 2,
    }


def test_it_shows_its_rows() -> None:
    variable = de.Variable(dim=1, name="users", kv_creator=in_dict())
    variable.upsert([1, 2], [[1.0], [2.0]])
    assert "keys=2" in repr(variable)
    assert variable.stats().size == 2
    assert len(variable.head(1)[0]) == 1
    assert len(variable.to_pandas()) == 2


def test_a_store_may_retry_some_keys() -> None:
    class Retrying(DictStore):
        """Calls the function for one key after the other."""

        def update(self, keys: Array, function: Any) -> None:
            for i in range(len(keys)):
                super().update(keys[i : i + 1], function)

    variable = de.Variable(dim=3, kv_creator=de.StoreCreator(Retrying))
    keys, rows = [1, 2, 1, 3], values_of(4, 0)
    variable.upsert(keys, rows)
    np.testing.assert_array_equal(variable.lookup([1, 2, 3]), rows[[2, 1, 3]])


def test_accumulating_threads_lose_nothing() -> None:
    variable = de.Variable(dim=1, kv_creator=in_dict())
    keys = tf.range(5, dtype=tf.int64)
    variable.upsert(keys, tf.zeros([5, 1]))

    def work() -> None:
        for _ in range(20):
            variable.accum(keys, tf.zeros([5, 1]), tf.ones([5, 1]), tf.ones([5], tf.bool))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(variable.lookup(keys), [[60.0]] * 5)


def test_errors_of_a_store_reach_the_caller() -> None:
    class Failing(DictStore):
        def lookup(self, keys: Array) -> Any:
            raise ConnectionError("the server is gone")

    variable = de.Variable(dim=1, kv_creator=de.StoreCreator(Failing))
    with pytest.raises(ConnectionError, match="the server is gone"):
        variable.lookup([1])
    with pytest.raises(tf.errors.OpError, match="the server is gone"):
        tf.function(lambda: variable.lookup([1]))()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"restrict_policy": de.TimestampRestrictPolicy}, ValueError, "restrict_policy.*StoreCr"),
        ({"ttl": 60}, ValueError, "`ttl` and `min_norm` need"),
        ({"min_norm": 0.1}, ValueError, "`ttl` and `min_norm` need"),
        ({"admission": tfra.admission.MinCount(2)}, ValueError, "which `admission` needs"),
        ({"value_dtype": tf.string}, TypeError, r"expected numbers for a store\. Received: string"),
        ({"key_dtype": tf.int32}, TypeError, "expected int64 or string for a store"),
    ],
)
def test_what_a_store_does_not_keep_is_refused(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        de.Variable(dim=1, kv_creator=in_dict(), **options)


def test_what_is_not_a_store_of_the_spec_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`make`: expected a function.*Received: 7"):
        de.StoreCreator(7)
    with pytest.raises(TypeError, match=r"returns a tfra\.Store\. Received: \{\}"):
        de.Variable(dim=1, kv_creator=de.StoreCreator(lambda spec, name: {}))
    other = DictStore(tfra.TableSpec(dim=2))
    with pytest.raises(ValueError, match=r"expected a store of .*'dim': 1.*one of .*'dim': 2"):
        de.Variable(dim=1, kv_creator=de.StoreCreator(lambda spec, name: other))


def test_what_needs_a_table_of_the_engine_is_refused() -> None:
    variable = de.Variable(dim=1, kv_creator=in_dict())
    with pytest.raises(NotImplementedError, match="`histograms` needs a table of the engine"):
        variable.histograms()
    with pytest.raises(NotImplementedError, match="`handle` needs a table of the engine"):
        variable.tables[0].handle()
    with pytest.raises(TypeError, match="needs tables with scores"):
        variable.export_keys_and_scores(10)
    with pytest.raises(tf.errors.InvalidArgumentError):
        variable.expire(ttl=1)


def test_in_a_graph(session: tf.compat.v1.Session) -> None:
    variable = de.Variable(dim=1, initializer=0.5, kv_creator=in_dict())
    session.run(tf.compat.v1.tables_initializer())
    session.run(variable.upsert([1], [[3.0]]))
    assert session.run(variable.lookup([1, 2])).tolist() == [[3.0], [0.5]]
    assert session.run(variable.export()[0]).tolist() == [1]
    assert variable.tables[0].store.size() == 1
