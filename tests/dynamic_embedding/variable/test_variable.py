"""Variable: its content, for all types and any number of tables."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_support import (
    KEY_DTYPES,
    SHAPES,
    SUMMABLE_DTYPES,
    TfCase,
    as_content,
    assert_tensor,
    content,
    de,
    pairs,
    sequence,
    signature_of,
)

from support import Array, Shape, run_python

PUBLIC_NAMES = {
    "CuckooHashTable", "CuckooHashTableConfig", "CuckooHashTableCreator", "HkvEvictStrategy",
    "HkvHashTable", "HkvHashTableConfig", "HkvHashTableCreator", "KVCreator", "Variable",
    "get_variable",
}  # fmt: skip


@pytest.fixture(params=pairs((1,), (3,)), ids=str)
def case(request: pytest.FixtureRequest) -> TfCase:
    """Every key type with every value type, and rows of one and of some elements."""
    return request.param


def numbered(shape: Shape) -> Array:
    return np.arange(int(np.prod(shape))).reshape(shape)


def test_the_package_tells_its_public_names() -> None:
    assert set(de.__all__) >= PUBLIC_NAMES
    assert len(set(de.__all__)) == len(de.__all__)
    for name in de.__all__:
        assert getattr(de, name) is not None


def test_signature() -> None:
    signature = signature_of(de.Variable)
    assert callable(signature.pop("partitioner"))
    assert signature == {
        "key_dtype": tf.int64, "value_dtype": tf.float32, "dim": 1, "devices": None,
        "shared_name": None, "name": "DynamicEmbedding_Variable", "initializer": None,
        "trainable": True, "checkpoint": True, "init_size": 0, "kv_creator": None,
        "restrict_policy": None, "bp_v2": False,
        "admission": None, "ttl": None, "min_norm": None, "short_file_name": False,
    }  # fmt: skip
    assert list(signature_of(de.Variable))[3:6] == ["devices", "partitioner", "shared_name"]


def test_import_tfra_is_all_that_is_needed() -> None:
    printed = run_python("""
        import tfra
        variable = tfra.dynamic_embedding.Variable(dim=2, initializer=1)
        variable.upsert([5], [[2, 3]])
        print(variable.lookup([5, 6]).numpy().tolist(), int(variable.size()))
    """)
    assert printed.strip() == "[[2.0, 3.0], [1.0, 1.0]] 1"


def test_attributes_of_a_variable_of_defaults() -> None:
    variable = de.Variable()
    assert variable.name == "DynamicEmbedding_Variable"
    assert (variable.key_dtype, variable.value_dtype) == (tf.int64, tf.float32)
    assert (variable.dim, variable.shard_num, variable.init_size) == (1, 1, 0)
    assert isinstance(variable.tables, list)
    assert [type(table) for table in variable.tables] == [de.CuckooHashTable]
    assert len(variable.devices) == 1
    assert (variable.trainable, variable.checkpoint, variable.bp_v2) == (True, True, False)
    assert variable.restrict_policy is None
    assert isinstance(variable.kv_creator, de.CuckooHashTableCreator)
    assert variable.resource_handle.dtype == tf.resource
    assert variable.partition_fn is variable.partitioner is de.default_partition_fn
    assert hasattr(variable, "initializer")


def test_attributes_given() -> None:
    creator = de.HkvHashTableCreator(de.HkvHashTableConfig(init_capacity=64))
    variable = de.Variable(
        tf.string, tf.float16, 7, ["/CPU:0"], name="given", trainable=False, checkpoint=False,
        init_size=1000, kv_creator=creator, bp_v2=True, shared_name="unused",
    )  # fmt: skip
    assert (variable.name, variable.dim, variable.init_size) == ("given", 7, 1000)
    assert (variable.key_dtype, variable.value_dtype) == (tf.string, tf.float16)
    assert list(variable.devices) == ["/CPU:0"]
    assert (variable.trainable, variable.checkpoint, variable.bp_v2) == (False, False, True)
    assert variable.kv_creator is creator
    assert [type(table) for table in variable.tables] == [de.HkvHashTable]


def test_rows_go_in_come_out_and_go_away(case: TfCase, devices: Any) -> None:
    variable = case.variable(devices=devices)
    keys, values = case.keys(range(10)), case.values(10)
    found, exists = variable.lookup(keys, return_exists=True)
    assert_tensor(found, case.zeros(10))
    assert_tensor(exists, np.zeros(10, bool))
    assert content(variable) == {}
    variable.upsert(keys[:6], values[:6])
    assert content(variable) == as_content(keys[:6], values[:6])
    found, exists = variable.lookup(keys[::-1], return_exists=True)
    assert_tensor(found, np.concatenate([case.zeros(4), values[5::-1]]))
    assert_tensor(exists, np.array([False] * 4 + [True] * 6))
    variable.upsert(keys[[2, 3, 2]], values[7:])
    assert_tensor(variable.lookup(keys[[2, 3]]), values[[9, 8]])
    variable.remove(keys[[1, 1, 4, 9]])
    kept, rows = keys[[0, 2, 3, 5]], values[[0, 9, 8, 5]]
    assert content(variable) == as_content(kept, rows)
    variable.clear()
    assert content(variable) == {}
    keys, values = variable.export()
    assert_tensor(keys, case.keys([]))
    assert_tensor(values, case.values(0))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("case", [TfCase(row=(1,)), TfCase("string", "string")], ids=str)
def test_keys_of_any_shape(case: TfCase, devices: Any, shape: Shape) -> None:
    variable = case.variable(devices=devices)
    keys, values = case.keys(numbered(shape)), case.values(shape)
    variable.upsert(keys, values)
    assert content(variable) == as_content(keys, values)
    found, exists = variable.lookup(keys, return_exists=True)
    assert_tensor(found, values)
    assert_tensor(exists, np.ones(shape, bool))
    variable.remove(keys)
    assert_tensor(variable.lookup(keys), case.zeros(shape))


@pytest.mark.parametrize("case", [TfCase("int32", row=(1,)), TfCase("string", "int8")], ids=str)
def test_shapes_known_only_when_the_function_runs(case: TfCase, devices: Any) -> None:
    variable = case.variable(devices=devices)
    signature = [tf.TensorSpec(None, case.key_dtype), tf.TensorSpec(None, case.value_dtype)]

    @tf.function(input_signature=signature)
    def upsert_find_and_remove(keys: tf.Tensor, values: tf.Tensor) -> Any:
        variable.upsert(keys, values)
        found, exists = variable.lookup(keys, return_exists=True)
        size = variable.size()
        variable.remove(keys)
        return found, exists, size, variable.lookup(keys), *variable.export()

    for seed, shape in enumerate(SHAPES):
        keys, values = case.keys(numbered(shape)), case.values(shape, seed)
        found, exists, size, after, left_keys, left_values = upsert_find_and_remove(
            tf.constant(keys), tf.constant(values)
        )
        assert_tensor(found, values)
        assert_tensor(exists, np.ones(shape, bool))
        assert int(size) == keys.size
        assert_tensor(after, case.zeros(shape))
        assert_tensor(left_keys, case.keys([]))
        assert_tensor(left_values, case.values(0))


@pytest.mark.parametrize("dim", [1, 5])
@pytest.mark.parametrize("shape", [(), (None,), (2, None), (None, 4), (3, 4)], ids=str)
def test_static_shapes(devices: Any, dim: int, shape: tuple[int | None, ...]) -> None:
    variable = de.Variable(dim=dim, devices=devices)
    seen = []

    @tf.function(input_signature=[tf.TensorSpec(shape, tf.int64)])
    def find(keys: tf.Tensor) -> tf.Tensor:
        found, exists = variable.lookup(keys, return_exists=True)
        seen.append((tuple(found.shape), tuple(exists.shape)))
        return variable.lookup(keys)

    assert tuple(find.get_concrete_function().output_shapes) == (*shape, dim)
    assert seen == [((*shape, dim), shape)]


def test_a_function_sees_its_own_writes(devices: Any) -> None:
    variable = de.Variable(dim=2, devices=devices)

    @tf.function
    def count(keys: tf.Tensor, times: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(times):
            variable.upsert(keys, variable.lookup(keys) + 1)
        return variable.lookup(keys)

    keys = tf.range(10, dtype=tf.int64)
    assert count(keys, tf.constant(50)).numpy().tolist() == [[50, 50]] * 10
    assert count(keys[:3], tf.constant(5)).numpy().tolist() == [[55, 55]] * 3
    assert int(variable.size()) == 10


@pytest.mark.parametrize("value_dtype", SUMMABLE_DTYPES)
@pytest.mark.parametrize("key_dtype", KEY_DTYPES)
def test_accum_in_each_of_its_four_cases(key_dtype: str, value_dtype: str, devices: Any) -> None:
    case = TfCase(key_dtype, value_dtype, (2,))
    variable = case.variable(devices=devices)
    keys = case.keys(range(4))
    stored = sequence(value_dtype, 2, 2, 5)
    old, new = sequence(value_dtype, 4, 2, 7), sequence(value_dtype, 4, 2, 16)
    variable.upsert(keys[:2], stored)
    variable.accum(keys, old, new, [True, False, True, False])
    expected = np.stack([stored[0] + new[0] - old[0], stored[1], new[3]])
    assert content(variable) == as_content(keys[[0, 1, 3]], expected)
    variable.accum(keys.reshape(2, 2), *(v.reshape(2, 2, 2) for v in (old, new)), [[True] * 2] * 2)
    expected += new[[0, 1, 3]] - old[[0, 1, 3]]
    assert content(variable) == as_content(keys[[0, 1, 3]], expected)


@pytest.mark.parametrize("key_dtype", KEY_DTYPES)
def test_extreme_keys_are_keys_like_others(key_dtype: str, devices: Any) -> None:
    case = TfCase(key_dtype)
    variable, keys = case.variable(devices=devices), case.extreme_keys()
    values = case.values(len(keys))
    variable.upsert(keys, values)
    assert content(variable) == as_content(keys, values)
    for key, row in zip(keys, values, strict=True):
        assert_tensor(variable.lookup(key), row)
    variable.remove(keys[1::2])
    assert content(variable) == as_content(keys[::2], values[::2])


def test_lists_and_arrays_are_keys_and_values(devices: Any) -> None:
    variable = de.Variable(dim=2, devices=devices)
    variable.upsert([1, 2], [[1, 2], [3, 4.5]])
    variable.upsert(np.array([3]), np.array([[5, 6]], np.float32))
    variable.upsert(4, [7, 8])
    assert variable.lookup([[4, 3], [2, 1]]).numpy().tolist() == [
        [[7, 8], [5, 6]],
        [[3, 4.5], [1, 2]],
    ]
    assert variable.lookup([]).shape == (0, 2)
    assert variable.lookup(4).numpy().tolist() == [7, 8]


def test_many_rows(devices: Any) -> None:
    case = TfCase("string", "float16")
    variable = case.variable(devices=devices, init_size=1000)
    keys, values = case.keys(range(20000)), case.values(20000)
    for part in np.array_split(np.arange(20000), 5):
        variable.upsert(keys[part], values[part])
    assert_tensor(variable.lookup(keys[::-1]), values[::-1])
    assert content(variable) == as_content(keys, values)


def test_variables_of_the_same_name_share_nothing(devices: Any) -> None:
    first, second = de.Variable(devices=devices), de.Variable(devices=devices)
    first.upsert([1, 2], [[1.0], [2.0]])
    assert (int(first.size()), int(second.size())) == (2, 0)


def test_graphs_of_tensorflow_1(devices: Any, session: tf.compat.v1.Session) -> None:
    case = TfCase("string", "int64", (2,))
    variable, other = case.variable(devices=devices), case.variable(devices=devices)
    keys, values = case.keys(range(5)), case.values(5)
    placeholder = tf.compat.v1.placeholder(tf.string)
    found, exported, size = variable.lookup(placeholder), variable.export(), variable.size()
    upsert, remove = variable.upsert(keys, values), variable.remove(keys[:1])
    accum = variable.accum(keys[:1], values[:1], values[:1] + 1, [False])
    clear = variable.clear()
    assert all(isinstance(op, tf.Operation) for op in (upsert, remove, accum, clear))
    assert session.run(size) == 0
    session.run(upsert)
    assert session.run(found, {placeholder: keys[3]}).tolist() == values[3].tolist()
    assert session.run(found, {placeholder: keys}).tolist() == values.tolist()
    session.run(remove)
    assert as_content(*session.run(exported)) == as_content(keys[1:], values[1:])
    session.run(accum)
    assert session.run((size, other.size())) == (5, 0)
    assert session.run(found, {placeholder: keys[:1]}).tolist() == (values[:1] + 1).tolist()
    session.run(clear)
    assert session.run(size) == 0


@pytest.mark.parametrize("trainable", [True, False])
def test_a_graph_collects_trainable_variables(trainable: bool, session: Any) -> None:
    variable = de.Variable(trainable=trainable)
    # In collections of its own: TF1's optimizers refuse what is not a tf.Variable in theirs.
    collected = tf.compat.v1.get_collection(de.GraphKeys.TRAINABLE_DYNAMIC_EMBEDDING_VARIABLES)
    assert any(each is variable for each in collected) == trainable
    assert tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES) == []


def test_restrict_without_a_policy_warns() -> None:
    variable = de.Variable()
    variable.upsert([1, 2], [[1.0], [2.0]])
    with pytest.warns(Warning, match="polic"):
        assert variable.restrict(1) is None
    assert int(variable.size()) == 2


class KeepSmallKeys(getattr(de, "RestrictPolicy", object)):  # type: ignore[misc]
    """Removes the keys from `num_reserved` on."""

    def __init__(self, variable: Any) -> None:
        self.variable, self.received = variable, None

    @property
    def status(self) -> None:
        return None

    def apply_update(self, ids: tf.Tensor) -> None:
        del ids

    def apply_restriction(self, num_reserved: int, **kwargs: Any) -> Any:
        self.received = kwargs
        return self.variable.remove(tf.range(num_reserved, 100, dtype=tf.int64))


def test_restrict_asks_the_policy() -> None:
    variable = de.Variable(restrict_policy=KeepSmallKeys)
    policy = variable.restrict_policy
    assert isinstance(policy, KeepSmallKeys)
    assert policy.variable is variable
    variable.upsert(list(range(6)), [[0.0]] * 6)
    variable.restrict(4, trigger=5)
    assert policy.received == {"trigger": 5}
    assert sorted(content(variable)) == [0, 1, 2, 3]


def test_the_second_argument_of_lookup_may_be_a_name() -> None:
    variable = de.Variable(dim=2, initializer=1.5)
    for keys in ([3], [[3, 4]]):
        assert np.all(variable.lookup(keys, "a_name").numpy() == 1.5)
    values, exists = variable.lookup([3], True, "a_name")
    assert values.shape == (1, 2)
    assert not exists.numpy().any()


@pytest.mark.parametrize("partitions", [1, 3])
def test_ops_have_the_names_that_they_are_given(partitions: int) -> None:
    with tf.Graph().as_default():
        variable = de.Variable(dim=2, devices=["/CPU:0"] * partitions)
        keys = tf.constant([1], tf.int64)
        assert variable.size(name="total").op.name == "total"
        assert variable.size(0, name="first").op.name == "first"
        assert variable.lookup(keys, name="rows").op.name == "rows"
        values, _ = variable.lookup(keys, return_exists=True, name="found")
        assert values.op.name == "found"
        assert variable.remove(keys, name="gone").name == "gone"
        assert variable.upsert(keys, [[1.0, 2.0]], name="written").name == "written"


def test_names_of_the_modules_of_tfra() -> None:
    homes = {
        "data_flow_ops": de.data_flow,
        "math_ops": de.math,
        "shadow_embedding_ops": de.shadow_ops,
    }
    assert "dynamic_embedding_variable" in de.python.ops.__all__
    for module in de.python.ops.__all__:
        names = importlib.import_module(f"tfra.dynamic_embedding.python.ops.{module}")
        assert names.__all__
        for name in names.__all__:
            assert getattr(names, name) is getattr(homes.get(module, de), name)
