"""The reference pages have every public name, and every public name says what it is."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest

from pages import ROOT

MODULES = (
    "tfra",
    "tfra.admission",
    "tfra.initializers",
    "tfra.optimizers",
    "tfra.dynamic_embedding",
    "tfra.dynamic_embedding.data_flow",
    "tfra.dynamic_embedding.keras",
    "tfra.dynamic_embedding.keras.callbacks",
    "tfra.dynamic_embedding.keras.layers",
    "tfra.dynamic_embedding.keras.layers.embedding",
    "tfra.dynamic_embedding.keras.optimizers",
    "tfra.dynamic_embedding.math",
    "tfra.dynamic_embedding.shadow_ops",
    "tfra.dynamic_embedding.tensorboard",
)
TEXT = "\n".join(page.read_text() for page in sorted(ROOT.glob("docs/reference/*.md")))
DIRECTIVES = re.findall(r"^::: (\S+)$", TEXT, re.MULTILINE)


def public_names() -> list[str]:
    return [f"{name}.{n}" for name in MODULES for n in importlib.import_module(name).__all__]


def find(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    return importlib.import_module(name) if inspect.ismodule(found) else found


def is_ours(thing: Any) -> bool:
    return getattr(thing, "__module__", "").partition(".")[0] == "tfra"


def documented(thing: Any) -> bool:
    return bool((inspect.getdoc(thing) or "").strip())


def members(cls: type) -> list[tuple[str, Any]]:
    """The public methods and properties that a class of ours has from classes of ours."""
    found = {}
    for base in reversed(cls.__mro__):
        if is_ours(base):
            found.update({n: m for n, m in vars(base).items() if not n.startswith("_")})
    kinds = (property, staticmethod, classmethod)
    return [(n, m) for n, m in found.items() if inspect.isfunction(m) or isinstance(m, kinds)]


def test_public_modules_are_checked() -> None:
    """A module in a list of names is a module of this list."""
    modules = [name for name in public_names() if inspect.ismodule(find(name))]
    assert set(modules) | {"tfra", "tfra.dynamic_embedding"} == set(MODULES)


@pytest.mark.parametrize("name", public_names())
def test_a_public_name_is_on_a_page(name: str) -> None:
    thing = find(name)
    if inspect.ismodule(thing):
        assert f"::: {name}." in TEXT or f"`{name}" in TEXT
    elif is_ours(thing):
        # Another name of what is there already needs a sentence, not a second description.
        places = [d for d in DIRECTIVES if find(d) is thing]
        assert places, f"add `::: {name}` to a page in docs/reference"
        module = name.rpartition(".")[0]
        assert name in DIRECTIVES or f"`{name}`" in TEXT or f"`{module}`" in TEXT
    else:
        assert f"`{name}`" in TEXT


@pytest.mark.parametrize("name", DIRECTIVES)
def test_what_a_page_describes_is_public(name: str) -> None:
    assert name in public_names()
    assert DIRECTIVES.count(name) == 1


@pytest.mark.parametrize("name", public_names())
def test_a_public_name_has_a_docstring(name: str) -> None:
    thing = find(name)
    if not isinstance(thing, str):
        assert documented(thing)
    if inspect.isclass(thing) and is_ours(thing):
        assert [n for n, member in members(thing) if not documented(member)] == []
