"""Plays ratings in the order of their times: each batch is predicted, then learned from."""

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
        """Returns the part of an array that belongs to the period."""
        return flags[self.start : self.stop]


def periods(ratings: Ratings, at_least: int) -> list[Period]:
    """Groups days, since one day has 10 ratings and another 60,000.

    Args:
        ratings: The stream.
        at_least: A period ends with the first day that gives it so many ratings.

    Returns:
        Periods that cover the stream. What is left at the end belongs to the last of them.

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
    """Returns where a key comes for the first time."""
    first: dict[str, int] = {}
    for place, key in enumerate(keys):
        first.setdefault(key, place)
    new = np.zeros(len(keys), dtype=bool)
    new[list(first.values())] = True
    return new


def auc(scores: Floats, liked: Floats) -> float:
    """How often one that was liked has the higher score than one that was not; equal ones half.

    Args:
        scores: A number for each example.
        liked: 1 or 0 for each.

    Returns:
        A number from 0 to 1, or nan if all were liked or none was.

    Raises:
        ValueError: If the arrays are not vectors of one length.
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

    A batch is a few minutes of the stream. Whole days ahead would be too coarse: two thirds of all
    ratings are given on a user's first day, when the day before says nothing of the user.

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
        """Predicts and learns the ratings of a period, batch by batch.

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
