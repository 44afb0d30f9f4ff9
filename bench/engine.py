"""Measures the engine against the physical limit, and writes the results to a file.

    python bench/engine.py             # 1, 10 and 30 million keys
    python bench/engine.py --quick     # 1 million keys

Runs engine_bench, which `make bench` builds, and prints its output. The exit code is 0 only if all
of its results are right.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from peers import ROOT, Record, add_output_arguments, say, write_json

FULL: tuple[list[str], ...] = ([], ["--keys", "10000000", "--dim", "8,128"])
QUICK = (["--keys", "1000000"],)


def measure(binary: Path, options: list[str]) -> list[Record]:
    """Runs engine_bench and returns its records; raises CalledProcessError if it fails."""
    with tempfile.NamedTemporaryFile("r") as lines:
        subprocess.run([str(binary), *options, "--json", lines.name], check=True)
        return [json.loads(line) for line in lines]


def main() -> int:
    """Measures and writes the results; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="1 million keys only")
    binary = ROOT / "build" / "cpp" / "engine" / "engine_bench"
    parser.add_argument("--binary", type=Path, default=binary)
    parser.add_argument("options", nargs="*", help="of engine_bench, after --; for one run of it")
    add_output_arguments(parser)
    arguments = parser.parse_args()
    if not arguments.binary.exists():
        say(f"expected engine_bench, which `make bench` builds. Received: {arguments.binary}")
        return 1
    runs = [arguments.options] if arguments.options else QUICK if arguments.quick else FULL
    try:
        records = [record for run in runs for record in measure(arguments.binary, run)]
    except subprocess.CalledProcessError as error:
        return error.returncode
    path = write_json({"records": records}, "engine", arguments.results, arguments.json)
    say(f"written to {os.path.relpath(path)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
