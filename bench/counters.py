"""Measures what the counters of a table cost: lookups with counters and without.

    python bench/counters.py             # 1 and 10 million keys
    python bench/counters.py --quick     # 100,000 keys

Builds the engine a second time, without counters. The two engines take turns in one process, call
by call. The goal is a cost of at most 2 %; missing it does not change the exit code.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from peers import ROOT, Record, add_output_arguments, say, write_json

TOOLS = Path(sys.executable).parent
FOLDERS = {"with": ROOT / "build" / "cpp", "without": ROOT / "build" / "no-counters"}


def build(folder: Path, target: str, *flags: str) -> None:
    """Builds one target of the engine in its own folder."""
    configure = [str(TOOLS / "cmake"), "-S", str(ROOT), "-B", str(folder), "-G", "Ninja"]
    configure += [f"-DCMAKE_MAKE_PROGRAM={TOOLS / 'ninja'}", "-DTFRA_BENCH=ON", *flags]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    command = [str(TOOLS / "cmake"), "--build", str(folder), "--target", target]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def measure(keys: int, turns: int) -> Record:
    """Prints the cost for tables of a given number of keys, and returns it."""
    libraries = [str(folder / "engine" / "libtfra_engine.so") for folder in FOLDERS.values()]
    binary = FOLDERS["with"] / "engine" / "counters_bench"
    command = [str(binary), *libraries, "--keys", str(keys), "--turns", str(turns)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: Record = json.loads(done.stdout)
    say(
        f"{keys:>12,} keys: {found['with'] / 1e6:6.1f} M lookups/s with counters, "
        f"{found['without'] / 1e6:6.1f} without; they cost {found['median']:.1f} % "
        f"(half of all turns: {found['low']:.1f} to {found['high']:.1f} %; goal: at most 2 %)"
    )
    return {"keys": keys, **found}


def main() -> None:
    """Measures all sizes, prints and writes the costs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="100,000 keys, few turns")
    add_output_arguments(parser)
    arguments = parser.parse_args()
    say("building the engine without counters")
    build(FOLDERS["with"], "counters_bench")
    build(FOLDERS["with"], "tfra_engine")
    build(FOLDERS["without"], "tfra_engine", "-DCMAKE_CXX_FLAGS=-DTFRA_NO_COUNTERS")
    sizes, turns = ((100_000,), 20) if arguments.quick else ((1_000_000, 10_000_000), 500)
    records = [measure(keys, turns) for keys in sizes]
    path = write_json({"records": records}, "counters", arguments.results, arguments.json)
    say(f"results in {path}")


if __name__ == "__main__":
    main()
