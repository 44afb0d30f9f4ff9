"""The README, the architecture, the glossary and the install commands: the first pages to read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pages import PAGES, ROOT, python_of

README = ROOT / "README.md"
FIRST_LINES = README.read_text().splitlines()[:30]
GLOSSARY = ROOT / "docs" / "glossary.md"
# An install command, up to the end of the line, a comment, or the quote around it.
INSTALL = re.compile(r"pip install ('[^'\n]*'|[^\s`\"'#;,.)]+)")


def test_the_first_lines_tell_what_it_is_and_how_to_start() -> None:
    text = "\n".join(FIRST_LINES)
    assert "embedding tables" in FIRST_LINES[2]
    assert "pip install" in text
    first = python_of(README)[0]
    assert first.line + first.code.count("\n") < 30, "the example goes on after the first lines"
    assert "keras.Model" in first.code
    assert len([line for line in first.code.splitlines() if line.strip()]) <= 10


def test_the_first_lines_have_one_table_with_one_number_in_each_cell() -> None:
    rows = [line.strip("| ").split(" | ") for line in FIRST_LINES if line.startswith("|")]
    assert len(rows) == 2 + 5
    assert "TFRA 0.8.1" in rows[0] and "benchmarks.md" in rows[0][0]
    for row in rows[2:]:
        assert all(re.fullmatch(r"\d+\.\d+x?", cell) for cell in row[1:]), row


def test_goals_are_not_for_users() -> None:
    for page in (README, ROOT / "docs" / "benchmarks.md"):
        assert not re.search(r"\bgoals?\b", page.read_text()), page


def install_commands() -> list[tuple[str, str]]:
    """What users are told to install: in the pages, the docstrings and the error messages."""
    found = []
    for path in [*PAGES, *sorted(ROOT.glob("src/**/*.py"))]:
        # A command may be broken over two lines, of prose or of a string in Python.
        text = re.sub(r"\"\s*\n\s*f?\"", "", path.read_text())
        text = re.sub(r"pip\s+install\s+", "pip install ", text)
        found += [(str(path.relative_to(ROOT)), match[1]) for match in INSTALL.finditer(text)]
    return found


def test_install_commands_agree() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    extras = project.partition("[project.optional-dependencies]\n")[2].partition("\n\n")[0]
    names = re.findall(r"^(\w+) = ", extras, re.MULTILINE)
    known = {"tfra", *(f"'tfra[{name}]'" for name in names)}
    # Keras alone is missing or too old where TensorFlow is there already.
    known |= {f"'{keras}'" for keras in re.findall(r"\"(keras[^\"]*)\"", extras)}
    commands = install_commands()
    assert {package for _, package in commands} >= {"tfra", "'tfra[tensorflow]'"}
    assert [command for command in commands if command[1] not in known] == []


def concepts() -> list[str]:
    return re.findall(r"^\| \*\*(.+)\*\* \| ", GLOSSARY.read_text(), re.MULTILINE)


def test_the_glossary_fits_on_a_screen() -> None:
    words = concepts()
    assert 20 <= len(words) <= 35
    assert len(set(words)) == len(words)
    assert max(map(len, GLOSSARY.read_text().splitlines())) <= 120, "one line for each word"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"])
def test_the_glossary_is_found(page: str) -> None:
    assert "docs/glossary.md" in Path(ROOT / page).read_text()


ARCHITECTURE = ROOT / "ARCHITECTURE.md"


def test_the_architecture_fits_on_a_page() -> None:
    assert len(ARCHITECTURE.read_text().splitlines()) <= 90


@pytest.mark.parametrize("root", ["engine/src", "src/tfra", "src/tfra/dynamic_embedding"])
def test_the_architecture_has_every_folder(root: str) -> None:
    """By its path from the folder that heads the table; a folder of a table exists."""
    top = "engine/src" if root == "engine/src" else "src/tfra"
    table = ARCHITECTURE.read_text().partition(f"| `{top}/` |")[2].partition("\n\n")[0]
    cells = [row.split(" | ")[0] for row in table.splitlines() if row.startswith("| `")]
    listed = set(re.findall(r"`([\w/]+)/`", " ".join(cells)))
    assert all((ROOT / top / folder).is_dir() for folder in listed)
    folders = {path for path in (ROOT / root).iterdir() if (path / "README.md").is_file()}
    missing = {str(path.relative_to(ROOT / top)) for path in folders} - listed
    assert missing <= {"dynamic_embedding"}
