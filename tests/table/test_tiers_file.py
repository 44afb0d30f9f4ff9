"""The file of a tiered table: gone with the table or the process, and what a full disk does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfra
from support import run_python

ON_LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


def files_in(directory: Path, process: int | str = "self") -> list[str]:
    """The files of a process that are, or were, in a directory."""
    found = []
    for link in Path(f"/proc/{process}/fd").iterdir():
        try:
            target = os.readlink(link)
        except OSError:  # The file was closed meanwhile.
            continue
        if target.startswith(str(directory)):
            found.append(target)
    return found


def filled(directory: Path, **options: Any) -> tfra.Table:
    table = tfra.Table(4, fast_bytes=1, tier_directory=directory, **options)
    table.upsert(np.arange(5000), np.ones((5000, 4), np.float32))
    return table


@ON_LINUX
def test_the_file_has_no_name_and_goes_with_the_table(tmp_path: Path) -> None:
    table = filled(tmp_path)
    (file,) = files_in(tmp_path)
    assert file.endswith("(deleted)")
    assert list(tmp_path.iterdir()) == []
    other = filled(tmp_path)
    assert len(files_in(tmp_path)) == 2
    del table
    assert len(files_in(tmp_path)) == 1
    assert (other.lookup(np.arange(5000)) == 1).all()
    del other
    assert files_in(tmp_path) == []


@ON_LINUX
def test_the_file_is_in_the_temporary_directory_by_default(tmp_path: Path) -> None:
    said = run_python(
        """
        import os, pathlib
        import numpy as np
        import tfra

        table = tfra.Table(4, fast_bytes=1)
        table.upsert(np.arange(5000), np.ones((5000, 4), np.float32))
        for link in pathlib.Path("/proc/self/fd").iterdir():
            if link.exists() or link.is_symlink():
                try:
                    print(os.readlink(link))
                except OSError:
                    pass
        """,
        TMPDIR=str(tmp_path),
    )
    assert sum(line.startswith(str(tmp_path)) for line in said.splitlines()) == 1


@ON_LINUX
def test_a_killed_process_leaves_nothing(tmp_path: Path) -> None:
    code = """
import sys, time
import numpy as np
import tfra
table = tfra.Table(4, fast_bytes=1, tier_directory=sys.argv[1])
table.upsert(np.arange(100_000), np.ones((100_000, 4), np.float32))
print("ready", flush=True)
while True:
    table.accum(np.arange(5000), np.ones((5000, 4), np.float32), np.ones(5000, bool))
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert len(files_in(tmp_path, process.pid)) == 1
        process.send_signal(signal.SIGKILL)
        assert process.wait(timeout=60) == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []
    assert (filled(tmp_path).lookup(np.arange(5000)) == 1).all()  # The next start.


def test_memory_stays_within_the_budget() -> None:
    code = """
        import numpy as np
        import tfra

        def resident():
            for line in open("/proc/self/status"):
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024

        def grow(table):
            for start in range(0, 400_000, 20_000):
                keys = np.arange(start, start + 20_000)
                table.upsert(keys, np.ones((20_000, 64), np.float32))
            rng = np.random.default_rng(0)
            for _ in range(20):
                table.lookup(rng.integers(0, 400_000, 20_000))

        grow(tfra.Table(64, fast_bytes=FAST))  # What the first calls take for themselves.
        before = resident()
        table = tfra.Table(64, fast_bytes=FAST)
        grow(table)
        print(resident() - before, table.memory_usage()["index"], len(table))
    """
    budget = 10_000_000
    grown, index, size = map(int, run_python(code.replace("FAST", str(budget))).split())
    assert size == 400_000
    assert grown < 1.15 * (budget + index) + 16_000_000
    grown, index, size = map(int, run_python(code.replace("FAST", "None")).split())
    assert grown > 80_000_000  # The rows have 102 MB, so the test would notice them.


# --- Full disks: earlier rows are intact, the failed call changed nothing, and the table continues
# to work once there is space.

FULL = """
import sys
import numpy as np
import tfra

table = tfra.Table(64, fast_bytes=100_000, tier_directory=sys.argv[1], KIND)
written, failed = 0, ""
for start in range(0, 100_000, 1000):
    keys = np.arange(start, start + 1000)
    try:
        table.upsert(keys, np.tile(keys[:, None], 64).astype(np.float32))
    except OSError as error:
        failed = str(error)
        break
    written += 1000
assert written >= 2000, f"expected some rows to fit, received {written}"
assert failed, "expected the disk to be full"
assert sys.argv[1] in failed and sys.argv[2] in failed, failed

def check(first):
    assert len(table) == written - first
    found, exists = table.lookup(np.arange(written + 1000), return_exists=True)
    there = np.arange(written + 1000)
    there = (there >= first) & (there < written)
    np.testing.assert_array_equal(exists, there)
    np.testing.assert_array_equal(found[there], np.tile(np.flatnonzero(there)[:, None], 64))
    keys, values = table.export()
    np.testing.assert_array_equal(values, np.tile(keys[:, None], 64))
    assert sorted(keys.tolist()) == list(range(first, written))

check(0)
for _ in range(3):
    try:
        table.upsert(np.arange(written, written + 1000), np.zeros((1000, 64), np.float32))
        raise SystemExit("expected the disk to be full still")
    except OSError:
        check(0)
half = written // 2
assert table.remove(np.arange(half)) == half  # The oldest, which are in the file.
check(half)
keys = np.arange(written, written + 1000)
table.upsert(keys, np.tile(keys[:, None], 64).astype(np.float32))
written += 1000
check(half)
print("whole")
"""

KINDS = pytest.mark.parametrize("kind", ["", "max_capacity=1_000_000", "optimizer='adam'"])


@KINDS
def test_a_file_that_may_not_grow(kind: str, tmp_path: Path) -> None:
    limited = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4_000_000, 4_000_000))"
        + FULL.replace("KIND", kind)
    )
    command = [sys.executable, "-c", limited, str(tmp_path), "File too large"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


def test_a_forked_child_cannot_touch_the_file() -> None:
    printed = run_python(
        """
        import os
        import warnings

        import numpy as np
        import tfra

        # Python 3.12 warns of every fork of a process with threads, and this is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        keys = np.arange(5000)
        table = tfra.Table(4, fast_bytes=1)
        rows = np.ones((5000, 4), np.float32)
        table.upsert(keys, rows)
        child = os.fork()
        if child == 0:
            for call in (table.lookup, lambda some: table.upsert(some, 2 * rows)):
                try:
                    call(keys)
                except OSError as error:
                    print("forked" in str(error), flush=True)
            table.clear()
            del table
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert (table.lookup(keys) == 1).all()
        """
    )
    assert printed.split() == ["True", "True"]


@KINDS
def test_a_full_disk(kind: str, tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=4m none {tmp_path} && "
    enter = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    try:
        allowed = subprocess.run([*enter, mount + "true"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no command `unshare`")
    if allowed.returncode != 0:
        pytest.skip("file systems can't be mounted here")
    command = f'{mount} exec "$0" -c "$1" {tmp_path} "No space left"'
    done = subprocess.run(
        [*enter, command, sys.executable, FULL.replace("KIND", kind)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


def test_a_full_disk_in_training_keeps_the_step(tmp_path: Path) -> None:
    """A step that fails is not counted, and the row is as before."""
    code = """
        import resource, sys
        import numpy as np
        import tfra

        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        table = tfra.Table(64, fast_bytes=50_000, tier_directory=DIRECTORY, optimizer="adam")
        ones = np.ones((500, 64), np.float32)
        steps = 0
        try:
            for steps in range(1000):
                table.apply_gradients(np.arange(steps * 500, steps * 500 + 500), ones)
        except OSError:
            pass
        assert 0 < steps < 999
        assert table.step == steps, (table.step, steps)
        assert len(table) == 500 * steps
        keys, values, slots = table.export(slots=True)
        assert (np.abs(slots["momentum"]) > 0).all() and (values < 0).all()
        print("whole")
    """
    assert run_python(code.replace("DIRECTORY", repr(str(tmp_path)))) == "whole\n"
