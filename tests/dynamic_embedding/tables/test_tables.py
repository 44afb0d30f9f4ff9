"""CuckooHashTable, HkvHashTable, their creators and configurations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_support import (
    KEY_DTYPES,
    KINDS,
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
    to_numpy,
)

from support import Shape, numpy_dtype

MEBI = 1024 * 1024
HKV_OPTIONS = {
    "init_capacity": MEBI,
    "max_capacity": MEBI,
    "max_hbm_for_values": 1024 * MEBI,
}
HKV_EVICTION = {
    "step_per_epoch": 0,
    "gen_scores_fn": None,
    "reserved_key_start_bit": 0,
    "tier_directory": None,
}
TABLE_TYPES = {"key_dtype": ..., "value_dtype": ..., "default_value": ...}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=pairs((), (3,)), ids=str)
def case(request: pytest.FixtureRequest) -> TfCase:
    """Every key type with every value type, in a table of scalars and in one of rows."""
    return request.param


@pytest.fixture(params=[(), (1,), (3,)], ids=str)
def few_case(request: pytest.FixtureRequest) -> TfCase:
    return TfCase("string", "int64", request.param)


def numbered(shape: Shape) -> np.ndarray:
    return np.arange(int(np.prod(shape))).reshape(shape)


def test_signatures() -> None:
    lru = {"evict_strategy": de.HkvEvictStrategy.LRU}
    assert signature_of(de.CuckooHashTable) == {
        **TABLE_TYPES, "name": "CuckooHashTable", "checkpoint": True, "init_size": 0,
        "config": None, "device": "", "shard_saveable_object_fn": None,
    }  # fmt: skip
    assert signature_of(de.HkvHashTable) == {
        **TABLE_TYPES, "name": "HkvHashTable", "checkpoint": True, **HKV_OPTIONS, "config": None,
        "device": "", **lru, **HKV_EVICTION, "shard_saveable_object_fn": None,
    }  # fmt: skip
    assert list(signature_of(de.HkvHashTableConfig)) == [*HKV_OPTIONS, *lru, *HKV_EVICTION]
    assert signature_of(de.CuckooHashTableConfig) == {}
    for creator in (de.KVCreator, de.CuckooHashTableCreator, de.HkvHashTableCreator):
        assert signature_of(creator) == {"config": None, "saver": None}


def test_saveables_of_ones_own_are_refused(kind: str) -> None:
    creator = getattr(de, f"{kind}Creator")()
    for make in (getattr(de, kind), creator.create):
        make(tf.int64, tf.float32, 0.0, name="table", shard_saveable_object_fn=None)
        with pytest.raises(NotImplementedError, match="shard_saveable_object_fn"):
            make(tf.int64, tf.float32, 0.0, name="table", shard_saveable_object_fn=list)


def test_the_strategies_of_eviction() -> None:
    names = ["LRU", "LFU", "EPOCHLRU", "EPOCHLFU", "CUSTOMIZED"]
    assert len({getattr(de.HkvEvictStrategy, name) for name in names}) == len(names)


def test_a_new_table_is_empty_and_tells_its_types(kind: str, case: TfCase) -> None:
    table = case.table(kind)
    assert table.name == kind
    assert table.key_dtype == tf.as_dtype(case.key_dtype)
    assert table.value_dtype == tf.as_dtype(case.value_dtype)
    assert table.resource_handle.dtype == tf.resource
    assert table.size().shape == ()
    keys, values = table.export()
    assert_tensor(keys, case.keys([]))
    assert_tensor(values, case.values(0))
    assert content(table) == {}


def test_rows_go_in_come_out_and_go_away(kind: str, case: TfCase) -> None:
    table = case.table(kind)
    keys, values = case.keys(range(6)), case.values(6)
    found, exists = table.lookup(keys, return_exists=True)
    assert_tensor(found, case.defaults(6))
    assert_tensor(exists, np.zeros(6, bool))
    assert content(table) == {}
    table.insert(keys[:4], values[:4])
    assert content(table) == as_content(keys[:4], values[:4])
    found, exists = table.lookup(keys[::-1], return_exists=True)
    assert_tensor(found, np.concatenate([case.defaults(2), values[3::-1]]))
    assert_tensor(exists, np.array([False, False, True, True, True, True]))
    assert_tensor(table[keys], to_numpy(table.lookup(keys)))
    table.remove(keys[[1, 1, 5]])
    assert content(table) == as_content(keys[[0, 2, 3]], values[[0, 2, 3]])
    table.clear()
    assert content(table) == {}
    assert_tensor(table.lookup(keys), case.defaults(6))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_keys_of_any_shape(kind: str, few_case: TfCase, shape: Shape) -> None:
    case = few_case
    table = case.table(kind)
    keys, values = case.keys(numbered(shape)), case.values(shape)
    table.insert(keys, values)
    assert content(table) == as_content(keys, values)
    found, exists = table.lookup(keys, return_exists=True)
    assert_tensor(found, values)
    assert_tensor(exists, np.ones(shape, bool))
    table.remove(keys)
    assert_tensor(table[keys], case.defaults(shape))


def test_shapes_known_only_when_the_function_runs(kind: str, few_case: TfCase) -> None:
    case = few_case
    table = case.table(kind)
    signature = [tf.TensorSpec(None, case.key_dtype), tf.TensorSpec(None, case.value_dtype)]

    @tf.function(input_signature=signature)
    def insert_and_find(keys: tf.Tensor, values: tf.Tensor) -> Any:
        table.insert(keys, values)
        return table.lookup(keys, return_exists=True)

    for seed, shape in enumerate(SHAPES):
        keys, values = case.keys(numbered(shape)), case.values(shape, seed)
        found, exists = insert_and_find(tf.constant(keys), tf.constant(values))
        assert_tensor(found, values)
        assert_tensor(exists, np.ones(shape, bool))


def test_static_shapes(kind: str, few_case: TfCase) -> None:
    case = few_case
    table = case.table(kind)
    seen = {}

    def find(keys: tf.Tensor) -> tf.Tensor:
        found, exists = table.lookup(keys, return_exists=True)
        seen[tuple(keys.shape)] = (tuple(found.shape), tuple(exists.shape))
        return found

    for shape in [(), (None,), (2, None), (4, 5)]:
        tf.function(find).get_concrete_function(tf.TensorSpec(shape, case.key_dtype))
        assert seen[shape] == ((*shape, *case.row), shape)


def test_defaults_of_one_call(kind: str, case: TfCase) -> None:
    table = case.table(kind)
    keys, values, defaults = case.keys([[1, 2], [3, 4]]), case.values(1), case.values((2, 2), 1)
    table.insert(keys[0, :1], values)
    expected = defaults.copy()
    expected[0, 0] = values[0]
    assert_tensor(table.lookup(keys, defaults), expected)
    found, exists = table.lookup(keys, dynamic_default_values=defaults, return_exists=True)
    assert_tensor(found, expected)
    assert_tensor(exists, np.array([[True, False], [False, False]]))
    assert len(content(table)) == 1


def test_defaults_of_one_call_in_other_shapes(kind: str, case: TfCase) -> None:
    """One row as a matrix, and rows one after the other for keys of any rank."""
    table = case.table(kind)
    keys, values = case.keys([[1, 2], [3, 4]]), case.values(1)
    table.insert(keys[0, :1], values)
    flat = case.values(4, 1)
    expected = flat.copy().reshape(2, 2, *case.row)
    expected[0, 0] = values[0]

    @tf.function(reduce_retracing=True)
    def find(keys: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        return table.lookup(keys, rows)

    unknown = tf.TensorSpec([None, None], case.key_dtype)
    traced = find.get_concrete_function(unknown, tf.TensorSpec([None, *case.row], case.value_dtype))
    for rows in (table.lookup(keys, flat), traced(tf.constant(keys), tf.constant(flat))):
        assert_tensor(rows, expected)
    one = case.values(1, 5)
    expected = np.broadcast_to(one, (2, 2, *case.row)).copy()
    expected[0, 0] = values[0]
    assert_tensor(table.lookup(keys, one), expected)
    assert_tensor(table.lookup(keys[0], one), expected[0])
    assert_tensor(table.lookup(keys[1, 1], one), one.reshape(case.row))
    for wrong in (flat[:3], case.values((4, 1), 1)):
        with pytest.raises(ValueError, match="dynamic_default_values"):
            table.lookup(keys, wrong)


def test_a_number_is_a_default_row_of_one(kind: str) -> None:
    table = TfCase("int64", "float32", (1,)).table(kind)
    found = table.lookup([[1], [2]], dynamic_default_values=tf.constant(3.0))
    assert_tensor(found, np.full((2, 1, 1), 3.0, np.float32))


@pytest.mark.parametrize("value_dtype", SUMMABLE_DTYPES)
@pytest.mark.parametrize("key_dtype", KEY_DTYPES)
def test_accum_in_each_of_its_four_cases(kind: str, key_dtype: str, value_dtype: str) -> None:
    case = TfCase(key_dtype, value_dtype, (2,))
    table = case.table(kind)
    keys = case.keys(range(4))
    stored, deltas = sequence(value_dtype, 2, 2, 5), sequence(value_dtype, 4, 2, 13)
    table.insert(keys[:2], stored)
    table.accum(keys, deltas, [True, False, True, False])
    expected = np.stack([stored[0] + deltas[0], stored[1], deltas[3]])
    assert content(table) == as_content(keys[[0, 1, 3]], expected)


def test_accum_of_scalars(kind: str) -> None:
    table = getattr(de, kind)(tf.int64, tf.int64, -1)
    table.insert([1], [10])
    table.accum([1, 2], [5, 7], [True, False])
    assert table.lookup([1, 2, 3]).numpy().tolist() == [15, 7, -1]


def test_of_equal_keys_the_last_stays(kind: str, case: TfCase) -> None:
    table = case.table(kind)
    keys, values = case.keys([1, 2, 1, 1, 2, 3]), case.values(6)
    table.insert(keys, values)
    assert content(table) == as_content(keys[[3, 4, 5]], values[[3, 4, 5]])


@pytest.mark.parametrize("key_dtype", KEY_DTYPES)
def test_extreme_keys_are_keys_like_others(kind: str, key_dtype: str) -> None:
    case = TfCase(key_dtype)
    table, keys = case.table(kind), case.extreme_keys()
    values = case.values(len(keys))
    assert not table.lookup(keys, return_exists=True)[1].numpy().any()
    table.insert(keys, values)
    assert_tensor(table.lookup(keys), values)
    assert content(table) == as_content(keys, values)
    table.remove(keys[::2])
    assert content(table) == as_content(keys[1::2], values[1::2])


@pytest.mark.parametrize(
    ("default", "shape"),
    [
        (-1, (2,)), (np.int64(-1), (2,)), (tf.constant(-1, tf.int64), (2,)),
        ([-1], (2, 1)), ([-1, 2], (2, 2)), (np.array([-1, 2]), (2, 2)),
        (tf.constant([-1, 2], tf.int64), (2, 2)),
    ],
    ids=repr,
)  # fmt: skip
def test_forms_of_the_default_value(kind: str, default: Any, shape: Shape) -> None:
    table = getattr(de, kind)(tf.string, tf.int64, default)
    expected = np.broadcast_to(np.asarray(default, np.int64), shape)
    assert_tensor(table.lookup(["a", "b"]), expected)


def test_lists_and_arrays_are_keys_and_values(kind: str) -> None:
    table = getattr(de, kind)(tf.string, tf.float32, [0.0, 0.0])
    table.insert(["a", "b"], [[1, 2], [3, 4.5]])
    table.insert(np.array(["c"]), np.array([[5, 6]], np.float32))
    found = table.lookup([["a", "b"], ["c", "d"]])
    assert found.numpy().tolist() == [[[1, 2], [3, 4.5]], [[5, 6], [0, 0]]]
    assert table.lookup("b").numpy().tolist() == [3, 4.5]
    assert table["b"].numpy().tolist() == [3, 4.5]


def test_tables_of_the_same_name_share_nothing(kind: str) -> None:
    case = TfCase()
    first, second = case.table(kind), case.table(kind)
    first.insert(case.keys([1]), case.values(1))
    assert (len(content(first)), len(content(second))) == (1, 0)


@pytest.mark.parametrize("option", ["init_size", "init_capacity"])
def test_tables_grow(option: str) -> None:
    case = TfCase("string", "float16", (2,))
    table = case.table(
        "CuckooHashTable" if option == "init_size" else "HkvHashTable", **{option: 8}
    )
    keys, values = case.keys(range(20000)), case.values(20000)
    for part in np.array_split(np.arange(20000), 7):
        table.insert(keys[part], values[part])
    assert_tensor(table.lookup(keys), values)
    assert content(table) == as_content(keys, values)


def test_example_of_the_reference_page(session: tf.compat.v1.Session) -> None:
    keys, query_keys = tf.constant(["a", "b"]), tf.constant(["b", "none", "a"])
    values = tf.constant([10, 20], tf.int64)
    table = de.HkvHashTable(key_dtype=tf.string, value_dtype=tf.int64, default_value=-1)
    session.run(table.insert(keys, values))
    out = table.lookup(query_keys)
    assert out.eval().tolist() == [20, -1, 10]


def test_graphs_of_tensorflow_1(kind: str, few_case: TfCase, session: Any) -> None:
    case = few_case
    table, other = case.table(kind), case.table(kind)
    keys, values = case.keys(range(3)), case.values(3)
    exported, size, lookup = table.export(), table.size(), table.lookup(keys)
    insert, remove = table.insert(keys, values), table.remove(keys[:1])
    clear = table.clear()
    accum = table.accum(keys[:1], values[:1], [False])
    assert all(isinstance(op, tf.Operation) for op in (insert, remove, clear, accum))
    assert session.run(size) == 0
    session.run(insert)
    assert session.run(lookup).tolist() == values.tolist()
    session.run(remove)
    assert as_content(*session.run(exported)) == as_content(keys[1:], values[1:])
    session.run(accum)
    assert session.run((size, other.size())) == (3, 0)
    session.run(clear)
    assert session.run(size) == 0


def test_a_checkpointed_table_needs_a_name() -> None:
    with pytest.raises(ValueError, match="name"):
        de.HkvHashTable(tf.int64, tf.int64, 0, name=None)
    table = de.HkvHashTable(tf.int64, tf.int64, 0, name=None, checkpoint=False)
    assert table.size() == 0


def test_a_creator_of_no_kind_creates_nothing() -> None:
    with pytest.raises((TypeError, NotImplementedError)):
        de.KVCreator().create(key_dtype=tf.int64, value_dtype=tf.int64, default_value=0)


@pytest.mark.parametrize(
    "configured", [False, True], ids=["without configuration", "with configuration"]
)
def test_creators(kind: str, configured: bool) -> None:
    options = {"init_capacity": 64, "max_capacity": 4096} if kind == "HkvHashTable" else {}
    config = getattr(de, f"{kind}Config")(**options) if configured else None
    creator = getattr(de, f"{kind}Creator")(config)
    assert isinstance(creator, de.KVCreator)
    table = creator.create(
        key_dtype=tf.string, value_dtype=tf.bfloat16, default_value=[1.0, 2.0], name="made",
        checkpoint=False, init_size=100, config=config, device="/CPU:0",
    )  # fmt: skip
    assert type(table) is getattr(de, kind)
    assert (table.name, table.key_dtype, table.value_dtype) == ("made", tf.string, tf.bfloat16)
    assert_tensor(table.lookup(["a"]), np.array([[1, 2]], numpy_dtype("bfloat16")))


@pytest.mark.parametrize("name", ["LRU", "LFU", "EPOCHLRU", "EPOCHLFU", "CUSTOMIZED"])
def test_tables_of_each_strategy_hold_rows(name: str) -> None:
    case = TfCase()
    options: dict[str, Any] = {"evict_strategy": getattr(de.HkvEvictStrategy, name)}
    if name.startswith("EPOCH"):
        options["step_per_epoch"] = 2
    if name == "CUSTOMIZED":
        options["gen_scores_fn"] = lambda keys: tf.ones_like(keys, tf.int64)
    table = case.table("HkvHashTable", **options)
    keys, values = case.keys(range(50)), case.values(50)
    for _ in range(3):
        table.insert(keys, values)
    assert_tensor(table.lookup(keys), values)
    assert content(table) == as_content(keys, values)
