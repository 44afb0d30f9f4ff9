"""The table over NumPy arrays: checks and shapes here, everything else in the engine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfra import _native, initializers, optimizers
from tfra._bounded import BoundedTable, bound_spec
from tfra._shared import arrays, limits
from tfra._shared.rule import Rule
from tfra._shared.tiers import naming_the_directory, tiers_spec
from tfra._shared.upkeep import checked_min_norm, checked_ttl
from tfra._table_content import TableContent
from tfra._upkeep import TableUpkeep
from tfra.admission import Admission
from tfra.admission import get as get_admission
from tfra.spec import TableSpec

_INITIAL, _ONE_ROW, _ROW_PER_KEY = range(3)  # The engine's Defaults::Kind.


class Table(BoundedTable, TableUpkeep, TableContent):
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
        self._dim = arrays.integer(dim, "dim", 1, limits.MAX_DIM)
        self._key_dtype = arrays.key_dtype(key_dtype)
        self._value_dtype = arrays.value_dtype(value_dtype)
        self._initializer = initializers.get(
            initializer, strings=self._value_dtype == arrays.STRING
        )
        self._seed = arrays.integer(seed, "seed")
        self._optimizer = optimizers.get(optimizer)
        if min_norm is not None and not arrays.is_floating(self._value_dtype):
            raise TypeError(
                "`min_norm` needs floating values. Received: a table of "
                f"{arrays.type_name(self._value_dtype)}"
            )
        self._ttl = checked_ttl(ttl)
        self._min_norm = checked_min_norm(min_norm)
        self._metadata = bool(metadata) or ttl is not None or min_norm is not None
        self._admission = get_admission(admission)
        room = arrays.integer(capacity, "capacity", 0, limits.MAX_KEYS)
        bound = bound_spec(max_capacity, room, evict_strategy, remember_counts)
        self._max_capacity: int = bound["max_capacity"]
        self._evict_strategy: str = bound["evict_strategy"]
        tiers = tiers_spec(fast_bytes, tier_directory, self._value_dtype)
        self._fast_bytes: int = tiers["fast_bytes"]
        spec = TableSpec(
            dim=self._dim,
            key_dtype=arrays.type_name(self._key_dtype),
            value_dtype=arrays.type_name(self._value_dtype),
            initializer=self._initializer,
            seed=self._seed,
            rule=self._optimizer.rule() if self._optimizer else Rule(),
            metadata=self._metadata,
            admission=self._admission,
            capacity=room,
            max_capacity=self._max_capacity or None,
            evict_strategy=self._evict_strategy,
            remember_counts=bound["remember_counts"],
            fast_bytes=self._fast_bytes or None,
            tier_directory=tiers["directory"],
        )
        with naming_the_directory():
            self._native = _native.NativeTable(spec.to_json())
        self._slots = dict(self._native.slots())
        self._params: _native.UpdateParams | None = None  # Of steps as the optimizer has them.
        self._slot_dtype = arrays.compute_dtype(self._value_dtype)

    @classmethod
    def from_handle(
        cls, handle: int, *, optimizer: optimizers.Optimizer | str | None = None
    ) -> Table:
        """Returns the table of another framework in this process, which both then use.

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
        known = optimizers.get(optimizer)
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
        table._dim = spec.dim
        table._key_dtype = arrays.key_dtype(spec.key_dtype)
        table._value_dtype = arrays.value_dtype(spec.value_dtype)
        table._initializer, table._seed = spec.initializer, spec.seed
        table._optimizer = known
        table._ttl = table._min_norm = None
        table._metadata = spec.metadata
        table._admission = spec.admission
        table._max_capacity = spec.max_capacity or 0
        table._evict_strategy = spec.evict_strategy
        table._fast_bytes = spec.fast_bytes or 0
        table._native = native
        table._slots = dict(native.slots())
        table._slot_dtype = arrays.compute_dtype(table._value_dtype)
        table._params = None
        return table

    @property
    def dim(self) -> int:
        """The length of a row."""
        return self._dim

    @property
    def key_dtype(self) -> np.dtype[Any]:
        """The dtype of keys: int64, or object for strings."""
        return self._key_dtype

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """The dtype of values; object for strings."""
        return self._value_dtype

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
        return self._metadata

    @property
    def admission(self) -> Admission | None:
        """Which keys may enter, or None for all."""
        return self._admission

    @property
    def fast_bytes(self) -> int | None:
        """Bytes of memory for rows, or None if all of them are in memory."""
        return self._fast_bytes or None

    @property
    def spec(self) -> TableSpec:
        """The description of the table, which other frameworks and files use too."""
        return TableSpec.from_json(self._native.spec())

    @property
    def handle(self) -> int:
        """The number by which this process finds the table; see `from_handle`."""
        return self._native.handle()

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The optimizer slots of a row."""
        return tuple(self._slots)

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
        flat, shape = arrays.flat_keys(keys, self._key_dtype)
        full = (*shape, self._dim)
        kind, rows = self._default(default, full)
        exists = np.empty(shape, np.bool_) if return_exists else None
        mask = None if exists is None else arrays.raw_bytes(exists)
        result = self._out(out, full)
        if self._value_dtype == arrays.STRING:
            texts = self._native.lookup(flat, kind, rows, None, mask)
            assert texts is not None
            result[...] = arrays.object_array(texts, full)
        else:
            arrays.refuse_overlap(result, {"keys": flat, "default": rows})
            self._native.lookup(flat, kind, rows, arrays.raw_bytes(result), mask)
        return result if exists is None else (result, exists)

    def _default(self, default: Any, full: arrays.Shape) -> tuple[int, Any]:
        if default is None:
            return _INITIAL, None
        default, shape = arrays.repeated(default, self._dim, self._value_dtype)
        if shape == (self._dim,):
            return _ONE_ROW, arrays.flat_values(default, self._value_dtype, shape, "default")
        return _ROW_PER_KEY, arrays.flat_values(default, self._value_dtype, full, "default")

    def _out(self, out: NDArray[Any] | None, full: arrays.Shape) -> NDArray[Any]:
        if out is None:
            return np.empty(full, self._value_dtype)
        arrays.refuse_mask(out, "out")
        if not isinstance(out, np.ndarray) or out.dtype != self._value_dtype:
            received = getattr(out, "dtype", type(out).__name__)
            raise TypeError(f"`out` must be an array of {self._value_dtype}. Received: {received}")
        arrays.require_shape(out.shape, full, "out")
        if not out.flags.carray:
            raise ValueError(
                "`out` must be C-contiguous, aligned and writeable. Received: "
                f"c_contiguous={out.flags.c_contiguous}, aligned={out.flags.aligned}, "
                f"writeable={out.flags.writeable}"
            )
        return out

    def contains(self, keys: Any) -> NDArray[np.bool_]:
        """Returns which keys have a row, in their shape.

        Raises:
            TypeError: If keys are of another dtype than the table's.
        """
        flat, shape = arrays.flat_keys(keys, self._key_dtype)
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
        flat, shape = arrays.flat_keys(keys, self._key_dtype)
        rows = arrays.flat_values(values, self._value_dtype, (*shape, self._dim), "values")
        packed = None
        if slots is not None:
            packed = arrays.pack_slots(slots, self._slots, self._slot_dtype, shape)
        usage = None
        if metadata is not None:
            if not self._metadata:
                raise ValueError("`metadata` needs a table with metadata. Received: one without")
            usage = arrays.typed_array(metadata, (np.dtype(np.uint32),), (*shape, 2), "metadata")
            usage = arrays.raw_bytes(usage)
        self._native.assign(flat, rows, packed, usage, self._flat_scores(scores, shape))

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
        flat, shape = arrays.flat_keys(keys, self._key_dtype)
        if self._value_dtype == arrays.STRING:
            raise TypeError("`accum` needs values that can be added. Received: a table of strings")
        rows = arrays.flat_values(deltas, self._value_dtype, (*shape, self._dim), "deltas")
        known = arrays.typed_array(exists, (np.dtype(np.bool_),), shape, "exists")
        given = self._flat_scores(scores, shape)
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
                becomes the number used.
            scores: As for `upsert`.
            **hyper: Arguments of the optimizer that differ in this step, such as `learning_rate`.

        Raises:
            TypeError: If keys or gradients are of a wrong dtype, or a hyper-parameter is unknown.
            ValueError: If the table has no optimizer, or a shape or number is wrong.
        """
        flat, shape = arrays.flat_keys(keys, self._key_dtype)
        if self._optimizer is None:
            raise ValueError(
                "`apply_gradients` needs a table with an optimizer. Received: optimizer=None. Make "
                "it with one: tfra.Table(dim, optimizer='adam')."
            )
        dtypes = (self._slot_dtype, self._value_dtype)
        array = arrays.typed_array(gradients, dtypes, (*shape, self._dim), "gradients")
        given = self._flat_scores(scores, shape)
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
        return self._native.remove(arrays.flat_keys(keys, self._key_dtype)[0])

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
