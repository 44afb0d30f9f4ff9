"""What the table must hold of the keys of one thread, which no other thread writes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import tfra
from stress.defect import Defect, expect
from stress.plan import Plan
from stress.rows import Array, Bools, equal_rows, whole_rows


@dataclass
class State:
    """All that is known of some keys, with one element or row for each.

    Args:
        present: Whether the key is in the table; in a table that evicts, whether it may be.
        values: Its row, or the initial one.
        slots: Its optimizer slots by name, or the initial ones.
        usage: The time of its last write, and the number of writes.
        waiting: When a key that is not in the table was last seen, and how often.
    """

    present: Bools
    values: Array
    slots: dict[str, Array]
    usage: Array
    waiting: Array

    def take(self, at: Any) -> State:
        """Returns a copy for some of the keys."""
        slots = {name: slot[at].copy() for name, slot in self.slots.items()}
        parts = (self.present, self.values, self.usage, self.waiting)
        present, values, usage, waiting = (part[at].copy() for part in parts)
        return State(present, values, slots, usage, waiting)

    def put(self, at: Any, other: State) -> None:
        """Replaces what is known of some keys."""
        self.present[at] = other.present
        self.values[at] = other.values
        for name, slot in other.slots.items():
            self.slots[name][at] = slot
        self.usage[at] = other.usage
        self.waiting[at] = other.waiting

    def describe(self, i: int) -> str:
        """Returns the state of one key as text."""
        if not self.present[i]:
            return f"no row (seen {self.waiting[i].tolist()})"
        slots = "".join(f" {name} {slot[i][:2].tolist()}" for name, slot in self.slots.items())
        return f"row {self.values[i][:2].tolist()}{slots} metadata {self.usage[i].tolist()}"


class Stepper:
    """Takes optimizer steps on rows, in a small table of one thread that has nothing else.

    So the rows of a large table must be those of the small one, bit by bit. That the numbers are
    right is the business of other tests.
    """

    def __init__(self, plan: Plan) -> None:
        options = plan.options()
        names = ("dim", "value_dtype", "initializer", "seed", "optimizer")
        key_dtype = "string" if plan.key_dtype == "string" else "int64"
        self._table = tfra.Table(**{name: options[name] for name in names}, key_dtype=key_dtype)
        self._strings = plan.value_dtype == "string"

    def initial(self, keys: Array) -> tuple[Array, dict[str, Array]]:
        """Returns the initial rows and slots of keys."""
        if self._strings:
            return self._table.lookup(keys), {}
        return self._table.lookup_with_slots(keys)

    def step(
        self, keys: Array, state: State, batch: Array, gradients: Array, step: int, **hyper: Any
    ) -> tuple[Array, dict[str, Array]]:
        """Returns rows and slots of distinct keys after one step on a batch of them."""
        while True:
            try:
                return self._step(keys, state, batch, gradients, step, **hyper)
            except MemoryError:  # A fault that was meant for the table of the round.
                time.sleep(0.001)

    def _step(
        self, keys: Array, state: State, batch: Array, gradients: Array, step: int, **hyper: Any
    ) -> tuple[Array, dict[str, Array]]:
        table = self._table
        table.clear()
        some = state.present
        if some.any():
            slots = {name: slot[some] for name, slot in state.slots.items()}
            table.upsert(keys[some], state.values[some], slots=slots)
        table.apply_gradients(batch, gradients, step=step, **hyper)
        rows = table.lookup_with_slots(keys)
        table.clear()
        return rows


class Oracle:
    """The keys of one thread and their state.

    Args:
        plan: The plan of the round.
        keys: The keys of this thread.

    Attributes:
        keys: The same keys. Elsewhere, keys are meant by their positions in this array.
        state: The state of all of them.
        figures: The counters of events that this thread must have caused.
        clock: The time that writes leave in metadata.
    """

    def __init__(self, plan: Plan, keys: Array) -> None:
        self.plan = plan
        self.keys = keys
        self.stepper = Stepper(plan)
        self.figures: Counter[str] = Counter()
        self.clock = 0
        values, slots = self.stepper.initial(keys)
        pairs = np.zeros((len(keys), 2), np.uint32)
        self._initial = State(np.zeros(len(keys), bool), values, slots, pairs, pairs.copy())
        self.state = self._initial.take(slice(None))

    # --- The effect of each call: from the state of distinct keys to the state after it.

    def upserted(self, before: State, at: Array, of: Array, rows: Array) -> State:
        """The state after an upsert; `of` says which of the keys each row belongs to."""
        after = before.take(slice(None))
        after.values[of] = rows  # The last of equal keys stays.
        after.present[:] = True
        after.waiting[:] = 0
        times = np.bincount(of, minlength=len(at)).astype(np.uint32)
        self._written(after, before, np.ones(len(at), bool), times)
        return after

    def accumulated(self, before: State, deltas: Array, known: Bools) -> State:
        """The state after deltas were added to distinct keys."""
        after = before.take(slice(None))
        added = before.present & known
        new = ~before.present & ~known
        with np.errstate(all="ignore"):
            both = before.values[added]
            after.values[added] = (
                both | deltas[added] if deltas.dtype == bool else both + deltas[added]
            )
        after.values[new] = deltas[new]
        after.present |= new
        after.waiting[added | new] = 0
        self._written(after, before, added | new, np.ones(len(known), np.uint32))
        return after

    def assigned(self, before: State, rows: Array) -> State:
        """The state after rows of keys that are there were overwritten."""
        after = before.take(slice(None))
        after.values[before.present] = rows[before.present]
        self._written(after, before, before.present, np.ones(len(rows), np.uint32))
        return after

    def found_or_inserted(self, before: State, rows: Array) -> State:
        """The state after distinct keys that were missing got these rows."""
        after = before.take(slice(None))
        after.values[~before.present] = rows[~before.present]
        after.present[:] = True
        after.waiting[:] = 0
        self._written(after, before, after.present, np.ones(len(rows), np.uint32))
        return after

    def removed(self, before: State, at: Array) -> State:
        """The state after keys were removed."""
        after = self._initial.take(at)
        after.waiting = before.waiting.copy()
        return after

    def trained(
        self, before: State, at: Array, of: Array, gradients: Array, step: int, **hyper: Any
    ) -> State:
        """The state after an optimizer step, if all new keys enter that may."""
        keys = self.keys[at]
        enters, after = self._seen(before)
        entered = enters[of]
        values, slots = self.stepper.step(
            keys, before, keys[of][entered], gradients[entered], step, **hyper
        )
        after.values[enters] = values[enters]
        for name, slot in slots.items():
            after.slots[name][enters] = slot[enters]
        return after

    def touched(self, before: State) -> State:
        """The state after keys were noted to be seen."""
        if self.plan.value_dtype == "string":  # Such tables insert no key.
            after = before.take(slice(None))
            self._written(after, before, before.present, np.ones(len(before.present), np.uint32))
            return after
        return self._seen(before)[1]

    def _seen(self, before: State) -> tuple[Bools, State]:
        """Returns which keys are there now, of keys that were seen, and the state but for rows."""
        after = before.take(slice(None))
        rule, least = self.plan.admission, 1
        if isinstance(rule, tfra.admission.MinCount) and self.plan.waits_exactly:
            least = rule.min_count
        seen = np.where(before.present, 0, before.waiting[:, 1]) + 1
        enters = before.present | (seen >= least)
        after.present = enters.copy()
        after.waiting[enters] = 0
        if self.plan.waits_exactly:
            after.waiting[~enters, 0] = self.clock
            after.waiting[~enters, 1] = seen[~enters]
        times = np.where(before.present, 1, seen).astype(np.uint32)
        self._written(after, before, enters, times)
        return enters, after

    def _written(self, after: State, before: State, which: Bools, times: Array) -> None:
        if not self.plan.metadata:
            return
        counts = np.where(before.present, before.usage[:, 1], 0).astype(np.uint32) + times
        after.usage[which, 0] = self.clock
        after.usage[which, 1] = counts[which]

    def absent(self, at: Array) -> State:
        """The state of keys that were never written."""
        return self._initial.take(at)

    # --- Comparisons.

    def check_rows(self, at: Array, rows: Array, exists: Array, what: str) -> None:
        """Checks what a lookup returned, and notes which keys were evicted."""
        state = self.state.take(at)
        here = state.present
        wrong = exists & ~here if self.plan.evicts else exists != here
        self._expect_none(wrong, at, f"{what}: the key is there, or is not, by mistake")
        initial = self._initial.values[at]
        expected = np.where(exists[:, None], state.values, initial)
        if rows.dtype != object:
            expected = expected.astype(rows.dtype, copy=False)
        self._expect_none(~equal_rows(rows, expected), at, f"{what}: wrong rows", rows, expected)
        if self.plan.evicts:
            self.forget(at[~exists])

    def check_slots(self, at: Array, slots: dict[str, Array], what: str) -> None:
        """Checks the slots of keys that are there."""
        here = self.state.present[at]
        for name, slot in slots.items():
            expected = self.state.slots[name][at]
            wrong = here & ~equal_rows(slot, expected)
            self._expect_none(wrong, at, f"{what}: wrong slot {name}", slot, expected)

    def check_usage(self, at: Array, usage: Array, what: str) -> None:
        """Checks the metadata of keys."""
        expected = np.where(self.state.present[at][:, None], self.state.usage[at], 0)
        wrong = (usage != expected).any(axis=1)
        if self.plan.evicts:  # A key that left and came back counts from 1 on.
            here = usage[:, 1] > 0
            wrong = here & ((usage[:, 1] > expected[:, 1]) | (usage[:, 0] > self.clock))
        self._expect_none(wrong, at, f"{what}: wrong metadata", usage, expected)

    def check_part(self, at: Array, rows: Array, what: str) -> None:
        """Checks the own keys in an export, each of which must be there once."""
        expect(len(np.unique(at)) == len(at), f"{what}: a key came twice")
        exists = np.zeros(len(self.keys), bool)
        exists[at] = True
        values = self._initial.values.copy()
        values[at] = rows
        self.check_rows(np.arange(len(self.keys)), values, exists, what)

    def check_foreign(self, rows: Array, what: str) -> None:
        """Checks that rows of other threads are whole."""
        if self.plan.initializer == "uniform":  # Rows start with different elements.
            return
        torn = ~whole_rows(rows)
        if torn.any():
            raise Defect(f"{what}: torn rows: {rows[torn][:3].tolist()}")

    def forget(self, at: Array) -> None:
        """Notes that keys are not in the table."""
        self.state.put(at, self._initial.take(at))

    def settle(
        self, at: Array, found: State, outcomes: list[State], what: str, changed: bool = True
    ) -> None:
        """Takes what the table has of keys, which must be one of several outcomes for each.

        Args:
            at: Distinct keys.
            found: What the table has.
            outcomes: What it may have.
            what: The call whose outcome this is.
            changed: Whether any of the outcomes will do. Otherwise only the first one.
        """
        allowed = outcomes if changed else outcomes[:1]
        fits = np.zeros(len(at), bool)
        for outcome in allowed:
            fits |= self._fits(found, outcome)
        if self.plan.evicts:
            fits |= ~found.present
        if not fits.all():
            first = int(np.flatnonzero(~fits)[0])
            expected = ", or ".join(outcome.describe(first) for outcome in allowed)
            raise Defect(
                f"{what}: {int((~fits).sum())} of {len(at)} keys, first {self.keys[at[first]]!r}, "
                f"expected {expected}, received {found.describe(first)}"
            )
        gone = ~found.present
        absent = self._initial.take(at)
        wrong = gone & ~equal_rows(found.values, absent.values)
        self._expect_none(wrong, at, f"{what}: missing keys have no initial rows", found.values)
        state = found.take(slice(None))
        for name, slot in absent.slots.items():
            state.slots[name][gone] = slot[gone]
        self.state.put(at, state)

    def _fits(self, found: State, outcome: State) -> Bools:
        same = found.present == outcome.present
        rows = equal_rows(found.values, outcome.values)
        for name, slot in outcome.slots.items():
            rows &= equal_rows(found.slots[name], slot)
        fits: Bools = same & (rows | ~found.present)
        if self.plan.metadata and not self.plan.evicts and self.plan.waits_exactly:
            usage = np.where(outcome.present[:, None], outcome.usage, 0)
            fits &= (found.usage == usage).all(axis=1)
        return fits

    def _expect_none(
        self,
        wrong: Array,
        at: Array,
        what: str,
        received: Array | None = None,
        expected: Array | None = None,
    ) -> None:
        if not wrong.any():
            return
        first = int(np.flatnonzero(wrong)[0])
        text = f"{what}. {int(wrong.sum())} of {len(wrong)} keys, first {self.keys[at[first]]!r}"
        if expected is not None:
            text += f", expected {expected[first].tolist()}"
        if received is not None:
            text += f", received {received[first].tolist()}"
        raise Defect(text)


def distinct(batch: Array) -> tuple[Array, Array]:
    """Returns the distinct keys of a batch, and which of them each key of the batch is."""
    at, of = np.unique(batch, return_inverse=True)
    return at, of.reshape(-1)


def in_parts(items: Array, size: int) -> Iterator[Array]:
    """Yields an array in parts."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
