"""The manifest of a snapshot: what it is of, and its parts. See `docs/snapshot-format.md`."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfra import _native
from tfra._snapshot.folder import write_file

NAME = "manifest.json"
FORMAT, VERSION = "tfra-snapshot", 1
COLUMNS = ("keys", "values", "slots", "metadata", "scores")
STATE = ("step", "epoch", "epoch_steps", "clock")

_MOST_BYTES = 1 << 28
_MOST = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Part:
    """A file of a snapshot, with the figures that a reader compares."""

    number: int
    bytes: int
    blocks: int
    rows: int

    @property
    def file(self) -> str:
        """The name of the file."""
        return part_file(self.number)


@dataclasses.dataclass(frozen=True)
class SavedTable:
    """A table of a snapshot.

    Args:
        name: Its name in the snapshot.
        spec: The TableSpec as JSON.
        slots: Name and elements of each slot of a row.
        columns: The columns of its rows, of `COLUMNS`.
        rows: How many rows there are in all parts.
        removed: How many removed keys there are.
        state: Numbers of the table, of `STATE`.
        parts: The files.
    """

    name: str
    spec: str
    slots: tuple[tuple[str, int], ...]
    columns: tuple[str, ...]
    rows: int
    removed: int
    state: dict[str, int]
    parts: tuple[Part, ...]


@dataclasses.dataclass(frozen=True)
class Base:
    """The snapshot that another one depends on.

    Args:
        id: Its id.
        path: Its path, relative to the folder that the other one is in.
    """

    id: int
    path: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a snapshot is of.

    Args:
        id: A number of 64 bits, chosen at random.
        tables: The tables.
        base: The snapshot that this one depends on; None: it is a full one.
        user: A text of the caller.
    """

    id: int
    tables: tuple[SavedTable, ...]
    base: Base | None = None
    user: str = ""

    def to_bytes(self) -> bytes:
        """Returns the content of the file."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "id": _hex(self.id),
            "base": self.base and {"id": _hex(self.base.id), "path": self.base.path},
            "user": self.user,
            "tables": [_json_of(table) for table in self.tables],
        }
        text = json.dumps(content, indent=1).encode() + b"\n"
        return text + f"{_native.crc32c(text):08x}\n".encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        """Returns the manifest that a file has.

        Raises:
            ValueError: If it is damaged, of a later version, or none.
        """
        text, checksum = content[:-9], content[-9:]
        if checksum != f"{_native.crc32c(text):08x}\n".encode():
            raise ValueError("expected a checksum that fits in the last line: the file is damaged")
        try:
            loaded = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
        except RecursionError:
            raise ValueError("expected a JSON object that is nested less deep") from None
        fields = _Fields(loaded, "the manifest")
        if fields.take("format", str) != FORMAT:
            raise ValueError(f"expected the format {FORMAT!r}, received {loaded['format']!r}")
        if fields.take("version", int) != VERSION:
            raise ValueError(f"expected version {VERSION}, received {loaded['version']}")
        base = fields.take("base", dict, type(None))
        manifest = cls(
            id=_id_of(fields.take("id", str)),
            base=None if base is None else _base_of(base),
            user=fields.take("user", str),
            tables=tuple(_table_of(each) for each in fields.take("tables", list)),
        )
        fields.finish()
        _require_distinct([table.name for table in manifest.tables], "names of tables")
        _require_distinct([part.file for t in manifest.tables for part in t.parts], "files")
        return manifest

    def write(self, folder: Path) -> None:
        """Writes the file of a snapshot, and brings it to the disk."""
        write_file(folder / NAME, self.to_bytes())

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Manifest:
        """Reads the file of a snapshot.

        Raises:
            OSError: If it can't be read.
            ValueError: If it is not a manifest. The message begins with the path.
        """
        path = Path(folder) / NAME
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        try:
            if len(content) > _MOST_BYTES:
                raise ValueError(f"expected at most {_MOST_BYTES} bytes")
            return cls.from_bytes(content)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def part_file(number: int) -> str:
    """Returns the name of a part."""
    return f"part-{number:05d}"


# --- To JSON.


def _hex(number: int) -> str:
    return f"{number:016x}"


def _json_of(table: SavedTable) -> dict[str, Any]:
    fields = {each.name: getattr(table, each.name) for each in dataclasses.fields(table)}
    parts = [
        {"file": part.file, "bytes": part.bytes, "blocks": part.blocks, "rows": part.rows}
        for part in table.parts
    ]
    return {**fields, "spec": json.loads(table.spec), "parts": parts}


# --- From JSON. Files come from strangers.


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _require_distinct([name for name, _ in pairs], "fields")
    return dict(pairs)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"expected JSON, received {name}")


def _require_distinct(names: list[str], what: str) -> None:
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise ValueError(f"expected different {what}, received {twice!r} twice")


class _Fields:
    """The fields of an object, each of which is taken once."""

    def __init__(self, found: Any, what: str) -> None:
        if not isinstance(found, dict):
            raise ValueError(f"{what}: expected a JSON object, received {_shown(found)}")
        self._left, self._what = dict(found), what

    def take(self, name: str, *types: type) -> Any:
        if name not in self._left:
            raise ValueError(f"{self._what}: expected the field {name!r}")
        found = self._left.pop(name)
        if type(found) not in types:  # A bool is no int.
            expected = " or ".join(each.__name__ for each in types)
            raise ValueError(
                f"{self._what}: `{name}`: expected {expected}, received {_shown(found)}"
            )
        return found

    def count(self, name: str) -> int:
        return _count(self.take(name, int), f"{self._what}: `{name}`")

    def list_of(self, name: str, convert: Callable[[Any], Any]) -> tuple[Any, ...]:
        return tuple(convert(each) for each in self.take(name, list))

    def finish(self) -> None:
        if self._left:
            raise ValueError(f"{self._what}: expected no field {next(iter(self._left))!r}")


def _shown(found: Any) -> str:
    text = repr(found)
    return text if len(text) <= 80 else text[:80] + "..."


def _count(number: Any, what: str) -> int:
    if type(number) is not int or not 0 <= number <= _MOST:
        raise ValueError(
            f"{what}: expected a number from 0 to 2**63 - 1, received {_shown(number)}"
        )
    return number


def _id_of(text: str) -> int:
    if re.fullmatch("[0-9a-f]{16}", text) is None:
        raise ValueError(f"`id`: expected 16 hexadecimal digits, received {_shown(text)}")
    return int(text, 16)


def _base_of(found: Any) -> Base:
    fields = _Fields(found, "`base`")
    base = Base(_id_of(fields.take("id", str)), fields.take("path", str))
    fields.finish()
    if not base.path or "\0" in base.path or os.path.isabs(base.path):
        raise ValueError(f"`base.path`: expected a relative path, received {_shown(base.path)}")
    return base


def _table_of(found: Any) -> SavedTable:
    fields = _Fields(found, "a table")
    columns = fields.list_of("columns", str)
    if columns != tuple(name for name in COLUMNS if name in columns) or columns[:2] != COLUMNS[:2]:
        raise ValueError(f"`columns`: expected some of {COLUMNS}, received {_shown(columns)}")
    state = fields.take("state", dict)
    table = SavedTable(
        name=fields.take("name", str),
        # Strict, and in the form that the engine prints.
        spec=_native.parse_spec(json.dumps(fields.take("spec", dict))),
        slots=fields.list_of("slots", _slot_of),
        columns=columns,
        rows=fields.count("rows"),
        removed=fields.count("removed"),
        state={name: _count(number, f"`state.{name}`") for name, number in state.items()},
        parts=fields.list_of("parts", _part_of),
    )
    fields.finish()
    if unknown := set(state) - set(STATE):
        raise ValueError(f"`state`: expected some of {STATE}, received {sorted(unknown)}")
    if sum(part.rows for part in table.parts) != table.rows:
        raise ValueError(f"{table.name!r}: expected {table.rows} rows in all parts together")
    return table


def _slot_of(found: Any) -> tuple[str, int]:
    if type(found) is not list or len(found) != 2 or type(found[0]) is not str:
        raise ValueError(f"`slots`: expected a name and a number, received {_shown(found)}")
    return found[0], _count(found[1], "`slots`")


def _part_of(found: Any) -> Part:
    fields = _Fields(found, "a part")
    name = fields.take("file", str)
    if re.fullmatch(r"part-[0-9]{5}", name) is None:
        raise ValueError(f"`file`: expected part- and five digits, received {_shown(name)}")
    part = Part(int(name[5:]), fields.count("bytes"), fields.count("blocks"), fields.count("rows"))
    fields.finish()
    return part
