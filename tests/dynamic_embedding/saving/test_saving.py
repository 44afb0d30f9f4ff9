"""Saved models in a fresh process: the same rows and predictions, and training that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import saving_support as saving
from layers_support import KERAS_WARNS

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

Results = dict[Any, dict[str, Any]]


def train_and_save(folder: Path, name: str) -> dict[str, Any]:
    """Trains half of the steps, saves in every format, and trains on."""
    variant = saving.VARIANTS[name]
    model = variant.model()
    kinds = saving.FORMATS[name] + [kind for served, kind in saving.SERVED if served == name]
    paths = {kind: saving.path_of(folder, name, kind) for kind in kinds}
    callbacks = [
        keras.callbacks.ModelCheckpoint(paths[kind], save_weights_only=kind.endswith("weights"))
        for kind in kinds
        if kind.startswith("epoch")
    ]
    variant.train(model, 0, callbacks)
    saved = saving.state_of(model)
    predicted = variant.predict(model)
    for kind in kinds:
        saving.save(model, kind, paths[kind])
    assert saving.state_of(model) == saved, "saving changed the model"
    variant.train(model, 1)
    return {"saved": saved, "predicted": predicted, "trained": saving.state_of(model)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in saving.VARIANTS:
        Path(saving.path_of(folder, name, "keras")).parent.mkdir()
    return folder


@pytest.fixture(scope="module")
def originals(folder: Path) -> Results:
    """The state of each variant when it was saved, and after all steps."""
    return {name: train_and_save(folder, name) for name in saving.VARIANTS}


@pytest.fixture(scope="module")
def results(folder: Path, originals: Results) -> Results:
    """The results of a new process that loaded the variants."""
    return saving.run_program("layers_resume", folder)


def found(results: Results, variant: str, kind: str) -> dict[str, Any]:
    result = results[variant, kind]
    assert "error" not in result, result["error"]
    return result


@pytest.mark.parametrize("name", saving.VARIANTS)
def test_the_models_are_trained(originals: Results, name: str) -> None:
    """The other tests compare states, which is useless if states do not change."""
    variant = saving.VARIANTS[name]
    updates = saving.STEPS // variant.accumulated
    applied = variant.ids(0)[: updates * variant.accumulated * saving.BATCH]
    first = set(applied.numpy().ravel().tolist())
    both = set(variant.ids(*saving.PARTS).numpy().ravel().tolist())
    saved, trained = (originals[name][when] for when in ("saved", "trained"))
    assert first < both
    assert [set(table) for table in saved["tables"]] == [first, first]
    assert [set(table) for table in trained["tables"]] == [both, both]
    for before, after in zip(saved["tables"], trained["tables"], strict=True):
        assert sum(after[key] != before[key] for key in first) >= 5
    assert saved["dense"] != trained["dense"]
    assert (saved["batches"], trained["batches"]) == (saving.STEPS, 2 * saving.STEPS)


@pytest.mark.parametrize("name, kind", saving.CASES)
def test_every_row_is_there(originals: Results, results: Results, name: str, kind: str) -> None:
    result = found(results, name, kind)
    assert result["tables"] == originals[name]["saved"]["tables"]
    assert result["after predict"] == result["tables"]


@pytest.mark.parametrize("name, kind", [*saving.CASES, *saving.SERVED])
def test_predictions_are_the_same(
    originals: Results, results: Results, name: str, kind: str
) -> None:
    predicted = found(results, name, kind)["predicted"]
    for answer in predicted if isinstance(predicted, list) else [predicted]:
        np.testing.assert_array_equal(answer, originals[name]["predicted"])


@pytest.mark.parametrize("name, kind", saving.CASES)
def test_training_goes_on_bit_for_bit(
    originals: Results, results: Results, name: str, kind: str
) -> None:
    result, expected = found(results, name, kind)["trained"], originals[name]["trained"]
    assert result["batches"] == expected["batches"]
    assert result["dense"] == expected["dense"]
    for table, expected_table in zip(result["tables"], expected["tables"], strict=True):
        assert set(table) == set(expected_table)
        wrong = {key for key in table if table[key] != expected_table[key]}
        assert wrong == set()


def test_what_is_loaded_has_tables_of_its_own(folder: Path, originals: Results) -> None:
    variant, path = saving.VARIANTS["adam"], saving.path_of(folder, "adam", "keras")
    first, second = (keras.models.load_model(path) for _ in range(2))
    variant.train(first, 1)
    assert saving.tables_of(second) == originals["adam"]["saved"]["tables"]
    assert saving.tables_of(first) == originals["adam"]["trained"]["tables"]


def test_a_new_optimizer_starts_anew(folder: Path, originals: Results) -> None:
    """Slots belong to the optimizer they were saved with, as those of dense variables do."""
    variant, path = saving.VARIANTS["adam"], saving.path_of(folder, "adam", "keras")
    loaded, fresh = keras.models.load_model(path, compile=False), variant.model()
    for layer, other in zip(loaded.layers, fresh.layers, strict=True):
        other.set_weights(layer.get_weights())
    assert saving.tables_of(fresh) == originals["adam"]["saved"]["tables"]
    loaded.compile(keras.optimizers.Adam(0.05), "mse")
    for model in (loaded, fresh):
        variant.train(model, 1)
    assert saving.tables_of(loaded) == saving.tables_of(fresh)
    assert saving.tables_of(loaded) != originals["adam"]["trained"]["tables"]
