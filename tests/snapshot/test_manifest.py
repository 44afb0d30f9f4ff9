"""The manifest of a snapshot: what is written is read, and nothing else is."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

import tfra
from tfra._snapshot.manifest import NAME, Base, Manifest, Part, SavedTable

TABLE = SavedTable(
    name="items",
    spec=tfra.Table(dim=4, optimizer="adam", metadata=True).spec.to_json(),
    slots=(("momentum", 4), ("velocity", 4)),
    columns=("keys", "values", "slots", "metadata"),
    rows=30,
    removed=2,
    state={"step": 7, "clock": 17},
    parts=(Part(0, 8192, 2, 10), Part(3, 12288, 3, 20)),
)
OTHER = SavedTable(
    "\u00fcsers", tfra.TableSpec(dim=1).to_json(), (), ("keys", "values"), 0, 0, {}, ()
)
FULL = Manifest(id=5, tables=(TABLE, OTHER), user='{"position": 7}')
DELTA = Manifest(id=2**64 - 1, tables=(TABLE,), base=Base(5, "../full"))


def signed(text: bytes) -> bytes:
    return text + f"{google_crc32c.value(text):08x}\n".encode()


@pytest.mark.parametrize("manifest", [FULL, DELTA, Manifest(0, ())], ids=["full", "delta", "none"])
def test_manifests_come_back(manifest: Manifest, tmp_path: Path) -> None:
    manifest.write(tmp_path)
    read = Manifest.read(tmp_path)
    assert (read.id, read.base, read.user) == (manifest.id, manifest.base, manifest.user)
    for found, expected in zip(read.tables, manifest.tables, strict=True):
        assert tfra.TableSpec.from_json(found.spec) == tfra.TableSpec.from_json(expected.spec)
        for name in ("name", "slots", "columns", "rows", "removed", "state", "parts"):
            assert getattr(found, name) == getattr(expected, name)
    assert read.to_bytes() == Manifest.from_bytes(read.to_bytes()).to_bytes()
    with pytest.raises(FileExistsError):
        manifest.write(tmp_path)


def test_the_file_is_that_of_the_page(tmp_path: Path) -> None:
    lines = FULL.to_bytes().splitlines(keepends=True)
    text = b"".join(lines[:-1])
    assert int(lines[-1], 16) == google_crc32c.value(text)
    content = json.loads(text)
    assert (content["format"], content["version"], content["id"]) == (
        "tfra-snapshot",
        1,
        f"{5:016x}",
    )
    assert content["tables"][0]["parts"][1]["file"] == "part-00003"


def test_every_byte_counts(tmp_path: Path) -> None:
    good = FULL.to_bytes()
    for at in range(len(good)):
        for changed in (
            good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :],
            good[:at],
            good[:at] + good[at + 1 :],
        ):
            with pytest.raises(ValueError, match="checksum"):
                Manifest.from_bytes(changed)


CHANGES: dict[str, Any] = {
    "no field": lambda m: m.pop("tables"),
    "another field": lambda m: m.update(more=1),
    "format": lambda m: m.update(format="other"),
    "version": lambda m: m.update(version=2),
    "version of a bool": lambda m: m.update(version=True),
    "id": lambda m: m.update(id="5"),
    "id of capitals": lambda m: m.update(id="000000000000000A"),
    "base": lambda m: m.update(base=[]),
    "base without id": lambda m: m.update(base={"path": "x"}),
    "absolute base": lambda m: m.update(base={"id": "0" * 16, "path": "/etc"}),
    "user": lambda m: m.update(user={}),
    "tables": lambda m: m.update(tables={}),
    "a table": lambda m: m["tables"].append(7),
    "a table twice": lambda m: m["tables"].append(m["tables"][1]),
    "spec": lambda m: m["tables"][0]["spec"].update(dim=0.5),
    "spec with more": lambda m: m["tables"][0]["spec"].update(more=1),
    "columns": lambda m: m["tables"][0].update(columns=["values", "keys"]),
    "unknown column": lambda m: m["tables"][0].update(columns=["keys", "values", "more"]),
    "rows": lambda m: m["tables"][0].update(rows=31),
    "negative rows": lambda m: m["tables"][0].update(rows=-1),
    "removed": lambda m: m["tables"][0].update(removed=2**63),
    "state": lambda m: m["tables"][0].update(state={"more": 1}),
    "a number of the state": lambda m: m["tables"][0].update(state={"step": "1"}),
    "slots": lambda m: m["tables"][0].update(slots=[["m"]]),
    "a file elsewhere": lambda m: m["tables"][0]["parts"][0].update(file="../part-00000"),
    "a file twice": lambda m: m["tables"][0]["parts"][0].update(file="part-00003"),
    "bytes": lambda m: m["tables"][0]["parts"][0].update(bytes=1.5),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_wrong_is_refused_by_name(name: str, tmp_path: Path) -> None:
    content = json.loads(FULL.to_bytes()[:-9])
    CHANGES[name](content)
    (tmp_path / NAME).write_bytes(signed(json.dumps(content).encode()))
    with pytest.raises(ValueError, match=r"manifest\.json: ") as caught:
        Manifest.read(tmp_path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"7", b"[" * 100_000, b'{"format": NaN}', b'{"a": 1, "a": 1}', b"\xff"],
)
def test_other_texts_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        Manifest.from_bytes(signed(text))


def test_manifests_of_strangers_raise_nothing_else() -> None:
    rng = random.Random(5)
    values: list[Any] = [None, True, -1, 2**70, 0.5, "", "part-00000", [], {}, [[]], {"a": 1}]
    good = json.loads(FULL.to_bytes()[:-9])
    refused = 0
    for _ in range(2000):
        content = copy.deepcopy(good)
        place: Any = content
        while True:
            if isinstance(place, dict) and place:
                key: Any = rng.choice(list(place))
            elif isinstance(place, list) and place:
                key = rng.randrange(len(place))
            else:
                break
            if rng.random() < 0.4:
                place[key] = copy.deepcopy(rng.choice(values))
                break
            place = place[key]
        try:
            Manifest.from_bytes(signed(json.dumps(content).encode()))
        except ValueError:
            refused += 1
    assert refused > 500
