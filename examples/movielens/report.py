"""The output of the demo: a line per period, a comparison at the end, and a picture."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from movielens.compare import DYNAMIC, HASHED, Outcome
from movielens.play import Period


@dataclass(frozen=True)
class Line:
    """The figures of a period.

    Args:
        period: The period.
        new_users: The number of users who gave their first rating.
        new_films: The number of films that got their first rating.
        auc: The AUC of each model, by its name.
    """

    period: Period
    new_users: int
    new_films: int
    auc: dict[str, float]

    HEADER = (
        f"{'days':<26}{'ratings':>8}{'new users':>11}{'new films':>11}"
        f"{'AUC tfra':>11}{'hashing':>10}"
    )

    def __str__(self) -> str:
        return (
            f"{self.period!s:<26}{len(self.period):>8}{self.new_users:>11}{self.new_films:>11}"
            f"{self.auc[DYNAMIC]:>11.4f}{self.auc[HASHED]:>10.4f}"
        )


def print_comparison(
    console: Console, outcomes: dict[str, Outcome], ratings_per_second: dict[str, float]
) -> None:
    """Prints the results of the models side by side.

    Args:
        console: The console to print to.
        outcomes: The results, by the name of the model.
        ratings_per_second: The speed of prediction and training, by the name of the model.
    """
    table = Table(title="Each rating predicted before it was learned from")
    table.add_column("")
    for name in outcomes:
        table.add_column(name, justify="right")
    every = outcomes.values()
    table.add_row("AUC, all ratings", *(f"{one.auc:.4f}" for one in every))
    table.add_row("AUC, second half", *(f"{one.late_auc:.4f}" for one in every))
    table.add_row("keys met", *(f"{one.keys:,}" for one in every))
    table.add_row("keys that share a row", *(f"{one.sharing / one.keys:.1%}" for one in every))
    table.add_row("rows", *(f"{one.rows:,}" for one in every))
    table.add_row("bytes of the tables", *(f"{one.total_bytes:,}" for one in every))
    table.add_row("ratings per second", *(f"{ratings_per_second[name]:,.0f}" for name in outcomes))
    console.print(table)


def save_results(path: Path, source: str, lines: list[Line], outcomes: dict[str, Outcome]) -> None:
    """Writes all figures except speeds to a file, so that equal runs write equal files."""
    by_period = [
        {
            "days": str(line.period),
            "ratings": len(line.period),
            "new_users": line.new_users,
            "new_films": line.new_films,
            "auc": line.auc,
        }
        for line in lines
    ]
    models = {name: asdict(outcome) for name, outcome in outcomes.items()}
    results = {"source": source, "periods": by_period, "models": models}
    path.write_text(json.dumps(results, indent=1) + "\n")


def save_picture(path: Path, source: str, lines: list[Line]) -> None:
    """Draws the AUC by period, and below it the number of users and films so far.

    Args:
        path: A file to write, of a type that matplotlib knows.
        source: The name of the stream.
        lines: The figures of each period.
    """
    figure = Figure(figsize=(9, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    ratings = [line.period.stop / 1e3 for line in lines]
    for name, style in ((DYNAMIC, "o-"), (HASHED, "s--")):
        upper.plot(ratings, [line.auc[name] for line in lines], style, label=name, markersize=4)
    upper.set_ylabel("AUC, before learning")
    upper.set_title(f"{source}: a row for each key, and rows shared by hash, in the same memory")
    upper.legend(loc="lower right")
    users = films = 0
    counts = []
    for line in lines:
        users, films = users + line.new_users, films + line.new_films
        counts.append((users, films))
    lower.plot(ratings, counts, label=["users", "films"])
    lower.set_ylabel("met so far")
    lower.set_xlabel("thousand ratings, in the order of their times")
    lower.legend(loc="lower right")
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
