"""The folders of the Python package: imports point downwards, and each says what it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "tfra"

# A folder, or a module beside folders, may import itself and what stands on earlier lines.
LAYERS = (
    ("_native",),
    ("_shared",),
    ("admission", "initializers", "optimizers"),
    ("spec",),
    ("_snapshot",),
    ("_table",),
    ("table",),
    ("store",),
    ("__init__",),
    ("dynamic_embedding/_platform",),
    ("dynamic_embedding/_saving",),
    ("dynamic_embedding/_tables",),
    ("dynamic_embedding/_stores",),
    ("dynamic_embedding/_training", "dynamic_embedding/_upkeep"),
    ("dynamic_embedding/_keras2",),
    ("dynamic_embedding/_tf1",),
    ("dynamic_embedding/_variable",),
    ("dynamic_embedding/_lookup",),
    (
        "dynamic_embedding/data_flow",
        "dynamic_embedding/math",
        "dynamic_embedding/shadow_ops",
        "dynamic_embedding/tensorboard",
    ),
    ("dynamic_embedding/keras",),
    ("dynamic_embedding/python",),
    ("dynamic_embedding/__init__",),
)
LAYER_OF = {place: layer for layer, places in enumerate(LAYERS) for place in places}

FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {
    ".".join(("tfra", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in (*FILES, *PACKAGE.rglob("*.pyi"))
}
FOLDERS = sorted({path.parent for path in FILES})


def folder_id(folder: Path) -> str:
    return str(folder.relative_to(PACKAGE.parent))


def place_of(path: Path) -> str:
    """The name in `LAYERS` of what a file belongs to."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    depth = 2 if parts[0] == "dynamic_embedding" else 1
    return "/".join(parts[:depth])


def imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Yields the import statements of a file, each with a module that it names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                yield node, module if module in MODULES else str(node.module)


def tfra_imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {name for _, name in imports(tree) if name.partition(".")[0] == "tfra"}


def test_every_place_has_a_layer() -> None:
    assert {place_of(path) for path in MODULES.values()} == set(LAYER_OF)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    place = place_of(path)
    wrong = []
    for name in tfra_imports(path):
        other = place_of(MODULES[name])
        if other != place and LAYER_OF[other] >= LAYER_OF[place]:
            wrong.append(name)
    assert not wrong


def test_modules_have_no_cycle() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for other in sorted(tfra_imports(MODULES[module]) - {module}):
                visit(other, (*path, module))
            done.add(module)

    for module in sorted(MODULES):
        visit(module, ())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_of_the_package_are_imported_at_the_top(path: Path) -> None:
    tree = ast.parse(path.read_text())
    at_top = {id(node) for node in tree.body}
    hidden = [name for node, name in imports(tree) if id(node) not in at_top]
    assert not [name for name in hidden if name.partition(".")[0] == "tfra"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_one_folder_has_the_private_imports(path: Path) -> None:
    if place_of(path) == "dynamic_embedding/_platform":
        return
    names = [name for _, name in imports(ast.parse(path.read_text()))]
    assert not [name for name in names if name.startswith(("tensorflow.python", "keras.src"))]


@pytest.mark.parametrize("folder", FOLDERS, ids=folder_id)
def test_folders_are_small_and_say_what_they_are(folder: Path) -> None:
    sources = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(sources) <= 15
    text = (folder / "README.md").read_text()
    assert text.startswith(f"# {folder_id(folder)}\n")
    assert len(text.splitlines()) <= 25
    for name in re.findall(r"`([\w/]+\.py)`", text):
        assert (folder / name).exists(), name
    for name in re.findall(r"`([\w/]+/)`", text):
        assert (folder / name).is_dir() or (PACKAGE / name).is_dir(), name
