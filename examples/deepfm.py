"""Predicts clicks with DeepFM, with one table for the ids of all fields.

An example has a value in each of several categorical fields. Some values are common, others rare,
and new ones keep coming. Whether it was clicked depends on the values themselves and on pairs of
them, by weights that the model does not know. An id is the field and the value packed into one
int64, so that no two values share a row.

The model adds up three parts: a number for each id (first order), the products of all pairs of rows
(the factorization machine), and a network over the rows (the deep part). It is trained with Adam,
evaluated on examples with some new ids, saved, loaded, and evaluated again.

Run: python examples/deepfm.py [--examples N] [--fields N] [--epochs N] [--seed N] [--save FILE]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

import tfra

layers = tfra.dynamic_embedding.keras.layers

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]


def make_clicks(examples: int, fields: int, seed: int) -> tuple[Ids, Floats]:
    """Returns ids (examples, fields) and whether each example was clicked (examples, 1)."""
    rng = np.random.default_rng(seed)
    common = (1_000 * rng.random((examples, fields)) ** 6).astype(np.int64)
    is_rare = rng.random((examples, fields)) < 0.02
    values = np.where(is_rare, rng.integers(2**40, size=is_rare.shape), common)
    ids = (np.arange(fields) << 48) + values
    # The true model: a weight and a vector for each id, which are functions of the id.
    hidden = tfra.Table(5, initializer=tfra.initializers.Normal(stddev=1.0), seed=seed).lookup(ids)
    weights, vectors = hidden[..., 0], 0.6 * hidden[..., 1:]
    products = 0.5 * (vectors.sum(axis=1) ** 2 - (vectors**2).sum(axis=1)).sum(axis=1)
    logits = weights.sum(axis=1) + products
    clicked = rng.random(examples) < 1 / (1 + np.exp(-logits))
    return ids, clicked.astype(np.float32)[:, np.newaxis]


def make_model(fields: int, dim: int) -> keras.Model:
    """Returns DeepFM, compiled."""
    ids = keras.Input((fields,), dtype="int64", name="ids")
    first = layers.SquashedEmbedding(1, initializer="zeros", combiner="sum", name="first")(ids)

    rows = layers.Embedding(dim, name="rows")(ids)  # (batch, fields, dim)
    squares = ops.square(ops.sum(rows, axis=1)) - ops.sum(ops.square(rows), axis=1)
    second = 0.5 * ops.sum(squares, axis=1, keepdims=True)

    deep = keras.layers.Flatten()(rows)
    for width in (64, 32):
        deep = keras.layers.Dense(width, activation="relu")(deep)
    deep = keras.layers.Dense(1)(deep)

    clicked = keras.layers.Activation("sigmoid")(first + second + deep)
    model = keras.Model(ids, clicked)
    auc = keras.metrics.AUC(name="auc")
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=[auc])
    return model


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains, evaluates, saves and loads the model; returns the figures that it printed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--examples", type=int, default=80_000, help="a fifth is kept for testing")
    parser.add_argument("--fields", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--dim", type=int, default=8)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--save", type=Path, help="a .keras file; by default a temporary one")
    given = parser.parse_args(argv)

    keras.utils.set_random_seed(given.seed)
    ids, clicked = make_clicks(given.examples, given.fields, given.seed)
    split = given.examples * 4 // 5
    model = make_model(given.fields, given.dim)
    model.fit(ids[:split], clicked[:split], batch_size=512, epochs=given.epochs)

    test = (ids[split:], clicked[split:])
    auc = float(model.evaluate(*test, batch_size=512, verbose=0, return_dict=True)["auc"])
    new = float(1 - np.isin(test[0], ids[:split]).mean())
    size = int(model.get_layer("rows").params.size())
    print(f"rows: {size}; ids of the test that training did not meet: {new:.1%}")
    print(f"AUC of the test: {auc:.3f} (chance: 0.5)")

    with tempfile.TemporaryDirectory() as folder:
        path = given.save or Path(folder) / "deepfm.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
    before, after = (one.predict(test[0], batch_size=512, verbose=0) for one in (model, loaded))
    difference = float(np.abs(after - before).max())
    print(f"after saving and loading, predictions differ by {difference:g} at most")
    for label, score in zip(test[1][:5, 0], after[:5, 0], strict=True):
        print(f"predicted {score:.2f}, {'clicked' if label else 'not clicked'}")
    return {"auc": auc, "rows": size, "difference": difference}


if __name__ == "__main__":
    main()
