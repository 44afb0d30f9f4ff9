"""Wrong inputs of the ops themselves: refused with an error that names the input, never read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import run_python

CHECKS = (
    "check_right_calls",
    "check_wrong_shapes",
    "check_unknown_shapes",
    "check_wrong_types",
    "check_wrong_numbers",
    "check_lists",
)


@pytest.mark.parametrize("check", CHECKS)
def test_every_op(check: str) -> None:
    # In a process of its own: what it printed last is the call that crashed.
    printed = run_python(
        f"""
        import json
        import op_calls

        problems = op_calls.{check}()
        print()
        print(json.dumps(problems))
        """,
        timeout=600,
        PYTHONPATH=str(Path(__file__).parent),
        TF_CPP_MIN_LOG_LEVEL="2",
    )
    problems = json.loads(printed.splitlines()[-1])
    assert not problems, "\n".join(problems)
