"""The random operations of one thread, each checked against the oracle of its keys."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stress.defect import Defect, expect, expect_equal
from stress.faults import Faults
from stress.oracle import Oracle, State, distinct
from stress.plan import FAULTS, Plan
from stress.rows import Array, equal_rows, make_rows

# What a call raises when memory or a file fails. Modules that use TensorFlow add its errors.
ERRORS: list[type[BaseException]] = [MemoryError, OSError]

Call = Callable[[], Any]


@dataclass
class Shared:
    """What the threads of a round share.

    Args:
        plan: The plan of the round.
        table: The table: a `tfra.Table`, or what has its methods.
        keys: The keys of all threads.
        place: The position of each key in `keys`.
        faults: The way to make calls fail.
        fault: Which calls fail in this phase, one of `FAULTS`.
        solo: Whether only one thread is at work.
        failures: How many operations have failed.
        operations: How many operations there were.
    """

    plan: Plan
    table: Any
    keys: Array
    place: dict[Any, int]
    faults: Faults
    fault: str = FAULTS[0]
    solo: bool = False
    failures: int = 0
    operations: Counter[str] = field(default_factory=Counter)

    def places(self, keys: Array) -> Array:
        """Returns the positions in `keys` of keys that the table returned."""
        try:
            return np.array([self.place[key] for key in keys.tolist()], np.int64)
        except KeyError as error:
            raise Defect(f"the table has a key that was never written: {error}") from error


class Worker:
    """One thread: what it does in each phase.

    Args:
        shared: What the threads share.
        oracle: The state of the keys of this thread.
        number: The number of the thread. Its keys follow those of the threads before.
    """

    def __init__(self, shared: Shared, oracle: Oracle, number: int) -> None:
        self.shared, self.oracle, self.number = shared, oracle, number
        self.plan = shared.plan
        self.first = number * len(oracle.keys)
        # Whether another thread, or chance, decides about own keys too.
        self.unsure = self.plan.evicts or not self.plan.waits_exactly
        self.step = 1  # A first step would let the slots start anew.
        self.what = ""  # The operation, for messages.
        self.fault: tuple[int, int] | None = None
        self.rng = self.plan.rng(number)
        self.choices = self._choices()

    def run(self, phase: int) -> None:
        """Does the operations of a phase."""
        self.rng = self.plan.rng(self.number, phase)
        names = list(self.choices)
        weights = np.array([self.choices[name] for name in names], float)
        for _ in range(self.plan.operations):
            name = names[int(self.rng.choice(len(names), p=weights / weights.sum()))]
            self.do(name)

    def do(self, name: str) -> None:
        """Does one operation, maybe with a fault."""
        shared, rng = self.shared, self.rng
        self.what = f"thread {self.number}, {name}"
        successes, failures = int(rng.integers(0, 25)), int(rng.choice([1, 3, 1000]))
        fails = rng.random() < (0.7 if shared.solo else 0.3)
        self.fault = (successes, failures) if fails and shared.fault != "none" else None
        getattr(self, f"do_{name}")()
        shared.operations[name] += 1

    # --- Calls of the table, which may fail.

    @property
    def table(self) -> Any:
        """The table as this thread uses it."""
        return self.shared.table

    def call(self, call: Call) -> tuple[Any, BaseException | None]:
        """Calls the table, with the fault of this operation. Returns the result or the error."""
        shared = self.shared
        try:
            if self.fault is None:
                return call(), None
            shared.faults.start(shared.fault, *self.fault)
            try:
                return call(), None
            finally:
                shared.faults.end()
        except tuple(ERRORS) as error:
            if shared.fault == "none":
                raise Defect(f"{self.what}: an error without a cause: {error!r}") from error
            expect(str(error), f"{self.what}: an error that says nothing: {error!r}")
            shared.failures += 1
            return None, error

    def read(self, call: Call) -> Any:
        """Calls the table; None if that failed."""
        return self.call(call)[0]

    def again(self, call: Call) -> Any:
        """Calls the table until that succeeds, while other threads make calls fail."""
        self.fault = None
        for attempt in range(2000):
            result, error = self.call(call)
            if error is None:
                return result
            time.sleep(0.001 * min(attempt, 20))
        raise Defect(f"{self.what}: reading fails for ever: {error!r}")

    def write(
        self,
        at: Array,
        outcomes: list[State],
        call: Call,
        figures: dict[str, int] | None = None,
        partly: bool = False,
    ) -> Any:
        """Calls the table to write.

        Args:
            at: The distinct keys that it writes.
            outcomes: Their state afterwards; further ones if it depends on others too.
            call: The call.
            figures: How many events of each kind it counts, if only one outcome is possible.
            partly: Whether a call that fails may have changed some of the keys.

        Returns:
            The result of the call; None if it failed.
        """
        oracle, plan, shared = self.oracle, self.plan, self.shared
        before = oracle.state.take(at)
        result, error = self.call(call)
        if error is not None:
            # table.h has the exceptions: other threads take the memory that the call made room for,
            # or so little is left that not even a small allocation succeeds.
            once = self.fault is not None and (shared.fault != "allocation" or self.fault[1] == 1)
            partly = partly or not shared.solo or not once or self.unsure
            partly = partly or plan.admission is not None or plan.partitions > 1
            found = self.found(at, waiting=True)
            what = f"{self.what}, which failed ({error})"
            oracle.settle(at, found, [before, *outcomes], what, changed=partly)
            return None
        if self.unsure:
            oracle.settle(at, self.found(at), outcomes, self.what)
        else:
            oracle.state.put(at, outcomes[0])
            oracle.figures.update(figures or {})
        return result

    def found(self, at: Array, waiting: bool = False) -> State:
        """Returns what the table has of keys."""
        keys, table = self.oracle.keys[at], self.table
        state = self.oracle.absent(at)
        # Whether a key is there is asked last: no other thread inserts it meanwhile.
        if self.plan.metadata:
            state.usage = self.again(lambda: table.usage(keys))
        if state.slots:
            slots = self.again(lambda: table.lookup_with_slots(keys))[1]
            state.slots = {name: slots[name] for name in state.slots}
        state.values, state.present = self.again(lambda: table.lookup(keys, return_exists=True))
        state.usage[~state.present] = 0
        if waiting and self.plan.admission is not None and self.plan.waits_exactly:
            state.waiting = self.waiting()[at]
        return state

    def waiting(self) -> Array:
        """Returns what the table knows of own keys that wait to enter."""
        known = self.again(self.table.admission_state)
        result = np.zeros((len(self.oracle.keys), 2), np.uint32)
        place = self.shared.places(known["keys"]) - self.first
        own = (place >= 0) & (place < len(result))
        result[place[own]] = known["seen"][own]
        return result

    # --- Random arguments.

    def batch(self) -> Array:
        """Returns positions of own keys, of which some may be equal.

        Where calls may fail, all are different: of equal keys, any may be the last that is stored.
        """
        size = 1 + int((self.plan.batch - 1) * self.rng.random() ** 3)
        batch = self.rng.integers(0, len(self.oracle.keys), size)
        return batch if self.shared.fault == "none" else self.rng.permutation(np.unique(batch))

    def rows(self, count: int) -> Array:
        """Returns rows of small whole numbers, which are exact in every type."""
        numbers = self.rng.integers(-8, 9, count)
        return make_rows(self.plan.value_dtype, self.plan.dim, numbers)

    def scores(self, count: int) -> dict[str, Array]:
        """Returns the argument `scores` of some calls of bounded tables."""
        numbers = self.rng.integers(1, 50, count)
        if self.plan.evict_strategy not in ("customized", "lfu", "epochlfu"):
            return {}
        given = self.plan.evicts and self.plan.library == "numpy" and self.rng.integers(2)
        return {"scores": numbers} if given else {}

    # --- The operations.

    def _choices(self) -> dict[str, float]:
        """Returns the operations that this table has, and how often they come."""
        plan = self.plan
        numbers = plan.value_dtype != "string"
        numpy = plan.library != "tensorflow"
        return {
            name: weight
            for name, weight, has in (
                ("lookup", 3.0, True),
                ("lookup_default", 1.0, numpy),
                ("lookup_out", 0.5, numpy and numbers),
                ("lookup_slots", 1.0, numpy and numbers),
                ("contains", 1.0, True),
                ("foreign", 3.0, True),
                ("upsert", 4.0, True),
                ("upsert_all", 1.0, numpy and numbers and not plan.evicts),
                ("accum", 3.0, numbers),
                ("assign", 1.0, numpy),
                ("find_or_insert", 1.0, numpy),
                ("insert_and_evict", 2.0, numpy and plan.evicts),
                ("remove", 2.0, True),
                ("train", 4.0, plan.optimizer is not None),
                ("touch", 1.5, plan.metadata),
                ("usage", 1.0, plan.metadata),
                ("select", 0.4, plan.metadata and numpy),
                ("scores", 1.0, numpy and plan.evicts),
                ("export", 0.5, True),
                ("iterate", 0.3, numpy),
                ("waiting", 0.3, numpy and plan.admission is not None),
                ("figures", 0.5, True),
                ("reserve", 0.2, numpy),
                ("shrink", 0.3, True),
            )
            if has
        }

    def do_lookup(self) -> None:
        """Rows of own keys."""
        at = self.batch()
        keys = self.oracle.keys[at]
        result = self.read(lambda: self.table.lookup(keys, return_exists=True))
        if result is not None:
            self.check_lookup(at, *result)

    def check_lookup(self, at: Array, rows: Array, exists: Array) -> None:
        """Checks what a lookup returned of keys of which some may be equal."""
        if self.plan.evicts:  # A key may be evicted while it is looked up twice.
            distinct_at = np.unique(at)
            for one in distinct_at[:50]:
                same = at == one
                wrong = exists[same] & ~equal(rows[same], self.oracle.state.values[one])
                expect(not wrong.any(), f"{self.what}: wrong row of {self.oracle.keys[one]!r}")
            last = len(at) - 1 - np.unique(at[::-1], return_index=True)[1]
            gone = np.unique(at[~exists])
            self.oracle.check_rows(distinct_at, rows[last], exists[last], self.what)
            self.oracle.forget(gone)
        else:
            self.oracle.check_rows(at, rows, exists, self.what)

    def do_lookup_default(self) -> None:
        """Rows of own keys, with a row for those that are not there."""
        at = np.unique(self.batch())
        keys, one = self.oracle.keys[at], self.rows(1)[0]
        default = one if self.rng.integers(2) else np.stack([one] * len(at))
        result = self.read(lambda: self.table.lookup(keys, default, return_exists=True))
        if result is None:
            return
        rows, exists = result
        expect(equal(rows[~exists], one).all(), f"{self.what}: wrong default rows")
        initial = self.oracle.absent(at[~exists]).values
        rows[~exists] = initial
        self.oracle.check_rows(at, rows, exists, self.what)

    def do_lookup_out(self) -> None:
        """Rows of own keys, into an array."""
        at = np.unique(self.batch())
        out = np.empty((len(at), self.plan.dim), self.oracle.state.values.dtype)
        keys = self.oracle.keys[at]
        result = self.read(lambda: self.table.lookup(keys, out=out, return_exists=True))
        if result is not None:
            self.oracle.check_rows(at, out, result[1], self.what)

    def do_lookup_slots(self) -> None:
        """Slots of own keys."""
        at = np.unique(self.batch())
        keys = self.oracle.keys[at]
        with_slots = self.read(lambda: self.table.lookup_with_slots(keys))
        result = self.read(lambda: self.table.lookup(keys, return_exists=True))
        if with_slots is None or result is None:
            return
        rows, exists = result
        self.oracle.check_rows(at, rows, exists, self.what)
        here = exists
        expect(equal(with_slots[0][here], rows[here]).all(), f"{self.what}: other rows than alone")
        self.oracle.check_slots(
            at[here], {name: slot[here] for name, slot in with_slots[1].items()}, self.what
        )

    def do_contains(self) -> None:
        """Which own keys are there."""
        at = np.unique(self.batch())
        keys = self.oracle.keys[at]
        exists = self.read(lambda: self.table.contains(keys))
        if exists is not None:
            state = self.oracle.state.take(at)
            initial = self.oracle.absent(at).values
            rows = np.where(exists[:, None], state.values, initial).astype(initial.dtype)
            self.oracle.check_rows(at, rows, exists, self.what)

    def do_foreign(self) -> None:
        """Rows of all threads' keys, which must be whole."""
        size = len(self.batch())
        keys = self.shared.keys[self.rng.integers(0, len(self.shared.keys), size)]
        result = self.read(lambda: self.table.lookup(keys, return_exists=True))
        if result is not None:
            self.oracle.check_foreign(result[0], self.what)

    def do_upsert(self, insert_and_evict: bool = False) -> None:
        """Rows for own keys, of which some may be equal."""
        batch = self.batch()
        at, of = distinct(batch)
        rows, scores = self.rows(len(batch)), self.scores(len(batch))
        oracle = self.oracle
        before = oracle.state.take(at)
        outcomes = [
            oracle.upserted(state, at, of, rows)
            for state in ([before, oracle.absent(at)] if self.plan.evicts else [before])
        ]
        inserts = int((~before.present).sum())
        figures = {"inserts": inserts, "updates": len(batch) - inserts}
        keys = oracle.keys[batch]
        if not insert_and_evict:
            self.write(at, outcomes, lambda: self.table.upsert(keys, rows, **scores), figures)
            return
        result = self.write(
            at,
            outcomes,
            lambda: self.table.insert_and_evict(keys, rows, return_rejected=True, **scores),
        )
        if result is not None:
            evicted, rejected = result
            expect_equal(rejected.shape, keys.shape, f"{self.what}: shape of rejected")
            self.shared.places(evicted.keys)
            oracle.check_foreign(evicted.values, f"{self.what}, evicted rows")

    def do_insert_and_evict(self) -> None:
        """The same, and the rows that leave."""
        self.do_upsert(insert_and_evict=True)

    def do_upsert_all(self) -> None:
        """Rows with their slots and metadata, as a copy of a table has them."""
        at = np.unique(self.batch())
        oracle = self.oracle
        after = oracle.absent(at)
        after.values, after.present[:] = self.rows(len(at)), True
        inserts = int((~oracle.state.present[at]).sum())
        for name, slot in after.slots.items():
            numbers = self.rng.integers(1, 9, len(at)).astype(slot.dtype)
            after.slots[name] = np.repeat(numbers[:, None], slot.shape[1], axis=1)
        metadata = None
        if self.plan.metadata:
            metadata = self.rng.integers(1, 60, (len(at), 2)).astype(np.uint32)
            after.usage = metadata
        keys, slots = oracle.keys[at], after.slots or None
        self.write(
            at,
            [after],
            lambda: self.table.upsert(keys, after.values, slots=slots, metadata=metadata),
            {"inserts": inserts, "updates": len(at) - inserts},
        )

    def do_accum(self) -> None:
        """Sums, by threads that know, mostly, which keys are there."""
        at = np.unique(self.batch())
        deltas = self.rows(len(at))
        before = self.oracle.state.take(at)
        known = before.present ^ (self.rng.random(len(at)) < 0.1)
        states = [before, self.oracle.absent(at)] if self.plan.evicts else [before]
        outcomes = [self.oracle.accumulated(state, deltas, known) for state in states]
        added, new = before.present & known, ~before.present & ~known
        figures = {
            "inserts": int(new.sum()),
            "updates": int(added.sum()),
            "ignored": int((~added & ~new).sum()),
        }
        keys = self.oracle.keys[at]
        self.write(at, outcomes, lambda: self.table.accum(keys, deltas, known), figures)

    def do_assign(self) -> None:
        """Rows for those of own keys that are there."""
        at = np.unique(self.batch())
        rows, scores = self.rows(len(at)), self.scores(len(at))
        before = self.oracle.state.take(at)
        updates = int(before.present.sum())
        keys = self.oracle.keys[at]
        self.write(
            at,
            [self.oracle.assigned(before, rows)],
            lambda: self.table.assign(keys, rows, **scores),
            {"updates": updates, "ignored": len(at) - updates},
        )

    def do_find_or_insert(self) -> None:
        """Rows of own keys, and a row for those that are not there."""
        at = np.unique(self.batch())
        rows, scores = self.rows(len(at)), self.scores(len(at))
        oracle = self.oracle
        before = oracle.state.take(at)
        states = [before, oracle.absent(at)] if self.plan.evicts else [before]
        outcomes = [oracle.found_or_inserted(state, rows) for state in states]
        inserts = int((~before.present).sum())
        keys = oracle.keys[at]
        result = self.write(
            at,
            outcomes,
            lambda: self.table.find_or_insert(keys, rows, return_exists=True, **scores),
            {"inserts": inserts},
        )
        if result is None:
            return
        values, exists = result
        wrong = exists & ~before.present if self.plan.evicts else exists != before.present
        expect(not wrong.any(), f"{self.what}: the key is there, or is not, by mistake")
        expected = np.where(exists[:, None], before.values, rows).astype(rows.dtype)
        expect(equal(values, expected).all(), f"{self.what}: wrong rows")

    def do_remove(self) -> None:
        """Removes own keys, of which some may be equal."""
        batch = self.batch()[: max(1, self.plan.batch // 4)]
        at, _ = distinct(batch)
        before = self.oracle.state.take(at)
        removals = int(before.present.sum())
        keys = self.oracle.keys[batch]
        removed = self.write(
            at,
            [self.oracle.removed(before, at)],
            lambda: self.table.remove(keys),
            {"removals": removals},
            partly=True,
        )
        if removed is not None:
            fits = removed <= removals if self.plan.evicts else removed == removals
            expect(fits, f"{self.what}: expected {removals} removed keys, received {removed}")

    def do_train(self) -> None:
        """One optimizer step on own keys, of which some may be equal."""
        batch = self.batch()
        at, of = distinct(batch)
        numbers = self.rng.integers(-3, 4, len(batch))
        gradients = make_rows(self.plan.value_dtype, self.plan.dim, numbers)
        self.step += 1
        step, oracle = self.step, self.oracle
        hyper = {"learning_rate": 0.5}
        before = oracle.state.take(at)
        states = [before, oracle.absent(at)] if self.plan.evicts else [before]
        outcomes = [oracle.trained(state, at, of, gradients, step, **hyper) for state in states]
        if not self.plan.waits_exactly:
            outcomes.append(self.not_admitted(before, outcomes[0]))
        inserts = int((outcomes[0].present & ~before.present).sum())
        refused = int((~outcomes[0].present).sum())
        keys = oracle.keys[batch]
        self.write(
            at,
            outcomes,
            lambda: self.table.apply_gradients(keys, gradients, step=step, **hyper),
            {"inserts": inserts, "updates": int(before.present.sum()), "refused": refused},
        )

    def not_admitted(self, before: State, after: State) -> State:
        """The state if no key was let in."""
        state = after.take(slice(None))
        out = np.flatnonzero(~before.present)
        state.put(out, before.take(out))
        return state

    def do_touch(self) -> None:
        """Notes that own keys were seen."""
        batch = self.batch()
        at, _ = distinct(batch)
        oracle = self.oracle
        before = oracle.state.take(at)
        states = [before, oracle.absent(at)] if self.plan.evicts else [before]
        outcomes = [oracle.touched(state) for state in states]
        if not self.plan.waits_exactly:
            outcomes.append(self.not_admitted(before, outcomes[0]))
        keys = oracle.keys[batch]
        inserts = int((outcomes[0].present & ~before.present).sum())
        refused = int((~outcomes[0].present).sum())
        figures = {
            "inserts": inserts,
            "updates": int(before.present.sum()),
            "refused": refused,
        }
        self.write(at, outcomes, lambda: self.table.touch(keys), figures)

    def do_usage(self) -> None:
        """The metadata of own keys."""
        at = self.batch()
        keys = self.oracle.keys[at]
        usage = self.read(lambda: self.table.usage(keys))
        if usage is not None:
            self.oracle.check_usage(at, usage, self.what)

    def do_select(self) -> None:
        """The own keys among those that were written seldom."""
        count = int(self.rng.integers(1, 6))
        keys = self.read(lambda: self.table.select(count_below=count))
        if keys is None:
            return
        place = self.shared.places(keys) - self.first
        own = place[(place >= 0) & (place < len(self.oracle.keys))]
        state = self.oracle.state
        if not self.plan.evicts:
            expected = np.flatnonzero(state.present & (state.usage[:, 1] < count))
            expect_equal(sorted(own.tolist()), expected.tolist(), f"{self.what}: keys")

    def do_scores(self) -> None:
        """The scores of own keys, and new ones for some."""
        at = np.unique(self.batch())
        keys, numbers = self.oracle.keys[at], self.rng.integers(1, 50, len(at))
        if self.rng.integers(2):
            self.read(lambda: self.table.assign_scores(keys, numbers))
            return
        scores = self.read(lambda: self.table.scores(keys))
        if scores is not None:
            wrong = (scores > 0) & ~self.oracle.state.present[at]
            expect(not wrong.any(), f"{self.what}: scores of keys that are not there")

    def do_export(self) -> None:
        """The own keys among the whole content."""
        result = self.read(lambda: self.table.export())
        if result is not None:
            self.check_export(*result)

    def do_iterate(self) -> None:
        """The same in batches."""
        size = int(self.rng.choice([1000, 5000]))
        parts = self.read(lambda: list(self.table.iterate(size)))
        if parts:
            keys, values = (np.concatenate(each) for each in zip(*parts, strict=True))
            self.check_export(keys, values)

    def check_export(self, keys: Array, values: Array) -> None:
        """Checks an export that was made while other threads wrote."""
        place = self.shared.places(keys) - self.first
        own = (place >= 0) & (place < len(self.oracle.keys))
        self.oracle.check_part(place[own], values[own], self.what)
        self.oracle.check_foreign(values[~own], self.what)

    def do_waiting(self) -> None:
        """What is known of own keys that wait to enter."""
        if self.plan.waits_exactly:
            state = self.oracle.state
            expected = np.where(state.present[:, None], 0, state.waiting)
            wrong = (self.waiting() != expected).any(axis=1)
            expect(not wrong.any(), f"{self.what}: wrong counts of {int(wrong.sum())} waiting keys")
        else:
            self.read(self.table.admission_state)

    def do_figures(self) -> None:
        """The size, the counters and what is shown, while other threads write."""
        size, stats = len(self.table), self.table.stats()
        most = self.plan.max_capacity
        if most is not None:
            most *= self.plan.partitions
            expect(size <= most and stats.size <= most, f"{self.what}: {size} keys of {most}")
        expect(str(self.table), f"{self.what}: nothing to show")

    def do_reserve(self) -> None:
        """Room for more keys."""
        count = int(self.rng.integers(0, 2 * len(self.shared.keys)))
        self.read(lambda: self.table.reserve(count))

    def do_shrink(self) -> None:
        """Memory that is given back."""
        self.read(lambda: self.table.shrink())


def equal(rows: Array, expected: Array) -> Array:
    """Returns which rows are equal, to an array of rows or to one row."""
    full = np.broadcast_to(expected, rows.shape)
    return equal_rows(rows, full if rows.dtype == object else full.astype(rows.dtype))
