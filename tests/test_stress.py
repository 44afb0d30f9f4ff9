"""`make stress` finds planted defects, finds none in a table, and says how to repeat a round."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfra

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from stress import __main__ as command_line  # noqa: E402
from stress.defect import Defect  # noqa: E402
from stress.plan import KINDS, Plan, make_plan  # noqa: E402
from stress.rounds import run_round  # noqa: E402


def stress(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stress", *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_some_rounds_of_every_kind_of_table() -> None:
    done = stress("--seed=20240229", f"--rounds={len(KINDS)}", "--small")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.startswith("seed 20240229\n")
    for number, kind in enumerate(KINDS):
        assert f"round {number}: {kind}: " in done.stdout
    assert "no defect" in done.stdout


class Planted:
    """A table with a defect: the method `broken` does what `defect` says, now and then."""

    def __init__(self, table: tfra.Table, broken: str, every: int, defect: Any) -> None:
        self.__dict__.update(table=table, broken=broken, every=every, defect=defect)
        self.__dict__.update(calls=0, lock=threading.Lock())

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.table, name)
        if name != self.broken:
            return method

        def call(*args: Any, **options: Any) -> Any:
            with self.lock:
                self.__dict__["calls"] += 1
                now = self.calls % self.every == 0
            return self.defect(method, *args, **options) if now else method(*args, **options)

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.table, name, value)

    def __len__(self) -> int:
        return len(self.table)

    def __str__(self) -> str:
        return str(self.table)


def wrong_row(method: Any, keys: Any, *args: Any, **options: Any) -> Any:
    found = method(keys, *args, **options)
    rows = found[0] if isinstance(found, tuple) else found
    rows[-1, -1] += 1
    return found


def last_key_is_lost(method: Any, keys: Any, *args: Any, **options: Any) -> Any:
    def shorter(rows: Any) -> Any:
        if isinstance(rows, dict):
            return {name: shorter(each) for name, each in rows.items()}
        return rows[:-1] if isinstance(rows, np.ndarray) else rows

    options = {name: shorter(each) for name, each in options.items()}
    return method(keys[:-1], *(shorter(each) for each in args), **options)


def done_twice(method: Any, *args: Any, **options: Any) -> Any:
    method(*args, **options)
    return method(*args, **options)


def other_result(method: Any, *args: Any, **options: Any) -> Any:
    found = method(*args, **options)
    found[-1:] += 1
    return found


def one_row_is_missing(method: Any, *args: Any, **options: Any) -> Any:
    return tuple(
        {name: slot[1:] for name, slot in part.items()} if isinstance(part, dict) else part[1:]
        for part in method(*args, **options)
    )


def one_key_came_twice(method: Any, *args: Any, **options: Any) -> Any:
    def doubled(part: Any) -> Any:
        return np.concatenate([part, part[:1]])

    return tuple(
        {name: doubled(slot) for name, slot in part.items()}
        if isinstance(part, dict)
        else doubled(part)
        for part in method(*args, **options)
    )


def one_more_removed(method: Any, keys: Any) -> Any:
    return method(keys) + 1


def no_memory(method: Any, *args: Any, **options: Any) -> Any:
    raise MemoryError("out of memory")


DEFECTS = {
    "a wrong row": ("lookup", 5, wrong_row),
    "a lost row": ("upsert", 3, last_key_is_lost),
    "a step taken twice": ("apply_gradients", 3, done_twice),
    "a sum added twice": ("accum", 2, done_twice),
    "a key that was not removed": ("remove", 2, last_key_is_lost),
    "a wrong number of removed keys": ("remove", 3, one_more_removed),
    "a key that was not touched": ("touch", 2, last_key_is_lost),
    "wrong metadata": ("usage", 3, other_result),
    "a row that is not exported": ("export", 1, one_row_is_missing),
    "a row that is exported twice": ("export", 1, one_key_came_twice),
    "an error without a cause": ("upsert", 5, no_memory),
}


def plan() -> Plan:
    return Plan(
        seed=1,
        round=0,
        kind="plain",
        optimizer="adagrad",
        metadata=True,
        keys=200,
        batch=100,
        phases=1,
        operations=40,
    )


def test_a_table_without_a_defect() -> None:
    assert sum(run_round(plan()).operations.values()) >= 8 * 40


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found(name: str) -> None:
    with pytest.raises(Defect):
        run_round(plan(), wrap=lambda table: Planted(table, *DEFECTS[name]))


def test_a_bounded_table_with_a_defect() -> None:
    bounded = make_plan(seed=1, number=1)
    assert bounded.max_capacity is not None
    run_round(bounded)
    with pytest.raises(Defect):
        run_round(bounded, wrap=lambda table: Planted(table, "lookup", 5, wrong_row))


def test_a_round_depends_on_its_number_only() -> None:
    for number in range(2 * len(KINDS)):
        assert make_plan(5, number) == make_plan(5, number)
    assert make_plan(5, 1) != make_plan(6, 1)
    first, second = (make_plan(5, 3).rng(2, 1).integers(0, 10**9, 5) for _ in range(2))
    assert first.tolist() == second.tolist()


def test_a_process_that_ends_says_how_to_repeat_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crash = tmp_path / "crash"
    crash.write_text("#!/bin/sh\necho begin 7\nkill -SEGV $$\n")
    crash.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(crash))
    args = argparse.Namespace(
        seed=3, seconds=1.0, round=None, rounds=None, small=False, numpy=False
    )
    assert command_line.supervise(args) == 1
    said = capsys.readouterr().out
    assert "round 7 ended by SIGSEGV" in said
    assert "make stress SEED=3 ROUND=7" in said
