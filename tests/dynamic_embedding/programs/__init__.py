"""Programs that tests run in processes of their own; each prints its results as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def start_program(name: str, *arguments: Any, **environment: str) -> subprocess.Popen[str]:
    """Starts `programs/<name>.py` with pipes to what it prints."""
    return subprocess.Popen(
        [sys.executable, FOLDER / f"{name}.py", *map(str, arguments)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_program(name: str, *arguments: Any, timeout: float = 300, **environment: str) -> Any:
    """What `programs/<name>.py` printed last, read as JSON; fails with all it said if it failed."""
    with start_program(name, *arguments, **environment) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            raise AssertionError(f"{name} {arguments} took too long\n{output}\n{errors}") from None
    assert process.returncode == 0, f"{name} {arguments} failed\n{output}\n{errors}"
    return json.loads(output.splitlines()[-1])


def measure_program(name: str, *arguments: Any) -> Any:
    """`run_program`, with freed memory given back at once, as where memory is measured."""
    malloc = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    # With oneDNN, which TensorFlow uses on CPUs with AVX-512, tensors are in memory that it keeps.
    return run_program(name, *arguments, **malloc, TF_ENABLE_ONEDNN_OPTS="0")
