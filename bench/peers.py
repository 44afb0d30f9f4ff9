"""Shared by the comparisons: the peer's environment, measuring processes, checks and results."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
PEER = BENCH / "peer_tfra"
PEER_PYTHON = ROOT / ".venvs" / "tfra-0.8.1" / "bin" / "python"
PEER_ENVIRONMENT = {
    "TF_USE_LEGACY_KERAS": "1",  # the peer does not know Keras 3
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "PYTHONPATH": "",  # packages of our environment must not shadow the peer's
    "PYTHONNOUSERSITE": "1",
}
TORCH = ROOT / ".venvs" / "torch-2.13.0"
TORCH_PYTHON = TORCH / "bin" / "python"
TORCH_REQUIREMENTS = ("torch==2.13.0", "fbgemm-gpu-cpu==1.8.0", "numpy>=2,<3")
TORCH_ENVIRONMENT = {
    # On a shared machine, threads that spin while they wait make PyTorch up to ten times slower.
    "GOMP_SPINCOUNT": "1000",
    "PYTHONPATH": "",
    "PYTHONNOUSERSITE": "1",
}
ROCKSDICT = ROOT / ".venvs" / "rocksdict-0.3.29"
ROCKSDICT_PYTHON = ROCKSDICT / "bin" / "python"
ROCKSDICT_REQUIREMENTS = ("rocksdict==0.3.29", "numpy>=2,<3")
ROCKSDICT_ENVIRONMENT = {"PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}
# Processes alternate between these two ways to call TensorFlow; the best result counts.
MODES = ("function", "eager")
SETUP_NEEDS_PYTHON = 3

Record = dict[str, Any]


class Failed(Exception):
    """A measurement did not finish, or its result is wrong."""


@dataclass(frozen=True)
class Summary:
    """All rounds of one workload of one system, over all processes."""

    best: float
    median: float


def say(text: str) -> None:
    """Prints a line at once."""
    print(text, flush=True)


def set_up_peer() -> str | None:
    """Makes the peer's environment; returns why the peer cannot be measured, or None."""
    code = subprocess.run([str(PEER / "setup.sh")], check=False).returncode
    if code == SETUP_NEEDS_PYTHON:
        return "needs python3.11"
    return None if code == 0 else f"its installation failed with exit code {code}"


def set_up_torch() -> str | None:
    """Makes the environment of PyTorch and FBGEMM; returns why that failed, or None."""
    candidates = (f"{path}/python3.11" for path in os.get_exec_path())
    python = next(filter(_is_python_3_11, candidates), None)
    return _set_up("torch", TORCH, TORCH_REQUIREMENTS, python)


def set_up_rocksdict() -> str | None:
    """Makes the environment of RocksDB; returns why that failed, or None."""
    return _set_up("rocksdict", ROCKSDICT, ROCKSDICT_REQUIREMENTS, sys.executable)


def _set_up(name: str, folder: Path, requirements: Sequence[str], base: str | None) -> str | None:
    """Makes an environment with the Python `base`, unless it exists."""
    stamp, wanted, python = folder / ".complete", "\n".join(requirements), folder / "bin" / "python"
    if stamp.exists() and stamp.read_text() == wanted and python.exists():
        say(f"{name}: {folder.relative_to(ROOT)} is ready")
        return None
    if base is None:
        return "needs python3.11"
    say(f"{name}: installing {' '.join(requirements)} in {folder.relative_to(ROOT)}")
    install = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    for command in ([base, "-m", "venv", "--clear", str(folder)], [*install, *requirements]):
        code = subprocess.run(command, check=False).returncode
        if code != 0:
            return f"its installation failed with exit code {code}"
    stamp.write_text(wanted)
    return None


def _is_python_3_11(path: str) -> bool:
    """Starts a candidate and asks its version. A version manager's shim may fail to start."""
    if not os.access(path, os.X_OK):
        return False
    code = "import sys, venv, ensurepip; assert sys.version_info[:2] == (3, 11)"
    return subprocess.run([path, "-c", code], capture_output=True, check=False).returncode == 0


def describe(record: Record) -> str:
    """Returns a record as a line of progress."""
    if "bytes_per_key" in record:
        number = f"{record['bytes_per_key']:8.1f} bytes per key"
    elif "examples_per_second" in record:
        number = f"{record['examples_per_second'] / 1e3:8.2f} k examples/s"
    elif "calls_per_second" in record:
        number = f"{record['calls_per_second'] / 1e3:8.2f} k calls/s"
    else:
        number = f"{record['keys_per_second'] / 1e6:8.2f} M keys/s"
    return f"  {record['system']:<9} {record['mode']:<9} {record['workload']:<18} {number}"


def measure(command: list[str], environment: dict[str, str]) -> list[Record]:
    """Runs one measuring process, prints its records as they arrive, and returns them."""
    records = []
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **environment},
        )
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                records.append(json.loads(line))
                say(describe(records[-1]))
        if process.wait() != 0:
            errors.seek(0)
            tail = errors.read().strip().splitlines()[-3:]
            raise Failed(
                f"{Path(command[1]).relative_to(ROOT)} ended with exit code "
                f"{process.returncode}:\n  " + "\n  ".join(tail)
            )
    return records


def check_checksums(records: list[Record]) -> None:
    """Raises unless every process read the same rows in each workload."""
    seen: dict[tuple[int, str], dict[str, str]] = defaultdict(dict)
    for record in records:
        # Lookups into a new array and into `out=` read the same rows.
        workload = record["workload"].removesuffix("_out")
        seen[record["keys"], workload][record["checksum"]] = record["system"]
    for (keys, workload), checksums in seen.items():
        if len(checksums) > 1:
            raise Failed(
                f"expected one checksum for {workload} of {keys:,} keys. Received: {checksums}"
            )


def summarize(records: list[Record]) -> dict[tuple[int, str, str], Summary]:
    """Returns the best and the median by (keys, workload, system)."""
    numbers: dict[tuple[int, str, str], list[float]] = defaultdict(list)
    for record in records:
        place = record["keys"], record["workload"], record["system"]
        numbers[place] += record.get("rounds") or [record["bytes_per_key"]]
    return {
        place: Summary(
            best=min(values) if place[1] == "memory" else max(values),
            median=statistics.median(values),
        )
        for place, values in numbers.items()
    }


def cpu_model() -> str:
    """Returns the processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """Returns the facts about this machine that affect the results."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
    }


def write_json(document: Record, name: str, folder: Path, path: Path | None) -> Path:
    """Writes a document, with date and machine, to `path` or to a new file `name`-(time).json.

    Returns:
        The path of the file.
    """
    now = datetime.now().astimezone()
    path = path or folder / f"{name}-{now:%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"date": now.isoformat(timespec="seconds"), **machine(), **document}
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def write_results(
    name: str, arguments: argparse.Namespace, records: list[Record], not_measured: str | None
) -> Path:
    """Writes everything that was measured to a file and returns its path."""
    summaries = [
        {"keys": keys, "workload": workload, "system": system, "best": s.best, "median": s.median}
        for (keys, workload, system), s in summarize(records).items()
    ]
    document = {
        "versions": {record["system"]: record["versions"] for record in records},
        "peer_not_measured": not_measured,
        "quick": arguments.quick,
        "repeats": arguments.repeats,
        "rounds": arguments.rounds,
        "round_batches": arguments.round_batches,
        "summary": summaries,
        "records": records,
    }
    return write_json(document, name, arguments.results, arguments.json)


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser of the arguments that every comparison takes."""
    environment = ROOT / ".venv" / "bin" / "python"
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, nargs="+", help="sizes of the table")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--repeats", type=int, help="processes per system and size")
    parser.add_argument("--rounds", type=int, help="timed rounds per process")
    parser.add_argument("--round-batches", type=int, help="calls per round at most")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=("peer", "tfra"), help="measure only one of the two")
    parser.add_argument(
        "--python",
        default=str(environment) if environment.exists() else sys.executable,
        help="the Python that has tfra; .venv of the repository by default, if there is one",
    )
    add_output_arguments(parser)
    return parser


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that say where results go."""
    parser.add_argument("--results", type=Path, default=BENCH / "results", help="a folder")
    parser.add_argument("--json", type=Path, help="the file itself, e.g. bench/results/table.json")


def parse_arguments(
    parser: argparse.ArgumentParser, keys: list[int], quick_keys: list[int]
) -> argparse.Namespace:
    """Returns the arguments, with defaults for those that were not given."""
    arguments = parser.parse_args()
    quick = arguments.quick
    arguments.keys = arguments.keys or (quick_keys if quick else keys)
    arguments.repeats = arguments.repeats or (2 if quick else 4)
    arguments.rounds = arguments.rounds or (2 if quick else 5)
    arguments.round_batches = arguments.round_batches or (16 if quick else 64)
    return arguments


def plan_options(arguments: argparse.Namespace, keys: int) -> list[str]:
    """Returns the options of a measuring process for a table of `keys` keys."""
    return [
        f"--keys={keys}",
        f"--rounds={arguments.rounds}",
        f"--round-batches={arguments.round_batches}",
        f"--threads={arguments.threads}",
    ]


def run_comparison(
    name: str,
    document: str | None,
    note: str,
    keys: tuple[list[int], list[int]],
    measure_all: Callable[[argparse.Namespace, bool], list[Record]],
    table: Callable[[dict[tuple[int, str, str], Summary]], list[str]],
    defaults: dict[str, int] | None = None,
    set_up: Callable[[], str | None] = set_up_peer,
) -> int:
    """Measures, prints and writes one comparison; returns the exit code.

    Args:
        name: The name of the results file.
        document: The text of --help.
        note: The text that explains the columns.
        keys: The sizes of tables in a full run, and in a quick run.
        measure_all: Called with the arguments and whether the peer can be measured.
        table: Returns the lines to print.
        defaults: Defaults of arguments that differ from the common ones, by quick run or not.
        set_up: Makes the peer's environment; returns why the peer cannot be measured, or None.
    """
    parser = argument_parser(document)
    parser.set_defaults(**(defaults or {}))
    arguments = parse_arguments(parser, keys=keys[0], quick_keys=keys[1])
    not_measured = "not asked for" if arguments.only == "tfra" else set_up()
    try:
        records = measure_all(arguments, not_measured is None)
        check_checksums(records)
    except Failed as error:
        say(f"failed: {error}")
        return 1
    say(f"\nThe best of all rounds; medians: the ratio of the medians{note}.")
    for line in table(summarize(records)):
        say(line)
    if not_measured is not None:
        say(f"peer not measured: {not_measured}")
    path = write_results(name, arguments, records, not_measured)
    say(f"checksums agree; written to {os.path.relpath(path)}")
    return 0
