"""Counts the instructions per key of lookups, inserts and Adam steps on one thread, by callgrind.

    python bench/instructions.py build/cpp/engine/instructions_bench [another build of it]

With two programs it also prints the ratio of the first to the second, for example of the builds
after and before a change. Needs valgrind.
"""

from __future__ import annotations

import re
import subprocess
import sys

KEYS = 3 * 65536
ROUNDS = 2
CALLS = ("lookup", "insert", "adam")


def instructions(program: str, call: str, rounds: int) -> int:
    """Returns how many instructions the program runs."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    result = subprocess.run(
        [*command, program, call, str(rounds)], capture_output=True, text=True, check=True
    )
    counted = re.search(r"Collected : (\d+)", result.stderr)
    assert counted, result.stderr
    return int(counted[1])


def per_key(program: str, call: str) -> float:
    rounds = instructions(program, call, ROUNDS) - instructions(program, call, 0)
    return rounds / (ROUNDS * KEYS)


def main() -> None:
    programs = sys.argv[1:]
    if len(programs) not in (1, 2):
        sys.exit(__doc__)
    for call in CALLS:
        counts = [per_key(program, call) for program in programs]
        ratio = f"   {counts[0] / counts[1]:.3f}" if len(counts) == 2 else ""
        print(f"{call:8}" + "".join(f"{count:10.1f}" for count in counts) + ratio, flush=True)


if __name__ == "__main__":
    main()
