"""Errors of docs/faq.md that need another environment than this one's."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest
import tensorflow as tf

import tfra
from pages import ROOT, blocks_of, is_error, says
from support import run_python

PAGE = ROOT / "docs" / "faq.md"
# All others follow a block of Python that raises them: see test_docs.py.
ERRORS = [block.code for block in blocks_of(PAGE) if block.language == "text"]


def error_that(program: str) -> str:
    """The message of the error that a program ends with, in a process of its own."""
    return run_python(f"""
import sys
import traceback
try:
    {program}
except Exception as error:
    print("".join(traceback.format_exception_only(error)))
""")


def error_about(words: str) -> str:
    (found,) = [error for error in ERRORS if words in error]
    return found


def test_these_are_all() -> None:
    assert len(ERRORS) == 3
    assert all(is_error(error) for error in ERRORS)


def test_without_tensorflow() -> None:
    printed = error_that("sys.modules['tensorflow'] = None; import tfra; tfra.dynamic_embedding")
    assert says(error_about("needs TensorFlow"), printed)


def test_a_saved_model_without_the_operations(tmp_path: Path) -> None:
    module = tf.Module()
    module.rows = tfra.dynamic_embedding.Variable(dim=2)
    spec = tf.TensorSpec([None], tf.int64)
    module.ask = tf.function(lambda keys: module.rows.lookup(keys), input_signature=[spec])
    tf.saved_model.save(module, str(tmp_path))
    program = f"import tensorflow as tf; tf.saved_model.load({str(tmp_path)!r})"
    assert says(error_about("not registered"), error_that(program))


def test_another_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError) as caught:
        tfra.dynamic_embedding.keras.layers.Embedding(8)
    assert says(error_about("backend"), f"RuntimeError: {caught.value}")
