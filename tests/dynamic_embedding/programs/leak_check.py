"""Many small calls on one table: by how much does the process grow?

By hand, for a long time: python leak_check.py 500000 [eager|function|control|session|errors]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from common import DIM, de, ids, memory, rows

v1 = tf.compat.v1
WARM_UP = 1500


def eager_calls() -> Callable[[], object]:
    variable = de.Variable(dim=DIM, name="eager")
    keys, values = ids(1, 2, 3), rows(3, 1.0)

    def calls() -> None:
        variable.upsert(keys, values)
        variable.lookup(keys, return_exists=True)
        variable.size()

    return calls


class LookupTable:
    """TensorFlow's own table, with the methods of ours: its leaks are not ours."""

    def __init__(self, key_dtype: tf.DType = tf.int64, **_: object) -> None:
        default = tf.zeros([DIM])
        self._table = tf.lookup.experimental.MutableHashTable(key_dtype, tf.float32, default)
        self.upsert = self._table.insert

    def __getattr__(self, name: str) -> object:
        return getattr(self._table, name)


def function_calls(table: Callable[..., Any] = de.Variable) -> Callable[[], object]:
    variable = table(dim=DIM, name="function")
    words = table(key_dtype=tf.string, dim=DIM, name="words")

    @tf.function
    def calls(keys: tf.Tensor, names: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, ...]:
        variable.upsert(keys, values)
        words.upsert(names, values)
        sizes = variable.size(), words.size()
        variable.remove(keys[:1])
        return variable.lookup(keys), words.lookup(names), *sizes, *variable.export()

    names = tf.constant(["short", "long" * 20, ""])
    return lambda: calls(ids(1, 2, 3), names, rows(3, 1.0))


def control_calls() -> Callable[[], object]:
    return function_calls(LookupTable)


def session_calls(width: int = DIM) -> Callable[[], object]:
    with tf.Graph().as_default():
        variable = de.Variable(dim=DIM, name="session")
        keys, values = v1.placeholder(tf.int64), v1.placeholder(tf.float32)
        fetches = variable.upsert(keys, values), variable.lookup(keys), variable.size()
        session = v1.Session()
    feeds = {keys: np.arange(3), values: np.ones((3, width), np.float32)}
    return lambda: session.run(fetches, feeds)


def error_calls() -> Callable[[], object]:
    # In a Session: an error in a tf.function costs about 900 bytes in TensorFlow itself,
    # with the tables of tf.lookup as well.
    fail = session_calls(width=DIM + 1)

    def calls() -> None:
        try:
            fail()
        except tf.errors.InvalidArgumentError:
            return
        raise AssertionError("rows of the wrong width were taken")

    return calls


KINDS = {
    "eager": eager_calls,
    "function": function_calls,
    "control": control_calls,
    "session": session_calls,
    "errors": error_calls,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, help="how often the calls are made")
    parser.add_argument("kind", choices=KINDS, nargs="?", default="eager")
    arguments = parser.parse_args()
    calls = KINDS[arguments.kind]()
    for _ in range(WARM_UP):
        calls()
    before = memory()
    for _ in range(arguments.count):
        calls()
    grown = memory() - before
    print(json.dumps({"calls": arguments.count, "before": before, "grown": grown}))


if __name__ == "__main__":
    main()
