"""The command line: `python -m stress`, or `make stress`."""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

from stress import faults
from stress.plan import KINDS, Plan, make_plan
from stress.rounds import run_round

ROOT = Path(__file__).parent.parent
HANGS_AFTER = 180  # Seconds: no round takes so long.
SAVERS_EVERY = len(KINDS) + 1  # Each so many rounds, processes are killed that save.


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m stress", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300, help="how long (default: 300)")
    parser.add_argument("--seed", type=int, help="of the random operations; a new one by default")
    parser.add_argument(
        "--round", type=int, help="repeats this round, instead of one after another"
    )
    parser.add_argument("--rounds", type=int, help="ends after so many rounds")
    parser.add_argument("--small", action="store_true", help="does little in each round")
    parser.add_argument("--numpy", action="store_true", help="does without TensorFlow")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    found = parser.parse_args()
    if found.seed is None:
        found.seed = random.SystemRandom().randrange(1_000_000)
    return found


def supervise(args: argparse.Namespace) -> int:
    """Runs the rounds in another process, and says how to repeat one that fails."""
    print(f"seed {args.seed}", flush=True)
    library = faults.build(ROOT / "build" / "stress")
    if library is None:
        print("no compiler, or no Linux: no faults of memory and files", flush=True)
    options = [f"--seed={args.seed}", f"--seconds={args.seconds}"]
    options += [f"--{name}" for name in ("small", "numpy") if getattr(args, name)]
    options += [
        f"--{name}={getattr(args, name)}"
        for name in ("round", "rounds")
        if getattr(args, name) is not None
    ]
    command = [sys.executable, "-m", "stress", "--worker", *options]
    environment = {**faults.environment(library), "TF_CPP_MIN_LOG_LEVEL": "3"}
    number = -1
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("begin "):
                number = int(line.split()[1])
            else:
                print(line, end="", flush=True)
        code = process.wait()
    if code == 0:
        return 0
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    print(f"round {number} ended {how}. To repeat it:")
    again = f"SEED={args.seed} ROUND={number}"
    if args.small or args.numpy:
        more = " ".join(f"--{name}" for name in ("small", "numpy") if getattr(args, name))
        print(f"    python -m stress --seed={args.seed} --round={number} {more}", flush=True)
    else:
        print(f"    make stress {again}", flush=True)
    return 1


def work(args: argparse.Namespace) -> int:
    """Runs the rounds in this process."""
    start = time.perf_counter()
    rounds = operations = faults_made = 0
    while True:
        number = rounds if args.round is None else args.round
        plan = make_plan(args.seed, number, args.small, not args.numpy)
        print(f"begin {number}", flush=True)
        faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
        try:
            done, failed = one_round(plan, args)
        except Exception:
            traceback.print_exc()
            print(f"round {number}: {plan}: a defect", flush=True)
            return 1
        finally:
            faulthandler.cancel_dump_traceback_later()
        rounds, operations, faults_made = rounds + 1, operations + done, faults_made + failed
        taken = time.perf_counter() - start
        if taken >= args.seconds or rounds == args.rounds:
            print(
                f"{rounds} rounds, {operations:,} operations, {faults_made:,} faults in "
                f"{taken:.0f} s: no defect",
                flush=True,
            )
            return 0


def one_round(plan: Plan, args: argparse.Namespace) -> tuple[int, int]:
    """Runs one round, and returns its numbers of operations and of faults."""
    start = time.perf_counter()
    if plan.round % SAVERS_EVERY == SAVERS_EVERY - 1 and not args.numpy:
        from stress.killed import run_savers  # Loads TensorFlow.

        run_savers(plan.rng(5000), times=2)
        print(f"round {plan.round}: killed savers, {time.perf_counter() - start:.1f} s", flush=True)
        return 0, 0
    report = run_round(plan)
    count = sum(report.operations.values())
    events = ", ".join(report.events)
    print(
        f"round {plan.round}: {plan}: {count:,} operations, {report.faults} faults, {events}, "
        f"{time.perf_counter() - start:.1f} s",
        flush=True,
    )
    return count, report.faults


def main() -> None:
    """Runs what the command line asks for."""
    args = arguments()
    # All messages of a defect come out although the process may end in any way.
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    faulthandler.enable()
    sys.exit(work(args) if args.worker else supervise(args))


if __name__ == "__main__":
    main()
