"""The example with drifting ids: what it says of the size of tables, and of the metric, holds."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from upkeep_support import KERAS_WARNS

PATH = Path(__file__).resolve().parents[3] / "examples" / "drifting_ids.py"
DAYS, EXAMPLES, KEEP, TTL = 7, 3_000, 900, 2
pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("drifting_ids", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["drifting_ids"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def days(example: Any) -> list[dict[str, np.ndarray]]:
    """The ids of each day."""
    return [ids for ids, _ in example.make_stream(DAYS, EXAMPLES, seed=7)]


def sizes_without_rule(days: list[dict[str, np.ndarray]], name: str) -> list[int]:
    """How many ids were seen until each evening."""
    seen = [np.concatenate([ids[name] for ids in days[: d + 1]]) for d in range(len(days))]
    return [len(np.unique(ids)) for ids in seen]


def sizes_with_admission(days: list[dict[str, np.ndarray]], name: str, batch: int) -> list[int]:
    """How many ids have a row each evening, by a plain model of the two rules."""
    table: dict[int, int] = {}  # The day that an id was last seen.
    waiting: dict[int, int] = {}
    sizes = []
    for day, ids in enumerate(days):
        for start in range(0, EXAMPLES, batch):
            for key in set(ids[name][start : start + batch].tolist()):
                if key in table or key in waiting:
                    waiting.pop(key, None)
                    table[key] = day
                else:
                    waiting[key] = day
        table = {key: last for key, last in table.items() if day - last <= TTL}
        waiting = {key: last for key, last in waiting.items() if day - last <= TTL}
        sizes.append(len(table))
    return sizes


def test_rules_keep_tables_small_and_the_metric_up(
    example: Any,
    days: list[dict[str, np.ndarray]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plot = tmp_path / "new folder" / "plot.png"
    settings = {"days": DAYS, "examples": EXAMPLES, "keep": KEEP, "ttl": TTL, "plot": plot}
    runs = example.main([f"--{name}={value}" for name, value in settings.items()])
    assert list(runs) == ["no rule", "restrict", "admission + ttl"]
    free, restricted, admitted = runs.values()
    keys = {name: [evening.keys for evening in evenings] for name, evenings in runs.items()}

    both = [sizes_without_rule(days, name) for name in ("user", "item")]
    assert keys["no rule"] == np.sum(both, axis=0).tolist()
    assert keys["restrict"] == np.minimum(both, KEEP).sum(axis=0).tolist()
    assert keys["restrict"][-1] == 2 * KEEP
    both = [sizes_with_admission(days, name, batch=256) for name in ("user", "item")]
    assert keys["admission + ttl"] == np.sum(both, axis=0).tolist()
    assert admitted[-1].keys < free[-1].keys / 8
    assert restricted[-1].bytes < free[-1].bytes / 2
    assert admitted[-1].bytes < free[-1].bytes / 2

    scores = {name: example.mean_scores(evenings) for name, evenings in runs.items()}
    for auc, log_loss in scores.values():
        # With four seeds they differed by at most 0.008 and 0.004.
        assert auc == pytest.approx(scores["no rule"][0], abs=0.02)
        assert log_loss == pytest.approx(scores["no rule"][1], abs=0.01)
    assert all(abs(evenings[0].auc - 0.5) < 0.06 for evenings in runs.values())
    assert all(evenings[-1].auc > 0.62 for evenings in runs.values())

    assert plot.read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out
    assert f"{free[-1].keys:,}" in said and f"{scores['restrict'][0]:.4f}" in said
    assert str(plot) in said


def test_the_most_frequent_ids_stay(example: Any) -> None:
    stream = list(example.make_stream(2, EXAMPLES, seed=7))
    model = example.make_model(4, {"restrict_policy": example.POLICIES["most-frequent"]})
    evenings = example.run(iter(stream), model, [example.callbacks.RestrictCallback(300)])
    assert [evening.keys for evening in evenings] == [600, 600]
    stays = set(model.get_layer("users").params.export()[0].numpy().tolist())
    times: dict[int, int] = {}
    for start in range(0, EXAMPLES, 256):
        for key in set(stream[0][0]["user"][start : start + 256].tolist()):
            times[key] = times.get(key, 0) + 1
    favourites = sorted(times, key=lambda key: times[key])[-50:]
    assert stays >= set(favourites), "ids of the first day's most steps have left"


def test_it_says_what_it_takes(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        example.main(["--help"])
    assert ended.value.code == 0
    assert "--plot" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        example.main(["--days=1"])
    assert "--days of 2 or more" in capsys.readouterr().err
