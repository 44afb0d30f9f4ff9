"""The folders of the engine: includes point downwards only, and every folder says what it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent.parent / "engine" / "src"

# A folder may include the public headers (tfra/), itself, and folders of earlier lines.
LAYERS = (
    ("base",),
    ("memory", "kernels"),
    ("keys", "spec"),
    ("rows",),
    ("index",),
    ("scores", "storage", "admission"),
    ("state",),
    ("tiers",),
    ("reading",),
    ("bounded",),
    ("writing",),
    ("upkeep",),
    ("content",),
    ("table",),
    ("trained",),
    ("snapshot",),
    ("process",),
)
LAYER_OF = {folder: layer for layer, folders in enumerate(LAYERS) for folder in folders}
FOLDERS = sorted(path.name for path in SOURCES.iterdir() if path.is_dir())


def includes(folder: str) -> Iterator[tuple[str, str]]:
    """Yields each file of a folder with each of its includes in quotes."""
    for path in sorted((SOURCES / folder).iterdir()):
        if path.suffix in (".h", ".cc", ".inc"):
            for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
                yield path.name, name


def test_every_folder_has_a_layer() -> None:
    assert sorted(LAYER_OF) == FOLDERS
    assert not [path.name for path in SOURCES.iterdir() if path.is_file()]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_folder_is_too_full(folder: str) -> None:
    assert len(list((SOURCES / folder).iterdir())) <= 16


@pytest.mark.parametrize("folder", FOLDERS)
def test_includes_point_downwards(folder: str) -> None:
    wrong = []
    for file, name in includes(folder):
        other = name.split("/")[0]
        allowed = other in ("tfra", folder) or LAYER_OF.get(other, len(LAYERS)) < LAYER_OF[folder]
        if not allowed:
            wrong.append(f"{folder}/{file} includes {name}")
    assert not wrong


@pytest.mark.parametrize("folder", FOLDERS)
def test_headers_of_a_folder_have_no_cycle(folder: str) -> None:
    edges: dict[str, set[str]] = {}
    for file, name in includes(folder):
        if name.startswith(f"{folder}/"):
            edges.setdefault(f"{folder}/{file}", set()).add(name)
    done: set[str] = set()

    def visit(file: str, path: tuple[str, ...]) -> None:
        assert file not in path, " -> ".join((*path, file))
        if file not in done:
            for other in sorted(edges.get(file, ())):
                visit(other, (*path, file))
            done.add(file)

    for file in sorted(edges):
        visit(file, ())


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_says_what_it_is(folder: str) -> None:
    text = (SOURCES / folder / "README.md").read_text()
    assert text.startswith(f"# {folder}\n")
    assert len(text.splitlines()) <= 15
    for name in re.findall(r"`([\w/]+\.(?:h|cc|inc))`", text):
        roots = (SOURCES / folder, SOURCES.parent / "include")
        assert any((root / name).exists() for root in roots), name


def test_tests_mirror_the_folders() -> None:
    tests = SOURCES.parent / "tests"
    assert {path.name for path in tests.iterdir() if path.is_dir()} <= set(FOLDERS)
    assert not list(tests.glob("*_test.cc"))


def test_every_public_header_is_exported() -> None:
    listed = re.findall(r'^#include "tfra/(.+)"', (SOURCES / "base/exports.h").read_text(), re.M)
    headers = (SOURCES.parent / "include" / "tfra").iterdir()
    assert listed == sorted(path.name for path in headers)
