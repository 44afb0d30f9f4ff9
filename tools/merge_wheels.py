"""Merges wheels for several versions of Python into one wheel for all of them.

Run: python tools/merge_wheels.py OUTPUT_FOLDER WHEEL [WHEEL ..]

The wheels differ only in their compiled module. A module built for the stable ABI works with every
CPython from 3.12 on. Each earlier version needs its own module. The names of the modules differ, so
one wheel can contain several of them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def unpack(wheel: Path, folder: Path) -> Path:
    """Unpacks a wheel and returns the folder with its contents."""
    subprocess.run(
        [sys.executable, "-m", "wheel", "unpack", "--dest", str(folder), str(wheel)], check=True
    )
    return next(folder.iterdir())


def tags_of(unpacked: Path) -> list[str]:
    """Returns the lines of the wheel's metadata that say which Python versions it supports."""
    lines = next(unpacked.glob("*.dist-info/WHEEL")).read_text().splitlines()
    return [line for line in lines if line.startswith("Tag: ")]


def merge(output: Path, wheels: list[Path]) -> None:
    """Adds the modules and tags of the other wheels to the first wheel, and packs it."""
    with tempfile.TemporaryDirectory() as scratch:
        unpacked = [unpack(w, Path(scratch) / str(i)) for i, w in enumerate(wheels)]
        first, tags = unpacked[0], tags_of(unpacked[0])
        for other in unpacked[1:]:
            tags += [tag for tag in tags_of(other) if tag not in tags]
            for module in other.glob("tfra/_native.*.so"):
                shutil.copy2(module, first / "tfra" / module.name)
        metadata = next(first.glob("*.dist-info/WHEEL"))
        kept = [x for x in metadata.read_text().splitlines() if x and not x.startswith("Tag: ")]
        metadata.write_text("\n".join([*kept, *tags, ""]))
        subprocess.run(
            [sys.executable, "-m", "wheel", "pack", "--dest-dir", str(output), str(first)],
            check=True,
        )


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    merge(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
