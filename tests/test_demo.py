"""The demo of `make demo` learns."""

import importlib.util
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parent.parent / "examples" / "stream_demo.py"


def test_the_stream_demo_learns(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("stream_demo", DEMO)
    assert spec is not None and spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    sys.modules["stream_demo"] = demo  # Where its dataclasses look themselves up.
    spec.loader.exec_module(demo)
    history = demo.run(days=4, seed=7)
    assert history[0] < 0.1, "nothing is known before the first day"
    assert history[-1] > 0.7, "most of what can be explained is, on days with new ids"
    assert "users" in capsys.readouterr().out
