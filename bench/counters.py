"""Measures what the counters of a table cost: lookups with them, and with the same engine without.

    python bench/counters.py             # 1 and 10 million keys
    python bench/counters.py --quick     # 100,000 keys

Builds the engine a second time, with counting compiled away. One process has both take turns, call
by call. The goal is a cost of at most 2 %; whether it is met is only shown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from peers import ROOT, say

TOOLS = Path(sys.executable).parent
FOLDERS = {"with": ROOT / "build" / "cpp", "without": ROOT / "build" / "no-counters"}


def build(folder: Path, target: str, *flags: str) -> None:
    """Builds one target of the engine in a folder of its own."""
    configure = [str(TOOLS / "cmake"), "-S", str(ROOT), "-B", str(folder), "-G", "Ninja"]
    configure += [f"-DCMAKE_MAKE_PROGRAM={TOOLS / 'ninja'}", "-DTFRA_BENCH=ON", *flags]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    command = [str(TOOLS / "cmake"), "--build", str(folder), "--target", target]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def measure(keys: int, turns: int) -> None:
    """Prints the cost for tables of so many keys."""
    libraries = [str(folder / "engine" / "libtfra_engine.so") for folder in FOLDERS.values()]
    binary = FOLDERS["with"] / "engine" / "counters_bench"
    command = [str(binary), *libraries, "--keys", str(keys), "--turns", str(turns)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    say(
        f"{keys:>12,} keys: {found['with'] / 1e6:6.1f} M lookups/s with counters, "
        f"{found['without'] / 1e6:6.1f} without; they cost {found['median']:.1f} % "
        f"(half of all turns: {found['low']:.1f} to {found['high']:.1f} %; goal: at most 2 %)"
    )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="100,000 keys, few turns")
    arguments = parser.parse_args()
    say("building the engine without counters")
    build(FOLDERS["with"], "counters_bench")
    build(FOLDERS["with"], "tfra_engine")
    build(FOLDERS["without"], "tfra_engine", "-DCMAKE_CXX_FLAGS=-DTFRA_NO_COUNTERS")
    if arguments.quick:
        measure(100_000, turns=20)
        return
    for keys in (1_000_000, 10_000_000):
        measure(keys, turns=500)


if __name__ == "__main__":
    main()
