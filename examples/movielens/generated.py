"""A generated stream in the shape of MovieLens-1M, if the real one cannot be downloaded.

As in the real stream, about 6,000 users arrive over eight months. Each user gives at least 20
ratings: most of them in one sitting, the others later. About 3,700 films exist from the beginning
or come out later, and a few films get most of the ratings. Stars depend on the user, on the film,
and on how well the taste of the user fits the style of the film. The models do not know the numbers
behind this.
"""

from __future__ import annotations

import numpy as np

from movielens.data import SECONDS_OF_A_DAY, Ratings

USERS, FILMS = 6_040, 3_706
TASTES = 4
FIRST_DAY = 11_072  # 2000-04-25
# The shares of ratings with at most one, two, three and four stars.
STARS_UP_TO = np.cumsum([0.056, 0.108, 0.261, 0.349])


def generate(seed: int) -> Ratings:
    """Makes the stream.

    Args:
        seed: An int; equal seeds give equal streams.

    Returns:
        About a million ratings, in the order of their times.
    """
    rng = np.random.default_rng(seed)
    arrival = 250 * rng.beta(2.0, 1.5, USERS)  # In days.
    many = 20 + np.minimum(rng.lognormal(np.log(76), 1.15, USERS), 2_000).astype(np.int64)
    premiere = np.where(rng.random(FILMS) < 0.8, 0.0, 250 * rng.random(FILMS))
    popularity = rng.lognormal(0.0, 1.5, FILMS)

    users = np.repeat(np.arange(USERS), many)
    films = np.concatenate(
        [
            _some_films(rng, popularity * (premiere <= arrival[user]), many[user])
            for user in range(USERS)
        ]
    )
    sitting = np.arange(len(users)) - np.repeat(np.cumsum(many) - many, many)
    later = (rng.random(len(users)) < 0.3) * rng.exponential(60.0, len(users))
    seconds = SECONDS_OF_A_DAY * (FIRST_DAY + arrival[users] + later) + 10 * sitting
    order = np.argsort(seconds, kind="stable")

    stars = _stars(rng, users, films)
    years = rng.integers(1930, 2001, FILMS)
    user_keys = np.array([f"user:{user + 1}" for user in range(USERS)], dtype=object)
    film_keys = np.array(
        [f"film:Film {film + 1} ({year})" for film, year in enumerate(years)], dtype=object
    )
    return Ratings(
        "generated stream",
        user_keys[users[order]],
        film_keys[films[order]],
        stars[order],
        seconds[order].astype(np.int64),
    )


def _some_films(rng: np.random.Generator, weights: np.ndarray, count: int) -> np.ndarray:
    """Returns distinct films, drawn with probabilities proportional to `weights`."""
    return rng.choice(FILMS, size=count, replace=False, p=weights / weights.sum())


def _stars(rng: np.random.Generator, users: np.ndarray, films: np.ndarray) -> np.ndarray:
    taste, style = rng.normal(size=(USERS, TASTES)), rng.normal(size=(FILMS, TASTES))
    kindness, quality = rng.normal(size=USERS), rng.normal(size=FILMS)
    meeting = np.sum(taste[users] * style[films], axis=1) / np.sqrt(TASTES)
    liking = 0.5 * kindness[users] + quality[films] + meeting + rng.normal(size=len(users))
    return 1 + np.searchsorted(np.quantile(liking, STARS_UP_TO), liking)
