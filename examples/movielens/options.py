"""The options that the demo and its second process share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from movielens.data import DataUnavailableError, Ratings, fetch, parse
from movielens.generated import generate

BUILD = Path(__file__).resolve().parents[2] / "build"
SOURCES = ("movielens", "generated")


@dataclass(frozen=True)
class Options:
    """The options of the command line; see `parse_options`."""

    source: str | None
    ratings: int | None
    seed: int
    user: str | None
    folder: Path
    data: Path

    @property
    def model_path(self) -> Path:
        """The path of the trained model."""
        return self.folder / "model.keras"

    def load(self) -> Ratings:
        """Returns the ratings to play.

        Returns:
            The ratings of the source that was given. Without a source: those of MovieLens-1M or, if
            they cannot be downloaded, generated ones.

        Raises:
            DataUnavailableError: If the source is MovieLens-1M and cannot be downloaded.
        """
        ratings = generate(self.seed) if self.source == "generated" else self._real()
        return ratings if self.ratings is None else ratings.first(self.ratings)

    def _real(self) -> Ratings:
        try:
            return parse(fetch(self.data))
        except DataUnavailableError as error:
            if self.source == "movielens":
                raise
            print(f"{error}\nMovieLens-1M can't be had: a GENERATED stream takes its place.")
            return generate(self.seed)


def parse_options(description: str | None, argv: Sequence[str] | None) -> Options:
    """Reads the command line.

    Args:
        description: The docstring of the program.
        argv: The arguments, or None for the arguments of the process.

    Returns:
        An `Options`.
    """
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    said = "default: MovieLens-1M, and a generated stream if it can't be had"
    parser.add_argument("--source", choices=SOURCES, help=said)
    parser.add_argument("--ratings", type=_count, help="only the first so many")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--user", help='whom to recommend to, like "user:42"')
    parser.add_argument("--folder", type=Path, default=BUILD / "demo", help="for results")
    parser.add_argument("--data", type=Path, default=BUILD / "movielens-1m", help="for downloads")
    return Options(**vars(parser.parse_args(argv)))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1_000:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1000, received {text!r}")
    return int(text)
