"""Plays ratings in the order of their times: models predict each batch, then learn from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import pairwise

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from movielens.data import Ratings

Floats = NDArray[np.float32]
BATCH = 256


@dataclass(frozen=True)
class Period:
    """Whole days of the stream, one after the other: the ratings from `start` to before `stop`."""

    start: int
    stop: int
    first_day: date
    last_day: date

    def __str__(self) -> str:
        return f"{self.first_day} to {self.last_day}"

    def __len__(self) -> int:
        return self.stop - self.start

    def of(self, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Returns the elements of an array that belong to the period."""
        return flags[self.start : self.stop]


def periods(ratings: Ratings, at_least: int) -> list[Period]:
    """Groups days into periods, because days have between 10 and 60,000 ratings.

    Args:
        ratings: The stream.
        at_least: A period ends with the day on which it reaches this many ratings.

    Returns:
        Periods that cover the stream. Days that are left over at the end belong to the last period.

    Raises:
        ValueError: If there are no ratings, or `at_least` is less than 1.
    """
    if not len(ratings) or at_least < 1:
        raise ValueError(
            f"Expected ratings, and `at_least` of 1 or more. Received: {len(ratings)} ratings, "
            f"at_least={at_least}"
        )
    days = ratings.days
    ends_of_days = np.append(np.flatnonzero(np.diff(days)) + 1, len(days))
    stops = [0]
    for end in ends_of_days.tolist():
        if end - stops[-1] >= at_least:
            stops.append(end)
    if len(stops) == 1:
        stops.append(len(days))
    stops[-1] = len(days)
    return [
        Period(start, stop, _date(days[start]), _date(days[stop - 1]))
        for start, stop in pairwise(stops)
    ]


def _date(day: int) -> date:
    return date(1970, 1, 1) + timedelta(days=int(day))


def is_new(keys: NDArray[np.object_]) -> NDArray[np.bool_]:
    """Returns a mask: True where a key occurs for the first time."""
    first: dict[str, int] = {}
    for place, key in enumerate(keys):
        first.setdefault(key, place)
    new = np.zeros(len(keys), dtype=bool)
    new[list(first.values())] = True
    return new


def auc(scores: Floats, liked: Floats) -> float:
    """Returns the AUC of scores.

    The AUC is the share of pairs, of an example that was liked and one that was not, in which the
    liked one has the higher score. A pair with equal scores counts half.

    Args:
        scores: A number for each example.
        liked: 1 or 0 for each example.

    Returns:
        A number from 0 to 1, or nan if all examples or none were liked.

    Raises:
        ValueError: If the arrays are not vectors of the same length.
    """
    if scores.shape != liked.shape or scores.ndim != 1:
        raise ValueError(
            f"Expected two vectors of one length. Received: {scores.shape} and {liked.shape}"
        )
    positives = int(liked.sum())
    negatives = len(liked) - positives
    if positives == 0 or negatives == 0:
        return float("nan")
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(sizes) - (sizes - 1) / 2  # Equal scores share the mean of their ranks.
    rank_sum = float(mean_rank[group][liked > 0].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


class Player:
    """Plays periods to several models, which all see the same batches.

    A batch covers a few minutes of the stream. Predictions for a whole day would be too coarse:
    users give two thirds of all ratings on their first day, and before it a model knows nothing
    about the user.

    Args:
        ratings: The stream.
        models: The models, by name.
    """

    def __init__(self, ratings: Ratings, models: Mapping[str, keras.Model]) -> None:
        self.models = models
        self.liked = ratings.liked
        self.scores: dict[str, Floats] = {n: np.zeros(len(ratings), np.float32) for n in models}
        self.seconds = dict.fromkeys(models, 0.0)
        self._ratings = ratings

    def play(self, period: Period, on_batch: Callable[[int], None]) -> dict[str, float]:
        """Lets the models predict and learn the ratings of a period, batch by batch.

        Args:
            period: The next period.
            on_batch: Called after each batch with the number of its ratings.

        Returns:
            The AUC of each model's predictions.
        """
        for start in range(period.start, period.stop, BATCH):
            part = slice(start, min(start + BATCH, period.stop))
            keys = [tf.constant(self._ratings.users[part]), tf.constant(self._ratings.films[part])]
            liked = tf.constant(self.liked[part])
            for name, model in self.models.items():
                begin = time.perf_counter()
                self.scores[name][part] = model.predict_on_batch(keys)
                model.train_on_batch(keys, liked)
                self.seconds[name] += time.perf_counter() - begin
            on_batch(part.stop - part.start)
        return self.auc(period.start, period.stop)

    def auc(self, start: int, stop: int) -> dict[str, float]:
        """Returns the AUC of each model over the ratings from `start` to before `stop`."""
        part = slice(start, stop)
        return {n: auc(scores[part], self.liked[part]) for n, scores in self.scores.items()}
