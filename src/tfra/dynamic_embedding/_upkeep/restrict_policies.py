"""The classes for `restrict_policy`: which keys a Variable keeps when it has too many."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from tfra._shared import arrays
from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._saving.content import FIRST_PART, content_of
from tfra.dynamic_embedding._tables.hash_table import HashTable

_PART = 65_536  # The number of rows that `score` gets in one call.


class RestrictedVariable(Protocol):
    """The interface of a `Variable` that policies need."""

    keeps_metadata: bool

    @property
    def name(self) -> str:
        """The name of the variable."""

    @property
    def key_dtype(self) -> tf.DType:
        """The type of the keys."""

    @property
    def tables(self) -> list[HashTable]:
        """The tables, one on each device."""

    def size(self, index: int | None = None) -> tf.Tensor:
        """Returns the number of keys in all tables, or in one."""

    def keep_metadata(self) -> Any:
        """Keeps the time of the last write and the number of writes of each key, from now on."""

    def touch(self, keys: Any) -> Any:
        """Records that keys were seen now."""

    def lookup_metadata(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the time of the last write and the number of writes of keys, and which exist."""


class RestrictPolicy:
    """Base class of the policies that decide which keys a `Variable` keeps.

    A policy of your own needs a method `score`: restriction keeps the keys with the highest scores.
    The method is called with a part of the rows at a time. Override `apply_update` too if the
    policy needs to know which keys are trained: every optimizer step calls it. A policy without
    scores can override `apply_restriction` instead.

    Example:
    >>> de = tfra.dynamic_embedding
    >>> class KeepLongRows(de.RestrictPolicy):
    ...     def score(self, keys, values):
    ...         return tf.norm(values, axis=1)
    >>> variable = de.Variable(dim=2, restrict_policy=KeepLongRows)
    >>> variable.upsert([1, 2, 3], [[0.0, 1.0], [3.0, 4.0], [2.0, 0.0]])
    >>> int(variable.restrict(1))
    2
    >>> variable.export()[0].numpy().tolist()
    [2]

    Args:
        var: The `Variable` to restrict.

    Raises:
        TypeError: If `var` is not a `Variable`.
    """

    # Whether the policy uses the metadata of keys, which the engine keeps in the rows.
    kept_by_engine = False

    def __init__(self, var: RestrictedVariable) -> None:
        if not hasattr(var, "tables") or not hasattr(var, "restrict"):
            raise TypeError(f"`var` must be a Variable. Received: {var!r}")
        self.var = var

    def apply_update(self, ids: Any) -> Any:
        """Records that keys appear in training.

        Args:
            ids: A tensor of keys.

        Returns:
            An operation, or None if there is nothing to do.
        """
        return None

    def score(self, keys: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """Returns the scores of keys. Restriction keeps the keys with the highest scores.

        Args:
            keys: `[n]`, a part of the keys of one table.
            values: `[n, dim]`, their values.

        Returns:
            A tensor of `[n]` numbers of any dtype. NaN is the lowest score.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must have a method `score(keys, values)`, or override "
            "`apply_restriction`."
        )

    def apply_restriction(self, num_reserved: int, **kwargs: Any) -> Any:
        """Removes the keys with the lowest scores.

        Args:
            num_reserved: int. The number of keys to keep, divided among the tables.
            **kwargs: (Optional) reserved keyword arguments.
                trigger: int. Nothing is removed unless there are more keys than this. Defaults to
                    `num_reserved`.

        Returns:
            A tensor: the number of removed keys.

        Raises:
            TypeError: If a number is not an integer, or a keyword is unknown.
            ValueError: If a number is negative.
        """
        keep, trigger = restrict_numbers(num_reserved, kwargs)
        tables = self.var.tables

        def restrict() -> tf.Tensor:
            shares = _shares(keep, len(tables))
            parts = zip(tables, shares, strict=True)
            left = [tf.convert_to_tensor(self._restrict_table(t, n), tf.int64) for t, n in parts]
            return tf.add_n(left)

        too_many = tf.greater(self.var.size(), trigger)
        return tf.cond(too_many, restrict, lambda: tf.zeros([], tf.int64))

    def _restrict_table(self, table: HashTable, keep: int) -> tf.Tensor:
        keys, scores = self._scores(table)
        excess = tf.maximum(tf.size(keys) - keep, 0)
        worst = tf.argsort(scores, stable=True)[:excess]
        return table.evict(tf.gather(keys, worst))

    def _scores(self, table: HashTable) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the keys of a table and their scores, computed for a part at a time."""

        def part(cursor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            keys, values, cursor = table.export_part(cursor, _PART)
            cursor = tf.ensure_shape(cursor, [3])
            keys = tf.ensure_shape(keys, [None])
            score = _sortable(self.score(keys, tf.ensure_shape(values, [None, table.dim])))
            check = tf.debugging.assert_equal(
                tf.size(score),
                tf.size(keys),
                f"{type(self).__name__}.score must give a number for each key",
            )
            with tf.control_dependencies([] if check is None else [check]):
                return keys, tf.identity(score), cursor

        def array(first: tf.Tensor) -> tf.TensorArray:
            empty = tf.TensorArray(first.dtype, 0, dynamic_size=True, infer_shape=False)
            return empty.write(0, first)

        def step(i: tf.Tensor, cursor: tf.Tensor, keys: Any, scores: Any) -> tuple[Any, ...]:
            more_keys, more_scores, cursor = part(cursor)
            return i + 1, cursor, keys.write(i, more_keys), scores.write(i, more_scores)

        first_keys, first_scores, cursor = part(tf.constant(FIRST_PART, tf.int64))
        _, _, keys, scores = tf.while_loop(
            lambda i, cursor, keys, scores: tf.equal(cursor[2], 0),
            step,
            (tf.constant(1), cursor, array(first_keys), array(first_scores)),
            parallel_iterations=1,
        )
        return keys.concat(), scores.concat()

    @property
    def status(self) -> Any:
        """What the policy knows of the keys, or None."""
        return None

    def get_config(self) -> dict[str, Any]:
        """Returns an empty config, which Keras needs to save a policy with a layer."""
        return {}


class _EnginePolicy(RestrictPolicy):
    """Ranks keys by their metadata, which the engine updates with every write.

    If the Variable was made without such a policy, its keys get metadata when the policy is made:
    see `Variable.keep_metadata`.
    """

    kept_by_engine = True
    ranking = ""

    def __init__(self, var: RestrictedVariable) -> None:
        super().__init__(var)
        if not var.keeps_metadata:
            var.keep_metadata()

    def apply_update(self, ids: Any) -> Any:
        """Records that keys were seen. Optimizer steps do so by themselves.

        Args:
            ids: A tensor of keys. Equal keys count once. Missing keys that admission lets in get
                their initial row.

        Returns:
            An operation to update the status.
        """
        return self.var.touch(ids)

    def _restrict_table(self, table: HashTable, keep: int) -> tf.Tensor:
        return table.keep_best(keep, self.ranking)


class TimestampRestrictPolicy(_EnginePolicy):
    """Keeps the keys that were updated last.

    Times are in seconds. Among keys updated in the same second, those updated more often stay.
    Training updates the times, and checkpoints save them with the rows.

    Example:
    >>> de = tfra.dynamic_embedding
    >>> variable = de.Variable(dim=1, restrict_policy=de.TimestampRestrictPolicy)
    >>> for second in (1, 2, 3):
    ...     variable.set_clock(second)
    ...     variable.upsert([second], [[0.0]])
    >>> int(variable.restrict(1))
    2
    >>> variable.export()[0].numpy().tolist()
    [3]

    Args:
        var: The `Variable` to restrict.
    """

    ranking = "newest"

    @property
    def status(self) -> PolicyStatus:
        """The time of each key's last update, in seconds since 1970."""
        return PolicyStatus(self.var, "timestamp", 0)

    tstp_var = status


class FrequencyRestrictPolicy(_EnginePolicy):
    """Keeps the keys that were updated most often.

    An optimizer step counts once for each key of its batch. Among keys with the same count, those
    updated last stay. Training updates the counts, and checkpoints save them with the rows.

    Args:
        var: The `Variable` to restrict.
    """

    ranking = "most_frequent"

    @property
    def status(self) -> PolicyStatus:
        """The number of updates of each key."""
        return PolicyStatus(self.var, "frequency", 1)

    freq_var = status


class PolicyStatus:
    """The times or the counts of a Variable's metadata, readable like a Variable of dim 1.

    Args:
        var: The `Variable`.
        what: The name of the status.
        column: 0 for the times of the last writes, 1 for the counts of writes.
    """

    dim = 1
    value_dtype = tf.int32

    def __init__(self, var: RestrictedVariable, what: str, column: int) -> None:
        self._var = var
        self._column = column
        self.key_dtype = var.key_dtype
        self.name = f"{var.name}/{what}"

    def size(self, index: int | None = None) -> tf.Tensor:
        """Returns the number of keys."""
        return self._var.size(index)

    def lookup(self, keys: Any, return_exists: bool = False) -> Any:
        """Returns the times or counts of keys; 0 for missing keys.

        Args:
            keys: Keys of any shape.
            return_exists: if True, returns an additional Tensor which tells which keys exist.

        Returns:
            An int32 tensor `keys.shape + [1]`; with `return_exists` a pair.
        """
        keys = arguments.keys_tensor(keys, self.key_dtype)
        metadata = self._var.lookup_metadata(keys)
        numbers = tf.cast(tf.minimum(metadata[self._column], tf.int32.max), tf.int32)[
            ..., tf.newaxis
        ]
        return (numbers, metadata[2]) if return_exists else numbers

    def export(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all keys and their times or counts, `[n]` and `[n, 1]`."""
        content = content_of(self._var.tables)
        numbers = content["metadata"][:, self._column :][:, :1]
        # The content holds uint32 numbers as int32: those above its maximum are negative.
        return content["keys"], tf.where(numbers < 0, tf.int32.max, numbers)


def restrict_numbers(num_reserved: Any, kwargs: dict[str, Any]) -> tuple[int, int]:
    """Returns the number of keys to keep, and the number above which keys are removed."""
    unknown = set(kwargs) - {"trigger"}
    if unknown:
        raise TypeError(f"`restrict` takes `trigger`. Received: {sorted(unknown)}")
    trigger = kwargs.get("trigger")
    keep = arrays.integer(num_reserved, "num_reserved", 0)
    return keep, keep if trigger is None else arrays.integer(trigger, "trigger", 0)


def _sortable(scores: Any) -> tf.Tensor:
    """Converts scores to int64, or to float64 without NaN, in the same order."""
    scores = tf.reshape(tf.convert_to_tensor(scores), [-1])
    if scores.dtype == tf.uint64:
        # Subtracting 2**63 maps the range of uint64 to that of int64, in the same order.
        return tf.bitcast(scores - tf.constant(2**63, tf.uint64), tf.int64)
    if scores.dtype.is_integer or scores.dtype.is_bool:
        return tf.cast(scores, tf.int64)
    scores = tf.cast(scores, tf.float64)
    return tf.where(tf.math.is_nan(scores), tf.constant(-np.inf, tf.float64), scores)


def _shares(keep: int, tables: int) -> list[int]:
    """Returns the number of keys that each table keeps."""
    return [keep // tables + (i < keep % tables) for i in range(tables)]


def needs_metadata(restrict_policy: Any) -> bool:
    """Whether a policy needs metadata: the time of the last write and the count of writes."""
    return bool(getattr(restrict_policy, "kept_by_engine", False))


def make_policy(restrict_policy: Any, variable: RestrictedVariable) -> Any:
    """Makes the policy of a Variable from the argument `restrict_policy`.

    Raises:
        TypeError: If the argument is not a class of policies.
    """
    if restrict_policy is None:
        return None
    methods = ("apply_update", "apply_restriction", "status")
    if not callable(restrict_policy) or not all(hasattr(restrict_policy, m) for m in methods):
        raise TypeError(
            "`restrict_policy` must be a subclass of RestrictPolicy, such as "
            f"TimestampRestrictPolicy. Received: {restrict_policy!r}"
        )
    return restrict_policy(variable)
