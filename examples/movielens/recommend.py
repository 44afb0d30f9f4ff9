"""Loads the saved model in a new process and recommends films to one user.

PYTHONPATH=examples python -m movielens.recommend [--user KEY] [options of the demo]
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import tfra.dynamic_embedding.keras.layers  # noqa: F401  Registers the layers of the saved model.
from movielens.data import LIKED_STARS, Ratings
from movielens.options import parse_options

TOP = 10
ENOUGH_RATINGS = 50


@dataclass(frozen=True)
class Advice:
    """Films for a user.

    Args:
        user: The user's key.
        rated: The films that the user gave most stars, and these stars.
        recommended: Films that the user has not rated, and how likely the user is to like them.
    """

    user: str
    rated: list[tuple[str, int]]
    recommended: list[tuple[str, float]]


def choose_user(ratings: Ratings, wanted: str | None) -> str:
    """Returns the key of the user to recommend films to.

    Args:
        ratings: The stream.
        wanted: A key, or None for the last user to arrive who has several ratings.

    Returns:
        A key.

    Raises:
        ValueError: If the user `wanted` has no ratings.
    """
    counts = Counter(ratings.users)
    if wanted is None:
        enough = min(ENOUGH_RATINGS, max(counts.values()))
        return next(user for user in reversed(counts) if counts[user] >= enough)
    if wanted not in counts:
        known = next(iter(counts))
        raise ValueError(f"Expected a user of the ratings, like {known!r}. Received: {wanted!r}")
    return wanted


def advise(model: keras.Model, ratings: Ratings, user: str) -> Advice:
    """Finds the films that a user has not rated and is most likely to like.

    Args:
        model: A model of `movielens.model.make_model`.
        ratings: The stream that the model was trained on.
        user: A key, like "user:42".

    Returns:
        An `Advice`.
    """
    (places,) = np.nonzero(ratings.users == user)
    # Films with equal stars: the latest rating first.
    best = places[np.lexsort((-places, -ratings.stars[places]))][:TOP]
    rated = [(str(ratings.films[i]), int(ratings.stars[i])) for i in best]

    unseen = sorted(set(ratings.films) - set(ratings.films[places]))
    keys = [tf.constant([user] * len(unseen)), tf.constant(unseen)]
    scores = model.predict(keys, batch_size=4_096, verbose=0)
    top = np.argsort(-scores, kind="stable")[:TOP]
    return Advice(user, rated, [(unseen[i], float(scores[i])) for i in top])


def print_advice(console: Console, advice: Advice) -> None:
    """Prints the films that the user rated best beside the recommended ones."""
    table = Table(title=f"For {advice.user}")
    table.add_column("stars", justify="right")
    table.add_column("rated best")
    table.add_column(f"{LIKED_STARS} stars+", justify="right")
    table.add_column("recommended, not yet rated")
    for past, future in zip_longest(advice.rated, advice.recommended):
        film, stars = past or ("", "")
        new_film, score = future or ("", 0.0)
        likely = f"{score:.0%}" if new_film else ""
        titles = [escape(key.removeprefix("film:")) for key in (film, new_film)]
        table.add_row(str(stars), titles[0], likely, titles[1])
    console.print(table)


def main(argv: Sequence[str] | None = None) -> Advice:
    """Loads the model and prints recommendations; returns them."""
    options = parse_options(__doc__, argv)
    console = Console()
    ratings = options.load()
    model = keras.models.load_model(options.model_path)
    console.print(f"process {os.getpid()} has loaded {options.model_path}", soft_wrap=True)
    advice = advise(model, ratings, choose_user(ratings, options.user))
    print_advice(console, advice)
    return advice


if __name__ == "__main__":
    main()
