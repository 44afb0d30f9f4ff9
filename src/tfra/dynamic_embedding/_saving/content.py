"""The content stream of tables (`tfra/content.h`) as tensors: for `export` and for checkpoints.

A `Content` has one tensor for each column. `content_of` reads it from tables, and `restore_tables`
writes it to any number of them. Tables in a `tfra.Store` give and take the columns of their rows.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.tf import AutoTrackable, TensorToSave, ops, tf

# By name: see `content_types`.
Content = dict[str, tf.Tensor]


class SavedTable(Protocol):
    """What the functions of this module ask of a table."""

    owner: Any

    @property
    def name(self) -> str:
        """The name of the table."""

    @property
    def key_dtype(self) -> tf.DType:
        """The type of the keys."""

    @property
    def value_dtype(self) -> tf.DType:
        """The type of the values."""

    @property
    def dim(self) -> int:
        """The length of a row."""

    @property
    def resource_handle(self) -> tf.Tensor:
        """The handle that ops take."""

    def creators(self) -> list[Any]:
        """Returns the ops that must have run before another finds the table made."""

    def create_at(self, handle: tf.Tensor) -> Any:
        """Makes the table, unless it is there, behind this handle."""

    def scores_of_new_keys(self, keys: tf.Tensor) -> list[tf.Tensor]:
        """Returns the scores that a function of the user gives to new keys: one tensor, or none."""

    def stored_content(self, tables: Sequence[Any]) -> Content | None:
        """Returns the keys, values, slots, metadata and rule of tables whose rows are in stores.

        The rule is a scalar. None: the rows are in the engine's tables.
        """

    def table_to_restore(self) -> SavedTable:
        """Returns the table of the engine that restored rows go to.

        The table itself, or another one, from which `take_restored_rows` takes them.
        """

    def take_restored_rows(self, tables: Sequence[Any], restored: Sequence[Any]) -> Any:
        """Moves the rows of other tables to those that `table_to_restore` returned them for.

        All tables change, or none.
        """


# Where an export by parts begins: see `HashTable.export_part`.
FIRST_PART = (0, 0, 0)


def export_tables(
    tables: Sequence[SavedTable], name: str | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns all keys and rows of some tables of one kind, one table after the other."""
    stored = tables[0].stored_content(tables)
    if stored is not None:
        return stored["keys"], stored["values"]
    parts = []
    for group in _by_device(tables):
        parts.append(_op_on(ops.tfra_export, group, name, Tv=tables[0].value_dtype))
    keys = _concat([part.keys for part in parts])
    values = _concat([part.values for part in parts])
    return tf.ensure_shape(keys, [None]), tf.ensure_shape(values, [None, tables[0].dim])


def content_types(key_dtype: tf.DType, value_dtype: tf.DType) -> dict[str, tf.DType]:
    """Returns the names and dtypes of what `content_of` returns, for tables of these types.

    There is one element or row of `keys`, `values`, `slots`, `metadata` (the time of the last write
    and the number of writes) and `scores` for each key. What the tables lack is empty. `rule` is
    the JSON form of the TableSpec and `epoch` the epoch and the number of steps, once for each
    device. The last three are the keys that wait to enter, when and how often each was seen, and
    the state of a filter.
    """
    return {
        "keys": key_dtype,
        "values": value_dtype,
        "slots": arguments.compute_dtype(value_dtype),
        "metadata": tf.int32,
        "scores": tf.int64,
        "rule": tf.string,
        "epoch": tf.int64,
        "waiting_keys": key_dtype,
        "waiting_seen": tf.int32,
        "waiting_filter": tf.int8,
    }


def content_of(tables: Sequence[SavedTable]) -> Content:
    """Returns all that is saved of some tables of one kind, one table after the other."""
    types = {
        "Tv": tables[0].value_dtype,
        "Ts": arguments.compute_dtype(tables[0].value_dtype),
    }
    parts = [_op_on(ops.tfra_content, group, None, **types) for group in _by_device(tables)]
    names = content_types(tables[0].key_dtype, tables[0].value_dtype)
    content = {name: _concat([getattr(part, name) for part in parts]) for name in names}
    stored = tables[0].stored_content(tables)
    if stored is None:
        return content
    # One text for each device, and all of them the rule that the rows of the stores have.
    return {**content, **stored, "rule": tf.fill(tf.shape(content["rule"]), stored["rule"])}


def content_when_written(
    tables: Sequence[SavedTable], content: Callable[[], Content], types: dict[str, tf.DType]
) -> dict[str, Any]:
    """Returns what a checkpoint takes for the tensors of `content()`, which it calls to write them.

    TensorFlow asks what would be saved before it restores, too: then the tables are not copied.

    Args:
        tables: Whose content it is.
        content: Returns the tensors, by name.
        types: The names and dtypes of what it returns.
    """
    if not tf.executing_eagerly():
        return content()
    groups = _by_device(tables)
    device = groups[0][0].resource_handle.device if len(groups) == 1 else tf.zeros([]).device
    taken = _Taken(content)
    return {
        name: TensorToSave(functools.partial(taken.tensor, name), dtype, device)
        for name, dtype in types.items()
    }


class _Taken:
    """Content of one moment, taken when the first of its tensors is asked for."""

    def __init__(self, content: Callable[[], Content]) -> None:
        self._content = content
        self._by_graph: dict[Any, Content] = {}

    def tensor(self, name: str) -> tf.Tensor:
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if graph not in self._by_graph:
            with tf.device(None):
                self._by_graph[graph] = self._content()
        return self._by_graph[graph][name]


class KeptContent(AutoTrackable):  # type: ignore[misc]
    """Stands for a table or a Variable while a checkpoint is written beside the program.

    Such a checkpoint copies all objects at one time, and writes the copies at another.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Any] = self._no_dependency({})

    def keep(self, content: Content) -> None:
        """Takes the place of what was kept before."""
        for name, tensor in content.items():
            if name in self._kept:
                self._kept[name].assign(tensor)
            else:
                shape = tf.TensorShape(None)
                self._kept[name] = tf.Variable(tensor, trainable=False, shape=shape)

    def _serialize_to_tensors(self) -> dict[str, Any]:
        return {
            name: TensorToSave(variable.read_value, variable.dtype, variable.device)
            for name, variable in self._kept.items()
        }


def keep_content(original: Any, object_map: Any, content: Content) -> None:
    """Lets TensorFlow write this content of an object, whatever happens to it meanwhile."""
    if original not in object_map:
        object_map[original] = KeptContent()
    object_map[original].keep(content)


@dataclasses.dataclass(frozen=True)
class Replacement:
    """A content that shall take the place of what is in some tables of one kind.

    Args:
        tables: The tables.
        content: Tensors as `content_of` makes them, for any number of tables.
        indices: For each key the index of its table, if there are several.
        waiting_indices: Like `indices`, for the keys that wait to enter.
    """

    tables: Sequence[SavedTable]
    content: Content
    indices: Any = ()
    waiting_indices: Any = ()

    def fields(self) -> dict[str, Any]:
        """Returns what the op takes."""
        first = self.tables[0]
        no_numbers = tf.zeros([0], tf.int64)
        return {
            # Checkpoints that were written before there were scores, or sums of gradients.
            "scores": no_numbers,
            "epoch": no_numbers,
            "sum_keys": tf.constant([], first.key_dtype),
            "sums": tf.zeros([0, first.dim], arguments.compute_dtype(first.value_dtype)),
            **self.content,
            "partitions": tf.convert_to_tensor(self.indices, tf.int32),
            "waiting_partitions": tf.convert_to_tensor(self.waiting_indices, tf.int32),
        }


def content_of_rows(table: SavedTable, keys: tf.Tensor, values: tf.Tensor) -> Content:
    """Returns a content of keys, of which each occurs once, and their values.

    In a bounded table, keys get the scores that the function of the table gives to new keys.
    """
    n = tf.size(keys)
    types = content_types(table.key_dtype, table.value_dtype)
    scores = table.scores_of_new_keys(keys)
    return {
        **({"scores": scores[0]} if scores else {}),
        "keys": keys,
        "values": values,
        "slots": tf.zeros([n, 0], types["slots"]),
        "metadata": tf.zeros([n, 0], types["metadata"]),
        "rule": tf.constant(["none"]),
        "waiting_keys": tf.constant([], types["waiting_keys"]),
        "waiting_seen": tf.zeros([0, 2], types["waiting_seen"]),
        "waiting_filter": tf.zeros([0], types["waiting_filter"]),
    }


def last_of_equal_keys(keys: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns each key once, as a vector, with the last of its rows."""
    keys = tf.reverse(tf.reshape(keys, [-1]), [0])
    values = tf.reverse(tf.reshape(values, [tf.size(keys), -1]), [0])
    unique, index = tf.unique(keys)
    first = tf.math.unsorted_segment_min(tf.range(tf.size(keys)), index, tf.size(unique))
    return unique, tf.gather(values, first)


_in_place = contextvars.ContextVar("in_place", default=False)


@contextlib.contextmanager
def restore_in_place() -> Iterator[None]:
    """Restores tables without room for two contents: the present rows are removed first.

    Every restore fills a new table first, which then takes the place of the present one. So if it
    fails, the present rows stay; but both are in memory for a while. Inside of this context, the
    present rows are removed before those of the checkpoint come: if such a restore fails half-way,
    the table has only a part of them, and has to be restored again. In graphs, the context counts
    where the ops are made: around `tf.compat.v1.train.Saver(...)`.

    Example:
    >>> import tempfile
    >>> de = tfra.dynamic_embedding
    >>> variable = de.Variable(dim=2)
    >>> variable.upsert([7], [[1.0, 2.0]])
    >>> path = tf.train.Checkpoint(variable=variable).save(f"{tempfile.mkdtemp()}/checkpoint")
    >>> with de.restore_in_place():
    ...     status = tf.train.Checkpoint(variable=variable).restore(path)
    >>> variable.lookup([7]).numpy().tolist()
    [[1.0, 2.0]]
    """
    token = _in_place.set(True)
    try:
        yield
    finally:
        _in_place.reset(token)


# Eager restores take turns: a table keeps one new content at a time.
_restoring = threading.RLock()


def _let_child_restore() -> None:
    """A restore of another thread does not go on in the child of a fork."""
    global _restoring
    _restoring = threading.RLock()


os.register_at_fork(after_in_child=_let_child_restore)


def restore_tables(*replacements: Replacement) -> Any:
    """Replaces what is in some tables, all or nothing, and returns the op that does.

    All contents are checked, and brought into new tables, before the first table changes. See
    `restore_in_place` for the other way, which checks all of the content first, too.
    """
    for each in replacements:
        _require_length(each.content, each.tables[0])
    if not tf.executing_eagerly():
        return tf.group(*_restored(replacements))
    with _restoring:
        _restored(replacements)
    return None


def _restored(replacements: Sequence[Replacement]) -> list[Any]:
    """Replaces what is in some tables: returns the ops, none if they have run."""
    in_place = _in_place.get()
    filled: list[SavedTable] = []
    done: list[Any] = []
    try:
        moves = []
        for each in replacements:
            fields = each.fields()
            takers = [table.table_to_restore() for table in each.tables]
            if takers[0] is not each.tables[0]:
                done += _fill(takers, fields, in_place=True)
                moves.append((each.tables, takers))
                # The rest of the content: the rule, the steps, and that no optimizer is bound.
                rows = ("keys", "values", "slots", "metadata", "scores", "partitions")
                fields = {**fields, **{name: fields[name][:0] for name in rows}}
            filled += each.tables
            with tf.control_dependencies(done):
                done += _fill(each.tables, fields, in_place)
        for tables, takers in moves:
            with tf.control_dependencies(done):
                taken = tables[0].take_restored_rows(tables, takers)
            done += [] if tf.executing_eagerly() else [taken]
        return done if in_place else _commit(filled, done)
    except BaseException:
        if tf.executing_eagerly():
            _commit(filled, [], drop=True)
        raise


def _fill(tables: Sequence[SavedTable], fields: dict[str, Any], in_place: bool) -> list[Any]:
    """Fills a new table of the engine beside each table, or the tables: returns the ops."""
    filled, done = [], 0
    for group in _by_device(tables):
        handles = [table.resource_handle for table in group]
        # SavedModel's loader for TF1 restores before it initializes.
        created = [table.create_at(table.resource_handle) for table in group]
        with tf.control_dependencies([each for each in created if each is not None]):
            op = ops.tfra_restore(
                handles,
                **fields,
                first_partition=done,
                partition_count=len(tables),
                in_place=in_place,
            )
        filled.append(op)
        done += len(group)
    return [op for op in filled if op is not None]


def _commit(tables: Sequence[SavedTable], filled: list[Any], drop: bool = False) -> list[Any]:
    """Puts the filled tables in the places of the others, or drops them: returns the ops.

    All tables of a process change in one op, which Ctrl-C can't interrupt.
    """
    committed = []
    for device, group in _by_process(tables).items():
        handles = _handles(group, filled)
        with _on(device):
            committed.append(ops.tfra_commit_restore(tf.stack(handles), drop=drop))
    if tf.executing_eagerly():
        return []
    # A function orders ops by the resources that they take: later ones wait for these.
    return _handles(tables, committed)


@contextlib.contextmanager
def _on(device: str) -> Iterator[None]:
    """Places ops on a device, whatever else is said around them."""
    if tf.executing_eagerly() and device == _THIS_CPU:
        yield  # They run there anyway, and TensorFlow's scopes break if Ctrl-C comes at their ends.
        return
    with tf.device(None), tf.device(device):
        yield


_THIS_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


def _handles(tables: Sequence[SavedTable], after: list[Any]) -> list[tf.Tensor]:
    """Returns the numbers by which processes know the tables, when other ops have run."""
    with tf.control_dependencies(after):
        return [ops.tfra_table_handle(table.resource_handle) for table in tables]


def _require_length(content: Content, table: SavedTable) -> None:
    """Raises ValueError if saved rows are of another length. Where it is unknown, the op does."""
    saved = content["values"].shape
    if saved.rank == 2 and saved[1] not in (None, table.dim):
        owner = None if table.owner is None else table.owner()
        raise ValueError(
            f"{(owner or table).name!r} has rows of length {table.dim}. Received: a checkpoint "
            f"with rows of length {saved[1]}. Restore it into one of that length: `dim`, or "
            "`embedding_size` of a layer."
        )


def _op_on(op: Any, tables: Sequence[SavedTable], name: str | None, **attributes: Any) -> Any:
    """Runs an op on tables that are on one device."""
    first = tables[0]
    creators = [creator for table in tables for creator in table.creators()]
    with tf.control_dependencies(creators):
        return op([t.resource_handle for t in tables], Tk=first.key_dtype, name=name, **attributes)


def _by_device(tables: Sequence[SavedTable]) -> list[list[SavedTable]]:
    """Groups consecutive tables that are on the same device."""
    groups: list[list[SavedTable]] = []
    for table in tables:
        device = table.resource_handle.device
        if groups and groups[-1][0].resource_handle.device == device:
            groups[-1].append(table)
        else:
            groups.append([table])
    return groups


def _by_process(tables: Sequence[SavedTable]) -> dict[str, list[SavedTable]]:
    """Groups tables by the CPU of the process that they are in."""
    groups: dict[str, list[SavedTable]] = {}
    for table in tables:
        device = tf.DeviceSpec.from_string(table.resource_handle.device)
        cpu = device.replace(device_type="CPU", device_index=0).to_string()
        groups.setdefault(cpu, []).append(table)
    return groups


def _concat(tensors: list[tf.Tensor]) -> tf.Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis=0)
