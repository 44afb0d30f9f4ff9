"""Folders that appear under their name only when they are complete."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tfra._snapshot import folder as module
from tfra._snapshot.folder import free_bytes, new_folder, write_file


def write(path: Path, text: str, **options: Any) -> None:
    with new_folder(path, **options) as folder:
        assert folder.parent == path.parent
        assert not path.exists() or options.get("overwrite")
        for name in ("a", "b"):
            write_file(folder / name, text.encode())
            (folder / "deep").mkdir(exist_ok=True)


def read(path: Path) -> str:
    """What is in both files of a folder that is complete."""
    texts = {(path / name).read_text() for name in ("a", "b")}
    assert len(texts) == 1
    return texts.pop()


def names(path: Path) -> list[str]:
    return sorted(os.listdir(path))


def test_a_folder_gets_its_name_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "parents" / "are made" / "snapshot"
    write(path, "one")
    assert read(path) == "one"
    assert names(path.parent) == ["snapshot"]


def test_what_exists_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    write(path, "one")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        write(path, "two")
    assert read(path) == "one"
    write(path, "two", overwrite=True)
    assert read(path) == "two"
    write(tmp_path / "new", "three", overwrite=True)
    assert names(tmp_path) == ["new", "snapshot"]
    (tmp_path / "file").write_text("kept")
    (tmp_path / "link").symlink_to(path)
    for name in ("file", "link"):
        with pytest.raises(NotADirectoryError, match=name):
            write(tmp_path / name, "four", overwrite=True)
        with pytest.raises(FileExistsError):
            write(tmp_path / name, "four")
    assert (tmp_path / "file").read_text() == "kept"
    assert names(tmp_path) == ["file", "link", "new", "snapshot"]


def test_what_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    with pytest.raises(FileExistsError), new_folder(path) as folder:
        write_file(folder / "a", b"mine")
        path.mkdir()
    assert names(tmp_path) == ["snapshot"]
    assert names(path) == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_exception_leaves_nothing(overwrite: bool, tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    if overwrite:
        write(path, "one")
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), new_folder(path, overwrite=overwrite) as folder:
            write_file(folder / "a", b"half")
            raise error
        assert names(tmp_path) == (["snapshot"] if overwrite else [])
    if overwrite:
        assert read(path) == "one"


@pytest.mark.parametrize("call", [0, 1, 2])
def test_a_failing_fsync_is_a_failed_save(
    call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "snapshot"
    calls = iter(range(100))
    fsync = os.fsync

    def failing(file: int) -> None:
        if next(calls) == call:
            raise OSError(5, "Input/output error")
        fsync(file)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="Input/output error"):
        write(path, "one")
    assert names(tmp_path) == []


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    with new_folder(path) as folder:
        write_file(folder / "a", b"one")
        for overwrite in (False, True):
            with pytest.raises(BlockingIOError, match=r"another writer is at work on .*snapshot"):
                write(path, "two", overwrite=overwrite)
        write_file(folder / "b", b"one")
    assert read(path) == "one"


def test_many_writers_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    write(path, "start")
    wrong: list[Any] = []
    written: list[str] = []

    def writer(number: int) -> None:
        for i in range(30):
            try:
                write(path, f"{number}.{i}", overwrite=True)
                written.append(f"{number}.{i}")
            except BlockingIOError:
                pass
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=writer, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert read(path) in written
    assert names(tmp_path) == ["snapshot"]


WRITE_FOR_EVER = """
import sys
from pathlib import Path
from tfra._snapshot.folder import new_folder, write_file

path = Path(sys.argv[1])
number = 0
while True:
    number += 1
    with new_folder(path, overwrite=True) as folder:
        for name in ("a", "b"):
            write_file(folder / name, str(number).encode())
    print(number, flush=True)
"""


def test_writers_that_are_killed(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    pause = random.Random(3)
    left = 0
    for _ in range(8):
        with subprocess.Popen(
            [sys.executable, "-c", WRITE_FOR_EVER, str(path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(pause.uniform(0, 0.03))
            process.send_signal(signal.SIGKILL)
            said = [1, *(int(number) for number in process.stdout.read().split())]
        assert int(read(path)) in (said[-1], said[-1] + 1)
        left += len(names(tmp_path)) - 1
    assert left > 0  # Otherwise none was killed while it wrote.
    write(path, "last", overwrite=True)
    assert names(tmp_path) == ["snapshot"]
    assert read(path) == "last"


def test_what_is_left_of_another_writer_is_removed(tmp_path: Path) -> None:
    left = tmp_path / f"snapshot{module.WRITING}"
    (left / "deep").mkdir(parents=True)
    (left / "deep" / "file").write_text("left")
    (left / "link").symlink_to(tmp_path)
    write(tmp_path / "snapshot", "one")
    assert names(tmp_path / "snapshot") == ["a", "b", "deep"]
    assert names(tmp_path / "snapshot" / "deep") == []
    left.symlink_to(tmp_path / "snapshot")  # Not to be followed.
    with pytest.raises(OSError, match="snapshot"):
        write(tmp_path / "snapshot", "two", overwrite=True)
    assert read(tmp_path / "snapshot") == "one"


def test_folders_without_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that can't do it, or with a C library that lacks it."""
    monkeypatch.setattr(module.ctypes, "CDLL", lambda *_, **__: object())
    write(tmp_path / "snapshot", "one")
    write(tmp_path / "snapshot", "two", overwrite=True)
    assert read(tmp_path / "snapshot") == "two"
    assert names(tmp_path) == ["snapshot"]


def test_a_folder_that_can_not_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(OSError, match="file"):
        write(tmp_path / "file" / "snapshot", "one")
    assert names(tmp_path) == ["file"]


def test_the_lock_goes_with_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    write(path, "one")
    with path.joinpath("a").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for text in ("two", "three"):
        write(path, text, overwrite=True)
    assert read(path) == "three"


def test_free_bytes(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) > 0
    assert free_bytes(tmp_path / "not" / "there") == pytest.approx(free_bytes(tmp_path), rel=0.1)
