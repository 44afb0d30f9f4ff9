"""Ctrl-C: calls that only read end early, calls that write finish first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "process_programs" / "interrupted_calls.py"


def run(call: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), call],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), call


@pytest.mark.parametrize(
    "call", ["lookup", "contains", "usage", "export", "export_strings", "iterate"]
)
def test_calls_that_read_end_early(call: str) -> None:
    run(call)


@pytest.mark.parametrize("call", ["upsert", "apply_gradients", "restrict"])
def test_calls_that_write_finish_first(call: str) -> None:
    run(call)
