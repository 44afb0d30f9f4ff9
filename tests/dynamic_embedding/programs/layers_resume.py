"""Loads every model that test_saving.py saved, and trains on: python layers_resume.py FOLDER

Writes what it found to FOLDER/results: for each case what was loaded, predicted and learned, or the
error that came.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import saving_support as saving
import tensorflow as tf


def resume(folder: Path, name: str, kind: str) -> dict[str, Any]:
    variant = saving.VARIANTS[name]
    model, at_the_end = saving.load(variant, kind, saving.path_of(folder, name, kind))
    results = {"tables": saving.tables_of(model), "predicted": variant.predict(model)}
    results["after predict"] = saving.tables_of(model)
    variant.train(model, 1)
    at_the_end()
    return {**results, "trained": saving.state_of(model)}


def serve(folder: Path, name: str, kind: str) -> dict[str, Any]:
    loaded = tf.saved_model.load(saving.path_of(folder, name, kind))
    answer = loaded.signatures["serving_default"]
    (argument,) = answer.structured_input_signature[1]
    ids = saving.VARIANTS[name].ids(*saving.PARTS)
    # The second time, the first one must have left no trace.
    predicted = [next(iter(answer(**{argument: ids}).values())).numpy() for _ in range(2)]
    if kind == "export":
        predicted.append(loaded.serve(ids).numpy())
    return {"predicted": predicted}


def attempt(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    try:
        return function(*arguments)
    except Exception:
        return {"error": traceback.format_exc()}


def main() -> None:
    folder = Path(sys.argv[1])
    results = {case: attempt(resume, folder, *case) for case in saving.CASES}
    results |= {case: attempt(serve, folder, *case) for case in saving.SERVED}
    (folder / "results").write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main()
