"""Measures `dynamic_embedding.Variable`, ours or the peer's: both have the same interface.

Runs in the environment of the system it measures. In ours it also measures `tf.gather` from a dense
tensor of the same rows. `bench/compare_variable.py` starts it with the environment variables that
the systems need.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np
import tensorflow as tf
import workloads
from workloads import Array, Plan, Record, Session, System, WrongResult, keys_at

SMALL_BATCH = 64
SMALL_QUERIES = 100  # different batches of keys
SMALL_CALLS = 2_000  # calls in a round; a multiple of SMALL_QUERIES


@dataclass(frozen=True)
class Package:
    """The package with a system's `Variable`."""

    system: str  # its name in the records
    module: str
    distributions: tuple[str, ...]


PACKAGES = {
    "ours": Package("tfra", "tfra", ("tfra",)),
    "peer": Package(
        "peer", "tensorflow_recommenders_addons", ("tensorflow-recommenders-addons", "tf-keras")
    ),
}


def traced(function: Callable[..., Any], *signature: tf.TensorSpec) -> Any:
    """Returns `function` as a graph that is already traced, so that tracing is not timed."""
    graph = tf.function(function, input_signature=signature)
    graph.get_concrete_function()
    return graph


@dataclass(frozen=True)
class SmallCalls:
    """The ways to look up a few keys."""

    function: Callable[[Any], Any]
    eager: Callable[[Any], Any]
    loop: Callable[[Any], Any]


class Table:
    """A `Variable` called one by one or through traced functions."""

    def __init__(self, variable: Any, mode: str) -> None:
        self._variable = variable  # The traced functions do not keep the variable alive.
        keys = tf.TensorSpec([None], tf.int64)
        values = tf.TensorSpec([None, variable.dim], tf.float32)

        def upsert(keys: tf.Tensor, values: tf.Tensor) -> None:
            variable.upsert(keys, values)

        lookup = traced(lambda keys: variable.lookup(keys), keys)
        self.small = SmallCalls(lookup, variable.lookup, looped(variable.lookup, variable.dim))
        self.upsert, self.lookup, self.export = upsert, variable.lookup, variable.export
        if mode == "function":
            self.upsert = traced(upsert, keys, values)
            self.lookup = lookup
            self.export = traced(lambda: variable.export())


class Adapter:
    """A `Variable` over TensorFlow's CPU tensors."""

    def __init__(self, package: Package, plan: Plan, mode: str) -> None:
        module = import_module(package.module)
        self._embedding = module.dynamic_embedding
        if package.system == "tfra":
            module.set_num_threads(plan.threads)
        self.system = package.system
        self.mode = mode
        self.versions = {
            name: version(name) for name in (*package.distributions, tf_distribution(), "numpy")
        }
        self._dim = plan.dim
        self._made = 0

    def new_table(self, initializer: Any = 0.0) -> Table:
        """Returns an empty table with a unique name, since the peer shares tables by name."""
        self._made += 1
        variable = self._embedding.Variable(
            key_dtype=tf.int64,
            value_dtype=tf.float32,
            dim=self._dim,
            initializer=initializer,
            name=f"bench_{self._made}",
        )
        return Table(variable, self.mode)

    def native(self, array: Array) -> tf.Tensor:
        """Returns a tensor with the same elements."""
        return tf.constant(array)

    def numpy(self, result: Any) -> Array:
        """Returns the tensor's elements."""
        return result.numpy()


class Gather:
    """`tf.gather` from a dense tensor, without a table."""

    system = "tf.gather"

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.versions = {"tensorflow": tf.__version__}

    def run(self, session: Session) -> Iterator[Record]:
        """Measures lookup by row number: the batches of the tables, and small ones."""
        plan = session.plan
        session.version[:] = 0
        rows = np.empty((plan.keys, plan.dim), dtype=np.float32)
        for index in session.in_order():
            rows[index] = session.expected(index)
        dense = tf.constant(rows)
        del rows

        def gather(index: tf.Tensor) -> tf.Tensor:
            return tf.gather(dense, index)

        graph = traced(gather, tf.TensorSpec([None], tf.int64))
        call = graph if self.mode == "function" else gather
        rates, checksum = session.time_lookups(call, tf.constant, lambda result: result.numpy())
        yield workloads.record(self, plan, "lookup", checksum, **workloads.rates_fields(rates))
        calls = SmallCalls(graph, gather, looped(gather, plan.dim))
        yield from small_lookups(self, session, calls, np.asarray)


def tf_distribution() -> str:
    """Returns the name of the installed TensorFlow package."""
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            version(name)
        except ImportError:
            continue
        return name
    raise RuntimeError("expected tensorflow or tensorflow-cpu to be installed")


def looped(lookup: Callable[[Any], Any], dim: int) -> Any:
    """Returns a graph that looks up the queries (n, 64) one by one and returns the last rows."""

    def loop(queries: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            rows = lookup(queries[i % tf.shape(queries)[0]])
            return i + 1, tf.ensure_shape(rows, [SMALL_BATCH, dim])

        start = (tf.constant(0), tf.zeros([SMALL_BATCH, dim]))
        return tf.while_loop(lambda i, _: i < SMALL_CALLS, body, start, parallel_iterations=1)[1]

    return traced(loop, tf.TensorSpec([None, SMALL_BATCH], tf.int64))


def small_lookups(
    system: System,
    session: Session,
    calls: SmallCalls,
    prepare: Callable[[Array], Array],
) -> Iterator[Record]:
    """Measures lookups of a few keys: by a traced function, in a loop inside one, and eagerly."""
    batch = next(session.shuffled(0))
    starts = [i * SMALL_BATCH % (batch.size - SMALL_BATCH + 1) for i in range(SMALL_QUERIES)]
    indices = [batch[start : start + SMALL_BATCH] for start in starts]
    arrays = [prepare(index) for index in indices]
    queries, stacked = [tf.constant(array) for array in arrays], tf.constant(np.stack(arrays))

    def measured(name: str, repeat: Callable[[], None], checksum: int) -> Record:
        rates = []
        for _ in range(session.plan.rounds):
            start = time.perf_counter()
            repeat()
            rates.append(SMALL_CALLS / (time.perf_counter() - start))
        fields = workloads.rates_fields(rates, "calls")
        return workloads.record(system, session.plan, name, checksum, **fields)

    for name, call in (("lookup_64", calls.function), ("lookup_64_eager", calls.eager)):

        def repeat(call: Callable[[Any], Any] = call) -> None:
            for _ in range(SMALL_CALLS // SMALL_QUERIES):
                for query in queries:
                    call(query)

        checksum = 0
        for index, query in zip(indices, queries, strict=True):
            checksum = session.check(call(query).numpy(), index, checksum)
        yield measured(name, repeat, checksum)

    checksum = session.check(calls.loop(stacked).numpy(), indices[-1], 0)
    yield measured("lookup_64_loop", lambda: calls.loop(stacked), checksum)


def time_exports(session: Session, export: Callable[[], Any]) -> tuple[list[float], int]:
    """Times exports of the whole table; returns rows per second and the checksum of one."""
    count = session.plan.keys
    all_keys = keys_at(np.arange(count))
    index_by_key = np.argsort(all_keys)
    rates, checksum = [], 0
    for _ in range(session.plan.rounds):
        start = time.perf_counter()
        exported = export()
        rates.append(count / (time.perf_counter() - start))
        keys, rows = exported[0].numpy(), exported[1].numpy()
        place_by_key = np.argsort(keys)
        if not np.array_equal(keys[place_by_key], all_keys[index_by_key]):
            raise WrongResult(f"expected an export of the {count} keys. Received: {keys.size} keys")
        # Each system exports in its own order, so rows are checked by key.
        checksum = 0
        for at in range(0, count, session.plan.batch):
            part = slice(at, at + session.plan.batch)
            checksum = session.check(rows[place_by_key[part]], index_by_key[part], checksum)
        del exported, keys, rows
    return rates, checksum


def run(adapter: Adapter, session: Session) -> Iterator[Record]:
    """Measures all workloads of a `Variable`."""
    plan = session.plan
    built, records = workloads.build(adapter, session)
    assert isinstance(built, Table)
    yield from records
    yield workloads.lookups(adapter, session, built.lookup, "lookup")
    yield from small_lookups(adapter, session, built.small, keys_at)
    rates, checksum = time_exports(session, built.export)
    yield workloads.record(adapter, plan, "export", checksum, **workloads.rates_fields(rates))
    yield workloads.upserts(adapter, session, built)

    del built
    random = adapter.new_table(tf.random_normal_initializer(stddev=0.1))
    session.time_upserts(random, adapter, session.in_order(), version=0, new=True)
    yield workloads.lookups(adapter, session, random.lookup, "lookup_random")


def main() -> None:
    """Prints one line of JSON per workload and number of keys."""
    parser = workloads.argument_parser(__doc__)
    parser.add_argument("--system", choices=tuple(PACKAGES), required=True)
    parser.add_argument("--mode", choices=("eager", "function"), default="function")
    arguments = parser.parse_args()
    tf.config.threading.set_inter_op_parallelism_threads(arguments.threads)
    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    for plan in workloads.plans(arguments):
        session = Session(plan)
        adapter = Adapter(PACKAGES[arguments.system], plan, arguments.mode)
        workloads.emit(run(adapter, session))
        if arguments.system == "ours":
            workloads.emit(Gather(arguments.mode).run(session))


if __name__ == "__main__":
    main()
