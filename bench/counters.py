"""Measures what the counters of a table cost: lookups with them, and with the same engine without.

    python bench/counters.py             # 10 million keys
    python bench/counters.py --quick     # 1 million keys

Builds the engine a second time, with counting compiled away, and has the two take turns. The best
round of each counts. The goal is a cost of at most 2 %; whether it is met is only shown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from peers import ROOT, say

BINARIES = {
    "with counters": ROOT / "build" / "cpp" / "engine" / "engine_bench",
    "without": ROOT / "build" / "no-counters" / "engine" / "engine_bench",
}


def build() -> None:
    """Builds the engine without counters."""
    tools = Path(sys.executable).parent
    folder = ROOT / "build" / "no-counters"
    configure = [str(tools / "cmake"), "-S", str(ROOT), "-B", str(folder), "-G", "Ninja"]
    configure += [f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", "-DTFRA_BENCH=ON"]
    configure += ["-DCMAKE_CXX_FLAGS=-DTFRA_NO_COUNTERS"]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    target = [str(tools / "cmake"), "--build", str(folder), "--target", "engine_bench"]
    subprocess.run(target, check=True, stdout=subprocess.DEVNULL)


def rate(binary: Path, keys: int) -> float:
    """Returns the lookups per second of one run."""
    with tempfile.NamedTemporaryFile("r") as lines:
        command = [str(binary), "--keys", str(keys), "--json", lines.name, "lookup"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        records = [json.loads(line) for line in lines]
    return next(record["rate"] for record in records if record["workload"] == "lookup")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="1 million keys only")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    say("building the engine without counters")
    build()
    best = dict.fromkeys(BINARIES, 0.0)
    for _ in range(arguments.turns):
        for name, binary in BINARIES.items():
            found = rate(binary, 1_000_000 if arguments.quick else 10_000_000)
            say(f"  {name:<14} {found / 1e6:7.1f} M lookups/s")
            best[name] = max(best[name], found)
    cost = 1 - best["with counters"] / best["without"]
    say(f"counters cost {100 * cost:.1f} % of the speed of lookups (goal: at most 2 %)")


if __name__ == "__main__":
    main()
