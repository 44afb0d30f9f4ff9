"""Learns to recommend from a stream in which new users and items keep arriving.

Each day brings ratings by known and by new users of known and of new items. Users and items have
taste vectors, unknown to the model, that explain most of a rating. A factorization model over two
`tfra.Table`s (string ids, rows made when an id is first seen, Adam in the engine) is trained day by
day on NumPy arrays alone, and tested on each day before it learns from it.

Run: python examples/stream_demo.py [--days N] [--seed N]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

import tfra

Floats = NDArray[np.float32]


@dataclass
class Batch:
    """Ratings: who rated what, and how."""

    users: NDArray[np.object_]
    items: NDArray[np.object_]
    ratings: Floats


class Stream:
    """Ratings by a growing crowd of users of a growing shelf of items.

    Args:
        seed: An int; equal seeds give equal streams.
        taste: The length of the hidden vectors.
        noise: The standard deviation of what tastes do not explain.
    """

    def __init__(self, seed: int, taste: int = 6, noise: float = 0.3) -> None:
        self._rng = np.random.default_rng(seed)
        normal = tfra.initializers.Normal(stddev=0.7)
        self._user_taste = tfra.Table(taste, initializer=normal, seed=1)
        self._item_taste = tfra.Table(taste, initializer=normal, seed=2)
        self._noise = noise

    def day(self, day: int, batches: int, batch_size: int) -> Iterator[Batch]:
        """Yields the ratings of one day."""
        for _ in range(batches):
            users = self._ids(2_000 + 500 * day, batch_size)
            items = self._ids(1_000 + 250 * day, batch_size)
            tastes = self._user_taste.lookup(users), self._item_taste.lookup(items)
            noise = self._rng.normal(0, self._noise, batch_size)
            ratings = (np.sum(tastes[0] * tastes[1], axis=1) + noise).astype(np.float32)
            yield Batch(_names("user", users), _names("item", items), ratings)

    def _ids(self, population: int, n: int) -> NDArray[np.int64]:
        """Skewed draws: a few ids are everywhere, most are rare."""
        return (population * self._rng.random(n) ** 2).astype(np.int64)


def _names(kind: str, numbers: NDArray[np.int64]) -> NDArray[np.object_]:
    return np.array([f"{kind}-{number}" for number in numbers], dtype=object)


class Factorization:
    """Rates by the product of a user's and an item's row, plus a bias for each.

    Args:
        dim: The length of the two vectors.
        learning_rate: For Adam.
    """

    def __init__(self, dim: int = 8, learning_rate: float = 0.02) -> None:
        adam = tfra.optimizers.Adam(learning_rate)
        start = tfra.initializers.Normal(stddev=0.1)
        self.users = tfra.Table(dim + 1, key_dtype="string", initializer=start, optimizer=adam)
        self.items = tfra.Table(
            dim + 1, key_dtype="string", initializer=start, optimizer=adam, seed=1
        )

    def predict(self, batch: Batch) -> Floats:
        """Rates without learning: ids never seen rate by their initial rows."""
        return self._score(self.users.lookup(batch.users), self.items.lookup(batch.items))

    def learn(self, batch: Batch) -> None:
        """Takes one step down the squared error."""
        users, items = self.users.lookup(batch.users), self.items.lookup(batch.items)
        error = (self._score(users, items) - batch.ratings)[:, np.newaxis]
        ones = np.ones_like(error)
        self.users.apply_gradients(batch.users, error * np.hstack([items[:, :-1], ones]))
        self.items.apply_gradients(batch.items, error * np.hstack([users[:, :-1], ones]))

    @staticmethod
    def _score(users: Floats, items: Floats) -> Floats:
        bias = users[:, -1] + items[:, -1]
        scores: Floats = np.sum(users[:, :-1] * items[:, :-1], axis=1) + bias
        return scores


def explained(predicted: Floats, actual: Floats) -> float:
    """The share of the variance that the prediction explains."""
    return 1.0 - float(np.mean((predicted - actual) ** 2) / np.var(actual))


def run(days: int, seed: int, batches: int = 60, batch_size: int = 2_048) -> list[float]:
    """Trains day by day and returns, per day, how well the model rated it beforehand."""
    stream, model = Stream(seed), Factorization()
    history = []
    print("day   users   items   explained before learning the day")
    for day in range(days):
        todays = list(stream.day(day, batches, batch_size))
        scores = np.concatenate([model.predict(batch) for batch in todays])
        history.append(explained(scores, np.concatenate([batch.ratings for batch in todays])))
        for batch in tqdm(todays * 3, desc=f"day {day}", leave=False, unit="step"):
            model.learn(batch)
        counts = f"{len(model.users):7d} {len(model.items):7d}"
        print(f"{day:3d} {counts}   {history[-1]:6.1%}", flush=True)
    memory = (model.users.memory_usage()["total"] + model.items.memory_usage()["total"]) / 2**20
    print(f"tables: {memory:.1f} MiB; {model.users!r}")
    return history


def main() -> None:
    """Reads the arguments and runs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    start = time.perf_counter()
    run(arguments.days, arguments.seed)
    print(f"done in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
