"""Files of snapshots, against a reader of NumPy that knows only docs/snapshot-format.md."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import google_crc32c
import ml_dtypes
import numpy as np
import pytest
from part_reader import Columns, blocks

import tfra
from tfra import _native

PAGE = Path(__file__).parents[2] / "docs" / "snapshot-format.md"
ID, PART = 0xFEDCBA9876543210, 3
DTYPES = {
    "bfloat16": ml_dtypes.bfloat16,
    "string": None,
    **{name: np.dtype(name) for name in ("float16", "float32", "float64", "int8", "int64", "bool")},
}


def write(table: tfra.Table, path: Path) -> tuple[dict[str, Any], Any, Any]:
    spec, figures, numbers = _native.write_part(table.handle, os.fsencode(path), ID, PART)
    assert figures[0] == path.stat().st_size
    return json.loads(spec), figures, numbers


def read(path: Path, spec: dict[str, Any], slots: int) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """The rows by key, each as a list of its columns, and the waiting keys."""
    rows: dict[Any, Any] = {}
    waiting: dict[Any, Any] = {}
    for kind, n, data in blocks(path.read_bytes(), ID, PART):
        columns = Columns(data)
        if kind not in ("rows", "waiting"):
            continue
        keys = columns.keys(spec, n)
        if kind == "waiting":
            waiting.update(zip(keys, columns.take("<u4", n, 2).tolist(), strict=True))
            continue
        found = [np.reshape(columns.values(spec, n, DTYPES[spec["value_type"]]), (n, -1))]
        if slots:
            found.append(columns.take("f8" if spec["value_type"] == "float64" else "f4", n, slots))
        if spec["metadata"]:
            found.append(columns.take("<u4", n, 2))
        if "bound" in spec:
            found.append(columns.take("<u8", n))
        assert not columns.left
        for i, key in enumerate(keys):
            assert key not in rows
            rows[key] = [column[i].tolist() for column in found]
    return rows, waiting


@pytest.mark.parametrize("key_dtype", ["int64", "string"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 9000])
def test_every_row_is_in_the_file(key_dtype: str, dtype: str, n: int, tmp_path: Path) -> None:
    keys: Any = [f"k{i}" for i in range(n)] if key_dtype == "string" else np.arange(n)
    numbers = np.arange(3 * n).reshape(n, 3) % 100
    values: Any = numbers.astype(DTYPES[dtype]) if DTYPES[dtype] else numbers.astype(str)
    table = tfra.Table(dim=3, key_dtype=key_dtype, value_dtype=dtype)
    table.upsert(keys, values)
    spec, figures, _ = write(table, tmp_path / "part")
    rows, _ = read(tmp_path / "part", spec, 0)
    assert len(rows) == figures[2] == n
    for key, value in zip(keys, values, strict=True):
        expected = [v.encode() for v in value] if dtype == "string" else value.tolist()
        assert rows[key.encode() if key_dtype == "string" else key] == [expected]


def test_every_column_is_in_the_file(tmp_path: Path) -> None:
    table = tfra.Table(
        dim=2, optimizer="adam", metadata=True, max_capacity=100, evict_strategy="lfu",
        admission=tfra.admission.MinCount(2),
    )  # fmt: skip
    table.clock = 5
    for _ in range(2):
        table.apply_gradients(np.arange(20), np.ones((20, 2), np.float32))
    table.apply_gradients(np.arange(50, 60), np.ones((10, 2), np.float32))
    spec, _, numbers = write(table, tmp_path / "part")
    rows, waiting = read(tmp_path / "part", spec, 4)
    assert numbers[2] == table.step == 3
    assert waiting == {key: [5, 1] for key in range(50, 60)}
    values, slots = table.lookup_with_slots(np.arange(20))
    slots = np.concatenate(list(slots.values()), axis=1)
    for key in range(20):
        assert rows[key][0] == values[key].tolist()
        assert rows[key][1] == slots[key].tolist()
        assert rows[key][2][0] == 5
    assert len(rows) == 20


@pytest.mark.parametrize("key_dtype", ["int64", "string"])
def test_a_table_comes_back(key_dtype: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"dim": 4, "key_dtype": key_dtype, "optimizer": "adam"}
    table, other = tfra.Table(**options), tfra.Table(**options)
    keys: Any = np.arange(5000) if key_dtype == "int64" else [str(i) for i in range(5000)]
    gradients = np.random.default_rng(0).normal(size=(5000, 4)).astype(np.float32)
    table.apply_gradients(keys, gradients)
    other.upsert(keys[:10], np.zeros((10, 4), np.float32))
    spec, figures, numbers = write(table, tmp_path / "part")
    path = os.fsencode(tmp_path / "part")
    again = _native.replace_by_part(other.handle, path, ID, PART, json.dumps(spec), *numbers)
    assert again == figures
    for each in (table, other):
        each.apply_gradients(keys, gradients)
    np.testing.assert_array_equal(other.lookup(keys), table.lookup(keys))
    with pytest.raises(ValueError, match=r"part: block 0 belongs to another snapshot"):
        _native.replace_by_part(other.handle, path, 1, PART, json.dumps(spec), *numbers)
    with pytest.raises(OSError, match="could not create"):
        write(table, tmp_path / "part")
    with pytest.raises(OSError, match="could not open"):
        _native.replace_by_part(
            other.handle, os.fsencode(tmp_path), ID, PART, json.dumps(spec), *numbers
        )
    np.testing.assert_array_equal(other.lookup(keys), table.lookup(keys))


def test_the_checksum_is_that_of_others() -> None:
    assert _native.crc32c(b"123456789") == 0xE3069283
    assert "0xE3069283" in PAGE.read_text()
    data = np.random.default_rng(1).bytes(100_000)
    for size in (0, 1, 7, 8, 63, 1000, 4031, 4032, 4033, 100_000):
        assert _native.crc32c(data[:size]) == google_crc32c.value(data[:size])
        assert _native.crc32c(data[size:], _native.crc32c(data[:size])) == google_crc32c.value(data)


def test_the_reader_is_as_short_as_the_page_says() -> None:
    lines = (Path(__file__).parent / "part_reader.py").read_text().splitlines()
    [said] = re.findall(r"a reader of (\d+) lines of NumPy", PAGE.read_text())
    assert len([line for line in lines if line.strip()]) <= int(said)
