"""How many threads a call may use."""

from __future__ import annotations

from tfra import _native
from tfra._shared import limits
from tfra._shared.arrays import integer


def get_num_threads() -> int:
    """Returns the number of threads that a call may use, including the calling thread.

    The default is the environment variable `TFRA_NUM_THREADS`, or else the number of CPUs that this
    process may run on.
    """
    return _native.num_threads()


def set_num_threads(threads: int) -> None:
    """Sets how many threads a call may use, from the next call on.

    Args:
        threads: An int from 1 to 1024.

    Raises:
        ValueError: If `threads` is out of range.
    """
    _native.set_num_threads(integer(threads, "threads", 1, limits.MAX_THREADS))
