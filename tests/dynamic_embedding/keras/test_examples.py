"""The examples with models of Keras: they learn, and what they load is what they saved."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from training_support import KERAS_WARNS

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def test_two_towers_find_items(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example, path = load("two_tower"), tmp_path / "model.keras"
    settings = ["--users", "200", "--items", "100", "--epochs", "4", "--save", str(path)]
    results = example.main(settings)
    assert results["chance"] == 0.1
    assert results["hits"] > 0.4, "four times as many as by chance"
    assert results["same"] == 1.0
    assert "200 users, 100 items" in capsys.readouterr().out
    loaded = keras.models.load_model(path)
    best = example.recommend(loaded, 200, 100)
    assert best.shape == (200, 10)
    _, picks = example.make_picks(200, 100, 21, np.random.default_rng(7))
    hits = (best == picks[:, -1:]).any(axis=1).mean()
    assert hits == results["hits"], "the file holds another model"


def test_deepfm_predicts_clicks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example, path = load("deepfm"), tmp_path / "model.keras"
    results = example.main(["--examples", "20000", "--epochs", "2", "--save", str(path)])
    assert results["auc"] > 0.65
    assert results["difference"] == 0.0
    assert f"rows: {results['rows']};" in capsys.readouterr().out
    ids, clicked = example.make_clicks(20_000, 6, seed=7)
    assert results["rows"] == len(np.unique(ids[:16_000])), "testing has inserted ids"
    loaded = keras.models.load_model(path)
    evaluated = loaded.evaluate(ids[16_000:], clicked[16_000:], verbose=0, return_dict=True)
    assert evaluated["auc"] == pytest.approx(results["auc"], abs=1e-6)


@pytest.mark.parametrize("name", ["two_tower", "deepfm"])
def test_examples_say_what_they_take(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load(name).main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "--epochs" in said and "--save" in said
