"""`restrict_policy`: which keys of a Variable stay, compared with a dict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from upkeep_support import (
    DIM,
    KERAS_WARNS,
    POLICIES,
    THREE,
    KeepLongRows,
    assert_best_stay,
    de,
    key_set,
    keys_for,
    layers,
    usage_of,
)

import tfra

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

v1 = tf.compat.v1


def make_variable(policy: Any, devices: Any = None, **options: Any) -> Any:
    return de.Variable(dim=DIM, devices=devices, restrict_policy=policy, initializer=1.0, **options)


def play(variable: Any, seed: int = 0, rounds: int = 12) -> dict[Any, tuple[int, int]]:
    """Upserts some keys in each of some seconds, and returns what that makes of their usage."""
    rng, usage = np.random.default_rng(seed), {}
    for second in range(1, rounds + 1):
        variable.set_clock(second)
        numbers = rng.integers(0, 40, 12)
        keys = keys_for(variable, numbers)
        rows = np.repeat(numbers[:, None], DIM, 1)
        variable.upsert(keys, tf.cast(rows, variable.value_dtype))
        for key in keys.numpy().tolist():
            usage[key] = (second, usage.get(key, (0, 0))[1] + 1)
    return usage


@pytest.mark.parametrize("types", [("int64", "float32"), ("string", "float16"), ("int32", "int64")])
@pytest.mark.parametrize("by", POLICIES)
def test_the_best_stay(by: str, types: tuple[str, str], devices: list[str] | None) -> None:
    options = {"key_dtype": tf.as_dtype(types[0]), "value_dtype": tf.as_dtype(types[1])}
    variable = de.Variable(
        dim=DIM, devices=devices, restrict_policy=POLICIES[by], name=f"of {by}", **options
    )
    usage = play(variable)
    assert usage_of(variable) == usage
    rows = dict(zip(*(t.numpy().tolist() for t in variable.export()), strict=True))
    for keep in (60, 20, 19, 7, 2, 1, 0):
        before = usage_of(variable)
        left = variable.restrict(keep)
        assert left.dtype == tf.int64
        assert int(left) == len(before) - int(variable.size())
        assert_best_stay(variable, before, keep, by)
        after = dict(zip(*(t.numpy().tolist() for t in variable.export()), strict=True))
        assert after == {key: rows[key] for key in key_set(variable)}
        assert usage_of(variable) == {key: before[key] for key in key_set(variable)}
    assert int(variable.size()) == 0


@pytest.mark.parametrize("by", POLICIES)
def test_nothing_happens_below_the_trigger(by: str, devices: list[str] | None) -> None:
    variable = make_variable(POLICIES[by], devices)
    usage = play(variable)
    for options in ({"trigger": len(usage)}, {"trigger": len(usage) + 5}, {"trigger": 2**40}):
        assert int(variable.restrict(3, **options)) == 0
    assert int(variable.restrict(len(usage))) == 0
    assert usage_of(variable) == usage
    assert variable.stats().restrict_runs == 0
    assert int(variable.restrict(6, trigger=len(usage) - 1)) > 0
    assert_best_stay(variable, usage, 6, by)


def test_each_table_has_a_share() -> None:
    variable = make_variable(de.FrequencyRestrictPolicy, THREE)
    variable.upsert([0, 3, 6, 9, 1, 4], np.zeros((6, DIM), np.float32))
    assert int(variable.restrict(5, trigger=5)) == 2  # Shares of 2, 2 and 1.
    assert [int(variable.size(i)) for i in range(3)] == [2, 2, 0]
    assert {1, 4} < key_set(variable)


def test_without_a_policy_nothing_happens_but_a_warning() -> None:
    variable = de.Variable(dim=DIM, name="free")
    variable.upsert([1, 2], np.zeros((2, DIM), np.float32))
    with pytest.warns(UserWarning, match="free has no restrict_policy"):
        assert variable.restrict(1) is None
    assert (int(variable.size()), variable.restrict_policy) == (2, None)


@pytest.mark.parametrize(
    ("error", "said", "call"),
    [
        (TypeError, "`num_reserved` .*1.5", lambda v: v.restrict(1.5)),
        (TypeError, "`num_reserved` .*None", lambda v: v.restrict(None)),
        (TypeError, "`num_reserved` .*True", lambda v: v.restrict(True)),
        (TypeError, "`trigger` .*'2'", lambda v: v.restrict(1, trigger="2")),
        (TypeError, "`trigger`.*reserve", lambda v: v.restrict(1, reserve=2)),
        (ValueError, "`num_reserved` .*-1", lambda v: v.restrict(-1)),
        (ValueError, "`trigger` .*-1", lambda v: v.restrict(1, trigger=-1)),
    ],
)
@pytest.mark.parametrize("policy", [*POLICIES.values(), None], ids=["time", "count", "own"])
def test_wrong_numbers(policy: Any, error: Any, said: str, call: Any) -> None:
    variable = make_variable(policy or KeepLongRows)
    variable.upsert([1, 2], np.zeros((2, DIM), np.float32))
    with pytest.raises(error, match=said) as caught:
        call(variable)
    assert "Received" in str(caught.value)
    assert int(variable.size()) == 2


@pytest.mark.parametrize("policy", ["time", 3, object(), dict, lambda variable: None])
def test_what_is_no_policy(policy: Any) -> None:
    with pytest.raises(TypeError, match=r"RestrictPolicy.*Received"):
        make_variable(policy)


def test_a_policy_needs_a_variable() -> None:
    for policy in (*POLICIES.values(), de.RestrictPolicy):
        with pytest.raises(TypeError, match=r"Variable.*'table'"):
            policy("table")


def test_a_policy_without_a_score_says_so() -> None:
    variable = make_variable(de.RestrictPolicy)
    variable.upsert([1, 2], np.zeros((2, DIM), np.float32))
    with pytest.raises(NotImplementedError, match="score"):
        variable.restrict(1)
    assert variable.restrict_policy.status is None
    assert variable.restrict_policy.apply_update([1]) is None


@pytest.mark.parametrize("by", POLICIES)
def test_apply_update_by_hand(by: str, devices: list[str] | None) -> None:
    variable = make_variable(POLICIES[by], devices)
    policy = variable.restrict_policy
    assert isinstance(policy, de.RestrictPolicy)
    assert policy.var is variable
    for second, ids in ((10, [1, 2, 3, 3]), (20, [[2], [3]]), (30, [1])):
        variable.set_clock(second)
        policy.apply_update(tf.constant(ids, tf.int64))
    expected = {1: (30, 2), 2: (20, 2), 3: (20, 2)}
    assert usage_of(variable) == expected
    assert variable.lookup([1]).numpy().tolist() == [[1.0] * DIM]  # Its initial row.
    variable.set_clock(40)
    policy.apply_update(tf.constant([2], tf.int64))
    variable.restrict(1 if devices is None else 3)
    assert 2 in key_set(variable)


def test_status_reads_like_a_variable(devices: list[str] | None) -> None:
    for by, attribute in (("time", "tstp_var"), ("count", "freq_var")):
        variable = make_variable(POLICIES[by], devices)
        usage = play(variable)
        status = variable.restrict_policy.status
        column = ("time", "count").index(by)
        assert int(status.size()) == len(usage)
        assert int(status.size(index=0)) == int(variable.size(0))
        keys, numbers = status.export()
        assert (numbers.dtype, numbers.shape[1:]) == (tf.int32, [1])
        found = dict(zip(keys.numpy().tolist(), numbers.numpy()[:, 0].tolist(), strict=True))
        assert found == {key: pair[column] for key, pair in usage.items()}
        one = next(iter(usage))
        looked, exists = status.lookup([[one], [999]], return_exists=True)
        assert (looked.dtype, looked.shape) == (tf.int32, [2, 1, 1])
        assert looked.numpy().ravel().tolist() == [usage[one][column], 0]
        assert exists.numpy().tolist() == [[True], [False]]
        assert int(getattr(variable.restrict_policy, attribute).size()) == len(usage)


@pytest.mark.parametrize("by", POLICIES)
def test_in_a_function(by: str, devices: list[str] | None) -> None:
    variable = make_variable(POLICIES[by], devices)

    @tf.function
    def run(ids: tf.Tensor, now: tf.Tensor) -> Any:
        variable.set_clock(now)
        variable.restrict_policy.apply_update(ids)
        before = variable.size()
        left = variable.restrict(6, trigger=8)
        return before, left, variable.size()

    expected: dict[int, tuple[int, int]] = {}
    rng = np.random.default_rng(3)
    for second in range(1, 15):
        ids = rng.integers(0, 30, 4)
        before, left, after = (int(n) for n in run(tf.constant(ids), tf.constant(second)))
        for key in set(ids.tolist()):
            expected[key] = (second, expected.get(key, (0, 0))[1] + 1)
        assert before == len(expected)
        assert after == before - left
        if before > 8:
            assert_best_stay(variable, expected, 6, by)
        else:
            assert left == 0
        expected = {key: expected[key] for key in key_set(variable)}
        assert usage_of(variable) == expected


@pytest.mark.parametrize("by", POLICIES)
def test_in_a_session(by: str, devices: list[str] | None, session: v1.Session) -> None:
    variable = de.get_variable("table", dim=DIM, devices=devices, restrict_policy=POLICIES[by])
    keys, now = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.int64, [])
    clock = variable.set_clock(now)
    policy = variable.restrict_policy
    update, exported, status = policy.apply_update(keys), variable.export(), policy.status.export()
    restrict, untriggered = variable.restrict(2), variable.restrict(0, trigger=5)
    session.run(v1.global_variables_initializer())
    for second, batch in ((1, [0, 3, 6]), (2, [3, 3, 9]), (3, [6, 3])):
        session.run(clock, {now: second})
        session.run(update, {keys: batch})
    column = {0: (1, 1), 3: (3, 3), 6: (3, 2), 9: (2, 1)}
    found, numbers = session.run(status)
    index = ("time", "count").index(by)
    assert dict(zip(found.tolist(), numbers[:, 0].tolist(), strict=True)) == {
        key: pair[index] for key, pair in column.items()
    }
    assert session.run(untriggered) == 0
    # All are in the first of three tables, whose share of two keys is one.
    left = session.run(restrict)
    assert sorted(session.run(exported)[0].tolist()) == ([3, 6] if devices is None else [3])
    assert left == (2 if devices is None else 3)


def test_get_variable_compares_policies() -> None:
    options = {"dim": DIM, "restrict_policy": de.TimestampRestrictPolicy}
    variable = de.get_variable("compared", **options)
    assert de.get_variable("compared", **options) is variable
    for other in (None, de.FrequencyRestrictPolicy, KeepLongRows):
        with pytest.raises(ValueError, match=r"restrict_policy.*Received: restrict_policy"):
            de.get_variable("compared", dim=DIM, restrict_policy=other)


@pytest.mark.parametrize("by", POLICIES)
def test_a_policy_made_for_any_variable(by: str, devices: list[str] | None) -> None:
    """As in TFRA, where the policy is made beside the Variable. Keys count from then on."""
    variable = de.Variable(dim=DIM, devices=devices, initializer=1.0)
    assert not variable.keeps_metadata
    variable.upsert([1, 2, 3], np.full((3, DIM), 5.0, np.float32))
    variable.set_clock(10)
    policy = POLICIES[by](variable)
    assert variable.keeps_metadata
    assert usage_of(variable) == {1: (10, 1), 2: (10, 1), 3: (10, 1)}
    assert variable.lookup([2]).numpy().tolist() == [[5.0] * DIM]
    variable.set_clock(20)
    variable.upsert([2, 4], np.ones((2, DIM), np.float32))
    assert usage_of(variable) == {1: (10, 1), 2: (20, 2), 3: (10, 1), 4: (20, 1)}
    assert POLICIES[by](variable).var is variable  # Another one: nothing starts anew.
    policy.apply_update(tf.constant([2], tf.int64))
    assert usage_of(variable)[2] == (20, 3)
    if devices is None:
        assert int(policy.apply_restriction(1)) == 3
        assert key_set(variable) == {2}
    assert int(policy.status.size()) == int(variable.size())


def test_a_policy_made_while_a_model_trains() -> None:
    """Slots stay, and so does the optimizer."""
    plain, counted = (layers.Embedding(DIM, initializer=1.0) for _ in range(2))
    for layer in (plain, counted):
        model = keras.Sequential(
            [
                keras.Input((2,), dtype="int64"),
                layer,
                keras.layers.Flatten(),
                keras.layers.Dense(1, "relu"),
            ]
        )
        model.compile(keras.optimizers.Adam(0.1), "mse")
        model.layers[-1].set_weights([np.ones((2 * DIM, 1)), np.zeros(1)])
        for step in range(6):
            if layer is counted and step == 3:
                layer.params.set_clock(7)
                de.FrequencyRestrictPolicy(layer.params)
            model.train_on_batch(np.array([[1, 2], [3, 4]]), np.array([[1.0], [2.0]]))
    np.testing.assert_array_equal(plain.params.lookup([1, 2]), counted.params.lookup([1, 2]))
    assert usage_of(counted.params)[1][1] == 4  # Once when the policy came, and 3 steps.


def test_a_policy_made_in_a_session(session: v1.Session) -> None:
    variable = de.get_variable("table", dim=DIM)
    early = variable.upsert([1, 2], np.ones((2, DIM), np.float32))
    policy = de.FrequencyRestrictPolicy(variable)
    late = variable.upsert([2, 3], np.ones((2, DIM), np.float32))
    status, restrict = policy.status.export(), policy.apply_restriction(1)
    session.run([v1.global_variables_initializer(), v1.tables_initializer()])
    session.run(early)
    session.run(late)
    keys, counts = session.run(status)
    assert dict(zip(keys.tolist(), counts[:, 0].tolist(), strict=True)) == {1: 1, 2: 2, 3: 1}
    assert session.run(restrict) == 2


def test_a_policy_of_a_variable_is_saved_as_if_made_with_it(tmp_path: Path) -> None:
    variable = de.Variable(dim=DIM, name="t")
    variable.upsert([1, 2], np.ones((2, DIM), np.float32))
    variable.set_clock(9)
    de.TimestampRestrictPolicy(variable)
    path = tf.train.Checkpoint(t=variable).write(str(tmp_path / "saved"))
    for restored in (make_variable(de.TimestampRestrictPolicy, name="t"), variable):
        restored.clear()
        tf.train.Checkpoint(t=restored).read(path).assert_consumed()
        assert usage_of(restored) == {1: (9, 1), 2: (9, 1)}


def test_a_variable_whose_tables_got_metadata_in_part(tmp_path: Path) -> None:
    """As when the memory for the second table is missing: all goes on, and the next call helps."""
    variable = de.Variable(dim=DIM, name="t", devices=["/CPU:0"] * 2)
    variable.upsert([1, 2], np.ones((2, DIM), np.float32))
    for order in (0, 1):
        variable.tables[order].keep_metadata()
        path = tf.train.Checkpoint(t=variable).write(str(tmp_path / "saved"))
        tf.train.Checkpoint(t=variable).read(path).assert_consumed()
        assert key_set(variable) == {1, 2}
    de.FrequencyRestrictPolicy(variable)
    assert usage_of(variable).keys() == {1, 2}


def test_a_policy_beside_a_numpy_table() -> None:
    variable = de.Variable(dim=DIM)
    variable.upsert([1, 2], np.ones((2, DIM), np.float32))
    table = tfra.Table.from_handle(variable.tables[0].handle())
    assert not table.metadata
    assert table.export(metadata=True)[2].shape == (2, 0)
    de.FrequencyRestrictPolicy(variable)
    assert table.metadata
    assert table.export(metadata=True)[2][:, 1].tolist() == [1, 1]
    assert table.restrict(1, by="count") == 1
    table.clear()
    assert table.export(metadata=True)[2].shape == (0, 2)


@pytest.mark.parametrize("policy", [de.TimestampRestrictPolicy, de.FrequencyRestrictPolicy])
def test_a_policy_of_a_store_says_what_it_needs(policy: Any) -> None:
    creator = de.StoreCreator(lambda spec, name: tfra.TableStore(tfra.Table.from_spec(spec)))
    variable = de.Variable(dim=DIM, kv_creator=creator)
    with pytest.raises(ValueError, match="no metadata: expected a Variable of tables"):
        policy(variable)
    assert not variable.keeps_metadata
