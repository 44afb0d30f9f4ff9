"""Every Python block of the README and of docs/ runs, and so does every example in a docstring."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import tfra
from pages import PAGES, ROOT, blocks_of, is_error, python_of, run, says

LANGUAGES = {"python", "text", ""}
MODULES = sorted(
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    for path in ROOT.glob("src/tfra/**/*.py")
)
WITH_PYTHON = [page for page in PAGES if python_of(page)]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# Keras itself asks TensorFlow's variables for arrays in a way that NumPy 2 warns of.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Skipping nested container")
@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_blocks_of_a_page_run_in_order(page: Path) -> None:
    names: dict[str, object] = {}
    for block in python_of(page):
        if "import tf_keras" in block.code and importlib.util.find_spec("tf_keras") is None:
            continue  # Keras 2 is not installed; `make` installs it.
        run(block, page, names)
    assert names


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_block_escapes(page: Path) -> None:
    """A block in another language, or one that is not closed, would not be tested."""
    assert {block.language for block in blocks_of(page)} <= LANGUAGES
    errors = [block for block in blocks_of(page) if block.error]
    assert len(re.findall(r"^ *```", page.read_text(), re.MULTILINE)) == 2 * (
        len(blocks_of(page)) + len(errors)
    )
    assert not re.search(r"^ *~~~", page.read_text(), re.MULTILINE)


def test_a_block_that_should_fail_must() -> None:
    page = ROOT / "docs" / "faq.md"
    block = next(block for block in python_of(page) if block.error)
    with pytest.raises(AssertionError):
        run(type(block)("python", "pass", 1, block.error), page, {})
    with pytest.raises(AssertionError):
        run(type(block)("python", "raise TypeError('other')", 1, block.error), page, {})


@pytest.mark.parametrize(
    "expected, printed, same",
    [
        ("KeyError: 1", "KeyError: 1\n", True),
        ("KeyError: 1", "KeyError: 12\n", False),
        ("KeyError: a\nb", "KeyError:  a b", True),
        ("KeyError: ... end", "KeyError: many\nwords end", True),
        ("KeyError: ... end", "KeyError: many words", False),
        ("ValueError: in `a`", "ValueError: in \x1b[1m`a`\x1b[0m", True),
    ],
)
def test_messages_are_compared(expected: str, printed: str, same: bool) -> None:
    assert says(expected, printed) is same
    assert is_error(expected)


@pytest.mark.parametrize("name", ["README.md", "docs/index.md"])
def test_the_first_pages_have_an_example(name: str) -> None:
    assert python_of(ROOT / name)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def anchors_of(page: Path) -> set[str]:
    """The anchors of the headings of a page, as the site and GitHub make them."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_headings(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text()):
        assert anchor in anchors_of(page.parent / target if target else page), (target, anchor)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_name_what_is_there(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    extras = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    targets = re.findall(r"`make ([\w-]+)`", page.read_text())
    for block in blocks_of(page):
        if block.language:
            continue
        targets += re.findall(r"^make ([\w-]+)", block.code, re.MULTILINE)
        for script in re.findall(r"^python ([\w/]+\.py)", block.code, re.MULTILINE):
            assert (ROOT / script).is_file(), script
        for extra in re.findall(r"pip install \S*\[(\w+)\]", block.code):
            assert re.search(rf"^{extra} = ", extras, re.MULTILINE), extra
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_site_has_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("\n\n")[0]
    listed = re.findall(r": (\S+\.md)$", nav, re.MULTILINE)
    there = [str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")]
    assert sorted(listed) == sorted(there)


@pytest.mark.parametrize("picture", sorted(ROOT.glob("docs/images/*")), ids=name_of)
def test_a_picture_is_on_a_page(picture: Path) -> None:
    assert any(f"images/{picture.name}" in page.read_text() for page in PAGES)


@pytest.mark.parametrize("picture", sorted(ROOT.glob("docs/images/*.svg")), ids=name_of)
def test_a_drawing_is_readable(picture: Path) -> None:
    """Images are readable on a dark page and by a screen reader."""
    root = ElementTree.parse(picture).getroot()
    texts = {element.tag.rpartition("}")[2]: element.text or "" for element in root}
    assert texts["title"]
    assert "prefers-color-scheme: dark" in texts["style"]


def test_new_lines_for_old_ones_are_executed() -> None:
    """The table of lines in the guide for users of TFRA: what it tells them to write runs there."""
    page = ROOT / "docs" / "from-tfra.md"
    table = page.read_text().partition("| TFRA 0.8.1 | tfra |\n")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[1:]]
    executed = "\n".join(block.code for block in python_of(page))
    assert len(rows) >= 10
    for _, new in rows:
        for line in re.findall(r"`([^`]+)`", new):
            assert line in executed, line


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
