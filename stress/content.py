"""Checks of the whole table while no thread is at work."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from stress.defect import expect, expect_equal
from stress.oracle import Oracle, State
from stress.rows import Array, equal_rows
from stress.worker import Shared

# What `TableStats` counts of the keys that come and go.
COUNTED = ("inserts", "updates", "removals", "ignored", "refused", "evictions", "expirations")


class Content:
    """All keys of the table: the oracles of all threads together.

    Args:
        shared: What the threads share.
        oracles: One for each thread.
    """

    def __init__(self, shared: Shared, oracles: list[Oracle]) -> None:
        self._shared, self._oracles = shared, oracles
        self._plan = shared.plan
        self._before: Counter[str] = Counter()  # The counters at the last check.

    def state(self) -> State:
        """Returns the state of all keys."""
        states = [oracle.state for oracle in self._oracles]
        slots = {
            name: np.concatenate([state.slots[name] for state in states])
            for name in states[0].slots
        }
        return State(
            np.concatenate([state.present for state in states]),
            np.concatenate([state.values for state in states]),
            slots,
            np.concatenate([state.usage for state in states]),
            np.concatenate([state.waiting for state in states]),
        )

    def forget(self, gone: Array, waiting: bool = False) -> None:
        """Notes which of all keys left, and maybe that no key waits any more."""
        size = len(self._oracles[0].keys)
        for number, oracle in enumerate(self._oracles):
            part = gone[number * size : (number + 1) * size]
            waited = oracle.state.waiting.copy()
            oracle.forget(np.flatnonzero(part))
            oracle.state.waiting = np.zeros_like(waited) if waiting else waited

    def count(self, figure: str, number: int) -> None:
        """Notes events that the main thread caused."""
        self._oracles[0].figures[figure] += number

    def set_clock(self, now: int) -> None:
        """Sets the time that writes leave in metadata."""
        self._shared.table.clock = now
        for oracle in self._oracles:
            oracle.clock = now

    def check(self, what: str) -> None:
        """Compares everything: rows, slots, metadata, waiting keys, size and counters."""
        self._check_rows(what)
        self._check_waiting(what)
        self._check_figures(what)

    def restart_figures(self) -> None:
        """Takes the counters as they are: of a new table, or after calls that failed."""
        stats = self._shared.table.stats()
        self._before = Counter({name: getattr(stats, name) for name in COUNTED})
        for oracle in self._oracles:
            oracle.figures.clear()

    def _check_rows(self, what: str) -> None:
        plan, table = self._plan, self._shared.table
        if plan.library == "tensorflow":
            keys, values = table.export()
            slots: dict[str, Array] = {}
            metadata = None
        elif plan.value_dtype == "string":
            slots = {}
            keys, values, metadata = table.export(metadata=True)
        else:
            keys, values, slots, metadata = table.export(slots=True, metadata=True)
        place = self._shared.places(keys)
        expect(len(np.unique(place)) == len(place), f"{what}: a key was exported twice")
        expect_equal(len(table), len(keys), f"{what}: size")
        exported = np.zeros(len(self._shared.keys), bool)
        exported[place] = True
        state = self.state()
        wrong = exported & ~state.present if plan.evicts else exported != state.present
        expect(
            not wrong.any(),
            f"{what}: {int(wrong.sum())} of {len(wrong)} keys are there, or are not, by mistake, "
            f"first {self._shared.keys[wrong][:1]!r}",
        )
        self.forget(state.present & ~exported)
        wrong = ~equal_rows(values, state.values[place])
        expect(
            not wrong.any(),
            f"{what}: {int(wrong.sum())} wrong rows, first of {keys[wrong][:1]!r}, expected "
            f"{state.values[place][wrong][:1].tolist()}, received {values[wrong][:1].tolist()}",
        )
        for name, slot in slots.items():
            wrong = ~equal_rows(slot, state.slots[name][place])
            expect(
                not wrong.any(),
                f"{what}: {int(wrong.sum())} wrong slots {name}, first of {keys[wrong][:1]!r}, "
                f"expected {state.slots[name][place][wrong][:1].tolist()}, "
                f"received {slot[wrong][:1].tolist()}",
            )
        if plan.metadata:
            usage = table.usage(keys) if metadata is None else metadata
            expected = state.usage[place]
            wrong = (usage != expected).any(axis=1)
            if plan.evicts:
                wrong = (usage[:, 1] > expected[:, 1]) | (usage[:, 0] > self._oracles[0].clock)
            expect(
                not wrong.any(),
                f"{what}: {int(wrong.sum())} wrong metadata, expected "
                f"{expected[wrong][:1].tolist()}, received {usage[wrong][:1].tolist()}",
            )
        rows, exists = table.lookup(self._shared.keys, return_exists=True)
        expect((exists == exported).all(), f"{what}: a lookup and the export differ")
        expect(equal_rows(rows[place], values).all(), f"{what}: a lookup and the export differ")
        if plan.max_capacity is not None:
            most = plan.max_capacity * plan.partitions
            expect(len(keys) <= most, f"{what}: {len(keys)} keys of at most {most}")

    def _check_waiting(self, what: str) -> None:
        plan = self._plan
        if plan.admission is None or not plan.waits_exactly or plan.library == "tensorflow":
            return
        known = self._shared.table.admission_state()
        found = np.zeros((len(self._shared.keys), 2), np.uint32)
        found[self._shared.places(known["keys"])] = known["seen"]
        state = self.state()
        expected = np.where(state.present[:, None], 0, state.waiting)
        wrong = (found != expected).any(axis=1)
        expect(
            not wrong.any(),
            f"{what}: wrong counts of {int(wrong.sum())} waiting keys, expected "
            f"{expected[wrong][:1].tolist()}, received {found[wrong][:1].tolist()}",
        )

    def _check_figures(self, what: str) -> None:
        shared, plan = self._shared, self._plan
        stats = shared.table.stats()
        left = stats.removals + stats.evictions + stats.expirations
        expect_equal(stats.inserts - left, stats.size, f"{what}: size by the counters")
        expect_equal(stats.size, len(shared.table), f"{what}: size")
        exact = shared.failures == 0 and not plan.evicts and plan.waits_exactly
        if exact:
            expected = sum((oracle.figures for oracle in self._oracles), Counter(self._before))
            found = {name: getattr(stats, name) for name in COUNTED}
            expect_equal(found, {name: expected[name] for name in COUNTED}, f"{what}: counters")
        shared.failures = 0
        self.restart_figures()


def is_best(order: Array, kept: Any, keep: int) -> bool:
    """Whether so many of the largest stay; any of those that are equal may.

    Args:
        order: What the keys are ranked by.
        kept: Which of them stayed.
        keep: How many should.
    """
    best = np.sort(order)[::-1][:keep]
    return bool((np.sort(order[kept])[::-1] == best).all())
