"""What happens to the whole table while no thread is at work."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

import tfra
from stress.content import Content, is_best
from stress.defect import expect, expect_equal
from stress.forks import fork_and_check
from stress.plan import Plan
from stress.rows import Bools, make_rows
from stress.worker import Shared, Worker


class Events:
    """The events of a round.

    Args:
        shared: What the threads share.
        content: The content of the table, which the events change too.
        workers: The threads, for calls that one of them does alone.
    """

    def __init__(self, shared: Shared, content: Content, workers: list[Worker]) -> None:
        self._shared, self._content, self._workers = shared, content, workers
        self._plan: Plan = shared.plan
        self._rng = self._plan.rng(1000)

    def run(self, phase: int) -> list[str]:
        """Lets some events happen, and returns their names."""
        self._rng = self._plan.rng(1000, phase)
        known = self._known()
        count = min(len(known), int(self._rng.integers(2, 5)))
        names = self._rng.choice(list(known), count, replace=False).tolist()
        for name in names:
            known[name]()
            self._content.check(f"after {name}")
        return [str(name) for name in names]

    @property
    def _table(self) -> tfra.Table:
        table: tfra.Table = self._shared.table
        return table

    def _known(self) -> dict[str, Callable[[], None]]:
        plan = self._plan
        numpy = plan.library != "tensorflow"
        ranked = plan.metadata and not plan.evicts and plan.partitions == 1
        events = [
            ("clear", self._clear, True),
            ("shrink", lambda: self._table.shrink(), True),
            ("time", self._time, plan.metadata),
            ("restrict", self._restrict, ranked),
            ("expire", self._expire, plan.metadata and not plan.evicts),
            ("expire_by_norm", self._expire_by_norm, ranked and plan.floating),
            ("remove_if", self._remove_if, ranked and numpy),
            ("histograms", self._histograms, ranked),
            ("erase_if", self._erase_if, plan.evicts and numpy),
            ("epoch", self._epoch, numpy and "epoch" in plan.evict_strategy and plan.evicts),
            ("copy", self._copy, plan.library == "numpy"),
            ("copy_store", self._copy_store, plan.library == "numpy" and self._storable()),
            ("save", self._save, not numpy),
            ("second_handle", self._second_handle, numpy),
            ("fork", self._fork, numpy),
            ("threads", self._threads, True),
            ("optimizers", self._optimizers, numpy and plan.floating),
            ("tables_go", self._tables_go, self._shared.faults.available),
            ("faults_alone", self._faults_alone, self._shared.faults.available),
        ]
        return {name: event for name, event, has in events if has}

    def _storable(self) -> bool:
        # A store keeps keys, values and slots only.
        plan = self._plan
        return plan.value_dtype != "string" and plan.admission is None and not plan.metadata

    def _clear(self) -> None:
        size = len(self._table)
        self._table.clear()
        everything = np.ones(len(self._shared.keys), bool)
        self._content.forget(everything, waiting=True)
        self._content.count("removals", size)

    def _time(self) -> None:
        self._content.set_clock(self._workers[0].oracle.clock + int(self._rng.integers(1, 50)))

    def _restrict(self) -> None:
        state = self._content.state()
        size = int(state.present.sum())
        keep = int(self._rng.integers(size // 2, size + 1))
        by = (
            "time"
            if self._plan.library == "tensorflow"
            else str(self._rng.choice(["time", "count"]))
        )
        evicted = self._table.restrict(keep, by=by)
        expect_equal(evicted, size - keep, "restrict: evicted keys")
        usage = state.usage.astype(np.uint64)
        first, second = (0, 1) if by == "time" else (1, 0)
        order = (usage[:, first] << np.uint64(32)) | usage[:, second]
        kept = self._kept(state.present)
        expect(is_best(order[state.present], kept[state.present], keep), "restrict: others stayed")
        self._content.forget(state.present & ~kept)
        self._content.count("evictions", evicted)

    def _kept(self, present: Bools) -> Bools:
        """Returns which keys are there now, all of which were there before."""
        kept = np.zeros(len(present), bool)
        kept[self._shared.places(self._table.export()[0])] = True
        expect(not (kept & ~present).any(), "keys came that were not there before")
        return kept

    def _expire(self) -> None:
        state = self._content.state()
        clock = self._workers[0].oracle.clock
        ttl = int(self._rng.integers(0, 60))
        expired = self._table.expire(ttl=ttl)
        late = clock - state.usage[:, 0].astype(np.int64) > ttl
        gone = state.present & late
        expect_equal(expired, int(gone.sum()), f"expire({ttl}) at {clock}: expired keys")
        forgotten = ~state.present & (clock - state.waiting[:, 0].astype(np.int64) > ttl)
        size = len(self._workers[0].oracle.keys)
        for worker in self._workers:
            part = slice(worker.first, worker.first + size)
            worker.oracle.state.waiting[forgotten[part]] = 0
        self._content.forget(gone)
        self._content.count("expirations", expired)

    def _expire_by_norm(self) -> None:
        state = self._content.state()
        with np.errstate(all="ignore"):
            norms = np.linalg.norm(state.values.astype(np.float64), axis=1)
        least = float(self._rng.integers(1, 6)) + 0.3
        clear_cut = np.abs(norms - least) > 1e-3 * least  # The engine may sum in another order.
        expired = self._table.expire(min_norm=least, norm_writes=2)
        kept = self._kept(state.present)
        gone = state.present & ~kept
        expected = state.present & (norms < least) & (state.usage[:, 1] >= 2)
        wrong = (gone != expected) & clear_cut
        expect(
            not wrong.any(), f"expire by norm: {int(wrong.sum())} keys stayed or left by mistake"
        )
        expect_equal(expired, int(gone.sum()), "expire by norm: expired keys")
        self._content.forget(gone)
        self._content.count("expirations", expired)

    def _remove_if(self) -> None:
        state = self._content.state()
        count = int(self._rng.integers(1, 4))
        gone = state.present & (state.usage[:, 1] < count)
        expect_equal(self._table.count_if(count_below=count), int(gone.sum()), "count_if")
        expect_equal(self._table.remove_if(count_below=count), int(gone.sum()), "remove_if")
        self._content.forget(gone)
        self._content.count("removals", int(gone.sum()))

    def _histograms(self) -> None:
        state = self._content.state()
        writes = state.usage[state.present, 1]
        found = self._table.histograms().frequency
        expected = np.histogram(writes, np.append(found.edges[:-1], np.inf))[0]
        expect_equal(found.counts.tolist(), expected.tolist(), "histogram of writes")

    def _erase_if(self) -> None:
        keys, _, scores = self._table.export_with_scores()
        if len(keys) == 0:
            return
        expect(
            (self._table.scores(keys) == scores).all(), "scores of a lookup and an export differ"
        )
        middle = int(np.median(scores))
        low = int((scores < middle).sum())
        expect_equal(self._table.size_if(score_below=middle), low, "size_if")
        expect_equal(
            len(self._table.export_if(score_at_least=middle).keys), len(keys) - low, "export_if"
        )
        expect_equal(self._table.erase_if(score_below=middle), low, "erase_if")
        gone = np.zeros(len(self._shared.keys), bool)
        gone[self._shared.places(keys[scores < middle])] = True
        self._content.forget(gone)
        left = self._table.export_with_scores()
        expect_equal(
            sorted(left.scores.tolist()), sorted(scores[scores >= middle].tolist()), "scores"
        )

    def _epoch(self) -> None:
        epoch = int(self._rng.integers(0, 5))
        self._table.set_epoch(epoch)
        expect_equal(self._table.epoch, epoch, "epoch")

    def _copy(self) -> None:
        """Moves everything to a table that is made of the spec of this one."""
        table, plan = self._table, self._plan
        spec = tfra.TableSpec.from_json(table.spec.to_json())
        expect_equal(spec, table.spec, "the spec, read from its text")
        copy = tfra.Table.from_spec(spec, optimizer=plan.optimizer)
        copy.clock, copy.step = table.clock, table.step
        order = slice(None, None, -1) if self._rng.integers(2) else slice(None)
        for part in table.iterate(5000, slots=plan.value_dtype != "string", metadata=True):
            keys, values, *slots, usage = part
            arguments = {} if not slots else {"slots": {n: s[order] for n, s in slots[0].items()}}
            if plan.metadata:
                arguments["metadata"] = usage[order]
            copy.upsert(keys[order], values[order], **arguments)
        if plan.evicts:
            keys, _, scores = table.export_with_scores()
            copy.assign_scores(keys, scores)
        if plan.admission is not None:
            copy.restore_admission(table.admission_state())
        self._shared.table = copy
        self._content.restart_figures()

    def _copy_store(self) -> None:
        """Moves keys, values and slots to another table by way of stores."""
        copy = tfra.Table.from_spec(self._table.spec, optimizer=self._plan.optimizer)
        tfra.TableStore(copy).import_rows(tfra.TableStore(self._table).export())
        self._shared.table = copy
        self._content.restart_figures()

    def _save(self) -> None:
        """Saves and restores, maybe into another number of partitions."""
        self._shared.table.save_and_restore(self._rng, self._workers[0].oracle.clock)
        self._content.restart_figures()

    def _second_handle(self) -> None:
        """Reads and writes through another object of the same table."""
        table = tfra.Table.from_handle(self._table.handle)
        expect_equal(len(table), len(self._table), "size of the table by its handle")
        keys = self._shared.keys[:100]
        same = table.contains(keys) == self._table.contains(keys)
        expect(same.all(), "the table by its handle has other keys")
        del table

    def _fork(self) -> None:
        fork_and_check(self._shared, busy=False)

    def _optimizers(self) -> None:
        """Another table, whose optimizers take turns while other threads use it, and forks."""
        keys = np.arange(500)
        table = tfra.Table(2)
        table.upsert(keys, np.ones((500, 2), np.float32))
        objects = [tfra.Table.from_handle(table.handle, optimizer=o) for o in ("adam", "adagrad")]
        stop = threading.Event()
        errors: list[BaseException] = []

        def repeat(call: Callable[[], object]) -> None:
            try:
                while not stop.is_set():
                    call()
            except BaseException as error:
                errors.append(error)

        def train() -> None:
            for each in objects:
                each.apply_gradients(keys, np.zeros((500, 2), np.float32), step=1)

        def read() -> None:
            expect((table.lookup(keys) == 1).all(), "optimizers: a wrong row")

        threads = [threading.Thread(target=repeat, args=(c,)) for c in (train, read, read, read)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(5):
                fork_and_check(self._shared, busy=True)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        if errors:
            raise errors[0]

    def _tables_go(self) -> None:
        """Another table goes while memory fails."""
        plan, keys = self._plan, self._shared.keys
        if plan.key_dtype == "int32":
            return
        options = {**plan.options(), "admission": None}
        table = tfra.Table(**options)
        rows = make_rows(plan.value_dtype, plan.dim, np.arange(len(keys)) % 9)
        table.upsert(keys, rows)
        with self._shared.faults.during("allocation", int(self._rng.integers(4)), 1000):
            del table

    def _threads(self) -> None:
        """Another number of threads for the calls from now on."""
        tfra.set_num_threads(int(self._rng.integers(1, 5)))

    def _faults_alone(self) -> None:
        """Each operation of one thread with a fault: those that fail change nothing."""
        shared = self._shared
        shared.solo = True
        kinds = ["allocation"]
        if self._plan.fast_bytes is not None:
            kinds += ["read", "write", "growth"]
        shared.fault = str(self._rng.choice(kinds))
        worker = self._workers[int(self._rng.integers(len(self._workers)))]
        # In a thread of its own, which has no buffers of earlier calls.
        errors: list[BaseException] = []

        def work() -> None:
            try:
                worker.run(2000 + int(self._rng.integers(1000)))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        shared.solo, shared.fault = False, "none"
        if errors:
            raise errors[0]
