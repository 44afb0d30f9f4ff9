"""Tables that several threads use at once, the number of threads of a call, and forks."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import tfra
from support import assert_identical, make_keys, run_python, sorted_export
from tfra import optimizers

SECONDS = 0.7  # The time in which races can happen.


@contextmanager
def running(*loops: Callable[[], None]) -> Iterator[None]:
    """Repeats each function in a thread of its own during the block, and raises what they raise."""
    stop = threading.Event()

    def repeat(loop: Callable[[], None]) -> int:
        times = 0
        while not stop.is_set():
            loop()
            times += 1
        return times

    with ThreadPoolExecutor(len(loops)) as pool:
        futures = [pool.submit(repeat, loop) for loop in loops]
        try:
            yield
        finally:
            stop.set()
        for future in futures:
            assert future.result(timeout=60) > 0


def in_threads(count: int, call: Callable[[int], Any]) -> None:
    """Runs `call(number of the thread)` in threads that start together."""
    barrier = threading.Barrier(count)

    def start(number: int) -> None:
        barrier.wait(timeout=60)
        call(number)

    with ThreadPoolExecutor(count) as pool:
        for future in [pool.submit(start, number) for number in range(count)]:
            future.result(timeout=120)


MANY = np.arange(400_000)
LONG_CALLS: dict[str, Callable[[tfra.Table, np.ndarray], Any]] = {
    "lookup": lambda table, rows: table.lookup(MANY, out=rows),
    "contains": lambda table, rows: table.contains(MANY),
    "upsert": lambda table, rows: table.upsert(MANY, rows),
    "accum": lambda table, rows: table.accum(MANY, rows, np.ones(len(MANY), bool)),
    "apply_gradients": lambda table, rows: table.apply_gradients(MANY, rows),
    "remove": lambda table, rows: table.remove(MANY),
    "export": lambda table, rows: table.export(),
    "count_if": lambda table, rows: table.count_if(count_below=5),
    "select": lambda table, rows: table.select(count_below=5),
    "remove_if": lambda table, rows: table.remove_if(count_below=5),
    "reserve": lambda table, rows: table.reserve(8 * len(MANY)),
    "clear": lambda table, rows: table.clear(),
}


def progress_during(call: Callable[[], Any]) -> int:
    """How far this thread counts while another is in `call`; 0 if that keeps the GIL."""
    counter = 0
    advanced = -1
    done = threading.Event()

    def measure() -> None:
        nonlocal advanced
        before = counter
        call()
        advanced = counter - before
        done.set()

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=measure)
    # The interpreter does not switch threads by itself now: only a release of the GIL does.
    sys.setswitchinterval(1000)
    try:
        thread.start()
        while not done.is_set():
            counter += 1
            time.sleep(0)
    finally:
        sys.setswitchinterval(interval)
        thread.join(60)
    return advanced


def test_progress_is_none_where_the_gil_is_kept() -> None:
    assert progress_during(lambda: sum(range(3_000_000))) == 0


@pytest.mark.parametrize("name", LONG_CALLS)
def test_python_goes_on_during_a_call(name: str) -> None:
    table = tfra.Table(32, optimizer="adam", metadata=True)
    rows = np.ones((len(MANY), 32), np.float32)
    best = 0
    for _ in range(10):  # A call takes some milliseconds, in which a busy machine may do others.
        table.upsert(MANY, rows)
        best = max(best, progress_during(lambda: LONG_CALLS[name](table, rows)))
        if best >= 10:
            return
    pytest.fail(f"counted to {best} only")


def test_lookups_go_on_while_another_thread_writes() -> None:
    table = tfra.Table(32)
    rows = np.ones((len(MANY), 32), np.float32)
    finished = 0

    def look_up() -> None:
        nonlocal finished
        table.lookup(MANY[:1000])
        finished += 1

    with running(look_up, look_up):
        before = finished
        for _ in range(3):
            table.upsert(MANY, rows)
            table.clear()
        assert finished - before > 20


@pytest.mark.parametrize("value_dtype", ["float32", "int64", "float16"])
def test_no_update_is_lost(value_dtype: str, key_dtype: str) -> None:
    table = tfra.Table(8, key_dtype=key_dtype, value_dtype=value_dtype)
    keys = make_keys(key_dtype, range(50))
    ones = np.ones((50, 8), table.value_dtype)
    table.upsert(keys, np.zeros_like(ones))

    def add(number: int) -> None:
        order = np.random.default_rng(number).permutation(50)
        for _ in range(300):
            table.accum(keys[order], ones, np.ones(50, bool))

    in_threads(4, add)
    np.testing.assert_array_equal(table.lookup(keys), np.full((50, 8), 1200, table.value_dtype))
    assert table.stats().updates == 50 * 1200


def test_no_gradient_and_no_step_is_lost() -> None:
    table = tfra.Table(8, optimizer=optimizers.SGD(1.0))
    keys = np.arange(50)

    def train(number: int) -> None:
        for _ in range(300):
            table.apply_gradients(keys, np.ones((50, 8), np.float32))

    in_threads(4, train)
    np.testing.assert_array_equal(table.lookup(keys), np.full((50, 8), -1200))
    assert table.step == 1200


def test_each_of_many_racing_inserts_happens_once() -> None:
    for attempt in range(20):
        table = tfra.Table(4)
        keys = np.arange(2000)

        def insert(number: int, table: tfra.Table = table, keys: np.ndarray = keys) -> None:
            deltas = np.full((2000, 4), number + 1, np.float32)
            table.accum(np.roll(keys, 500 * number), deltas, np.zeros(2000, bool))

        in_threads(4, insert)
        assert len(table) == 2000, attempt
        stats = table.stats()
        assert (stats.inserts, stats.ignored) == (2000, 6000)
        assert set(np.unique(table.lookup(keys))) <= {1, 2, 3, 4}


@pytest.mark.parametrize("dim", [3, 64])
def test_readers_never_see_half_a_row(dim: int) -> None:
    table = tfra.Table(dim)
    keys = np.arange(64)
    count = 0

    def write() -> None:
        nonlocal count
        count += 1
        table.upsert(keys, np.full((64, dim), count, np.float32))

    def add() -> None:
        table.accum(keys, np.ones((64, dim), np.float32), np.ones(64, bool))

    def come_and_go() -> None:
        table.remove(keys[::3])

    with running(write, add, come_and_go):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for rows in (table.lookup(keys), table.export()[1]):
                assert (rows == rows[:, :1]).all()


def test_readers_never_see_half_a_string() -> None:
    table = tfra.Table(2, key_dtype="string", value_dtype="string")
    keys = make_keys("string", range(30))
    count = 0

    def write() -> None:
        nonlocal count
        count += 1
        text = b"%d" % (count % 10) * (count % 50 + 1)
        table.upsert(keys, np.full((30, 2), text, object))

    def come_and_go() -> None:
        table.remove(keys[::2])

    with running(write, come_and_go):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for one, other in table.lookup(keys, "?").tolist():
                assert one == other
                assert len(set(one)) == 1


def test_iteration_meets_every_lasting_key_once_while_others_come_and_go(key_dtype: str) -> None:
    table = tfra.Table(2, key_dtype=key_dtype)
    lasting = make_keys(key_dtype, range(5000))
    table.upsert(lasting, np.ones((5000, 2), np.float32))
    start = 10_000

    def write() -> None:
        nonlocal start
        passing = make_keys(key_dtype, range(start, start + 2000))
        table.upsert(passing, np.zeros((2000, 2), np.float32))
        table.remove(passing[::2])
        start += 2000
        if start > 60_000:
            table.remove(make_keys(key_dtype, range(10_000, start)))
            table.shrink()
            start = 10_000

    expected = sorted(lasting.tolist())
    with running(write):
        end = time.monotonic() + 2 * SECONDS
        while time.monotonic() < end:
            seen = []
            for keys, values in table.iterate(256):
                seen.extend(keys[values[:, 0] == 1].tolist())
            assert sorted(seen) == expected


EXPORTS: dict[str, Callable[[tfra.Table], Any]] = {
    "export": lambda table: table.export()[0],
    "iterate": lambda table: np.concatenate([batch[0] for batch in table.iterate(100)]),
    "export_with_scores": lambda table: table.export_with_scores().keys,
    "export_if": lambda table: table.export_if(score_at_least=0).keys,
}


@pytest.mark.parametrize("export", EXPORTS)
def test_exports_have_every_lasting_key_once_while_others_are_evicted(
    export: str, key_dtype: str
) -> None:
    table = tfra.Table(2, key_dtype=key_dtype, max_capacity=4000, evict_strategy="customized")
    lasting = make_keys(key_dtype, range(1000))
    table.upsert(lasting, np.ones((1000, 2), np.float32), scores=np.full(1000, 2**40))
    passing = make_keys(key_dtype, range(10_000, 18_000)).reshape(4, 2000)
    rows, scores = np.zeros((2000, 2), np.float32), np.arange(1, 2001)
    turn = 0

    def write() -> None:  # Keys that leave and return, more than there is room for.
        nonlocal turn
        turn += 1
        table.upsert(passing[turn % 4], rows, scores=scores + turn)

    expected = set(lasting.tolist())
    with running(write):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            keys = EXPORTS[export](table).tolist()
            assert sorted(key for key in keys if key in expected) == sorted(expected)
    assert table.stats().evictions > 0
    exported = EXPORTS[export](table).tolist()
    assert len(exported) == len(set(exported)) == len(table) <= 4000  # No thread writes any more.


def test_everything_at_once_keeps_the_table_whole() -> None:
    table = tfra.Table(4, optimizer="adam", metadata=True, initializer="uniform")
    rng_of_thread = threading.local()

    def act() -> None:
        if not hasattr(rng_of_thread, "rng"):
            rng_of_thread.rng = np.random.default_rng(threading.get_ident())
        rng = rng_of_thread.rng
        keys = rng.integers(0, 3000, 200)
        rows = np.ones((200, 4), np.float32)
        actions = (
            lambda: table.upsert(keys, rows),
            lambda: table.apply_gradients(keys, rows, step=1),
            lambda: table.accum(keys, rows, rng.integers(0, 2, 200).astype(bool)),
            lambda: table.remove(keys),
            lambda: table.lookup(keys, return_exists=True),
            lambda: table.export(slots=True),
            lambda: table.remove_if(count_below=2),
            lambda: table.reserve(int(rng.integers(0, 10_000))),
            table.shrink,
            table.clear,
            table.stats,
        )
        actions[int(rng.integers(0, len(actions)))]()

    with running(*[act] * 4):
        time.sleep(3 * SECONDS)
    keys, _ = table.export()
    stats = table.stats()
    assert len(set(keys.tolist())) == len(keys) == len(table) == stats.size
    assert stats.inserts - stats.removals == stats.size


@pytest.mark.usefixtures("keep_num_threads")
def test_results_do_not_depend_on_the_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    batches = [
        (rng.integers(0, 20_000, 50_000), rng.standard_normal((50_000, 8)).astype(np.float32))
        for _ in range(3)
    ]
    results = []
    for threads in (1, 2, 3, 8):
        tfra.set_num_threads(threads)
        assert tfra.get_num_threads() == threads
        table = tfra.Table(8, optimizer="adam", initializer="normal")
        for keys, rows in batches:
            table.apply_gradients(keys, rows)
            table.upsert(keys[:10_000], rows[:10_000])
            table.accum(keys, rows, rows[:, 0] > 0)
            table.remove(keys[-5000:])
        results.append(sorted_export(table))
    for keys, values, slots in results[1:]:
        assert_identical(keys, results[0][0])
        assert_identical(values, results[0][1])
        for name in slots:
            assert_identical(slots[name], results[0][2][name])


def test_the_number_of_threads_comes_from_the_environment() -> None:
    code = "import tfra; print(tfra.get_num_threads())"
    assert run_python(code, TFRA_NUM_THREADS="3").strip() == "3"
    assert run_python(code, TFRA_NUM_THREADS="1").strip() == "1"
    cpus = "import os; print(len(os.sched_getaffinity(0)))"
    assert run_python(code, TFRA_NUM_THREADS="").strip() == run_python(cpus).strip()


def test_a_forked_child_has_a_working_copy_of_the_table() -> None:
    printed = run_python(
        """
        import multiprocessing
        import warnings

        import numpy as np
        import tfra

        # Python 3.12 warns of every fork of a process with threads, and this is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        keys = np.arange(300_000)
        table = tfra.Table(4, optimizer="adagrad")
        table.upsert(keys, np.ones((len(keys), 4), np.float32))  # Big enough to use the threads.

        def child(queue):
            assert (table.lookup(keys) == 1).all()
            table.apply_gradients(keys + 10, np.ones((len(keys), 4), np.float32))
            table.remove(keys[:100])
            table.reserve(1_000_000)
            own = tfra.Table(4)
            own.upsert(keys, table.lookup(keys))
            queue.put((len(table), len(own), len(table.export()[0])))

        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        children = [context.Process(target=child, args=(queue,)) for _ in range(2)]
        for process in children:
            process.start()
        for _ in children:
            print(queue.get(timeout=60))
        for process in children:
            process.join(60)
            assert process.exitcode == 0
        assert (table.lookup(keys) == 1).all()
        assert len(table) == 300_000
        """,
        TFRA_NUM_THREADS="4",
    )
    assert printed.split("\n")[:2] == ["(299910, 300000, 299910)"] * 2


def test_exports_and_changes_of_slots_do_not_wait_for_each_other() -> None:
    printed = run_python(
        """
        import threading
        import numpy as np
        import tfra

        keys = np.arange(100_000)
        for _ in range(5):
            table = tfra.Table(dim=8)
            table.upsert(keys, np.ones((len(keys), 8), np.float32))
            other = tfra.Table.from_handle(table.handle, optimizer="adam")
            exports = [threading.Thread(target=table.export) for _ in range(2)]
            for thread in exports:
                thread.start()
            other.apply_gradients([1], np.ones((1, 8), np.float32))
            for thread in exports:
                thread.join()
            assert len(table) == len(keys)
        print("done")
        """
    )
    assert printed == "done\n"


def test_a_signal_handler_takes_no_first_step_inside_of_a_call() -> None:
    printed = run_python(
        """
        import signal
        import threading
        import time
        import numpy as np
        import tfra

        keys = np.array([str(i) for i in range(300_000)], object)
        table = tfra.Table(dim=8, key_dtype="string")
        table.upsert(keys, np.ones((len(keys), 8), np.float32))
        other = tfra.Table.from_handle(table.handle, optimizer="adam")
        handled = []

        def handler(*_):
            try:
                other.apply_gradients(["1"], np.ones((1, 8), np.float32))
            except RuntimeError as error:
                assert "inside of such a call" in str(error)
            handled.append(1)

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        while not handled:
            table.export()
        signal.setitimer(signal.ITIMER_REAL, 0)
        other.apply_gradients(["1"], np.ones((1, 8), np.float32))
        print(other.step >= 1)
        """
    )
    assert printed == "True\n"
