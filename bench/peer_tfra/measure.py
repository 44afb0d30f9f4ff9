"""Measures the cuckoo table of TensorFlow Recommenders Addons; runs in the peer's environment.

`bench/compare.py` starts it with the environment variables that the peer needs.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow_recommenders_addons as tfra_peer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import workloads
from workloads import Array, Plan, Session


class Table:
    """A table whose ops are called one by one or as traced functions."""

    def __init__(self, dim: int, traced: bool) -> None:
        table = tfra_peer.dynamic_embedding.CuckooHashTable(
            key_dtype=tf.int64,
            value_dtype=tf.float32,
            default_value=tf.zeros([dim]),
            checkpoint=False,
        )
        self._table = table
        self.upsert = table.insert
        self.lookup = table.lookup
        if traced:
            keys = tf.TensorSpec([None], tf.int64)
            values = tf.TensorSpec([None, dim], tf.float32)

            def insert(keys: tf.Tensor, values: tf.Tensor) -> None:
                table.insert(keys, values)

            self.upsert = tf.function(insert, input_signature=[keys, values])
            self.lookup = tf.function(lambda keys: table.lookup(keys), input_signature=[keys])
            # Trace here, so that tracing is not timed.
            self.upsert.get_concrete_function()
            self.lookup.get_concrete_function()


class Adapter:
    """TensorFlow Recommenders Addons over TensorFlow's CPU tensors."""

    system = "peer"

    def __init__(self, plan: Plan, mode: str) -> None:
        self.mode = mode
        self._dim = plan.dim
        self.versions = {
            name: version(name)
            for name in ("tensorflow-recommenders-addons", "tensorflow", "numpy")
        }

    def new_table(self) -> Table:
        """Returns an empty table."""
        return Table(self._dim, traced=self.mode == "function")

    def native(self, array: Array) -> tf.Tensor:
        """Returns a tensor with the same elements."""
        return tf.constant(array)

    def numpy(self, result: Any) -> Array:
        """Returns the tensor's elements."""
        return result.numpy()


def main() -> None:
    """Prints one line of JSON per workload and number of keys."""
    parser = workloads.argument_parser(__doc__)
    parser.add_argument("--mode", choices=("eager", "function"), default="function")
    arguments = parser.parse_args()
    tf.config.threading.set_inter_op_parallelism_threads(arguments.threads)
    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    for plan in workloads.plans(arguments):
        workloads.emit(workloads.run(Adapter(plan, arguments.mode), Session(plan)))


if __name__ == "__main__":
    main()
