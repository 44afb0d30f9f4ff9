"""Finds items for users with two towers over string ids.

Each user has a taste and each item has a style, which the model does not know. Users mostly pick
items of the style that they like. One tower maps a user's id to a vector, the other an item's id.
The product of the two vectors says whether the user would pick the item. No vocabulary is needed:
a table gets a row for each id that training sees.

The model is trained on picks and random items; one pick of each user is left out. Then the model
recommends ten items to each user. The program prints the share of users whose left-out pick is
among these ten, and the same share for ten random items. At the end the model is saved, loaded and
asked again.

Run: python examples/two_tower.py [--users N] [--items N] [--epochs N] [--seed N] [--save FILE]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import tfra

layers = tfra.dynamic_embedding.keras.layers

Numbers = NDArray[np.int64]
TOP = 10


def make_picks(
    users: int, items: int, each: int, rng: np.random.Generator
) -> tuple[Numbers, Numbers]:
    """Returns the taste of each user, and a matrix of item numbers: `each` picks per user."""
    styles = items // TOP  # Each style has ten items: item n has the style n % styles.
    tastes = rng.integers(styles, size=users)
    liked = tastes[:, np.newaxis] + styles * rng.integers(TOP, size=(users, each))
    other = rng.integers(items, size=(users, each))
    return tastes, np.where(rng.random((users, each)) < 0.8, liked, other)


def names(kind: str, numbers: Any) -> tf.Tensor:
    """Returns ids, for example "item-7"."""
    return tf.constant([f"{kind}-{number}" for number in np.asarray(numbers).tolist()])


def tower(kind: str, dim: int) -> keras.Model:
    """Returns a model that maps each id to a vector."""
    ids = keras.Input((), dtype="string", name=f"{kind}_id")
    rows = layers.Embedding(dim, key_dtype=tf.string, name=f"{kind}_rows")(ids)
    vectors = keras.layers.Dense(dim, name=f"{kind}_vector")(rows)
    return keras.Model(ids, vectors, name=f"{kind}_tower")


def make_model(dim: int) -> keras.Model:
    """Returns the compiled model of pairs of a user and an item."""
    user = keras.Input((), dtype="string", name="user")
    item = keras.Input((), dtype="string", name="item")
    score = keras.layers.Dot(axes=1)([tower("user", dim)(user), tower("item", dim)(item)])
    model = keras.Model([user, item], keras.layers.Activation("sigmoid")(score))
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["AUC"])
    return model


def pairs(picks: Numbers, items: int, negatives: int, rng: np.random.Generator) -> tf.data.Dataset:
    """Returns all picks, and some random items for each pick; shuffled again in each epoch."""
    picker = np.tile(np.repeat(np.arange(len(picks)), picks.shape[1]), 1 + negatives)
    chosen = np.concatenate([picks.ravel(), rng.integers(items, size=negatives * picks.size)])
    labels = (np.arange(len(chosen)) < picks.size).astype(np.float32)
    inputs = (names("user", picker), names("item", chosen))
    data = tf.data.Dataset.from_tensor_slices((inputs, labels))
    return data.shuffle(len(chosen)).batch(512)


def recommend(model: keras.Model, users: int, items: int) -> Numbers:
    """Returns a matrix of item numbers: the best items for each user."""
    options = {"batch_size": 4096, "verbose": 0}
    of_users = model.get_layer("user_tower").predict(names("user", range(users)), **options)
    of_items = model.get_layer("item_tower").predict(names("item", range(items)), **options)
    return np.argsort(-of_users @ of_items.T, axis=1, kind="stable")[:, :TOP]


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains, evaluates, saves and loads the model; returns the figures that it printed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--users", type=int, default=1_000)
    parser.add_argument("--items", type=int, default=500, help="at least 10")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--save", type=Path, help="a .keras file; by default a temporary one")
    given = parser.parse_args(argv)

    keras.utils.set_random_seed(given.seed)
    rng = np.random.default_rng(given.seed)
    tastes, picks = make_picks(given.users, given.items, 21, rng)
    known, left_out = picks[:, :-1], picks[:, -1:]
    model = make_model(given.dim)
    data = pairs(known, given.items, negatives=4, rng=rng)
    model.fit(data, epochs=given.epochs, shuffle=False)  # The data is already shuffled.

    best = recommend(model, given.users, given.items)
    hits = float((best == left_out).any(axis=1).mean())
    chance = TOP / given.items
    tables = [model.get_layer(f"{kind}_tower").layers[1].params for kind in ("user", "item")]
    print("rows: {} users, {} items".format(*(int(table.size()) for table in tables)))
    print(f"left-out pick among the best {TOP}: {hits:.1%} (random items: {chance:.1%})")

    with tempfile.TemporaryDirectory() as folder:
        path = given.save or Path(folder) / "two_tower.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
    same = float((recommend(loaded, given.users, given.items) == best).mean())
    print(f"after saving and loading, {same:.0%} of the recommendations are the same")
    found = ", ".join(f"item-{number}" for number in best[0])
    liked = ", ".join(f"item-{tastes[0] + given.items // TOP * i}" for i in range(TOP))
    print(f"for user-0: {found}\nwho likes:  {liked}")
    return {"hits": hits, "chance": chance, "same": same}


if __name__ == "__main__":
    main()
