"""How tables and Variables are displayed: in one line, in a notebook, by their first rows."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfra._shared import arrays

Facts = dict[str, Any]


class Shown:
    """Display methods of tables and Variables.

    A subclass returns the facts to display, in order and without reading rows (`_facts`), and its
    first rows (`_first_rows`).
    """

    def _facts(self) -> Facts:
        raise NotImplementedError

    def _first_rows(self, n: int | None) -> tuple[NDArray[Any], NDArray[Any]]:
        raise NotImplementedError

    def __repr__(self) -> str:
        facts = _known(self._facts())
        return f"<{_title(self)} {' '.join(f'{what}={facts[what]}' for what in facts)}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(what.replace('_', ' '))}</th>"
            f"<td style='text-align:left'>{escape(str(fact))}</td></tr>"
            for what, fact in _known(self._facts()).items()
        )
        caption = f"<caption><code>{escape(_title(self))}</code></caption>"
        return f"<table>{caption}<tbody>{rows}</tbody></table>"

    def head(self, n: int = 5) -> tuple[NDArray[Any], NDArray[Any]]:
        """Returns the first keys and their rows, in no particular order.

        A table of the engine is read only as far as needed.

        Example:
        >>> table = tfra.Table(dim=2)
        >>> table.upsert([10, 20, 30], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> keys, rows = table.head(2)
        >>> keys.shape, rows.shape
        ((2,), (2, 2))

        Args:
            n: The largest number of keys to return.

        Returns:
            `(keys, values)`, NumPy arrays of shapes `[m]` and `[m, dim]`, where `m` is `n`, or
            the number of keys if there are fewer.

        Raises:
            TypeError: If `n` is not an integer.
            ValueError: If `n` is negative.
            RuntimeError: In a graph, where there are no rows to read yet.
        """
        return self._first_rows(arrays.integer(n, "n", 0))

    def to_pandas(self, n: int | None = None) -> Any:
        """Returns keys and their rows as a pandas DataFrame.

        Example:
        >>> table = tfra.Table(dim=2, key_dtype="string")
        >>> table.upsert(["ann"], [[1.0, 2.0]])
        >>> table.to_pandas().loc["ann"].tolist()
        [1.0, 2.0]

        Args:
            n: The largest number of keys to return; `None` for all.

        Returns:
            A DataFrame with the keys as its index, a row for each key, and a column for each of the
            `dim` numbers. Keys and values in UTF-8 become strings, others stay bytes; bfloat16
            becomes float32.

        Raises:
            ImportError: If pandas is not installed.
            TypeError: If `n` is not an integer.
            ValueError: If `n` is negative.
            RuntimeError: In a graph, where there are no rows to read yet.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(
                "`to_pandas` needs pandas, which is not installed. Install it with: "
                "pip install 'tfra[pandas]'. `head` returns the same rows as NumPy arrays."
            ) from error
        keys, values = self._first_rows(None if n is None else arrays.integer(n, "n", 0))
        index = pandas.Index(_readable(keys), name="key")
        return pandas.DataFrame(_readable(values), index=index)


def join_batches(
    batches: Iterable[tuple[NDArray[Any], NDArray[Any]]],
    n: int | None,
    empty: tuple[NDArray[Any], NDArray[Any]],
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Joins the first `n` rows of batches, or all. Reads no more batches than needed."""
    parts, rows = [empty], 0
    if n != 0:
        for keys, values in batches:
            wanted = None if n is None else n - rows
            parts.append((keys[:wanted], values[:wanted]))
            rows += len(keys)
            if n is not None and rows >= n:
                break
    # np.concatenate copies the rows, so that the memory of the batches is freed.
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def readable_bytes(number: int) -> str:
    """Returns a number of bytes as a text such as 1.5GiB."""
    if number < 1024:
        return f"{number}B"
    size = float(number)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f}{unit}"
    return f"{size / 1024:.1f}TiB"


def _title(shown: Shown) -> str:
    """Returns the name of a class as users write it, without private modules."""
    modules = type(shown).__module__.split("._")[0]
    return f"{modules}.{type(shown).__qualname__}"


def _known(facts: Facts) -> Facts:
    return {what: fact for what, fact in facts.items() if fact is not None}


def _readable(array: NDArray[Any]) -> NDArray[Any]:
    """Converts an array for pandas: bytes to strings if all are UTF-8, bfloat16 to float32."""
    if array.dtype.name == "bfloat16":
        return array.astype(np.float32)
    if array.dtype != arrays.STRING:
        return array
    try:
        texts = [text.decode() for text in array.reshape(-1).tolist()]
    except UnicodeDecodeError:
        return array
    return arrays.object_array(texts, array.shape)
