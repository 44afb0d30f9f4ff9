"""The folders of the adapters: includes point downwards only, and every folder says what it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ADAPTERS = Path(__file__).parent.parent / "adapters"

# Folder -> the prefixes of its includes in quotes, besides files of the folder itself. The adapters
# know the engine by its public headers (tfra/) and do not know one another.
ALLOWED = {
    "numpy": ("tfra/",),
    "tensorflow": (),
    "tensorflow/runtime": ("tfra/",),
    "tensorflow/ops": ("tfra/", "runtime/"),
}
SOURCES = {".h", ".cc", ".inc"}


def test_every_folder_is_listed() -> None:
    folders = {path.parent for path in ADAPTERS.rglob("*") if path.is_file()}
    assert {str(folder.relative_to(ADAPTERS)) for folder in folders} == set(ALLOWED)


@pytest.mark.parametrize("folder", sorted(ALLOWED))
def test_includes_point_downwards(folder: str) -> None:
    own = folder.partition("/")[2]
    wrong = []
    for path in sorted((ADAPTERS / folder).iterdir()):
        if path.suffix not in SOURCES:
            continue
        for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
            is_own = (ADAPTERS / folder / name.removeprefix(f"{own}/")).exists()
            if not is_own and not name.startswith(ALLOWED[folder]):
                wrong.append(f"{folder}/{path.name} includes {name}")
    assert not wrong


@pytest.mark.parametrize("folder", sorted(ALLOWED))
def test_every_folder_says_what_it_is(folder: str) -> None:
    text = (ADAPTERS / folder / "README.md").read_text()
    assert text.startswith(f"# {folder.split('/')[-1]}\n")
    assert len(text.splitlines()) <= 15
    for name in re.findall(r"`([\w/]+\.(?:h|cc|inc))`", text):
        assert (ADAPTERS / folder / name).exists(), name
