"""Checks of the arguments of tables with a memory budget: rows in memory and in a row file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tfra._shared import arrays


def directory_name(directory: Any) -> str:
    """Returns the path of a directory as a string; empty for None.

    Raises:
        TypeError: If `directory` is not a path.
        ValueError: If the path is empty, or can't be written as UTF-8.
    """
    if directory is None:
        return ""
    name = os.fspath(directory) if isinstance(directory, (str, os.PathLike)) else directory
    if not isinstance(name, str):
        raise TypeError(
            f"`tier_directory`: expected None, or a path as str or os.PathLike, received {name!r}"
        )
    if not name or "\0" in name:
        raise ValueError(
            f"`tier_directory`: expected None, or the path of a directory, received {name!r}"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"`tier_directory`: expected a path that can be written as UTF-8, received {name!r}"
        ) from None
    return name


def checked_tiers(
    fast_bytes: Any, directory: Any, value_dtype: np.dtype[Any]
) -> tuple[int | None, str | None]:
    """Returns `fast_bytes` and `tier_directory` of a `TableSpec`, each None if it is not given.

    Raises:
        TypeError: If an argument is of a wrong type, or the values are strings.
        ValueError: If `fast_bytes` is out of range, or missing although there is a directory.
    """
    name = directory_name(directory)
    if fast_bytes is None:
        if name:
            raise ValueError(
                "`tier_directory` needs `fast_bytes`, the bytes of memory for rows. Received: "
                f"fast_bytes=None and tier_directory={name!r}"
            )
        return None, None
    number = arrays.integer(fast_bytes, "fast_bytes", 1)
    if value_dtype == arrays.STRING:
        raise TypeError(
            "`fast_bytes` needs values that are numbers: strings are in memory only. Received: a "
            "table of strings"
        )
    return number, name or None


@contextmanager
def naming_the_directory() -> Iterator[None]:
    """Adds advice to an OSError that is raised because the row file can't be made."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"`tier_directory`: {error}. Expected a directory that exists, can be written to and "
            "has room for the rows beyond `fast_bytes`."
        ) from error
