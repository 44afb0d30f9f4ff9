"""Reads a file of a snapshot with NumPy, written from docs/snapshot-format.md alone."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from typing import Any

import google_crc32c
import numpy as np

KINDS = {1: "rows", 2: "removed", 3: "waiting", 4: "filter", 5: "end"}


def blocks(data: bytes, snapshot: int, part: int) -> Iterator[tuple[str, int, bytes]]:
    """Yields the kind, the number of rows and the columns of each block."""
    at = number = before = 0
    while True:
        header = data[at : at + 64]
        magic, kind, rows, n, size, id_, of, zero, rows_before, sum_, header_sum = struct.unpack(
            "<8sIIQQQIIQII", header
        )
        assert (magic, header_sum) == (b"TFRABLCK", google_crc32c.value(header[:60]))
        assert (n, id_, of, zero, rows_before) == (number, snapshot, part, 0, before)
        columns = data[at + 64 : at + 64 + size]
        assert size % 64 == 0 and sum_ == google_crc32c.value(columns)
        assert rows <= (2**20 if KINDS[kind] == "filter" else 4096)
        assert size <= 2**20 or rows == 1
        yield KINDS[kind], rows, columns
        at += -(-(64 + size) // 4096) * 4096
        number += 1
        before += rows if KINDS[kind] == "rows" else 0
        if KINDS[kind] == "end":
            assert at == len(data)
            return


class Columns:
    """Takes one column of a block after the other."""

    def __init__(self, columns: bytes) -> None:
        self.left = columns

    def take(self, dtype: Any, *shape: int) -> np.ndarray:
        found = np.frombuffer(self.left, dtype, int(np.prod(shape))).reshape(shape)
        self.left = self.left[-(-found.nbytes // 64) * 64 :]
        return found

    def strings(self, count: int) -> list[bytes]:
        ends = [0, *self.take("<u4", count).tolist()]
        text = self.take("u1", ends[-1]).tobytes()
        return [text[a:b] for a, b in itertools.pairwise(ends)]

    def keys(self, spec: dict[str, Any], n: int) -> list[Any]:
        return self.strings(n) if spec["key_type"] == "string" else self.take("<i8", n).tolist()

    def values(self, spec: dict[str, Any], n: int, dtype: Any) -> Any:
        dim = spec["dim"]
        return self.strings(n * dim) if dtype is None else self.take(dtype, n, dim)
