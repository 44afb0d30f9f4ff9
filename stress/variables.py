"""Tables of TensorFlow with the methods of `tfra.Table`, for rounds that use both."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfra
from stress.defect import expect_equal
from stress.plan import Plan
from stress.rows import Array
from stress.worker import ERRORS

de = tfra.dynamic_embedding

_PROCESS = os.getpid()

# What TensorFlow raises when memory or a file of the engine fails.
ERRORS += [tf.errors.ResourceExhaustedError, tf.errors.InternalError]


def make_variable_table(plan: Plan) -> Any:
    """Returns the Variable of a plan, alone or together with NumPy."""
    variable = VariableTable(plan)
    return variable if plan.library == "tensorflow" else SharedTable(variable, plan)


class VariableTable:
    """A `Variable`, called with NumPy arrays.

    Args:
        plan: The plan of the round.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._training = threading.Lock()  # An optimizer of Keras is used by one thread.
        self.variable = self._new(plan.partitions)

    def _new(self, partitions: int) -> Any:
        plan = self._plan
        self._optimizer = keras.optimizers.SGD(0.5)  # Of one Variable only.
        creator = None
        if plan.max_capacity is not None:
            memory = {} if plan.fast_bytes is None else {"max_hbm_for_values": plan.fast_bytes}
            strategy = de.HkvEvictStrategy[plan.evict_strategy.upper()]
            creator = de.HkvHashTableCreator(
                de.HkvHashTableConfig(
                    init_capacity=16,
                    max_capacity=plan.max_capacity,
                    evict_strategy=strategy,
                    **memory,
                )
            )
        value_dtype = tf.as_dtype(plan.value_dtype)
        initial: Any = 1 if plan.initializer == "ones" else 0
        if value_dtype == tf.bool:
            initial = bool(initial)
        return de.Variable(
            key_dtype=tf.as_dtype(plan.key_dtype),
            value_dtype=value_dtype,
            dim=plan.dim,
            devices=["/CPU:0"] * partitions,
            initializer="" if value_dtype == tf.string else initial,
            kv_creator=creator,
            restrict_policy=de.TimestampRestrictPolicy if plan.metadata else None,
            admission=plan.admission,
            name="stress",
        )

    def __len__(self) -> int:
        return int(self.variable.size())

    def __str__(self) -> str:
        return str(self.variable)

    def _keys(self, keys: Array) -> Any:
        return tf.constant(keys, tf.as_dtype(self._plan.key_dtype))

    def _values(self, values: Array) -> Any:
        return tf.constant(values, tf.as_dtype(self._plan.value_dtype))

    def lookup(self, keys: Array, return_exists: bool = False) -> Any:
        """Returns rows."""
        rows, exists = self.variable.lookup(self._keys(keys), return_exists=True)
        return (rows.numpy(), exists.numpy()) if return_exists else rows.numpy()

    def contains(self, keys: Array) -> Array:
        """Returns which keys are there."""
        return np.asarray(self.lookup(keys, return_exists=True)[1])

    def upsert(self, keys: Array, values: Array) -> None:
        """Writes rows."""
        self.variable.upsert(self._keys(keys), self._values(values))

    def accum(self, keys: Array, deltas: Array, exists: Array) -> None:
        """Adds to rows."""
        zeros = tf.zeros_like(self._values(deltas))
        known = tf.constant(exists, tf.bool)
        self.variable.accum(self._keys(keys), zeros, self._values(deltas), known)

    def remove(self, keys: Array) -> None:
        """Removes keys."""
        self.variable.remove(self._keys(keys))

    def apply_gradients(
        self, keys: Array, gradients: Array, step: int, learning_rate: float
    ) -> None:
        """Takes a step of SGD, whose learning rate is 0.5."""
        assert learning_rate == 0.5
        with self._training, tf.GradientTape() as tape:
            rows, shadow = de.embedding_lookup(
                self.variable, self._keys(keys), return_trainable=True
            )
            loss = tf.reduce_sum(rows * self._values(gradients))
            gradient = tape.gradient(loss, shadow)
            self._optimizer.apply_gradients([(gradient, shadow)])

    def touch(self, keys: Array) -> None:
        """Notes that keys were seen."""
        self.variable.touch(self._keys(keys))

    def usage(self, keys: Array) -> Array:
        """Returns the metadata of keys."""
        parts = [part.numpy() for part in self.variable.usage(self._keys(keys))]
        return np.stack(parts, axis=-1).astype(np.uint32)

    def export(self) -> tuple[Array, Array]:
        """Returns the whole content."""
        keys, values = self.variable.export()
        return keys.numpy(), values.numpy()

    def clear(self) -> None:
        """Removes all keys."""
        self.variable.clear()

    def shrink(self) -> None:
        """Gives memory back."""
        self.variable.shrink()

    def stats(self) -> tfra.TableStats:
        """Returns the counters."""
        return self.variable.stats()

    def restrict(self, keep: int, by: str) -> int:
        """Keeps the newest keys."""
        assert by == "time"
        return int(self.variable.restrict(keep))

    def expire(self, **rule: Any) -> int:
        """Removes rows that have expired."""
        return int(self.variable.expire(**rule))

    def histograms(self) -> Any:
        """Counts rows by their metadata."""
        return self.variable.histograms()

    @property
    def clock(self) -> int:
        """Not known; to be set."""
        raise AttributeError("clock")

    @clock.setter
    def clock(self, now: int) -> None:
        self.variable.set_clock(now)

    def save_and_restore(self, rng: np.random.Generator, clock: int) -> None:
        """Saves everything and restores it into a new Variable."""
        partitions = self._plan.partitions
        # Bounds are those of each partition, and one partition promises more than several.
        if partitions > 1 and not self._plan.evicts:
            partitions = int(rng.integers(2, 5))
        new = self._new(partitions)
        size = len(self)
        with tempfile.TemporaryDirectory() as folder:
            path = tf.train.Checkpoint(rows=self.variable).write(str(Path(folder) / "saved"))
            tf.train.Checkpoint(rows=new).read(path).assert_consumed()
        self.variable = new
        if self._plan.metadata:
            self.clock = clock
        expect_equal(len(self), size, "size after restoring")


class SharedTable:
    """A Variable and a `tfra.Table` that are one table: threads use the one or the other.

    Args:
        variable: The Variable, with one partition.
        plan: The plan of the round.
    """

    def __init__(self, variable: VariableTable, plan: Plan) -> None:
        self.variable = variable
        handle = variable.variable.tables[0].handle()
        self._table = tfra.Table.from_handle(handle, optimizer=plan.optimizer)
        # The slots come with the first step. All steps of the threads come after it.
        key = np.array([b"first" if plan.key_dtype == "string" else 0], self._table.key_dtype)
        zeros = np.zeros((1, plan.dim), self._table.value_dtype)
        self._table.apply_gradients(key, zeros, step=1)
        self._table.remove(key)
        self._table.clear()
        self._turns = threading.local()

    def __len__(self) -> int:
        return len(self._table)

    def __str__(self) -> str:
        return f"{self._table}\n{self.variable}"

    def __getattr__(self, name: str) -> Any:
        both = ("lookup", "contains", "upsert", "accum", "touch", "usage", "export", "stats")
        if name not in both:
            return getattr(self._table, name)
        return lambda *args, **options: self._call(name, args, options)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "clock":
            self._table.clock = value
        else:
            super().__setattr__(name, value)

    def _call(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Calls the one or the other, in turns, if both have these arguments."""
        self._turns.count = getattr(self._turns, "count", 0) + 1
        simple = set(options) <= {"return_exists"} and (name != "lookup" or len(args) == 1)
        # Only NumPy works in a forked child.
        use_variable = simple and self._turns.count % 2 == 0 and not in_forked_child()
        table = self.variable if use_variable else self._table
        return getattr(table, name)(*args, **options)


def in_forked_child() -> bool:
    """Whether this process is a child of the one that loaded TensorFlow."""
    return os.getpid() != _PROCESS
