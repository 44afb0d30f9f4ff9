"""One round: a table, its threads, and what happens between their phases."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

import tfra
from stress.content import Content
from stress.events import Events
from stress.faults import Faults
from stress.forks import fork_and_check
from stress.oracle import Oracle
from stress.plan import THREADS, Plan
from stress.rows import make_keys
from stress.worker import Shared, Worker

Wrap = Callable[[Any], Any]


@dataclass
class Report:
    """What a round did.

    Args:
        plan: Its plan.
        operations: How often each operation was done.
        events: What happened between the phases.
        faults: How many calls of the engine failed.
    """

    plan: Plan
    operations: Counter[str]
    events: list[str]
    faults: int


def make_table(plan: Plan, wrap: Wrap | None) -> Any:
    """Makes the table of a plan; `wrap` replaces it by another object with its methods."""
    if plan.library == "numpy":
        table: Any = tfra.Table(**plan.options())
    else:
        from stress.variables import make_variable_table

        table = make_variable_table(plan)
    return table if wrap is None else wrap(table)


def run_round(plan: Plan, wrap: Wrap | None = None) -> Report:
    """Runs a round.

    Args:
        plan: What it does.
        wrap: Returns what is used instead of the table; for tests, which plant defects there.

    Raises:
        Defect: If the table is not what the oracles say.
    """
    gc.collect()  # Tables of earlier rounds go before calls fail.
    faults = Faults()
    fired = faults.fired()
    numbers = np.arange(THREADS * plan.keys)
    keys = make_keys(plan.key_dtype, plan.key_pattern, numbers)
    place = {key: i for i, key in enumerate(keys.tolist())}
    assert len(place) == len(keys), "different numbers made equal keys"
    shared = Shared(plan, make_table(plan, wrap), keys, place, faults)
    oracles = [
        Oracle(plan, keys[start : start + plan.keys]) for start in range(0, len(keys), plan.keys)
    ]
    workers = [Worker(shared, oracle, number) for number, oracle in enumerate(oracles)]
    content = Content(shared, oracles)
    events = Events(shared, content, workers)
    before = tfra.get_num_threads()
    happened: list[str] = []
    try:
        if plan.metadata or (plan.admission is not None and plan.library == "numpy"):
            content.set_clock(100)
        content.restart_figures()
        for phase in range(plan.phases):
            shared.fault = _fault(plan, faults, phase)
            _run_phase(shared, workers, phase)
            faults.end()
            shared.fault = "none"
            content.check(f"after phase {phase}")
            happened += events.run(phase)
    finally:
        faults.end()
        tfra.set_num_threads(before)
    return Report(plan, shared.operations, happened, faults.fired() - fired)


def _fault(plan: Plan, faults: Faults, phase: int) -> str:
    """Returns which calls fail in a phase. There are none in half of the phases."""
    kinds = ["none", "allocation"]
    if plan.fast_bytes is not None:
        kinds += ["read", "write", "growth"]
    chosen = kinds[int(plan.rng(3000, phase).integers(len(kinds)))]
    return chosen if phase % 2 == 1 and faults.available else "none"


def _run_phase(shared: Shared, workers: list[Worker], phase: int) -> None:
    """Lets all threads work, and forks meanwhile."""
    plan = shared.plan
    start = threading.Barrier(len(workers))

    def work(worker: Worker) -> None:
        start.wait()
        worker.run(phase)

    with ThreadPoolExecutor(len(workers)) as pool:
        futures = [pool.submit(work, worker) for worker in workers]
        forks = int(plan.rng(4000, phase).integers(0, 3)) if plan.library != "tensorflow" else 0
        try:
            for _ in range(forks):
                fork_and_check(shared, busy=True)
        finally:
            errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None:
            raise error
