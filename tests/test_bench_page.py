"""The page of benchmarks is what its results say."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from pages import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import bench_page
from bar_chart import Bar, Scale, bar_chart

RESULTS = sorted(path for path in ROOT.glob("bench/results/*.json") if "-" not in path.stem)


def test_the_page_and_its_charts_are_what_the_results_say() -> None:
    command = [sys.executable, ROOT / "tools" / "bench_page.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}run: python tools/bench_page.py"


def test_a_changed_result_changes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in RESULTS:
        (tmp_path / path.name).write_text(path.read_text())
    monkeypatch.setattr(bench_page, "RESULTS", tmp_path)
    before = bench_page.generate()
    engine = json.loads((tmp_path / "engine.json").read_text())
    next(record for record in engine["records"] if "rate" in record)["ratio"] = 0.77
    (tmp_path / "engine.json").write_text(json.dumps(engine))
    changed = [path.name for path, text in bench_page.generate().items() if before[path] != text]
    assert sorted(changed) == ["bench-engine.svg", "benchmarks.md"]
    assert "| 0.77 |" in bench_page.generate()[ROOT / "docs" / "benchmarks.md"]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_results_say_when_and_where(path: Path) -> None:
    document = json.loads(path.read_text())
    assert {"date", "cpu", "cores", "memory_gib", "system"} <= set(document)
    assert document["records"]


def test_there_are_results_of_each_kind() -> None:
    kinds = ["counters", "engine", "hit_rate", "large", "restrict", "table", "tiers", "training"]
    kinds += ["variable"]
    assert [path.stem for path in RESULTS] == kinds


def test_bars_are_as_long_as_their_numbers() -> None:
    scale = Scale((0.5, 1, 2, 4), origin=1, logarithmic=True, unit="x")
    bars = [Bar("twice <as> fast", 2.0, mark=4.0), Bar("half", 0.5), Bar("four times", 4.0)]
    root = ElementTree.fromstring(bar_chart("title", "axis", bars, scale))
    name = "{http://www.w3.org/2000/svg}"
    drawn = [r for r in root.iter(f"{name}rect") if r.get("class") in ("bar", "short")]
    widths = [float(r.get("width", "")) for r in drawn]
    assert widths[0] == pytest.approx(widths[1], abs=0.2)
    assert widths[2] == pytest.approx(2 * widths[0], abs=0.2)
    assert [r.get("class") for r in drawn] == ["bar", "short", "bar"]
    assert len([line for line in root.iter(f"{name}line") if line.get("class") == "mark"]) == 1
    assert "twice <as> fast" in [text.text for text in root.iter(f"{name}text")]
