"""Trains two recommenders on a stream of ratings, compares them, and recommends films."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial

import keras
import tensorflow as tf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from movielens.compare import Comparison
from movielens.data import LICENCE, LIKED_STARS, Ratings
from movielens.options import parse_options
from movielens.play import BATCH, Player, is_new, periods
from movielens.recommend import choose_user
from movielens.report import Line, print_comparison, save_picture, save_results

PERIODS = 30


def play_all(console: Console, ratings: Ratings, player: Player) -> list[Line]:
    """Plays the stream and prints a line at the end of each period."""
    new_users, new_films = is_new(ratings.users), is_new(ratings.films)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    lines = []
    console.print(Line.HEADER, highlight=False)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task("", total=len(ratings))
        for period in periods(ratings, max(1, len(ratings) // PERIODS)):
            progress.update(task, description=str(period.first_day))
            auc = player.play(period, partial(progress.advance, task))
            users, films = (int(period.of(new).sum()) for new in (new_users, new_films))
            lines.append(Line(period, users, films, auc))
            console.print(str(lines[-1]), highlight=False)
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the demo."""
    begin = time.perf_counter()
    options = parse_options(__doc__, argv)
    console = Console()
    options.folder.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(options.seed)
    tf.config.experimental.enable_op_determinism()

    ratings = options.load()
    user = choose_user(ratings, options.user)  # Reports an unknown user before training.
    console.print(f"[bold]{ratings.source}[/bold]: {len(ratings):,} ratings in the order of time")
    if ratings.source == "MovieLens-1M":
        console.print(LICENCE, highlight=False)
    console.print(
        f"Asked: {LIKED_STARS} stars or more? Batches of {BATCH}: predicted, then learned.\n"
    )

    comparison = Comparison(ratings, options.seed)
    player = comparison.player
    lines = play_all(console, ratings, player)
    outcomes = comparison.outcomes()
    speeds = {name: len(ratings) / seconds for name, seconds in player.seconds.items()}
    console.print()
    print_comparison(console, outcomes, speeds)

    picture, results = options.folder / "comparison.png", options.folder / "results.json"
    save_picture(picture, ratings.source, lines)
    save_results(results, ratings.source, lines, outcomes)
    comparison.dynamic.save(options.model_path)
    for what, path in (("picture", picture), ("figures", results), ("model", options.model_path)):
        console.print(f"{what}: {path}", soft_wrap=True, highlight=False)

    console.print(f"\nThis was process {os.getpid()}. A new one loads the model and recommends:")
    sys.stdout.flush()
    arguments = [*(sys.argv[1:] if argv is None else argv), "--user", user]
    subprocess.run([sys.executable, "-m", "movielens.recommend", *arguments], check=True)
    console.print(f"done in {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
