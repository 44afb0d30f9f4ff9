"""The pages of the documentation, and the blocks of code in them."""

from __future__ import annotations

import re
import textwrap
import traceback
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")])

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_ERROR = re.compile(r"[\w.]+(Error|Exception): ")


@dataclass(frozen=True)
class Block:
    """A block of code.

    Args:
        language: The word after the opening fence.
        code: The lines in between.
        line: The number of its first line.
        error: What it must print when it fails, in the block of text right after it; or None.
    """

    language: str
    code: str
    line: int
    error: str | None


def blocks_of(page: Path) -> list[Block]:
    """Returns the blocks of a page; errors are not blocks of their own if a block raises them."""
    text = page.read_text()
    found = list(_FENCE.finditer(text))
    blocks: list[Block] = []
    for number, match in enumerate(found):
        code, language = textwrap.dedent(match["code"]), match["language"].partition(" ")[0]
        error = None
        if language == "python" and number + 1 < len(found):
            after = found[number + 1]
            if not text[match.end() : after.start()].strip() and is_error(after["code"]):
                error = after["code"]
        if blocks and blocks[-1].error == match["code"]:
            continue
        blocks.append(Block(language, code, text.count("\n", 0, match.start("code")) + 1, error))
    return blocks


def python_of(page: Path) -> list[Block]:
    """Returns the blocks that are Python."""
    return [block for block in blocks_of(page) if block.language == "python"]


def is_error(text: str) -> bool:
    """Whether a block of text is the last line of a traceback, however long."""
    return _ERROR.match(text) is not None


def run(block: Block, page: Path, names: dict[str, object]) -> None:
    """Executes a block; fails unless it raises what it must.

    Raises:
        AssertionError: If it raises nothing or something else than the page says.
    """
    # Lines of the page, so that a traceback leads there.
    code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
    if block.error is None:
        exec(code, names)
        return
    try:
        exec(code, names)
    except Exception as error:
        printed = "".join(traceback.format_exception_only(error))
        assert says(block.error, printed), f"expected:\n{block.error}\nreceived:\n{printed}"
        return
    raise AssertionError(f"{page.name}, line {block.line}: expected {block.error}")


def says(expected: str, printed: str) -> bool:
    """Whether a message is what a page says, in which `...` stands for anything."""
    plain = re.sub(r"\x1b\[\d*m", "", printed)
    parts = [re.escape(" ".join(part.split())) for part in expected.split("...")]
    return re.fullmatch(r"\s*.*\s*".join(parts), " ".join(plain.split()), re.DOTALL) is not None
