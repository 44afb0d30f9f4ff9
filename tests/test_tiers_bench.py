"""The benchmarks of tiered tables run, check their results, and refuse too small a disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pages import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import compare_tiers
import measure_tiers

BENCH = ROOT / "bench"


def run(script: str, *options: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, str(BENCH / script), *options],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_ids_follow_the_law() -> None:
    keys, batches = 1000, 40
    stream = measure_tiers.Zipf(keys, 10_000)
    counts = np.bincount(np.concatenate([stream.draw() for _ in range(batches)]), minlength=keys)
    weights = np.arange(1, keys + 1) ** -measure_tiers.EXPONENT
    expected = weights / weights.sum() * counts.sum()
    assert len(counts) == keys
    # Pearson's statistic of 999 degrees of freedom: mean 999, deviation 45.
    assert ((counts - expected) ** 2 / expected).sum() < 999 + 6 * 45
    again = measure_tiers.Zipf(keys, 10_000)
    first = again.draw()
    assert first.min() >= 0
    np.testing.assert_array_equal(first, measure_tiers.Zipf(keys, 10_000).draw())


def measured(system: str) -> list[dict[str, Any]]:
    options = ("--keys=3000", "--batch=500", "--dim=4", "--rounds=1", "--round-batches=3")
    return [
        json.loads(line)
        for line in run("measure_tiers.py", f"--system={system}", *options).splitlines()
    ]


def test_levels_read_and_train_the_same_rows() -> None:
    records = measured("tfra") + measured("memory")
    assert [r["workload"] for r in records] == ["build", "lookup", "adam", "memory"] * 2
    compare_tiers.check_samples(records)
    tiered, plain = records[3], records[7]
    assert tiered["slow_bytes"] > 0 == plain["slow_bytes"]
    assert 0 < tiered["fast_hit_rate"] < 1
    wrong = [dict(record) for record in records]
    wrong[2]["sample"] = [number + 1e-6 for number in wrong[2]["sample"]]
    with pytest.raises(compare_tiers.Failed, match="the same rows"):
        compare_tiers.check_samples(wrong)


def test_a_large_table_made_small(tmp_path: Path) -> None:
    results = tmp_path / "large.json"
    said = run(
        "large.py", "--keys=150000", "--dim=8", "--fast-bytes=2000000", "--steps=3",
        f"--directory={tmp_path}", f"--json={results}",
    )  # fmt: skip
    assert "rows are NumPy's" in said
    assert "all agree" in said
    figures = json.loads(results.read_text())["records"][0]
    assert list(figures) == ["build", "train", "export"]
    assert all(part["per_second"] > 0 and part["slow_bytes"] > 0 for part in figures.values())
    assert [path.name for path in tmp_path.iterdir()] == ["large.json"]


def test_a_disk_without_room_is_refused(tmp_path: Path) -> None:
    said = run("large.py", "--keys=4000000000000", f"--directory={tmp_path}", code=1)
    assert "expected" in said and "Received:" in said and str(tmp_path) in said


def test_hit_rates_rise_with_the_budget(tmp_path: Path) -> None:
    results = tmp_path / "hit_rate.json"
    run("hit_rate.py", "--keys=20000", "--batches=10", f"--json={results}")
    records = json.loads(results.read_text())["records"]
    rates = [record["fast_hit_rate"] for record in records]
    assert rates == sorted(rates)
    assert rates[-1] > 0.9  # Small parts of a table differ in size.
    assert all(r["fast_hit_rate"] <= r["best_possible"] + 0.02 for r in records)
