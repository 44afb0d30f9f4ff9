"""Children that are forked while other threads are inside of calls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import run_python

PROGRAM = Path(__file__).parent / "process_programs" / "fork_busy_tables.py"
FORKS = 50
KINDS = ["int", "string", "bounded", "admission", "tiered", "tiered-string"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_call_works_in_a_child_of_a_busy_process(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), kind, str(FORKS)],
        env={**os.environ, "TFRA_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_children_look_up_while_the_parent_trains() -> None:
    """As PyTorch's DataLoader does: workers are forked, and forked again, during training."""
    printed = run_python(
        """
        import multiprocessing
        import threading
        import warnings

        import numpy as np
        import tfra

        # Python 3.12 warns of every fork of a process with threads, and this is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        keys = np.arange(50_000)
        table = tfra.Table(4, optimizer="sgd")
        table.upsert(keys, np.zeros((len(keys), 4), np.float32))
        stop = threading.Event()

        def train():
            while not stop.is_set():
                table.apply_gradients(keys, np.ones((len(keys), 4), np.float32), learning_rate=1.0)

        def work(step, queue):
            rows = table.lookup(keys)
            whole = (rows == rows[:, :1]).all()
            # The last step may be under way: of some rows in the child, it then never ends.
            recent = ((rows <= -step + 1) & (rows >= -table.step)).all()
            table.apply_gradients(keys, rows)  # Its own copy.
            queue.put(bool(whole and recent and table.step > step))

        thread = threading.Thread(target=train)
        thread.start()
        context = multiprocessing.get_context("fork")
        results = []
        for _ in range(10):
            queues = [context.SimpleQueue() for _ in range(3)]
            workers = [context.Process(target=work, args=(table.step, queue)) for queue in queues]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join(120)
                assert worker.exitcode == 0, f"a worker hangs or failed: {worker.exitcode}"
            results += [queue.get() for queue in queues]
        stop.set()
        thread.join()
        print(results.count(True), len(results))
        """,
        timeout=600,
        TFRA_NUM_THREADS="2",
    )
    assert printed.split() == ["30", "30"]


def test_a_thread_may_fork() -> None:
    printed = run_python(
        """
        import os
        import signal
        import threading
        import warnings

        import numpy as np
        import tfra

        warnings.simplefilter("ignore", DeprecationWarning)
        table = tfra.Table(2)
        stop = threading.Event()

        def write():
            while not stop.is_set():
                table.upsert(np.arange(1000), np.ones((1000, 2), np.float32))

        def fork():
            for _ in range(20):
                child = os.fork()
                if child == 0:
                    signal.alarm(120)
                    table.upsert([5], [[2.0, 3.0]])
                    os._exit(0 if table.lookup([5]).tolist() == [[2.0, 3.0]] else 1)
                print(os.waitpid(child, 0)[1])

        writer = threading.Thread(target=write)
        writer.start()
        forker = threading.Thread(target=fork)
        forker.start()
        forker.join()
        stop.set()
        writer.join()
        """,
        timeout=600,
    )
    assert printed.split() == ["0"] * 20
