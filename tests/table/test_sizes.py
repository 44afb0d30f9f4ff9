"""Sizes and counts: checked before anything is allocated, with an error that names them."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfra
from size_calls import INT64, Number
from support import run_python

MAX_DIM = 2**24
MAX_KEYS = 2**32 - 2**20
UINT32 = 2**32 - 1
MAX_STEP = 2**62


def table(**options: Any) -> tfra.Table:
    made = tfra.Table(2, metadata=True, optimizer="adam", **options)
    made.upsert([1, 2], np.ones((2, 2), np.float32))
    return made


def bounded(strategy: str = "epochlfu") -> tfra.Table:
    return table(max_capacity=100, evict_strategy=strategy)


def train_at(step: Any) -> None:
    """A step after the one with this number, and one with it."""
    trained = table()
    trained.step = step
    trained.apply_gradients([1], np.ones((1, 2), np.float32))


NUMBERS: list[tuple[str, Number]] = [
    ("Table(dim)", Number("dim", lambda n: tfra.Table(n), 1, MAX_DIM)),
    ("Table(dim, initializer=1)", Number("dim", lambda n: tfra.Table(n, initializer=1.0), 1,
                                         MAX_DIM)),
    ("Table(dim) of strings", Number(
        "dim", lambda n: tfra.Table(n, value_dtype="string", initializer="x"), 1, MAX_DIM)),
    ("Table(capacity)", Number("capacity", lambda n: tfra.Table(2, capacity=n), 0, MAX_KEYS)),
    ("Table(max_capacity)", Number("max_capacity", lambda n: tfra.Table(2, max_capacity=n), 1,
                                   MAX_KEYS, (None,))),
    ("Table(fast_bytes)", Number("fast_bytes", lambda n: tfra.Table(2, fast_bytes=n), 1, INT64,
                                 (None,))),
    ("Table(seed)", Number("seed", lambda n: tfra.Table(2, seed=n), -(2**63))),
    ("Table(ttl)", Number("ttl", lambda n: tfra.Table(2, ttl=n), 0, 1.7e308, (None,), real=True)),
    ("Table(min_norm)", Number("min_norm", lambda n: tfra.Table(2, min_norm=n), 0, 1.7e308, (None,),
                               real=True)),
    ("estimate_memory(keys)", Number("keys", lambda n: tfra.estimate_memory(n, 2), 0, MAX_KEYS)),
    ("estimate_memory(dim)", Number("dim", lambda n: tfra.estimate_memory(2, n), 1, MAX_DIM)),
    ("estimate_memory(fast_bytes)", Number(
        "fast_bytes", lambda n: tfra.estimate_memory(2, 2, fast_bytes=n), 1, INT64, (None,))),
    ("estimate_memory(key_bytes)", Number(
        "key_bytes", lambda n: tfra.estimate_memory(2, 2, key_bytes=n), 0, UINT32, real=True)),
    ("MinCount(min_count)", Number(
        "min_count", lambda n: tfra.Table(2, admission=tfra.admission.MinCount(n)), 1, UINT32)),
    ("CountingBloomFilter(min_count)", Number(
        "min_count", lambda n: tfra.admission.CountingBloomFilter(n, 10), 1, 65535)),
    ("CountingBloomFilter(capacity)", Number(
        "capacity",
        lambda n: tfra.Table(2, admission=tfra.admission.CountingBloomFilter(2, n)), 1, 2**40)),
    ("CountingBloomFilter(error_rate)", Number(
        "error_rate",
        lambda n: tfra.Table(2, admission=tfra.admission.CountingBloomFilter(2, 10, n)),
        1e-15, math.nextafter(1, 0), real=True)),
    ("Probability(probability)", Number(
        "probability", lambda n: tfra.Table(2, admission=tfra.admission.Probability(n)), 0, 1,
        real=True)),
    ("Probability(seed)", Number(
        "seed", lambda n: tfra.Table(2, admission=tfra.admission.Probability(0.5, n)), -(2**63),
        2**64 - 1)),
    ("Uniform(minval)", Number(
        "minval", lambda n: tfra.Table(2, initializer=tfra.initializers.Uniform(n, 1e38)),
        -1e38, 1e38, real=True)),
    ("Uniform(maxval)", Number(
        "maxval", lambda n: tfra.Table(2, initializer=tfra.initializers.Uniform(-1e38, n)),
        -1e38, 1e38, real=True)),
    ("Normal(mean)", Number(
        "mean", lambda n: tfra.Table(2, initializer=tfra.initializers.Normal(n)),
        -1e37, 1e37, real=True)),
    ("TruncatedNormal(stddev)", Number(
        "stddev", lambda n: tfra.Table(2, initializer=tfra.initializers.TruncatedNormal(0, n)),
        0, 1e37, real=True)),
    ("SGD(learning_rate)", Number(
        "learning_rate", lambda n: tfra.Table(2, optimizer=tfra.optimizers.SGD(n)), 0, 1.7e308,
        real=True)),
    ("Adagrad(initial_accumulator_value)", Number(
        "initial_accumulator_value",
        lambda n: tfra.Table(2, optimizer=tfra.optimizers.Adagrad(initial_accumulator_value=n)),
        0, 1.7e308, real=True)),
    ("apply_gradients(learning_rate)", Number(
        "learning_rate",
        lambda n: table().apply_gradients([1], np.ones((1, 2), "f"), learning_rate=n),
        0, 1.7e308, real=True)),
    ("apply_gradients(step)", Number(
        "step", lambda n: table().apply_gradients([1], np.ones((1, 2), "f"), step=n), 1, MAX_STEP,
        (None,))),
    ("Table.step", Number("step", train_at, 0, MAX_STEP)),
    ("Table.clock", Number("clock", lambda n: setattr(table(), "clock", n), 0, UINT32)),
    ("Table.epoch", Number("epoch", lambda n: setattr(bounded(), "epoch", n), 0, UINT32)),
    ("set_epoch", Number("epoch", lambda n: bounded().set_epoch(n), 0, UINT32)),
    ("reserve", Number("keys", lambda n: table().reserve(n), 0, MAX_KEYS)),
    ("reserve of a bounded table", Number("keys", lambda n: bounded().reserve(n), 0, MAX_KEYS)),
    ("iterate(batch_size)", Number("batch_size", lambda n: list(table().iterate(n)), 1)),
    ("head", Number("n", lambda n: table().head(n), 0)),
    ("to_pandas", Number("n", lambda n: table().to_pandas(n), 0, INT64, (None,))),
    ("restrict(num_reserved)", Number("num_reserved", lambda n: table().restrict(n), 0)),
    ("restrict(trigger)", Number("trigger", lambda n: table().restrict(1, trigger=n), 0, INT64,
                                 (None,))),
    ("expire(ttl)", Number("ttl", lambda n: table().expire(ttl=n), 0, 1.7e308, (None,), real=True)),
    ("expire(min_norm)", Number("min_norm", lambda n: table().expire(min_norm=n), 0, 1.7e308,
                                (None,), real=True)),
    ("expire(norm_writes)", Number("norm_writes", lambda n: table().expire(norm_writes=n), 0,
                                   UINT32)),
    ("count_if(written_before)", Number(
        "written_before", lambda n: table().count_if(written_before=n), -(2**63), INT64, (None,))),
    ("remove_if(count_below)", Number(
        "count_below", lambda n: table().remove_if(count_below=n), -(2**63), INT64, (None,))),
    ("size_if(score_at_least)", Number(
        "score_at_least", lambda n: bounded().size_if(score_at_least=n, score_below=9), 0,
        2**64 - 1, (None,))),
    ("erase_if(score_below)", Number(
        "score_below", lambda n: bounded().erase_if(score_at_least=0, score_below=n), 0, 2**64 - 1,
        (None,))),
    ("set_num_threads", Number("threads", lambda n: tfra.set_num_threads(n), 1, 1024)),
]  # fmt: skip


def test_every_number() -> None:
    # Runs in its own process with little memory. If it dies, the last printed line says why.
    here = Path(__file__).parent
    printed = run_python(
        """
        import json
        import size_calls
        import test_sizes

        problems = size_calls.check(test_sizes.NUMBERS, more=2**30)
        print()
        print(json.dumps(problems))
        """,
        timeout=600,
        PYTHONPATH=os.pathsep.join([str(here), str(here.parent)]),
    )
    problems = json.loads(printed.splitlines()[-1])
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: tfra.Table(2**31), "`dim` must be between 1 and 16777216. Received: 2147483648"),
        (lambda: tfra.Table(2, capacity=-1), f"`capacity` must be between 0 and {MAX_KEYS}. "),
        (lambda: tfra.estimate_memory(1, 2**24 + 1), "`dim` must be between 1 and 16777216. "),
        (lambda: table().restrict(-1), "`num_reserved` must be 0 or more. Received: -1"),
        (lambda: table().restrict(2**63), "`num_reserved` must fit in 64 bits. Received: 92"),
        (lambda: tfra.Table("3"), "`dim` must be an integer. Received: '3' (of type str)"),
    ],
)
def test_what_is_said(call: Any, said: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert said in str(caught.value)


def test_the_largest_sizes() -> None:
    assert tfra.Table(MAX_DIM, initializer=1.0).dim == MAX_DIM
    assert tfra.Table(2, max_capacity=MAX_KEYS).max_capacity == MAX_KEYS
    assert tfra.estimate_memory(MAX_KEYS, MAX_DIM, "float64", "adam") > 2**60
