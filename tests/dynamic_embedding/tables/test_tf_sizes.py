"""Sizes and counts of the API of TensorFlow: checked before anything is allocated."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfra
from size_calls import INT64, Number
from support import run_python
from tfra.dynamic_embedding._platform.tf import ANONYMOUS, ops

de = tfra.dynamic_embedding
layers = de.keras.layers

MAX_DIM = 2**24
MAX_KEYS = 2**32 - 2**20


def hkv(**settings: Any) -> Any:
    return de.HkvHashTable(tf.int64, tf.float32, [0.0, 0.0], **settings)


def epochs() -> Any:
    return hkv(evict_strategy=de.HkvEvictStrategy.EPOCHLFU)


def restricted(call: Any) -> Any:
    variable = de.Variable(dim=2, restrict_policy=de.TimestampRestrictPolicy)
    variable.upsert([1, 2], tf.ones([2, 2]))
    return call(variable)


def build(layer: Any) -> None:
    layer.build((None,))


NUMBERS: list[tuple[str, Number]] = [
    ("Variable(dim)", Number("dim", lambda n: de.Variable(dim=n), 1, MAX_DIM)),
    ("Variable(dim, initializer)", Number(
        "dim", lambda n: de.Variable(dim=n, initializer=tf.keras.initializers.HeNormal()), 1,
        MAX_DIM)),
    ("Variable(init_size)", Number("init_size", lambda n: de.Variable(init_size=n), 0, MAX_KEYS)),
    ("Variable.size(index)", Number("index", lambda n: de.Variable().size(n), 0, 0, (None,))),
    ("get_variable(dim)", Number("dim", lambda n: de.get_variable(f"v{n!r}", dim=n), 1, MAX_DIM)),
    ("get_variable(init_size)", Number(
        "init_size", lambda n: de.get_variable(f"s{n!r}", init_size=n), 0, MAX_KEYS)),
    ("CuckooHashTable(init_size)", Number(
        "init_size", lambda n: de.CuckooHashTable(tf.int64, tf.float32, 0.0, init_size=n), 0,
        MAX_KEYS)),
    ("HkvHashTable(init_capacity)", Number(
        "init_capacity", lambda n: hkv(init_capacity=n, max_capacity=MAX_KEYS), 0, MAX_KEYS)),
    ("HkvHashTable(max_capacity)", Number(
        "max_capacity", lambda n: hkv(init_capacity=0, max_capacity=n), 1, MAX_KEYS)),
    ("HkvHashTable(max_hbm_for_values)", Number(
        "max_hbm_for_values", lambda n: hkv(max_hbm_for_values=n), 0)),
    ("HkvHashTableConfig(init_capacity)", Number(
        "init_capacity", lambda n: de.HkvHashTableConfig(init_capacity=n, max_capacity=MAX_KEYS), 0,
        MAX_KEYS)),
    ("HkvHashTableConfig(max_capacity)", Number(
        "max_capacity", lambda n: de.HkvHashTableConfig(init_capacity=0, max_capacity=n), 1,
        MAX_KEYS)),
    ("HkvHashTableConfig(max_hbm_for_values)", Number(
        "max_hbm_for_values", lambda n: de.HkvHashTableConfig(max_hbm_for_values=n), 0)),
    ("HkvHashTableConfig(step_per_epoch)", Number(
        "step_per_epoch", lambda n: de.HkvHashTableConfig(step_per_epoch=n), 0)),
    ("HkvHashTableConfig(reserved_key_start_bit)", Number(
        "reserved_key_start_bit", lambda n: de.HkvHashTableConfig(reserved_key_start_bit=n), 0)),
    ("HkvHashTable.reserve", Number("keys", lambda n: hkv().reserve(n), 0, MAX_KEYS)),
    ("HkvHashTable.set_epoch", Number("epoch", lambda n: epochs().set_epoch(n), 0, 2**31 - 1)),
    ("export_keys_and_scores", Number(
        "split_size", lambda n: hkv().export_keys_and_scores(n), 1)),
    ("export_with_scores", Number(
        "split_size", lambda n: hkv().export_with_scores(n), 1, INT64, (None,))),
    ("size_if", Number("score_at_least", lambda n: hkv().size_if(n, 5), 0, INT64, (None,))),
    ("erase_if", Number("score_below", lambda n: hkv().erase_if(0, n), 0, INT64, (None,))),
    ("restrict(num_reserved)", Number(
        "num_reserved", lambda n: restricted(lambda v: v.restrict(n)), 0)),
    ("restrict(trigger)", Number(
        "trigger", lambda n: restricted(lambda v: v.restrict(1, trigger=n)), 0, INT64, (None,))),
    ("set_clock", Number("now", lambda n: restricted(lambda v: v.set_clock(n)), 0, 2**32 - 1)),
    ("expire(norm_writes)", Number(
        "norm_writes", lambda n: restricted(lambda v: v.expire(ttl=1, norm_writes=n)), 0,
        2**32 - 1)),
    ("Variable.head", Number("n", lambda n: de.Variable().head(n), 0)),
    ("Embedding(embedding_size)", Number(
        "embedding_size", lambda n: build(layers.Embedding(n)), 1, MAX_DIM,
        converts=True)),
    ("Embedding(init_capacity)", Number(
        "init_capacity", lambda n: build(layers.Embedding(2, init_capacity=n)), 0, MAX_KEYS)),
    ("SquashedEmbedding(embedding_size)", Number(
        "embedding_size", lambda n: build(layers.SquashedEmbedding(n)), 1, MAX_DIM,
        converts=True)),
    ("FieldWiseEmbedding(nslots)", Number(
        "nslots", lambda n: layers.FieldWiseEmbedding(2, n, lambda ids: ids), 1, converts=True)),
    ("RestrictCallback(freq)", Number(
        "freq", lambda n: de.keras.callbacks.RestrictCallback(10, freq=n), 1)),
]  # fmt: skip


def test_every_number() -> None:
    # Runs in its own process with little memory. If it dies, the last printed line says why.
    here = Path(__file__).parent
    printed = run_python(
        """
        import json
        import size_calls
        import test_tf_sizes

        problems = size_calls.check(test_tf_sizes.NUMBERS)
        print()
        print(json.dumps(problems))
        """,
        timeout=900,
        PYTHONPATH=os.pathsep.join([str(here), str(here.parents[1])]),
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    problems = json.loads(printed.splitlines()[-1])
    assert not problems, "\n".join(problems)


WRONG_SIZES = {
    "dim": (-1, 0, -(2**63), 2**24 + 1, 2**32, 2**62, 2**63 - 1),
    "initial_capacity": (-1, -(2**63), 2**32, 2**62, 2**63 - 1),
    "bound.max_capacity": (-1, 0, -(2**63), 2**32, 2**62, 2**63 - 1),
    "tiers.fast_bytes": (-1, -(2**63), 2**64),
    "bound.steps_per_epoch": (-1, -(2**63), 2**63),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, wrong in WRONG_SIZES.items() for value in wrong],
)
def test_the_spec_of_the_op_that_creates_a_table(name: str, value: int) -> None:
    spec = json.loads(tfra.TableSpec(dim=2, max_capacity=9, fast_bytes=4096).to_json())
    *parents, field = name.split(".")
    owner = spec
    for parent in parents:
        owner = owner[parent]
    owner[field] = value
    handle = tf.raw_ops.VarHandleOp(shared_name=ANONYMOUS, dtype=tf.int64, shape=[1])
    # An integer beyond 64 bits is shown as JSON holds it, as a float.
    shown = value if value < 2**64 else r"1\.8446744073709552e\+19"
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"`{name}`.*{shown}"):
        ops.tfra_table_create(handle, spec=json.dumps(spec))


def test_whole_floats_are_sizes() -> None:
    assert de.Variable(dim=2.0, init_size=1e3).dim == 2
    assert hkv(init_capacity=1e3, max_capacity=np.float32(1e4)).max_capacity == 10_000
