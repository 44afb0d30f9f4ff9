"""Two models that differ only in their tables, and their results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from movielens.data import Ratings
from movielens.model import (
    KINDS,
    ROW_BYTES,
    dynamic_rows,
    hashed_rows,
    make_model,
    rows_of_keys,
    stored_keys,
    table_bytes,
)
from movielens.play import Player

DYNAMIC, HASHED = "tfra", "hashing trick"


@dataclass(frozen=True)
class Outcome:
    """The result of one model.

    Args:
        auc: The AUC over all ratings.
        late_auc: The AUC over the second half of the ratings.
        keys: The number of keys that the model has seen.
        sharing: How many of these keys share a row with another key.
        rows: The number of rows of the model.
        total_bytes: Memory of the rows and their slots; for `tfra` also of index and keys.
    """

    auc: float
    late_auc: float
    keys: int
    sharing: int
    rows: int
    total_bytes: int


class Comparison:
    """Two models for one stream.

    The static tables get as much memory as the tables of `tfra` take at the end of the stream, as
    if this size had been known before.

    Args:
        ratings: The stream.
        seed: An int that determines everything random in the models.
    """

    def __init__(self, ratings: Ratings, seed: int) -> None:
        columns = {"user": ratings.users, "film": ratings.films}
        self._keys = {kind: list(dict.fromkeys(columns[kind])) for kind in KINDS}
        self._bins = {kind: table_bytes(self._keys[kind]) // ROW_BYTES for kind in KINDS}
        self.dynamic = make_model(dynamic_rows, seed)
        self.hashed = make_model(
            lambda kind, its_seed: hashed_rows(kind, its_seed, self._bins[kind]), seed
        )
        self.player = Player(ratings, {DYNAMIC: self.dynamic, HASHED: self.hashed})

    def outcomes(self) -> dict[str, Outcome]:
        """Returns the current figures of both models."""
        count = len(self.player.liked)
        auc, late_auc = self.player.auc(0, count), self.player.auc(count // 2, count)
        keys = sum(len(of_kind) for of_kind in self._keys.values())
        stored = [stored_keys(self.dynamic, kind) for kind in KINDS]
        rows, memory = sum(map(len, stored)), sum(map(table_bytes, stored))
        bins, sharing = sum(self._bins.values()), sum(self._sharing(kind) for kind in KINDS)
        return {
            DYNAMIC: Outcome(auc[DYNAMIC], late_auc[DYNAMIC], keys, keys - rows, rows, memory),
            HASHED: Outcome(auc[HASHED], late_auc[HASHED], keys, sharing, bins, bins * ROW_BYTES),
        }

    def _sharing(self, kind: str) -> int:
        numbers = rows_of_keys(self.hashed, kind, self._keys[kind])
        counts = np.bincount(numbers, minlength=self._bins[kind])
        return int(np.sum(counts[counts > 1]))
