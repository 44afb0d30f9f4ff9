"""Numbers that become sizes, and what is given for them: checked in a process of their own.

A process that may not take much more memory than it has fails where it would otherwise take all of
the machine's: see `limit_memory`.
"""

from __future__ import annotations

import math
import re
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

VALUES: list[Any] = [
    -1, 0, 2**24 + 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400,
    1e30, 1.5, math.nan, math.inf, -math.inf, "3", None, True, [3], b"3", 3j,
    np.int64(2**63 - 1), np.int64(-(2**63)), np.uint64(2**64 - 1), np.float64(1.5),
    np.float32("inf"), np.bool_(True), np.array([1, 2]), np.array(-1),
]  # fmt: skip
INT64 = 2**63 - 1


@dataclass(frozen=True)
class Number:
    """A number that some call takes: an integer between `least` and `most`."""

    name: str
    call: Callable[[Any], Any]
    least: float
    most: float = INT64
    also: tuple[Any, ...] = ()  # Other values that are accepted.
    real: bool = False  # Any number in the range is accepted.
    converts: bool = False  # Anything that `int` converts is accepted.
    needs: (
        type[BaseException] | tuple[type[BaseException], ...]
    ) = ()  # Other errors that are correct.

    def takes(self, value: Any) -> bool:
        if any(value is one for one in self.also):
            return True
        if self.converts:
            try:
                return bool(self.least <= int(value) <= self.most)
            except (TypeError, ValueError, OverflowError):
                return False
        if isinstance(value, (bool, np.bool_)) or np.ndim(value) != 0:
            return False
        if self.real:
            kinds: tuple[type, ...] = (int, np.integer, float, np.floating)
        else:
            kinds = (int, np.integer, np.ndarray)
        if not isinstance(value, kinds):
            return False
        number = value.item() if isinstance(value, (np.generic, np.ndarray)) else value
        return bool(self.least <= number <= self.most)


def limit_memory(more: int) -> None:
    """Limits the memory of the process to this many bytes more than it has now."""
    size = int(re.search(r"VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (size + more, resource.RLIM_INFINITY))


def problem_of(number: Number, value: Any) -> str | None:
    """Returns what is wrong with the outcome of a call with this value."""
    right = number.takes(value)
    try:
        number.call(value)
    except (TypeError, ValueError) as error:
        said = str(error)
        if right:
            return f"refused: {said}"
        if f"`{number.name}`" not in said:
            return f"not named: {said}"
        if "bad_cast" in said or "incompatible function" in said:
            return f"a message of the layer below: {said}"
        return None
    except MemoryError as error:
        return None if right else f"MemoryError: {error}"
    except BaseException as error:
        if right and type(error).__name__ == "ResourceExhaustedError":  # TensorFlow's MemoryError.
            return None
        return f"{type(error).__name__}: {error}"
    return None if right else "was accepted"


def check(numbers: Iterable[tuple[str, Number]], more: int = 3 * 2**30) -> list[str]:
    """Returns a line for every value that was wrongly accepted or refused."""
    limit_memory(more)
    problems = []
    for where, number in numbers:
        for value in VALUES:
            shown = repr(value)[:40]
            print(where, shown, flush=True)
            start = time.monotonic()
            problem = problem_of(number, value)
            if problem is not None:
                problems.append(f"{where} = {shown}: {problem[:300]}")
            if time.monotonic() - start > 60:  # Something went through that many things.
                problems.append(f"{where} = {shown}: took {time.monotonic() - start:.0f} s")
    return problems
