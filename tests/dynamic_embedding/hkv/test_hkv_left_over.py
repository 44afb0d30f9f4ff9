"""`HkvHashTable.save` when its process is killed, and what the next save finds."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hkv_support import de

SAVE_FOR_EVER = """
import sys
import tensorflow as tf
import tfra

table = tfra.dynamic_embedding.HkvHashTable(tf.int64, tf.float32, [0.0] * 64, name="t")
keys = tf.range(20_000, dtype=tf.int64)
number = 0
while True:
    number += 1
    table.insert(keys, tf.fill([20_000, 64], float(number)))
    table.save(sys.argv[1])
    print(number, flush=True)
"""


def table() -> Any:
    return de.HkvHashTable(tf.int64, tf.float32, [0.0] * 64, name="t")


def saved_by_killed(folder: Path) -> int:
    """Starts a process that saves again and again, and kills it; returns what it said last."""
    with subprocess.Popen(
        [sys.executable, "-c", SAVE_FOR_EVER, str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        deadline = time.monotonic() + 60
        while not list(folder.glob("*.part")) and time.monotonic() < deadline:
            pass
        process.send_signal(signal.SIGKILL)
        said = process.stdout.read().split()
    return int(said[-1]) if said else 1


def test_a_save_that_was_killed_leaves_nothing_for_long(tmp_path: Path) -> None:
    left = 0
    for _ in range(3):
        said = saved_by_killed(tmp_path)
        left += len(list(tmp_path.glob("*.part")))
        restored = table()
        restored.load(tmp_path)
        rows = np.unique(restored.lookup(tf.range(20_000, dtype=tf.int64)).numpy())
        assert rows.tolist() in ([said], [said + 1.0])  # Killed before it said so.
        restored.save(tmp_path)
        assert os.listdir(tmp_path) == ["t.npz"]
    assert left > 0  # Otherwise no process was killed while it saved.


def test_the_parts_of_others_stay(tmp_path: Path) -> None:
    others = [
        "other.npz.12.part",
        "t.npz.part",
        "t.npz.x.part",
        "t.npz.12.part.old",
        "tXnpz.12.part",
    ]
    for name in others:
        (tmp_path / name).write_bytes(b"kept")
    (tmp_path / "t.npz.13.part").mkdir()
    os.mkfifo(tmp_path / "t.npz.14.part")
    (tmp_path / "t.npz.15.part").symlink_to(tmp_path / "other.npz.12.part")
    made = table()
    with (tmp_path / "t.npz.16-1.part").open("wb") as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        made.save(tmp_path)
        kept = {*others, "t.npz", *(f"t.npz.{n}.part" for n in ("13", "14", "15", "16-1"))}
        assert set(os.listdir(tmp_path)) == kept
    made.save(tmp_path)
    assert set(os.listdir(tmp_path)) == kept - {"t.npz.16-1.part"}
    assert (tmp_path / "other.npz.12.part").read_bytes() == b"kept"


def test_a_folder_that_can_not_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save needs no more rights than to write there."""

    def refuse(path: Path) -> Any:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    table().save(tmp_path)
    assert os.listdir(tmp_path) == ["t.npz"]
