"""Every Python block of the README and of docs/ runs, and so does every example in a docstring."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

import tfra

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")])
MODULES = sorted(
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    for path in ROOT.glob("src/tfra/**/*.py")
)


def blocks_of(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


# Keras itself asks TensorFlow's variables for arrays in a way that NumPy 2 warns of.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("page", [p for p in PAGES if blocks_of(p)], ids=lambda page: page.name)
def test_blocks_of_a_page_run_in_order(page: Path) -> None:
    names: dict[str, object] = {}
    for number, block in enumerate(blocks_of(page)):
        exec(compile(block, f"{page.name} block {number}", "exec"), names)
    assert names


def test_the_readme_has_an_example() -> None:
    assert blocks_of(ROOT / "README.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    names = {"tfra": tfra}
    if name.startswith("tfra.dynamic_embedding"):
        names["tf"] = importlib.import_module("tensorflow")
    results = doctest.testmod(module, extraglobs=names, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert results.failed == 0


def test_there_are_docstring_examples() -> None:
    finder = doctest.DocTestFinder()
    modules = [importlib.import_module(name) for name in MODULES]
    found = [test for module in modules for test in finder.find(module) if test.examples]
    assert len(found) >= 5
