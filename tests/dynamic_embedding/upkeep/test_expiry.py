"""`expire`: removes rows that were not updated for long, or have a small norm."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf
from upkeep_support import (
    DIM,
    KERAS_WARNS,
    THREE,
    MinCount,
    OwnOptimizer,
    content_by_key,
    de,
    key_set,
    keys_for,
    layers,
    step,
    usage_of,
)

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

v1 = tf.compat.v1


def rows(lengths: Any, dtype: Any = tf.float32) -> tf.Tensor:
    """Rows of these norms."""
    lengths = np.asarray(lengths, np.float64)
    return tf.constant(np.stack([lengths, 0 * lengths], axis=1), dtype)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), st.lists(st.integers(0, 15), min_size=1, max_size=8),
                  st.integers(0, 6)),
        st.tuples(st.just("touch"), st.lists(st.integers(0, 15), min_size=1, max_size=8)),
        st.tuples(st.just("wait"), st.integers(1, 30)),
        st.tuples(st.just("expire"), st.sampled_from([None, 0, 5, 20.5, 60]),
                  st.sampled_from([None, 0.5, 3.0, 10.0]), st.integers(0, 3)),
    ),
    max_size=25,
)  # fmt: skip


@pytest.mark.parametrize(
    ("types", "partitions"),
    [(("int64", "float32"), THREE), (("string", "float16"), None), (("int32", "float64"), THREE)],
)
def test_random_histories(types: tuple[str, str], partitions: Any) -> None:
    key_dtype, value_dtype = (tf.as_dtype(name) for name in types)

    @hypothesis.settings(max_examples=12)
    @hypothesis.given(events=EVENTS)
    def play(events: list[Any]) -> None:
        variable = de.Variable(key_dtype, value_dtype, DIM, partitions, ttl=20)
        usage: dict[Any, tuple[int, int]] = {}
        norms: dict[Any, float] = {}
        now, gone = 1000, 0
        variable.set_clock(now)
        for what, *arguments in events:
            if what == "wait":
                now += arguments[0]
                variable.set_clock(now)
            elif what == "expire":
                ttl, min_norm, writes = arguments
                expired = {
                    key
                    for key, (time, count) in usage.items()
                    if now - time > (20 if ttl is None else ttl)
                    or (min_norm is not None and norms[key] < min_norm and count >= writes)
                }
                found = variable.expire(ttl=ttl, min_norm=min_norm, norm_writes=writes)
                assert int(found) == len(expired)
                gone += len(expired)
                usage = {key: pair for key, pair in usage.items() if key not in expired}
            else:
                keys = keys_for(variable, arguments[0])
                seen = keys.numpy().tolist()
                if what == "upsert":
                    variable.upsert(keys, rows([arguments[1]] * len(seen), value_dtype))
                    norms.update(dict.fromkeys(seen, float(arguments[1])))
                else:
                    variable.touch(keys)
                    seen = list(dict.fromkeys(seen))
                    norms.update({key: 0.0 for key in seen if key not in usage})
                for key in seen:
                    usage[key] = (now, usage.get(key, (0, 0))[1] + 1)
            assert usage_of(variable) == usage
        assert variable.stats().expirations == gone

    play()


def test_what_a_variable_was_made_with_is_the_default(devices: list[str] | None) -> None:
    variable = de.Variable(dim=DIM, devices=devices, ttl=60, min_norm=1.0)
    variable.set_clock(1000)
    variable.upsert([1, 2, 3, 4], rows([5, 0.5, 5, 5]))
    assert int(variable.expire()) == 1
    variable.set_clock(1060)
    variable.touch([3])
    assert int(variable.expire()) == 0
    variable.set_clock(1061)
    assert int(variable.expire(ttl=61)) == 0
    assert int(variable.expire()) == 2
    assert key_set(variable) == {3}
    assert int(variable.expire(min_norm=6.0, norm_writes=3)) == 0
    assert int(variable.expire(min_norm=6.0, norm_writes=2)) == 1


def test_policies_bring_the_times_that_expiry_needs() -> None:
    variable = de.Variable(dim=DIM, restrict_policy=de.FrequencyRestrictPolicy)
    variable.set_clock(10)
    variable.upsert([1], rows([1]))
    variable.set_clock(20)
    variable.upsert([2], rows([1]))
    assert int(variable.expire()) == 0  # It has neither `ttl` nor `min_norm`.
    assert int(variable.expire(ttl=5)) == 1
    assert key_set(variable) == {2}


@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam, OwnOptimizer])
def test_training_renews_rows_and_slots_leave(optimizer: Any, devices: list[str] | None) -> None:
    options = {
        "devices": devices,
        "ttl": 10,
        "initializer": keras.initializers.RandomNormal(seed=1),
    }
    layer, fresh = (layers.Embedding(DIM, **options) for _ in range(2))
    first, second = optimizer(), optimizer()
    for now, ids in ((100, [1, 2, 3]), (105, [3, 4]), (111, [2])):
        layer.params.set_clock(now)
        step(layer, first, tf.constant(ids))
    assert int(layer.params.expire()) == 1
    assert key_set(layer.params) == {2, 3, 4}
    layer.params.set_clock(1000)
    assert int(layer.params.expire()) == 3
    step(layer, first, tf.constant([1, 2]))
    fresh.build()
    second.build(fresh.trainable_variables)
    second.iterations.assign(3)
    step(fresh, second, tf.constant([1, 2]))
    for name in ("keys", "values", "slots"):
        mine, expected = content_by_key(layer.params)[name], content_by_key(fresh.params)[name]
        np.testing.assert_array_equal(mine, expected)


def test_keys_that_wait_are_forgotten(devices: list[str] | None) -> None:
    variable = de.Variable(dim=DIM, devices=devices, admission=MinCount(2), ttl=10)
    for now, ids in ((100, [1, 2]), (105, [3])):
        variable.set_clock(now)
        variable.touch(ids)
    variable.set_clock(111)
    assert int(variable.expire()) == 0
    assert variable.stats().waiting == 1
    variable.touch([1, 3])
    assert key_set(variable) == {3}


def test_memory_of_keys_that_are_forgotten_comes_back(devices: list[str] | None) -> None:
    variable = de.Variable(dim=DIM, devices=devices, admission=MinCount(2), ttl=10)
    empty = variable.stats().admission_bytes
    for now, ids in ((100, range(50_000)), (105, range(50_000, 50_100))):
        variable.set_clock(now)
        variable.touch(list(ids))
    assert variable.stats().admission_bytes >= 50_000 * 16
    variable.set_clock(111)
    variable.expire()
    stats = variable.stats()
    assert (stats.waiting, stats.size) == (100, 0)
    assert stats.admission_bytes <= empty + 100 * 16 * 4 + 48 * 16 * 16
    variable.touch(list(range(50_000, 50_100)))  # They are found where they are now.
    assert key_set(variable) == set(range(50_000, 50_100))
    variable.set_clock(1000)
    variable.expire()
    assert variable.stats().admission_bytes == empty


@pytest.mark.parametrize("norm_writes", [-1, 2**32, 2**40])
def test_numbers_of_writes_that_no_row_has(norm_writes: int) -> None:
    variable = de.Variable(dim=DIM, ttl=10)
    variable.upsert([1], tf.zeros([1, DIM]))
    with pytest.raises(ValueError, match=rf"norm_writes.*Received: {norm_writes}"):
        variable.expire(min_norm=1.0, norm_writes=norm_writes)
    assert key_set(variable) == {1}


def test_times_that_no_row_has() -> None:
    variable = de.Variable(dim=DIM, ttl=1e30)
    variable.upsert([1], tf.ones([1, DIM]))
    assert int(variable.expire()) == 0
    assert int(variable.expire(ttl=2.0**64)) == 0
    with pytest.raises(TypeError, match="integer"):
        variable.set_clock(1.5)


def test_in_a_function_and_in_a_session(devices: list[str] | None) -> None:
    variable = de.Variable(dim=DIM, devices=devices, ttl=10)

    @tf.function
    def expire(now: tf.Tensor) -> tf.Tensor:
        variable.set_clock(now)
        return variable.expire()

    variable.set_clock(100)
    variable.upsert([1, 2], rows([1, 2]))
    assert [int(expire(tf.constant(now))) for now in (110, 111, 112)] == [0, 2, 0]
    with tf.Graph().as_default(), v1.Session() as session:
        variable = de.get_variable("table", dim=DIM, devices=devices, ttl=10, min_norm=1.5)
        now = v1.placeholder(tf.int64, [])
        clock, expired = variable.set_clock(now), variable.expire()
        fill, size = variable.upsert([1, 2], rows([1, 2])), variable.size()
        session.run(clock, {now: 100})
        session.run(fill)
        assert session.run(expired) == 1
        session.run(clock, {now: 111})
        assert (session.run(expired), session.run(size)) == (1, 0)


@pytest.mark.parametrize(
    ("error", "said", "options"),
    [
        (TypeError, "`ttl` .*'1'", {"ttl": "1"}),
        (ValueError, "`ttl` .*-1", {"ttl": -1}),
        (TypeError, "`min_norm` .*None|`min_norm` .*\\[", {"min_norm": [1.0]}),
        (ValueError, "`min_norm` .*-1", {"min_norm": -1.0}),
        (ValueError, "norm_writes.*-1", {"norm_writes": -1}),
        ((TypeError, ValueError), "norm_writes.*1.5", {"norm_writes": 1.5}),
    ],
)
def test_wrong_arguments(error: Any, said: str, options: dict[str, Any]) -> None:
    variable = de.Variable(dim=DIM, ttl=10)
    variable.upsert([1], rows([1]))
    with pytest.raises(error, match=said) as caught:
        variable.expire(**options)
    assert "received" in str(caught.value).lower()
    assert int(variable.size()) == 1


@pytest.mark.parametrize(
    "call", [lambda v: v.expire(ttl=1), lambda v: v.expire(min_norm=9.0), lambda v: v.touch([1]),
             lambda v: v.usage([1])],
)  # fmt: skip
def test_rows_without_times_say_so(call: Any) -> None:
    variable = de.Variable(dim=DIM)
    variable.upsert([1], rows([1]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"metadata.*received"):
        call(variable)
    assert int(variable.size()) == 1
