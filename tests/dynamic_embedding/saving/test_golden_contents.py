"""Contents that earlier versions saved still load, and training goes on from them.

`tests/golden/make_contents.py` wrote the files, with the version that their folder is named after.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layers_support import KERAS_WARNS

from golden import make_contents

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

GOLDEN = Path(make_contents.__file__).parent
VERSIONS = sorted(path.parent.name for path in GOLDEN.glob("*/expected.json"))
EXPECTED = {
    version: json.loads((GOLDEN / version / "expected.json").read_text(encoding="utf-8"))
    for version in VERSIONS
}
FILES = [(version, name) for version in VERSIONS for name in EXPECTED[version]]


def assert_same(actual: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    """Compares all columns of two states; everything that is not a float has to be equal."""
    assert actual.keys() == expected.keys()
    for name, column in expected.items():
        if tolerance == 0.0 or not (name in ("values", "dense") or name.startswith("slot ")):
            assert actual[name] == column, name
            continue
        for part, wanted in zip(actual[name], column, strict=True):
            np.testing.assert_allclose(part, wanted, rtol=tolerance, atol=tolerance, err_msg=name)


# Of one more step: sums of a dense layer depend on the processor and on TensorFlow.
TOLERANCES = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 1e-2, "string": 0.0}


@pytest.mark.parametrize(("version", "name"), FILES)
def test_a_saved_content_loads_and_trains_on(version: str, name: str) -> None:
    expected = EXPECTED[version][name]
    built = make_contents.load(name, GOLDEN / version)
    assert_same(make_contents.state_of(name, built), expected["saved"], tolerance=0.0)
    if "after one more step" in expected:
        make_contents.go_on(name, built)
        after = make_contents.state_of(name, built)
        tolerance = TOLERANCES[make_contents.CASES[name].value_dtype]
        assert_same(after, expected["after one more step"], tolerance)


def test_the_cases_are_those_of_the_first_files() -> None:
    assert EXPECTED["0.1.0"].keys() == make_contents.CASES.keys()
    for version in VERSIONS:
        files = [path for path in (GOLDEN / version).iterdir() if path.name != "expected.json"]
        stems = {path.name.split(".")[0] for path in files}
        assert stems == EXPECTED[version].keys()
        assert sum(path.stat().st_size for path in (GOLDEN / version).iterdir()) < 300_000
