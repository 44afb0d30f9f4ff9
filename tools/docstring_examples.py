"""Lets the reference pages show the examples in docstrings: an extension of griffe.

A docstring here has `Example:` and, below it, lines of doctest that are not indented, as Keras
writes them. griffe knows sections called `Examples:` whose lines are.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^Example:\n((?:\S.*\n)+)", flags=re.MULTILINE)


def with_sections(text: str) -> str:
    """Returns a docstring whose examples are sections that griffe knows."""

    def section(match: re.Match[str]) -> str:
        return "Examples:\n" + textwrap.indent(match[1], "    ")

    return _EXAMPLE.sub(section, text + "\n").rstrip("\n")


class DocstringExamples(griffe.Extension):
    """Changes every docstring as it is loaded."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = with_sections(obj.docstring.value)
