"""Processes that are killed while they save, full disks, and damaged files."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from stress.defect import Defect, expect, expect_equal
from stress.saver import KEYS, new_checkpoint, new_table, rows_of

STARTS_WITHIN = 300  # Seconds. TensorFlow starts slowly on a busy machine.


def run_savers(rng: np.random.Generator, times: int) -> None:
    """Kills a process that saves, and checks that its files are whole."""
    for _ in range(times):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            saved = _save_and_kill(folder, rng)
            _check_files(folder, saved)
            _damage(folder, rng)
            _fill_the_disk(folder, rng)


def _save_and_kill(folder: Path, rng: np.random.Generator) -> int:
    """Returns the last version that the process said it had saved."""
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    command = [sys.executable, "-m", "stress.saver", str(folder)]
    versions, delay = int(rng.integers(1, 6)), float(rng.random()) * 0.1
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        saved = 0
        for line in process.stdout:
            saved = int(line)
            if saved >= versions:
                break
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        saved = max([saved, *map(int, process.stdout.read().split())])
        errors = process.stderr.read()
    if saved == 0:
        raise Defect(f"a process could not save: {errors[-2000:]}")
    return saved


def _check_files(folder: Path, saved: int) -> None:
    """Checks that each file has the last version, or the one that was being saved."""
    table = new_table(folder)
    table.load(str(folder), "table")
    version = _version_of(*[part.numpy() for part in table.export()])
    expect(version in (saved, saved + 1), f"file: version {version}, expected {saved} or the next")
    variable, manager = new_checkpoint(folder)
    expect(manager.latest_checkpoint is not None, "there is no checkpoint")
    manager.checkpoint.restore(manager.latest_checkpoint).assert_consumed()
    version = _version_of(*[part.numpy() for part in variable.export()])
    expect(
        version in (saved, saved + 1),
        f"checkpoint: version {version}, expected {saved} or the next",
    )
    expect_equal(list((folder / "tiers").iterdir()), [], "files for rows of a killed process")


def _version_of(keys: Any, values: Any) -> int:
    """Returns the version of a content, all of which must be of one."""
    version = len(keys) - KEYS
    expected, rows = rows_of(version)
    expect(version > 0, f"{len(keys)} keys, expected more than {KEYS}")
    order = np.argsort(keys)
    expect((keys[order] == expected).all(), "a file has other keys than its version")
    expect((values[order] == rows).all(), "a file has rows of several versions")
    return version


def _damage(folder: Path, rng: np.random.Generator) -> None:
    """Loads files that were cut off, or changed: what is loaded is refused, or is right."""
    good = (folder / "table.npz").read_bytes()
    table = new_table(folder)
    table.insert([7], np.full((1, 8), 5, np.float32))
    cut = int(rng.integers(0, len(good)))
    (folder / "cut.npz").write_bytes(good[:cut])
    try:
        table.load(str(folder), "cut")
    except (ValueError, tf.errors.InvalidArgumentError, OSError) as error:
        expect(str(error), f"a file of {cut} bytes: an error that says nothing: {error!r}")
    else:
        raise Defect(f"a file of {len(good)} bytes that was cut to {cut} was loaded")
    expect_equal(int(table.size()), 1, f"size after refusing a file that was cut to {cut} bytes")
    expect((table.lookup([7]).numpy() == 5).all(), "a row changed when a file was refused")


@contextmanager
def _files_of_at_most(bytes_of_file: int) -> Iterator[None]:
    """Lets no file grow beyond a size, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_of_file, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _fill_the_disk(folder: Path, rng: np.random.Generator) -> None:
    """Saves to a full disk: the error is clear, and the former file is as it was."""
    table = new_table(folder)
    table.load(str(folder), "table")
    before = (folder / "table.npz").read_bytes()
    size = int(table.size())
    most = int(rng.integers(0, len(before)))
    try:
        with _files_of_at_most(most):
            table.save(str(folder), "table")
    except (OSError, tf.errors.OpError) as error:
        expect(str(error), f"a full disk: an error that says nothing: {error!r}")
    else:
        raise Defect(f"{len(before)} bytes were saved although files have at most {most}")
    expect((folder / "table.npz").read_bytes() == before, "a save that failed changed the file")
    expect_equal(
        [path.name for path in folder.glob("*.part")][1:], [], "files of saves that failed"
    )
    expect_equal(int(table.size()), size, "size after a save that failed")
    table.save(str(folder), "again")
    copy = new_table(folder)
    copy.load(str(folder), "again")
    expect_equal(int(copy.size()), size, "size of what was saved once there was space")
    shutil.rmtree(folder / "checkpoints")
