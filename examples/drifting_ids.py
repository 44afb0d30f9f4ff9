"""Predicts clicks on a stream whose ids drift, with three ways to keep tables in shape.

Each day brings new users and new items. They are popular at first and fade within days, and many
ids are seen once and never again. Whether a user clicks on an item depends on hidden vectors of the
two ids, which the model does not know. The model predicts each day before it is trained on that
day: this measures how well it predicts ids as they arrive.

The same model runs three times:

- no rule: every id that was ever trained keeps its row.
- restrict: at the end of a day, each table keeps the `--keep` ids that were seen last; or, with
  `--policy most-frequent`, most often.
- admission + ttl: an id gets a row when it is seen for the second time, and loses it when it was
  not seen for more than `--ttl` days.

Needs matplotlib. Run:
python examples/drifting_ids.py [--days N] [--examples N] [--keep N] [--ttl DAYS] [--plot FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

import tfra

de = tfra.dynamic_embedding
layers = de.keras.layers
callbacks = de.keras.callbacks

DAY = 86_400  # In seconds.
POLICIES = {"newest": de.TimestampRestrictPolicy, "most-frequent": de.FrequencyRestrictPolicy}

Ids = NDArray[np.int64]
Examples = tuple[dict[str, Ids], NDArray[np.float32]]


class Evening(NamedTuple):
    """The figures at the end of a day."""

    auc: float  # The AUC of the predictions, made before training on the day.
    log_loss: float
    keys: int  # The sum over both tables.
    bytes: int


def draw_ids(day: int, examples: int, newcomers: int, once: float, rng: np.random.Generator) -> Ids:
    """Returns the ids of a day's examples: some popular, most rare, some never to be seen again.

    Args:
        day: The number of the day.
        examples: How many ids to draw.
        newcomers: How many ids appear each day.
        once: The share of examples with an id that is used only once.
        rng: The random generator.
    """
    age = rng.exponential(3.0, examples).astype(np.int64)  # In days: old ids are rare.
    place = (newcomers * rng.random(examples) ** 3).astype(np.int64)  # A few ids are popular.
    is_once = rng.random(examples) < once
    return np.where(
        is_once, rng.integers(2**40, 2**62, size=examples), (day - age) * newcomers + place
    )


def make_stream(days: int, examples: int, seed: int) -> Iterator[Examples]:
    """Yields the examples of one day after the other: ids, and whether there was a click."""
    rng = np.random.default_rng(seed)
    normal = tfra.initializers.Normal(stddev=1.0)
    # The true model: a weight and a vector for each id, which are functions of the id.
    hidden_users = tfra.Table(5, initializer=normal, seed=seed)
    hidden_items = tfra.Table(5, initializer=normal, seed=seed + 1)
    for day in range(1, days + 1):
        users = draw_ids(day, examples, newcomers=examples // 20, once=0.4, rng=rng)
        items = draw_ids(day, examples, newcomers=examples // 100, once=0.2, rng=rng)
        user, item = hidden_users.lookup(users), hidden_items.lookup(items)
        products = (user[:, 1:] * item[:, 1:]).sum(axis=1)
        logits = user[:, 0] + 1.5 * item[:, 0] + 0.5 * products
        clicked = rng.random(examples) < 1 / (1 + np.exp(-logits))
        yield {"user": users, "item": items}, clicked.astype(np.float32)[:, np.newaxis]


def make_model(dim: int, rules: dict[str, Any]) -> keras.Model:
    """Returns a model whose tables follow the rules, compiled."""
    ids = {name: keras.Input((), dtype="int64", name=name) for name in ("user", "item")}
    user = layers.Embedding(dim, name="users", **rules)(ids["user"])
    item = layers.Embedding(dim, name="items", **rules)(ids["item"])
    rows = keras.layers.Concatenate()([user, item, user * item])
    clicked = keras.layers.Dense(1, activation="sigmoid")(rows)
    model = keras.Model(ids, clicked)
    auc = keras.metrics.AUC(name="auc")
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=[auc])
    return model


def run(
    stream: Iterator[Examples], model: keras.Model, upkeep: list[keras.callbacks.Callback]
) -> list[Evening]:
    """Predicts each day, then trains on it, then keeps the tables in shape."""
    tables = [model.get_layer(name).params for name in ("users", "items")]
    evenings = []
    for day, (ids, clicked) in enumerate(stream, start=1):
        for table in tables:
            table.set_clock(day * DAY)  # Tables use the time of the stream, not of this machine.
        scores = model.evaluate(ids, clicked, batch_size=4096, verbose=0, return_dict=True)
        model.fit(ids, clicked, batch_size=256, shuffle=False, verbose=0, callbacks=upkeep)
        stats = [table.stats() for table in tables]
        evenings.append(
            Evening(
                auc=float(scores["auc"]),
                log_loss=float(scores["loss"]),
                keys=sum(each.size for each in stats),
                bytes=sum(each.bytes for each in stats),
            )
        )
    return evenings


def print_figures(runs: dict[str, list[Evening]]) -> None:
    """Prints keys and AUC by day, and totals."""
    names = list(runs)
    print("     " + "".join(f"{name:>22}" for name in names))
    print(" day " + f"{'keys':>13}{'AUC':>9}" * len(names))
    for day, evenings in enumerate(zip(*runs.values(), strict=True), start=1):
        print(f"{day:4} " + "".join(f"{each.keys:13,}{each.auc:9.3f}" for each in evenings))
    print(f"\n{'':15}  AUC, days 2 on   log loss      keys at the end         MiB")
    for name, each in runs.items():
        auc, loss = mean_scores(each)
        last = each[-1]
        print(f"{name:15}{auc:17.4f}{loss:11.4f}{last.keys:21,}{last.bytes / 2**20:12.1f}")


def mean_scores(evenings: list[Evening]) -> tuple[float, float]:
    """Returns AUC and log loss, without the first day, whose ids are all unknown."""
    scores = np.array([(each.auc, each.log_loss) for each in evenings[1:]])
    return float(scores[:, 0].mean()), float(scores[:, 1].mean())


def draw(runs: dict[str, list[Evening]], path: Path) -> None:
    """Draws table size by day, and AUC from the second day on."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    keys, auc = figure.subplots(1, 2)
    for (name, evenings), style in zip(runs.items(), ("-", "--", "-."), strict=True):
        days = range(1, len(evenings) + 1)
        keys.plot(days, [each.keys for each in evenings], style, label=name)
        auc.plot(days[1:], [each.auc for each in evenings[1:]], style, label=name)
    keys.set(xlabel="day", ylabel="keys", title="Keys in both tables, at the end of the day")
    keys.set_ylim(bottom=0)
    keys.legend()
    keys.yaxis.set_major_formatter("{x:,.0f}")
    auc.set(xlabel="day", ylabel="AUC", title="AUC of each day, before training on it")
    for panel in (keys, auc):
        panel.xaxis.get_major_locator().set_params(integer=True)  # Ticks are whole days.
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)


def main(argv: Sequence[str] | None = None) -> dict[str, list[Evening]]:
    """Runs the model with all three rules; prints, draws and returns the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--days", type=int, default=20)
    parser.add_argument("--examples", type=int, default=20_000, help="in a day")
    parser.add_argument("--keep", type=int, default=6_000, help="ids in each table: restrict")
    parser.add_argument("--policy", choices=sorted(POLICIES), default="newest", help="restrict")
    parser.add_argument("--ttl", type=float, default=3, help="in days: admission + ttl")
    parser.add_argument("--dim", type=int, default=8)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--plot", type=Path, default=Path("build/drifting_ids.png"))
    given = parser.parse_args(argv)
    if given.days < 2 or given.examples < 40:
        parser.error(
            "expected --days of 2 or more and --examples of 40 or more. "
            f"Received: {given.days} and {given.examples}"
        )

    second_time = tfra.admission.MinCount(2)
    rules: dict[str, tuple[dict[str, Any], list[keras.callbacks.Callback]]] = {
        "no rule": ({}, []),
        "restrict": (
            {"restrict_policy": POLICIES[given.policy]},
            [callbacks.RestrictCallback(given.keep)],
        ),
        "admission + ttl": (
            {"admission": second_time, "ttl": given.ttl * DAY},
            [callbacks.ExpireCallback()],
        ),
    }
    runs = {}
    for name, (of_tables, upkeep) in rules.items():
        keras.utils.set_random_seed(given.seed)
        stream = make_stream(given.days, given.examples, given.seed)
        runs[name] = run(stream, make_model(given.dim, of_tables), upkeep)
    print_figures(runs)
    draw(runs, given.plot)
    print(f"\nThe plot is in {given.plot}")
    return runs


if __name__ == "__main__":
    main()
