"""The table over NumPy arrays: checks and shapes here, everything else in the engine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfra import _native, initializers, optimizers
from tfra._shared import arrays, limits
from tfra._shared.display import Facts, Shown, join_batches, readable_bytes
from tfra._shared.rule import Rule
from tfra._shared.stats import RowHistograms, TableStats
from tfra._shared.tiers import naming_the_directory
from tfra._shared.upkeep import checked_min_norm, checked_norm_writes, checked_ttl
from tfra._table.bound import Bound, ScoredRows, flat_scores
from tfra._table.rows import RowFormat
from tfra.admission import Admission
from tfra.spec import TableSpec


class Table(Shown):
    """A table from keys to rows, with no fixed vocabulary.

    A key that was never written has no row. Looking it up gives its initial value, a pure function
    of `(seed, key)`, and stores nothing; writing to it, or applying a gradient, stores its row.

    Keys may have any shape, scalars included; rows come back in `keys.shape + (dim,)`. Any thread
    may call any method at any time: calls release the GIL, each row is read and written as a whole,
    and no update is lost. Arrays that are contiguous and of the right dtype are not copied.
    Ctrl-C ends calls that only read early; those that write finish first. A process may fork at any
    time; see docs/faq.md.

    Example:
    >>> import numpy as np
    >>> import tfra
    >>> table = tfra.Table(dim=2)
    >>> table.upsert([10, 20], [[1.0, 2.0], [3.0, 4.0]])
    >>> table.lookup([20, 30]).tolist()
    [[3.0, 4.0], [0.0, 0.0]]

    Args:
        dim: The length of a row, from 1 to 2**24.
        key_dtype: `"int64"` or `"string"`.
        value_dtype: float32, float16, bfloat16, float64, int8, int32, int64, bool or string.
        initializer: The value of keys without a row: a name (`"zeros"`, `"ones"`, `"uniform"`,
            `"normal"`, `"truncated_normal"`), a number, a row, or one of `tfra.initializers`.
        seed: An int; two tables with equal seeds and initializers have equal initial values.
        optimizer: A name such as `"adam"`, or one of `tfra.optimizers`. Its slots are part of the
            rows, in float32 (float64 for float64 values).
        metadata: Whether keys have the time of their last write and the number of writes, which
            `restrict`, `touch`, `usage`, and `expire` need: 8 bytes for each place of the index.
        capacity: The number of keys to make room for.
        admission: Which keys may enter: one of `tfra.admission`, or None for all.
        ttl: Seconds after which a row that was not written has expired; see `expire`. Implies
            metadata.
        min_norm: The L2 norm below which a row has expired; see `expire`. Implies metadata.
        max_capacity: The number of keys that the table never exceeds: once it is full, new keys
            evict those with the lowest scores. None for no bound. See docs/hkv.md.
        evict_strategy: What the scores are: `"lru"`, `"lfu"`, `"epochlru"`, `"epochlfu"`, or
            `"customized"` for scores that the caller gives.
        remember_counts: Whether, with `"lfu"` and `"epochlfu"`, keys that were evicted or rejected
            go on from about their former count when they come again.
        fast_bytes: Bytes of memory for rows. Those that do not fit are in a file, and come to
            memory when they are needed. None for all rows in memory. The index, string keys, and
            the rows of the calls that are under way are in memory always. See docs/hkv.md.
        tier_directory: Where that file is; by default in `$TMPDIR`, or `/tmp`. It has no name
            there, and goes with the table, or with the process.

    Raises:
        TypeError: If a dtype, an initializer or an optimizer is unknown, or they do not go
            together.
        ValueError: If a number is out of range.
        MemoryError: If there is no room for `capacity` keys.
        OSError: If there can be no file in `tier_directory`. Calls of a table with a file raise it
            when the disk is full or fails; docs/hkv.md says what such a call has changed: nothing,
            but for rare cases.
    """

    __module__ = "tfra"  # Where users find it, and what it shows as its name.

    def __init__(
        self,
        dim: int,
        *,
        key_dtype: Any = "int64",
        value_dtype: Any = "float32",
        initializer: Any = "zeros",
        seed: int = 0,
        optimizer: optimizers.Optimizer | str | None = None,
        metadata: bool = False,
        capacity: int = 0,
        admission: Admission | None = None,
        ttl: float | None = None,
        min_norm: float | None = None,
        max_capacity: int | None = None,
        evict_strategy: str = "lru",
        remember_counts: bool = True,
        fast_bytes: int | None = None,
        tier_directory: str | os.PathLike[str] | None = None,
    ) -> None:
        value_type = arrays.value_dtype(value_dtype)
        seed = arrays.integer(seed, "seed")
        known = optimizers.get(optimizer, "optimizer")
        if min_norm is not None and not arrays.is_floating(value_type):
            raise TypeError(
                "`min_norm` needs floating values. Received: a table of "
                f"{arrays.type_name(value_type)}"
            )
        ttl, min_norm = checked_ttl(ttl), checked_min_norm(min_norm)
        spec = TableSpec(
            dim=dim,
            key_dtype=arrays.type_name(arrays.key_dtype(key_dtype)),
            value_dtype=arrays.type_name(value_type),
            initializer=initializer,
            seed=seed,
            rule=known.rule() if known else Rule(),
            metadata=bool(metadata) or ttl is not None or min_norm is not None,
            admission=admission,
            capacity=capacity,
            max_capacity=max_capacity,
            evict_strategy=evict_strategy,
            remember_counts=bool(remember_counts),
            fast_bytes=fast_bytes,
            tier_directory=tier_directory,  # type: ignore[arg-type]  # Paths are converted.
        )
        with naming_the_directory():
            native = _native.NativeTable(spec.to_json())
        self._use(native, spec, known)
        self._seed = seed  # As it was given, maybe negative.
        self._ttl, self._min_norm = ttl, min_norm

    def _use(
        self, native: _native.NativeTable, spec: TableSpec, optimizer: optimizers.Optimizer | None
    ) -> None:
        """Makes this object one of a table of the engine."""
        self._native = native
        key_type = arrays.key_dtype(spec.key_dtype)
        value_type = arrays.value_dtype(spec.value_dtype)
        self._rows = RowFormat(spec.dim, key_type, value_type, native.has_metadata)
        self._initializer, self._seed = spec.initializer, spec.seed
        self._optimizer = optimizer
        self._ttl = self._min_norm = None
        self._admission = spec.admission
        self._bound = Bound(spec)
        self._fast_bytes = spec.fast_bytes
        self._params: _native.UpdateParams | None = None  # Of steps as the optimizer has them.

    @classmethod
    def from_spec(
        cls, spec: TableSpec, *, optimizer: optimizers.Optimizer | str | None = None
    ) -> Table:
        """Returns a new table of this description.

        Example:
        >>> import tfra
        >>> spec = tfra.TableSpec(dim=2, key_dtype="string")
        >>> tfra.Table.from_spec(spec).spec == spec
        True

        Args:
            spec: What the table is to be. Its rule decides the slots of the rows.
            optimizer: What `apply_gradients` takes steps by; see `from_handle`.

        Raises:
            TypeError: If the spec has int32 keys, or the optimizer is unknown.
            ValueError: If the spec is not one that a table can have, or has other slots.
        """
        if not isinstance(spec, TableSpec):
            raise TypeError(f"`spec` must be a tfra.TableSpec. Received: {spec!r}")
        if spec.key_dtype == "int32":
            raise TypeError("`spec`: expected a table of int64 or string keys. Received: int32")
        with naming_the_directory():
            native = _native.NativeTable(spec.to_json())
        return cls.from_handle(native.handle(), optimizer=optimizer)

    @classmethod
    def from_handle(
        cls, handle: int, *, optimizer: optimizers.Optimizer | str | None = None
    ) -> Table:
        """Returns a table that exists already in this process, so that both objects use it.

        The other object may be of NumPy or of TensorFlow.

        Example:
        >>> import tfra
        >>> table = tfra.Table(dim=2)
        >>> table.upsert([7], [[1.0, 2.0]])
        >>> tfra.Table.from_handle(table.handle).lookup([7]).tolist()
        [[1.0, 2.0]]

        Args:
            handle: The handle of the table: `Table.handle`, or that of a table of
                `tfra.dynamic_embedding`.
            optimizer: What `apply_gradients` takes steps by. Its rule must be the one whose slots
                the table has, if it has slots.

        Raises:
            TypeError: If the table has int32 keys, or the optimizer is unknown.
            ValueError: If there is no such table in this process, or it has other slots.
        """
        known = optimizers.get(optimizer, "optimizer")
        rule = known.rule() if known else Rule()
        native = _native.NativeTable.from_handle(
            arrays.integer(handle, "handle", 0), rule.to_json()
        )
        spec = TableSpec.from_json(native.spec())
        if spec.key_dtype == "int32":
            raise TypeError("`handle`: expected a table of int64 or string keys. Received: int32")
        if known is not None and spec.rule.kind != "none" and spec.rule != rule:
            raise ValueError(
                f"`optimizer`: expected one of the rule whose slots the table has, {spec.rule}. "
                f"Received: {rule}"
            )
        table = cls.__new__(cls)
        table._use(native, spec, known)
        return table

    @property
    def dim(self) -> int:
        """The length of a row."""
        return self._rows.dim

    @property
    def key_dtype(self) -> np.dtype[Any]:
        """The dtype of keys: int64, or object for strings."""
        return self._rows.key_dtype

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """The dtype of values; object for strings."""
        return self._rows.value_dtype

    @property
    def initializer(self) -> initializers.Initializer:
        """What keys without a row hold."""
        return self._initializer

    @property
    def seed(self) -> int:
        """The seed of the initial values."""
        return self._seed

    @property
    def optimizer(self) -> optimizers.Optimizer | None:
        """The optimizer, or None."""
        return self._optimizer

    @property
    def metadata(self) -> bool:
        """Whether rows carry metadata."""
        return self._native.has_metadata()

    @property
    def admission(self) -> Admission | None:
        """Which keys may enter, or None for all."""
        return self._admission

    @property
    def fast_bytes(self) -> int | None:
        """Bytes of memory for rows, or None if all of them are in memory."""
        return self._fast_bytes

    @property
    def spec(self) -> TableSpec:
        """The description of the table, which other frameworks and files use too."""
        return TableSpec.from_json(self._native.spec())

    @property
    def handle(self) -> int:
        """The number by which this process finds the table; see `from_handle`."""
        return self._native.handle()

    @property
    def max_capacity(self) -> int | None:
        """The number of keys that the table never exceeds, or None."""
        return self._bound.max_capacity

    @property
    def evict_strategy(self) -> str | None:
        """What the scores are, or None if the table has no bound."""
        return self._bound.evict_strategy

    @property
    def epoch(self) -> int:
        """The epoch in the scores of the writes from now on; 0 where there are none.

        Setting a smaller one than before makes new scores lower than older ones.
        """
        return self._native.epoch()

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The optimizer slots of a row now. Another object may change the rule of the table."""
        return tuple(self._rows.slots(self._native.rule()))

    @property
    def step(self) -> int:
        """The number of the last optimizer step."""
        return self._native.step()

    @step.setter
    def step(self, step: int) -> None:
        self._native.set_step(arrays.integer(step, "step", 0, limits.MAX_STEP))

    @property
    def clock(self) -> int:
        """The time that writes leave in metadata: seconds since 1970, until it is set."""
        return self._native.clock()

    @clock.setter
    def clock(self, now: int) -> None:
        self._native.set_clock(arrays.integer(now, "clock", 0, limits.MAX_UINT32))

    def __len__(self) -> int:
        return self._native.size()

    def __contains__(self, key: Any) -> bool:
        return bool(np.all(self.contains(key)))

    def lookup(
        self,
        keys: Any,
        default: Any = None,
        *,
        return_exists: bool = False,
        out: NDArray[Any] | None = None,
    ) -> Any:
        """Returns the rows of keys. Inserts nothing.

        Args:
            keys: Keys of any shape.
            default: What keys without a row get: `None` for their initial value, one value, one row
                `[dim]`, or a row for each key.
            return_exists: Whether to return also which keys have a row.
            out: An array for the result, contiguous, of the right shape and dtype. It must not
                share memory with `keys` or `default`.

        Returns:
            An array `keys.shape + (dim,)`; with `return_exists` a pair of it and a bool array
            `keys.shape`.

        Raises:
            TypeError: If keys, default or out are of another dtype than the table's.
            ValueError: If default or out have a wrong shape, or out overlaps with keys or default.
        """
        flat, shape = self._rows.flat_keys(keys)
        full = (*shape, self._rows.dim)
        kind, rows = self._rows.default(default, full)
        exists = np.empty(shape, np.bool_) if return_exists else None
        mask = None if exists is None else arrays.raw_bytes(exists)
        if out is None:
            result = np.empty(full, self._rows.value_dtype)
        else:
            self._rows.check_out(out, full)
            result = out
        if self._rows.has_string_values:
            texts = self._native.lookup(flat, kind, rows, None, mask)
            assert texts is not None
            result[...] = arrays.object_array(texts, full)
        else:
            if out is not None:
                arrays.refuse_overlap(out, {"keys": flat, "default": rows})
            self._native.lookup(flat, kind, rows, arrays.raw_bytes(result), mask)
        return result if exists is None else (result, exists)

    def lookup_with_slots(self, keys: Any) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
        """Returns the rows of keys and their optimizer slots. Inserts nothing.

        Args:
            keys: Keys of any shape.

        Returns:
            An array `keys.shape + (dim,)`, and the slots by name, as `upsert` takes them; keys
            without a row get their initial value and slots.

        Raises:
            TypeError: If keys are of another dtype than the table's, or the values are strings.
        """
        flat, shape = self._rows.flat_keys(keys)
        if self._rows.has_string_values:
            raise TypeError("`lookup_with_slots` needs numbers. Received: a table of strings")
        values = np.empty((*shape, self._rows.dim), self._rows.value_dtype)
        packed, rule = self._native.lookup_rows(flat, arrays.raw_bytes(values))
        return values, self._rows.slots_of(packed, rule, shape)

    def contains(self, keys: Any) -> NDArray[np.bool_]:
        """Returns which keys have a row, in their shape.

        Raises:
            TypeError: If keys are of another dtype than the table's.
        """
        flat, shape = self._rows.flat_keys(keys)
        exists = np.empty(shape, np.bool_)
        self._native.contains(flat, arrays.raw_bytes(exists))
        return exists

    def upsert(
        self,
        keys: Any,
        values: Any,
        *,
        slots: Mapping[str, NDArray[Any]] | None = None,
        metadata: Any = None,
        scores: Any = None,
    ) -> None:
        """Inserts or overwrites rows. Of equal keys the last one stays.

        Args:
            keys: Keys of any shape.
            values: Rows, `keys.shape + (dim,)`.
            slots: All optimizer slots, by name, as `export(slots=True)` returns them. Without it,
                rows that are there keep theirs, and new rows get initial ones.
            metadata: The time of the last write and the number of writes of each row,
                `keys.shape + (2,)`, as `export(metadata=True)` returns them. Without it, this is
                one more write, now.
            scores: Scores of the keys, for `"customized"`; for `"lfu"` and `"epochlfu"`, how often
                each key counts.

        Raises:
            TypeError: If keys, values or scores are of a wrong dtype.
            ValueError: If values, slots, metadata or scores have a wrong shape, slots other names,
                or the table has no use for scores.
        """
        flat, shape = self._rows.flat_keys(keys)
        rows = self._rows.flat_values(values, shape)
        rule, packed = None, None
        if slots is not None:
            rule = self._native.rule()
            packed = self._rows.flat_slots(slots, rule, shape)
        times_and_counts = self._rows.flat_metadata(metadata, shape)
        given = self._bound.scores_of_write(scores, shape)
        self._native.assign(flat, rows, packed, rule, times_and_counts, given)

    def accum(self, keys: Any, deltas: Any, exists: Any, *, scores: Any = None) -> None:
        """Adds deltas to rows, for writers that share a table.

        `exists` is what the caller last knew of each key. A key that is there and was known is
        added to. A key that is not there and was unknown gets the delta as its row. In the two
        other cases, where someone else inserted or removed the key meanwhile, nothing happens but
        that `stats().ignored` counts it. Equal keys are taken one after the other.

        Args:
            keys: Keys of any shape.
            deltas: Rows to add, `keys.shape + (dim,)`. Integers wrap around; bools are or-ed.
            exists: Bools, `keys.shape`.
            scores: As for `upsert`.

        Raises:
            TypeError: If an array is of a wrong dtype, or the values are strings.
            ValueError: If an array has a wrong shape.
        """
        flat, shape = self._rows.flat_keys(keys)
        if self._rows.has_string_values:
            raise TypeError("`accum` needs values that can be added. Received: a table of strings")
        rows = self._rows.flat_values(deltas, shape, "deltas")
        known = arrays.typed_array(exists, (np.dtype(np.bool_),), shape, "exists")
        given = self._bound.scores_of_write(scores, shape)
        self._native.accumulate(flat, rows, arrays.raw_bytes(known), given)

    def apply_gradients(
        self,
        keys: Any,
        gradients: Any,
        *,
        step: int | None = None,
        scores: Any = None,
        **hyper: float | None,
    ) -> None:
        """Takes one optimizer step on the rows of keys.

        Gradients of equal keys are summed first. Keys without a row get one, from their initial
        value. Value and slots are updated in place.

        Args:
            keys: Keys of any shape.
            gradients: Rows, `keys.shape + (dim,)`, of the table's value dtype or of the dtype of
                its slots.
            step: The number of this step, from 1 on. By default one more than `Table.step`, which
                becomes the number used. A first step that is given the number 1 starts with initial
                slots, also where `upsert` wrote others.
            scores: As for `upsert`.
            **hyper: Arguments of the optimizer that differ in this step, such as `learning_rate`.

        Raises:
            TypeError: If keys or gradients are of a wrong dtype, or a hyper-parameter is unknown.
            ValueError: If the table has no optimizer, or a shape or number is wrong.
        """
        flat, shape = self._rows.flat_keys(keys)
        if self._optimizer is None:
            raise ValueError(
                "`apply_gradients` needs a table with an optimizer. Received: optimizer=None. Make "
                "it with one: tfra.Table(dim, optimizer='adam')."
            )
        array = self._rows.gradients(gradients, shape)
        given = self._bound.scores_of_write(scores, shape)
        if step is not None:
            step = arrays.integer(step, "step", 1, limits.MAX_STEP)
        if hyper or self._params is None:
            params = _native.UpdateParams(json.dumps(self._optimizer.params(1, **hyper)))
            if not hyper:
                self._params = params
        else:
            params = self._params
        self._native.apply_gradients(
            flat, arrays.raw_bytes(array), array.dtype.name, params, step, given
        )

    def remove(self, keys: Any) -> int:
        """Removes keys and their rows, and returns how many were there.

        Raises:
            TypeError: If keys are of another dtype than the table's.
        """
        return self._native.remove(self._rows.flat_keys(keys)[0])

    def clear(self) -> None:
        """Removes all keys. The memory stays for reuse; `shrink` gives it back."""
        self._native.clear()

    def reserve(self, keys: int) -> None:
        """Makes room for this many keys in all, so that the index does not grow until then.

        Raises:
            ValueError: If the number is negative or beyond what a table can hold.
            MemoryError: If there is no room.
        """
        self._native.reserve(arrays.integer(keys, "keys", 0, limits.MAX_KEYS))

    def shrink(self) -> None:
        """Gives memory that the present keys do not need back to the operating system."""
        self._native.shrink()

    # --- The whole content, and figures about it.

    def export(self, *, slots: bool = False, metadata: bool = False) -> Any:
        """Returns the whole content, in no particular order.

        While other threads write, a key that leaves the table and returns may appear twice, so an
        export may have more rows than `max_capacity`. A key that is in the table all the time
        appears exactly once.

        Args:
            slots: Whether to return also the optimizer slots.
            metadata: Whether to return also the time of the last write and the number of writes.

        Returns:
            `(keys, values)` of shapes `[n]` and `[n, dim]`; with `slots` then a dict from name to
            array; with `metadata` then a uint32 array `[n, 2]` (`[n, 0]` if rows carry none).
        """
        return self._rows.batch_of(self._native.export_all(), slots, metadata)

    def iterate(
        self, batch_size: int = 65_536, *, slots: bool = False, metadata: bool = False
    ) -> Iterator[Any]:
        """Yields the content in batches, as `export` returns it.

        Only one batch is in memory at a time, and other threads may write meanwhile: a key that is
        in the table all the time comes exactly once. A key that leaves the table and returns may
        come twice, so that there may be more rows than `max_capacity`.

        Args:
            batch_size: About how many keys a batch has.
            slots: Whether to yield also the optimizer slots. If another object changes the rule of
                the table meanwhile, later batches have other slots.
            metadata: Whether to yield also the metadata.

        Yields:
            Batches that are not empty.

        Raises:
            ValueError: If `batch_size` is less than 1.
        """
        return self._batches(arrays.integer(batch_size, "batch_size", 1), slots, metadata)

    def _batches(self, batch_size: int, slots: bool, metadata: bool) -> Iterator[Any]:
        position, seed, done = 0, 0, False
        while not done:
            rows, position, seed, done = self._native.export(batch_size, position, seed)
            batch = self._rows.batch_of(rows, slots, metadata)
            if len(batch[0]) > 0:
                yield batch

    def stats(self) -> TableStats:
        """Returns the table's size, memory and counters."""
        return TableStats(**self._native.stats())

    def memory_usage(self) -> dict[str, int]:
        """Returns the bytes of `index`, `rows`, `strings` and `admission`, and their `total`.

        Rows in a file take no memory: `stats().slow_bytes`.
        """
        stats = self.stats()
        parts = {
            "index": stats.index_bytes,
            "rows": stats.row_bytes,
            "strings": stats.string_bytes,
            "admission": stats.admission_bytes,
        }
        return {**parts, "total": sum(parts.values())}

    def _facts(self) -> Facts:
        stats = self.stats()
        return {
            "keys": stats.size,
            "dim": self._rows.dim,
            "key_dtype": arrays.type_name(self._rows.key_dtype),
            "value_dtype": arrays.type_name(self._rows.value_dtype),
            "bytes": readable_bytes(stats.bytes),
            "file_bytes": readable_bytes(stats.slow_bytes) if self._fast_bytes else None,
            "optimizer": type(self._optimizer).__name__ if self._optimizer else None,
            "device": "CPU",
        }

    def _first_rows(self, n: int | None) -> Any:
        return join_batches(self.iterate(n or 65_536), n, self._rows.no_rows())

    # --- Which rows leave, and what is known of them.

    def touch(self, keys: Any) -> None:
        """Notes that keys were seen now: one more write, which changes no value.

        Keys that are not there and are let in (see `admission`) get a row with their initial value.
        Of equal keys one counts.

        Raises:
            TypeError: If keys are of another dtype than the table's.
            ValueError: If the table has no metadata.
        """
        self._native.touch(self._rows.flat_keys(keys)[0])

    def usage(self, keys: Any) -> NDArray[np.uint32]:
        """Returns the time of the last write and the number of writes of keys.

        Args:
            keys: Keys of any shape.

        Returns:
            A uint32 array `keys.shape + (2,)`, zeros for keys that are not there. Times are seconds
            since 1970 (see `clock`).

        Raises:
            TypeError: If keys are of another dtype than the table's.
            ValueError: If the table has no metadata.
        """
        flat, shape = self._rows.flat_keys(keys)
        return self._native.lookup_metadata(flat).reshape(*shape, 2)

    def restrict(self, num_reserved: int, *, by: str = "time", trigger: int | None = None) -> int:
        """Keeps the best rows and evicts the others, with their slots.

        Takes a few passes over the rows and little memory. Other threads may go on: rows that they
        write meanwhile may stay in addition.

        Example:
        >>> import tfra
        >>> table = tfra.Table(dim=1, metadata=True)
        >>> table.upsert([1, 2, 2, 3], [[0.0]] * 4)
        >>> table.restrict(1, by="count")
        2
        >>> table.export()[0].tolist()
        [2]

        Args:
            num_reserved: How many keys stay.
            by: `"time"` keeps those last written, and of equal ones the most frequent; `"count"`
                those written most often, and of equal ones the newest. Between rows that are still
                equal the keys decide, not their order.
            trigger: Nothing happens unless there are more keys than this; `num_reserved` by
                default.

        Returns:
            The number of keys that were evicted.

        Raises:
            TypeError: If a number is not an integer.
            ValueError: If a number is negative, `by` is something else, or the table has no
                metadata.
        """
        keep = arrays.integer(num_reserved, "num_reserved", 0)
        least = keep if trigger is None else arrays.integer(trigger, "trigger", 0)
        if not self.metadata:
            raise ValueError("`restrict` needs a table with metadata. Received: one without")
        if by not in ("time", "count"):
            raise ValueError(f"`by` must be 'time' or 'count'. Received: {by!r}")
        return 0 if self._native.size() <= least else self._native.restrict(keep, by == "time")

    def expire(
        self, *, ttl: float | None = None, min_norm: float | None = None, norm_writes: int = 1
    ) -> int:
        """Removes rows that have expired, in one pass.

        Args:
            ttl: Rows that were not written for more than so many seconds have expired; and keys
                that wait to enter (see `admission`) are forgotten. The table's `ttl` by default.
            min_norm: Rows whose L2 norm is below this, although they were written `norm_writes`
                times, have expired. The table's `min_norm` by default.
            norm_writes: How often a row must have been written for its norm to count.

        Returns:
            The number of keys that were removed.

        Raises:
            TypeError: If norms are asked for and values are not floating.
            ValueError: If a number is negative, or the table has no metadata.
        """
        ttl = self._ttl if ttl is None else checked_ttl(ttl)
        min_norm = self._min_norm if min_norm is None else checked_min_norm(min_norm)
        writes = checked_norm_writes(norm_writes)
        before = 0 if ttl is None else max(0, self._native.clock() - int(ttl))
        return self._native.expire(before, min_norm or 0.0, writes)

    def histograms(self) -> RowHistograms:
        """Counts rows by age, by number of writes and by norm, in one pass."""
        return RowHistograms.from_counts(*self._native.histograms())

    def admission_state(self) -> dict[str, Any]:
        """Returns what is known of keys that have not entered, to be saved.

        Returns:
            A dict of arrays: `keys` `[n]` and `seen` `[n, 2]`, the keys that wait with the time and
            the number of times they were seen, and `filter`, bytes. See `restore_admission`.
        """
        keys, seen, state = self._native.admission_state()
        keys = self._rows.keys_of(keys)
        return {"keys": keys, "seen": seen.reshape(-1, 2), "filter": state}

    def restore_admission(self, state: dict[str, Any]) -> None:
        """Takes what `admission_state` returned, in place of what is known.

        Raises:
            TypeError: If an array is of a wrong dtype.
            ValueError: If the state is that of another admission rule, or lacks an array.
        """
        names = ("keys", "seen", "filter")
        if not isinstance(state, Mapping) or not all(name in state for name in names):
            received = sorted(state) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(f"`state` must be a dict of {names}. Received: {received}")
        flat, shape = self._rows.flat_keys(state["keys"])
        seen = arrays.typed_array(state["seen"], (np.dtype(np.uint32),), (*shape, 2), "seen")
        size = (np.size(state["filter"]),)
        known = arrays.typed_array(state["filter"], (np.dtype(np.uint8),), size, "filter")
        self._native.restore_admission(flat, arrays.raw_bytes(seen), arrays.raw_bytes(known))

    def count_if(self, *, written_before: int | None = None, count_below: int | None = None) -> int:
        """Counts keys by their metadata.

        Args:
            written_before: Only keys whose last write was before this time (see `clock`).
            count_below: Only keys that were written fewer times than this.

        Returns:
            The number of keys for which both hold.

        Raises:
            ValueError: If the table has no metadata.
        """
        return self._native.count_if(*_bounds(written_before, count_below))

    def select(self, *, written_before: int | None = None, count_below: int | None = None) -> Any:
        """Returns the keys that `count_if` counts, as an array `[n]`."""
        keys = self._native.select_if(*_bounds(written_before, count_below))
        return self._rows.keys_of(keys)

    def remove_if(
        self, *, written_before: int | None = None, count_below: int | None = None
    ) -> int:
        """Removes the keys that `count_if` counts, in one pass, and returns how many."""
        return self._native.remove_if(*_bounds(written_before, count_below))

    # --- Tables with a bound. Scores are uint64; in a full table the key with the lowest score
    # leaves. Each write renews the scores of its keys, a lookup does not.

    def set_epoch(self, epoch: int) -> None:
        """Sets `epoch`.

        Raises:
            TypeError: If it is not an integer.
            ValueError: If it is out of range, or the strategy has no epochs.
        """
        self._native.set_epoch(self._bound.checked_epoch(epoch))

    def insert_and_evict(
        self, keys: Any, values: Any, *, scores: Any = None, return_rejected: bool = False
    ) -> Any:
        """Inserts or overwrites rows, and returns those that had to go.

        Example:
        >>> import tfra
        >>> table = tfra.Table(dim=1, max_capacity=2)
        >>> table.upsert([1, 2], [[1.0], [2.0]])
        >>> table.insert_and_evict([3], [[3.0]]).keys.tolist()
        [1]

        Args:
            keys: Keys of any shape.
            values: Rows, `keys.shape + (dim,)`.
            scores: Scores of the keys, or None; see `upsert`.
            return_rejected: Whether to return also which keys did not get in, their scores being
                too low.

        Returns:
            `ScoredRows`; with `return_rejected` a pair of it and a bool array `keys.shape`.

        Raises:
            TypeError: If an array is of a wrong dtype.
            ValueError: If an array has a wrong shape, or the table has no bound.
        """
        self._bound.require("insert_and_evict")
        flat, shape = self._rows.flat_keys(keys)
        rows = self._rows.flat_values(values, shape)
        given = self._bound.scores_of_write(scores, shape)
        rejected = np.empty(shape, np.bool_)
        mask = arrays.raw_bytes(rejected) if return_rejected else None
        evicted = self._scored_rows(*self._native.assign_and_evict(flat, rows, given, mask))
        return (evicted, rejected) if return_rejected else evicted

    def find_or_insert(
        self, keys: Any, default: Any = None, *, scores: Any = None, return_exists: bool = False
    ) -> Any:
        """Returns the rows of keys, and inserts those that are not there with their default.

        Counts as a write for scores. A key that is rejected gets its default all the same.

        Args:
            keys: Keys of any shape.
            default: As for `lookup`.
            scores: Scores of the keys, or None; see `upsert`.
            return_exists: Whether to return also which keys were there.

        Returns:
            As `lookup`.

        Raises:
            TypeError: If an array is of a wrong dtype.
            ValueError: If an array has a wrong shape, or scores are given to a table without bound.
        """
        flat, shape = self._rows.flat_keys(keys)
        full = (*shape, self._rows.dim)
        kind, rows = self._rows.default(default, full)
        given = self._bound.scores_of_write(scores, shape)
        exists = np.empty(shape, np.bool_)
        values: NDArray[Any] = np.empty(full, self._rows.value_dtype)
        out = None if self._rows.has_string_values else arrays.raw_bytes(values)
        texts = self._native.find_or_insert(flat, kind, rows, out, arrays.raw_bytes(exists), given)
        if texts is not None:
            values[...] = arrays.object_array(texts, full)
        return (values, exists) if return_exists else values

    def assign(self, keys: Any, values: Any, *, scores: Any = None) -> None:
        """Overwrites the rows of keys that are there. Others are left alone: `stats().ignored`.

        Args:
            keys: Keys of any shape.
            values: Rows, `keys.shape + (dim,)`.
            scores: Scores of the keys, or None; see `upsert`.

        Raises:
            TypeError: If an array is of a wrong dtype.
            ValueError: If an array has a wrong shape, or scores are given to a table without bound.
        """
        flat, shape = self._rows.flat_keys(keys)
        rows = self._rows.flat_values(values, shape)
        self._native.assign_existing(flat, rows, self._bound.scores_of_write(scores, shape))

    def assign_scores(self, keys: Any, scores: Any) -> None:
        """Gives keys that are there these scores, whatever the strategy. Others are left alone.

        Args:
            keys: Keys of any shape.
            scores: Integers, 0 or more, `keys.shape`.

        Raises:
            TypeError: If an array is of a wrong dtype.
            ValueError: If the shape of scores is wrong, or the table has no bound.
        """
        self._bound.require("assign_scores")
        flat, shape = self._rows.flat_keys(keys)
        self._native.assign_scores(flat, flat_scores(scores, shape))

    def scores(self, keys: Any) -> NDArray[np.uint64]:
        """Returns the scores of keys in their shape, 0 for those that are not there.

        Raises:
            TypeError: If keys are of another dtype than the table's.
            ValueError: If the table has no bound.
        """
        self._bound.require("scores")
        flat, shape = self._rows.flat_keys(keys)
        exists = np.empty(shape, np.bool_)
        return self._native.lookup_scores(flat, arrays.raw_bytes(exists)).reshape(shape)

    def export_with_scores(self) -> ScoredRows:
        """Returns the whole content with its scores, in no particular order.

        While other threads write, a key that leaves the table and returns may appear twice, so an
        export may have more rows than `max_capacity`. A key that is in the table all the time
        appears exactly once.

        Raises:
            ValueError: If the table has no bound.
        """
        self._bound.require("export_with_scores")
        return self._scored_rows(*self._native.export_if_score(0, None))

    def size_if(self, *, score_at_least: int | None = None, score_below: int | None = None) -> int:
        """Counts keys by their score.

        Args:
            score_at_least: Only keys with this score or a higher one.
            score_below: Only keys with a lower score than this.

        Returns:
            The number of keys for which both hold.

        Raises:
            ValueError: If neither is given, one is out of range, or the table has no bound.
        """
        return self._native.count_if_score(*self._bound.score_range(score_at_least, score_below))

    def erase_if(self, *, score_at_least: int | None = None, score_below: int | None = None) -> int:
        """Removes the keys that `size_if` counts, in one pass, and returns how many."""
        return self._native.remove_if_score(*self._bound.score_range(score_at_least, score_below))

    def export_if(
        self, *, score_at_least: int | None = None, score_below: int | None = None
    ) -> ScoredRows:
        """Returns the keys that `size_if` counts, with their rows and scores."""
        return self._scored_rows(
            *self._native.export_if_score(*self._bound.score_range(score_at_least, score_below))
        )

    def _scored_rows(self, keys: Any, values: Any, slots: Any, scores: Any) -> ScoredRows:
        del slots
        return ScoredRows(self._rows.keys_of(keys), self._rows.values_of(values), scores)


def _bounds(written_before: int | None, count_below: int | None) -> tuple[int | None, int | None]:
    return (
        None if written_before is None else arrays.integer(written_before, "written_before"),
        None if count_below is None else arrays.integer(count_below, "count_below"),
    )
