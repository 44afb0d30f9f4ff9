"""get_variable: one Variable of each name, in eager mode and in graphs with variable scopes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_support import de, signature_of

v1 = tf.compat.v1
numbers: Iterator[int] = itertools.count()


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"get_variable_{next(numbers)}"


def test_signature() -> None:
    signature = signature_of(de.get_variable)
    assert signature["partitioner"] is signature_of(de.Variable)["partitioner"]
    assert list(signature.items())[:6] == [
        ("name", ...), ("key_dtype", tf.int64), ("value_dtype", tf.float32), ("dim", 1),
        ("devices", None), ("partitioner", signature["partitioner"]),
    ]  # fmt: skip
    assert list(signature.items())[6:] == [
        ("shared_name", "get_variable"), ("initializer", None), ("trainable", True),
        ("checkpoint", True), ("init_size", 0), ("kv_creator", None), ("restrict_policy", None),
        ("bp_v2", False), ("admission", None), ("ttl", None), ("min_norm", None),
        ("short_file_name", False),
    ]  # fmt: skip


def test_a_new_name_makes_a_variable_as_asked(name: str) -> None:
    creator = de.CuckooHashTableCreator()
    variable = de.get_variable(
        name, key_dtype=tf.string, value_dtype=tf.float64, dim=4, devices=["/CPU:0"] * 2,
        partitioner=lambda keys, shard_num: tf.ones_like(keys, tf.int32), initializer=1.5,
        trainable=False, checkpoint=False, init_size=10, kv_creator=creator, bp_v2=True,
    )  # fmt: skip
    assert type(variable) is de.Variable
    assert (variable.name, variable.dim, variable.shard_num) == (name, 4, 2)
    assert (variable.key_dtype, variable.value_dtype) == (tf.string, tf.float64)
    assert (variable.trainable, variable.checkpoint, variable.bp_v2) == (False, False, True)
    assert variable.kv_creator is creator
    variable.upsert(["a", "b"], np.ones((2, 4)))
    assert [int(variable.size(index)) for index in range(2)] == [0, 2]
    assert variable.lookup(["none"]).numpy().tolist() == [[1.5] * 4]


def test_the_same_name_gives_the_same_variable(name: str) -> None:
    variable = de.get_variable(name, dim=2)
    variable.upsert([7], [[1.0, 2.0]])
    again = de.get_variable(name, key_dtype=tf.int64, value_dtype=tf.float32, dim=2)
    assert again is variable
    assert de.get_variable(f"{name}_other", dim=2) is not variable
    assert int(de.get_variable(f"{name}_other", dim=2).size()) == 0
    assert again.lookup(7).numpy().tolist() == [1.0, 2.0]


def test_a_name_may_have_slashes(name: str) -> None:
    variable = de.get_variable(f"{name}/with/slashes")
    variable.upsert([1], [[2.0]])
    assert variable.name == f"{name}/with/slashes"
    assert de.get_variable(f"{name}/with/slashes") is variable


DISAGREEMENTS = [{"key_dtype": tf.string}, {"value_dtype": tf.float64}, {"dim": 3}]


@pytest.mark.parametrize("change", DISAGREEMENTS, ids=lambda change: next(iter(change)))
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_name_keeps_its_types(name: str, mode: str, change: dict[str, Any]) -> None:
    options = {"key_dtype": tf.int64, "value_dtype": tf.float32, "dim": 2}
    context = nullcontext() if mode == "eager" else tf.Graph().as_default()
    with context, v1.variable_scope("scope", reuse=v1.AUTO_REUSE):
        variable = de.get_variable(name, **options)
        with pytest.raises(ValueError, match=name):
            de.get_variable(name, **{**options, **change})
        assert de.get_variable(name, **options) is variable
        assert (variable.key_dtype, variable.value_dtype, variable.dim) == (
            tf.int64, tf.float32, 2,
        )  # fmt: skip


def to_first(keys: tf.Tensor, shard_num: int) -> tf.Tensor:
    """A partitioner that uses one partition."""
    return tf.zeros_like(keys, tf.int32)


class BareCreator(de.CuckooHashTableCreator):
    """A creator without a config, since its constructor does nothing."""

    def __init__(self) -> None:
        pass


Ones, Zeros = tf.keras.initializers.Ones, tf.keras.initializers.Zeros
ARGUMENTS = [
    ("partitioner", to_first, None),
    ("initializer", lambda shape, dtype: tf.ones(shape), lambda shape, dtype: tf.zeros(shape)),
    ("initializer", Ones, Zeros),
    ("initializer", Ones(), Zeros),
    ("initializer", v1.ones_initializer, v1.zeros_initializer),
    ("initializer", 0.5, lambda shape, dtype: tf.ones(shape)),
    ("kv_creator", BareCreator(), None),
]


@pytest.mark.parametrize("turn", ["as listed", "the other way"])
@pytest.mark.parametrize(("argument", "one", "other"), ARGUMENTS)
def test_functions_and_classes_that_differ(
    name: str, argument: str, one: Any, other: Any, turn: str
) -> None:
    first, second = (one, other) if turn == "as listed" else (other, one)

    def get(value: Any) -> Any:
        options = {} if value is None else {argument: value}
        return de.get_variable(name, dim=2, devices=["/CPU:0"] * 2, **options)

    variable = get(first)
    with pytest.raises(ValueError, match=argument):
        get(second)
    assert get(first) is variable


def test_functions_made_anew_are_the_same(name: str) -> None:
    def get() -> Any:
        return de.get_variable(
            name,
            initializer=lambda shape, dtype: tf.ones(shape, dtype),
            partitioner=lambda keys, shard_num: tf.zeros_like(keys, tf.int32),
            kv_creator=BareCreator(),
        )

    assert get() is get()


def test_a_class_is_an_initializer_without_arguments(name: str) -> None:
    assert de.get_variable(name, initializer=Ones) is de.get_variable(name, initializer=Ones())


def test_tensors_of_a_graph_as_initializers(session: v1.Session) -> None:
    with v1.variable_scope("scope", reuse=v1.AUTO_REUSE):
        variable = de.get_variable("v", dim=2, initializer=tf.constant([1.0, 2.0]))
        with pytest.raises(ValueError, match="initializer"):
            de.get_variable("v", dim=2)
        # The values of symbolic tensors are not known.
        again = de.get_variable("v", dim=2, initializer=tf.constant([1.0, 2.0]))
    assert again is variable


def test_scopes_are_part_of_the_name(session: v1.Session) -> None:
    plain = de.get_variable("v")
    with v1.variable_scope("a"):
        in_a = de.get_variable("v")
        with v1.variable_scope("b"):
            in_a_b = de.get_variable("v")
    with v1.variable_scope("b"):
        in_b = de.get_variable("v")
    variables = [plain, in_a, in_a_b, in_b]
    assert [variable.name for variable in variables] == ["v", "a/v", "a/b/v", "b/v"]
    for number, variable in enumerate(variables):
        session.run(variable.upsert([number], [[float(number)]]))
    assert [session.run(variable.size()) for variable in variables] == [1, 1, 1, 1]
    assert session.run(in_a_b.lookup([2, 3])).tolist() == [[2.0], [0.0]]


def test_scopes_are_part_of_the_name_in_eager_mode(name: str) -> None:
    plain = de.get_variable(name)
    with v1.variable_scope("user"):
        user = de.get_variable(name)
    with v1.variable_scope("item"):
        item = de.get_variable(name, dim=3)
    with v1.variable_scope("user"):
        assert de.get_variable(name) is user
    assert [plain.name, user.name, item.name] == [name, f"user/{name}", f"item/{name}"]
    user.upsert([1], [[1.0]])
    assert [int(variable.size()) for variable in (plain, user, item)] == [0, 1, 0]


@pytest.mark.parametrize("reuse", [True, v1.AUTO_REUSE], ids=["True", "AUTO_REUSE"])
def test_scopes_that_reuse(session: v1.Session, reuse: Any) -> None:
    with v1.variable_scope("scope"):
        variable = de.get_variable("v", dim=2)
    session.run(variable.upsert([5], [[1.0, 2.0]]))
    with v1.variable_scope("scope", reuse=reuse):
        again = de.get_variable("v", dim=2)
    assert again is variable
    assert session.run(again.lookup([5])).tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("reuse", [None, False], ids=["None", "False"])
@pytest.mark.parametrize("scope", ["scope", ""], ids=["scope", "root"])
def test_scopes_that_do_not_reuse(session: v1.Session, scope: str, reuse: Any) -> None:
    """As for `tf.compat.v1.get_variable`; eagerly, and in functions, there is no such check."""
    for get in (de.get_variable, lambda name: v1.get_variable(f"dense_{name}", [1])):
        with v1.variable_scope(scope, reuse=reuse):
            get("v")
            with pytest.raises(ValueError, match=r"already exists(.|\n)*AUTO_REUSE"):
                get("v")
        with v1.variable_scope(scope, reuse=reuse), pytest.raises(ValueError, match="exists"):
            get("v")


@pytest.mark.parametrize("reuse", [True, v1.AUTO_REUSE], ids=["True", "AUTO_REUSE"])
def test_a_scope_that_reuses_makes_what_is_missing(session: v1.Session, reuse: Any) -> None:
    made = []
    for _ in range(2):
        with v1.variable_scope("scope", reuse=reuse):
            made.append(de.get_variable("v"))
    assert made[0] is made[1]
    assert made[0].name == "scope/v"


def test_a_scope_entered_again_by_its_object(session: v1.Session) -> None:
    with v1.variable_scope("scope") as scope:
        variable = de.get_variable("v")
    with v1.variable_scope("other"), v1.variable_scope(scope, reuse=True):
        assert de.get_variable("v") is variable


def test_dense_variables_of_the_same_scope_are_no_obstacle(session: v1.Session) -> None:
    with v1.variable_scope("scope", reuse=v1.AUTO_REUSE):
        dense = v1.get_variable("dense", [2], initializer=v1.zeros_initializer())
        sparse = de.get_variable("sparse")
    session.run(dense.initializer)
    assert session.run((dense, sparse.size()))[0].tolist() == [0.0, 0.0]
    assert sparse.name == "scope/sparse"


def test_a_variable_of_a_graph_belongs_to_that_graph(name: str) -> None:
    eager = de.get_variable(name, dim=2)
    eager.upsert([1], [[9.0, 9.0]])
    variables = []
    for number in range(2):
        with tf.Graph().as_default() as graph, v1.Session() as session:
            variable = de.get_variable(name, dim=2 + number)
            variables.append(variable)
            lookup = variable.lookup([1])
            assert lookup.graph is graph
            assert session.run(lookup).tolist() == [[0.0] * (2 + number)]
            session.run(variable.upsert([1], [[1.0] * (2 + number)]))
            assert session.run(lookup).tolist() == [[1.0] * (2 + number)]
    assert len({id(variable) for variable in [eager, *variables]}) == 3
    assert de.get_variable(name, dim=2) is eager
    assert eager.lookup([1]).numpy().tolist() == [[9.0, 9.0]]


def test_functions_use_the_variable_of_the_eager_program(name: str) -> None:
    variable = de.get_variable(name, dim=2)

    @tf.function
    def add(keys: tf.Tensor) -> tf.Tensor:
        found = de.get_variable(name, dim=2)
        found.upsert(keys, found.lookup(keys) + 1)
        return found.lookup(keys)

    keys = tf.constant([1, 2], tf.int64)
    for times in (1, 2, 3):
        assert add(keys).numpy().tolist() == [[times, times]] * 2
    assert int(variable.size()) == 2


def by_blocks(size: int) -> Any:
    """Makes a new partitioner in each call."""
    return lambda keys, partitions: tf.cast(keys // size % partitions, tf.int32)


def shifted(by: float = 0.0) -> Any:
    """Makes an initializer that captures its number."""
    return lambda shape: tf.zeros(shape) + by


SAME_OR_NOT: dict[str, tuple[str, Any, Any, bool]] = {
    "partial": ("initializer", *[functools.partial(tf.fill, value=2.0)] * 2, True),
    "partial made anew": (
        "initializer",
        functools.partial(tf.random.normal, stddev=0.1),
        functools.partial(tf.random.normal, stddev=0.1),
        True,
    ),
    "partial, other value": (
        "initializer",
        functools.partial(tf.random.normal, stddev=0.1),
        functools.partial(tf.random.normal, stddev=0.2),
        False,
    ),
    "partial, other function": (
        "initializer",
        functools.partial(tf.random.normal, seed=1),
        functools.partial(tf.random.uniform, seed=1),
        False,
    ),
    "closure": ("partitioner", by_blocks(1), by_blocks(1), True),
    "closure, other value": ("partitioner", by_blocks(1), by_blocks(1000), False),
    "closure of an initializer": ("initializer", shifted(1.0), shifted(1.0), True),
    "closure of an initializer, other": ("initializer", shifted(1.0), shifted(2.0), False),
    "default": ("initializer", lambda s, x=1: tf.ones(s) * x, lambda s, x=1: tf.ones(s) * x, True),
    "other default": (
        "initializer",
        lambda s, x=1: tf.ones(s) * x,
        lambda s, x=2: tf.ones(s) * x,
        False,
    ),
    "None and 0": ("initializer", None, 0, True),
    "None and 1": ("initializer", None, 1, False),
    "NaN": ("initializer", float("nan"), np.float32("nan"), True),
    "default device": ("devices", None, ["/CPU:0"], True),
    "two devices": ("devices", None, ["/CPU:0", "/CPU:0"], False),
}


@pytest.mark.parametrize("which", SAME_OR_NOT)
def test_what_counts_as_the_same_argument(which: str, name: str) -> None:
    argument, first, second, is_same = SAME_OR_NOT[which]
    variable = de.get_variable(name, **{argument: first})
    if is_same:
        assert de.get_variable(name, **{argument: second}) is variable
        return
    with pytest.raises(ValueError, match=rf"exists with {argument}=.*\n*.*Received: {argument}="):
        de.get_variable(name, **{argument: second})


def test_sizes_may_be_written_as_floats() -> None:
    variable = de.get_variable("test_sizes_may_be_written_as_floats", init_size=1e3)
    assert variable.init_size == 1000
    assert isinstance(variable.init_size, int)
    with pytest.raises(TypeError, match=r"`init_size` must be an integer. Received: 1\.5"):
        de.get_variable("other", init_size=1.5)
