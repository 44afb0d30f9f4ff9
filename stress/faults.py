"""Faults of memory and of files, made where the engine asks for either: see `faults.cc`."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# The numbers that `faults.cc` knows them by.
KINDS = {"allocation": 1, "read": 2, "write": 3, "growth": 4}

_SOURCE = Path(__file__).parent / "faults.cc"
_IN_ENVIRONMENT = "TFRA_STRESS_FAULTS"


def build(folder: Path) -> Path | None:
    """Builds the library, if it is not there. None if there is no compiler, or no Linux."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None or not sys.platform.startswith("linux"):
        return None
    library = folder / "libstress_faults.so"
    if library.exists() and library.stat().st_mtime >= _SOURCE.stat().st_mtime:
        return library
    folder.mkdir(parents=True, exist_ok=True)
    part = library.with_name(f"{library.name}.{os.getpid()}")
    options = ["-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden"]
    subprocess.run([compiler, *options, str(_SOURCE), "-o", str(part)], check=True)
    part.replace(library)
    return library


def environment(library: Path | None) -> dict[str, str]:
    """Returns the environment of a process in which faults can be made."""
    if library is None:
        return dict(os.environ)
    preload = " ".join(filter(None, [str(library), os.environ.get("LD_PRELOAD")]))
    return {**os.environ, "LD_PRELOAD": preload, _IN_ENVIRONMENT: str(library)}


class Faults:
    """Makes calls of the engine fail. Does nothing in a process without the library."""

    def __init__(self) -> None:
        path = os.environ.get(_IN_ENVIRONMENT)
        self._library = None if path is None else ctypes.CDLL(path)
        if self._library is not None:
            self._library.stress_set_fault.argtypes = [
                ctypes.c_int,
                ctypes.c_int64,
                ctypes.c_int64,
            ]
            self._library.stress_faults_fired.restype = ctypes.c_int64

    @property
    def available(self) -> bool:
        """Whether faults can be made in this process."""
        return self._library is not None

    def fired(self) -> int:
        """How many calls have failed so far."""
        return 0 if self._library is None else int(self._library.stress_faults_fired())

    def start(self, kind: str, successes: int, failures: int) -> None:
        """Lets `failures` calls fail, of whichever thread, after `successes` more calls."""
        if self._library is not None:
            found = self._library.stress_set_fault(KINDS[kind], successes, failures)
            assert found == 1, "the engine is not in this process"

    def end(self) -> None:
        """Lets no call fail any more."""
        if self._library is not None:
            self._library.stress_set_fault(0, 0, 0)

    @contextmanager
    def during(self, kind: str, successes: int, failures: int) -> Iterator[None]:
        """Faults in a block."""
        self.start(kind, successes, failures)
        try:
            yield
        finally:
            self.end()
