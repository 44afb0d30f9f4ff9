"""Files of HkvHashTable that are damaged: the right rows, or ValueError and the table as it was."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hkv_support import Strategy, typed_table

import damage
from damage import Kind
from tfra.dynamic_embedding._saving.content import content_of

KINDS = [
    Kind("int64", "float32", rule="adam", bounded=True),
    Kind("int32", "bfloat16", 2, bounded=True),
    Kind("string", "string", 2, bounded=True),
    Kind("string", "float64", 1, rule="custom 61:row:0000000000000000 62:scalar:0000000000000000",
         bounded=True),
]  # fmt: skip
EACH = 1000 // len(KINDS)


def table_of(kind: Kind) -> Any:
    options = {"strategy": Strategy.EPOCHLFU, "max_capacity": 1000, "name": "table"}
    return typed_table(kind.key_dtype, kind.value_dtype, kind.dim, **options)


class Loading:
    """A table that loads files one after the other."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.table = table_of(kind)
        self.path = folder / "table.npz"
        self._before = damage.tensors(kind.columns(seed=2, n=4))
        self.table.restore_rows(damage.tensors(kind.columns(seed=1)))
        self.table.save(folder)
        with np.load(self.path) as file:
            self.arrays = dict(file)
        self.reset()
        self.before = self.state()

    def reset(self) -> None:
        self.table.restore_rows(self._before)

    def state(self) -> Any:
        return damage.state_of(content_of([self.table]), self.kind)

    def must_refuse(self, what: str, match: str = "table.npz") -> None:
        """Fails unless loading raises ValueError, and changes nothing."""
        with pytest.raises(ValueError, match=match):
            self.table.load(self.folder)
        assert self.state() == self.before, what

    def right_or_refused(self, what: str) -> None:
        """Fails unless loading gives what was saved, or raises ValueError and changes nothing.

        A zip has bytes that say nothing about its members, such as times.
        """
        try:
            self.table.load(self.folder)
        except ValueError:
            assert self.state() == self.before, what
            return
        expected = damage.state_of_columns(self.kind.columns(seed=1), self.kind)
        assert expected is not None
        damage.assert_holds(self.state(), expected, what)
        self.reset()

    def try_arrays(self, what: str, arrays: Any) -> bool:
        """Loads arrays, which must give what they say. Returns whether they were good."""
        np.savez(self.path, **arrays)
        types = ("key_dtype", "value_dtype", "dim")
        same = all(str(arrays.get(n)) == str(self.arrays[n]) for n in types)
        same = same and "scores" in arrays and "epoch" in arrays
        columns = damage.columns_of_arrays(arrays, self.kind) if same else None
        expected = None if columns is None else damage.state_of_columns(columns, self.kind)
        if expected is None:
            try:
                self.table.load(self.folder)
            except ValueError as error:
                assert "table.npz" in str(error), what
            else:
                pytest.fail(f"{what}: was loaded")
            assert self.state() == self.before, what
            return False
        self.table.load(self.folder)
        damage.assert_holds(self.state(), expected, what)
        self.reset()
        return True


@pytest.fixture(params=KINDS, ids=str)
def loading(request: pytest.FixtureRequest, tmp_path: Path) -> Loading:
    return Loading(request.param, tmp_path)


def test_a_thousand_damaged_files(loading: Loading) -> None:
    assert loading.try_arrays("whole", loading.arrays)
    good = [
        loading.try_arrays(what, arrays)
        for what, arrays in damage.damaged(loading.arrays, EACH, seed=3)
    ]
    assert 10 < sum(good) < EACH - 100  # Good and bad arrays were both tried.


@pytest.mark.parametrize("rule", damage.BAD_RULES, ids=lambda rule: rule[:40])
def test_texts_that_are_no_rule(rule: bytes, tmp_path: Path) -> None:
    loading = Loading(KINDS[0], tmp_path)
    arrays = {"rule_bytes": np.frombuffer(rule, np.uint8), "rule_lengths": np.array([len(rule)])}
    assert not loading.try_arrays(repr(rule[:40]), {**loading.arrays, **arrays})


def header(description: bytes, version: bytes = b"\x01\x00") -> bytes:
    size = struct.pack("<H" if version[:1] == b"\x01" else "<I", len(description))
    return b"\x93NUMPY" + version + size + description


def described(descr: bytes, shape: bytes) -> bytes:
    return header(b"{'descr': %s, 'fortran_order': False, 'shape': %s}\n" % (descr, shape))


BAD_MEMBERS = {
    "nothing": b"",
    "half a magic": b"\x93NUM",
    "no header": b"\x93NUMPY\x01\x00",
    "a short header": header(b"{'descr': '<i8'"),
    "no dict": header(b"import os\n"),
    "no syntax": header(b"{'descr': '<i8', 'fortran_order': False, 'shape': (7,\n"),
    "no unicode": header(b"\xff\xfe\xff\n", b"\x03\x00"),
    "another version": header(b"{}", b"\x09\x09"),
    "a type that is none": described(b"'<q9'", b"(7,)"),
    "a shape that is none": described(b"'<i8'", b"'x'"),
    "a negative length": described(b"'<i8'", b"(-7,)"),
    "10**12 elements": described(b"'<i8'", b"(%d,)" % 10**12),
    "10**30 elements": described(b"'<i8'", b"(%d,)" % 10**30),
    "a deep header": header(b"(" * 9000 + b"\n", b"\x02\x00"),
    "half an element": described(b"'<i8'", b"(1,)") + b"\0\0\0",
}


@pytest.mark.parametrize("name", ["keys", "dim", "scores"])
@pytest.mark.parametrize("member", BAD_MEMBERS)
def test_members_that_are_no_arrays(name: str, member: str, tmp_path: Path) -> None:
    loading = Loading(KINDS[0], tmp_path)
    with zipfile.ZipFile(loading.path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    members[f"{name}.npy"] = BAD_MEMBERS[member]
    with zipfile.ZipFile(loading.path, "w") as archive:
        for filename, data in members.items():
            archive.writestr(filename, data)
    loading.must_refuse(member, match=f"table.npz: .*`{name}`")


class Loud:
    """Records that it was unpickled."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("was unpickled",))


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    loading = Loading(KINDS[0], tmp_path)
    objects = np.array([Loud()] * 7, object)
    np.savez(loading.path, **{**loading.arrays, "keys": objects})
    loading.must_refuse("objects")
    with loading.path.open("wb") as file:
        np.save(file, objects)
    loading.must_refuse("a file of one array")


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressed_arrays_are_refused(compression: int, tmp_path: Path) -> None:
    """A compressed file of a few bytes could expand to any size."""
    loading = Loading(KINDS[0], tmp_path)
    with zipfile.ZipFile(loading.path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(loading.path, "w", compression) as archive:
        for filename, data in members.items():
            archive.writestr(filename, data)
    loading.must_refuse("compressed")


def test_damaged_containers(tmp_path: Path) -> None:
    loading = Loading(KINDS[0], tmp_path)
    whole = loading.path.read_bytes()
    rng = np.random.default_rng(0)
    for length in rng.integers(0, len(whole), 60).tolist():
        loading.path.write_bytes(whole[:length])
        loading.must_refuse(f"{length} bytes")
    for number in range(200):
        damaged = bytearray(whole)
        place = int(rng.integers(len(whole)))
        damaged[place] ^= 1 << int(rng.integers(8))
        loading.path.write_bytes(damaged)
        loading.right_or_refused(f"{number}: byte {place}")


def test_an_unknown_compression_and_a_password(tmp_path: Path) -> None:
    loading = Loading(KINDS[0], tmp_path)
    whole = loading.path.read_bytes()
    directory = whole.index(b"PK\x01\x02")
    for place, value in ((10, 99), (8, 1)):  # The method, and the flag of encryption.
        damaged = bytearray(whole)
        for start in (i for i in range(directory, len(whole)) if whole[i : i + 4] == b"PK\x01\x02"):
            damaged[start + place] = value
        loading.path.write_bytes(damaged)
        loading.must_refuse(f"byte {place}")


def test_what_is_no_file(tmp_path: Path) -> None:
    loading = Loading(KINDS[0], tmp_path)
    loading.path.unlink()
    with pytest.raises(FileNotFoundError):
        loading.table.load(tmp_path)
    loading.path.mkdir()
    loading.must_refuse("a directory")


def test_two_members_of_one_name(tmp_path: Path) -> None:
    loading = Loading(KINDS[0], tmp_path)
    with zipfile.ZipFile(loading.path, "a") as archive, pytest.warns(UserWarning):
        archive.writestr("keys.npy", archive.read("keys.npy"))
    loading.must_refuse("two")


def test_in_a_function_nothing_changes_either(tmp_path: Path) -> None:
    loading = Loading(KINDS[0], tmp_path)

    @tf.function
    def load() -> None:
        loading.table.load(tmp_path)

    load()
    loading.reset()
    keys = loading.arrays["keys"].copy()
    keys[1] = keys[0]
    np.savez(loading.path, **{**loading.arrays, "keys": keys})
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"`keys`.*{keys[0]} again at 1"):
        load()
    np.savez(loading.path, **{**loading.arrays, "keys": keys.astype(np.float64)})
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`keys`.*float64"):
        load()
    assert loading.state() == loading.before
