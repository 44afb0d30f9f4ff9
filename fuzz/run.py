"""Runs all fuzz targets on their corpora: python fuzz/run.py BUILD_FOLDER SECONDS JOBS."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FUZZ = Path(__file__).resolve().parent
TARGETS = sorted(path.stem for path in FUZZ.glob("*_fuzz.cc"))

# The limits of one input, which has at most a few KB: seconds, and MB of memory.
LIMITS = ["-entropic=0", "-timeout=60", "-rss_limit_mb=2048", "-malloc_limit_mb=256"]


def run(target: str, build: Path, seconds: int) -> bool:
    """Runs one target and prints a line about it, or the end of its log if it failed."""
    found, crashes = build / "corpus" / target, build / "crashes"
    found.mkdir(parents=True, exist_ok=True)
    crashes.mkdir(exist_ok=True)
    log = build / f"{target}.log"
    with log.open("w") as output:
        code = subprocess.run(
            [
                build / "fuzz" / target,
                f"-max_total_time={seconds}",
                *LIMITS,
                "-print_final_stats=1",
                f"-artifact_prefix={crashes}/{target}-",
                found,
                FUZZ / "corpus" / target,
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        ).returncode
    text = log.read_text(errors="replace")
    runs = re.search(r"stat::number_of_executed_units: +(\d+)", text)
    memory = re.search(r"stat::peak_rss_mb: +(\d+)", text)
    if code == 0 and runs and memory:
        print(f"{target:16} {int(runs[1]):>9,} runs, {memory[1]} MB, no defect", flush=True)
        return True
    print(f"{target:16} FAILED, code {code}; the end of {log}:", *text.splitlines()[-60:], sep="\n")
    return False


def main() -> int:
    """Runs the targets, JOBS of them at a time; returns the exit code."""
    build, seconds, jobs = Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3])
    with ThreadPoolExecutor(jobs) as threads:
        passed = list(threads.map(lambda target: run(target, build, seconds), TARGETS))
    print(f"{sum(passed)} of {len(TARGETS)} targets passed, {seconds} s each")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
