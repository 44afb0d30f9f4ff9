"""Lets the reference pages show the examples in docstrings: an extension of griffe.

In this project, as in Keras, a docstring has a line `Example:` and below it doctest lines that are
not indented. griffe expects a section `Examples:` with indented lines.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^Example:\n((?:\S.*\n)+)", flags=re.MULTILINE)


def with_sections(text: str) -> str:
    """Returns a docstring with its examples in the form that griffe expects."""

    def section(match: re.Match[str]) -> str:
        return "Examples:\n" + textwrap.indent(match[1], "    ")

    return _EXAMPLE.sub(section, text + "\n").rstrip("\n")


class DocstringExamples(griffe.Extension):
    """Changes every docstring when griffe loads it."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = with_sections(obj.docstring.value)
