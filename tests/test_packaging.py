"""What belongs to a release: one version, and files for GitHub that say what is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import tfra
from tfra import _native

ROOT = Path(__file__).resolve().parent.parent
GITHUB = sorted((ROOT / ".github").glob("**/*.yml"))


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def version_in_pyproject() -> str:
    found = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def test_every_version_is_that_of_pyproject() -> None:
    expected = version_in_pyproject()
    assert tfra.__version__ == expected, "run make, which installs the package again"
    assert _native.engine_version() == expected
    assert load(ROOT / "CITATION.cff")["version"] == expected
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None and newest[1] == expected


def test_no_other_file_states_the_version() -> None:
    """Neither CMake nor Python has a copy that someone would have to remember."""
    files = [
        *ROOT.glob("src/**/*.py"),
        *ROOT.glob("**/CMakeLists.txt"),
        *ROOT.glob("engine/**/*.h"),
    ]
    assert not [path for path in files if f'"{version_in_pyproject()}"' in path.read_text()]


def test_the_citation_is_complete() -> None:
    citation = load(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors", "license"} <= set(citation)
    assert f'license = "{citation["license"]}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("path", GITHUB, ids=lambda path: path.name)
def test_workflows_run_targets_that_exist(path: Path) -> None:
    content = load(path)
    assert isinstance(content, dict)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for job in content.get("jobs", {}).values():
        assert "runs-on" in job and job["steps"]
        for step in job["steps"]:
            for command in re.findall(r"^make (.*)$", step.get("run", ""), re.MULTILINE):
                assert set(command.split()) <= targets
            for file in re.findall(r"\btests/\S+", step.get("run", "")):
                assert (ROOT / file).is_file()
            assert "uses" in step or "run" in step
            assert "@" in step.get("uses", "@"), "an action without a version"


def test_there_are_workflows_for_tests_and_wheels() -> None:
    wheels = load(ROOT / ".github/workflows/wheels.yml")["jobs"]["wheels"]
    systems = wheels["strategy"]["matrix"]["os"]
    assert {name.split("-")[0] for name in systems} == {"ubuntu", "macos"}
    assert any(name.endswith("-arm") for name in systems)
    runs = [
        step.get("run")
        for step in load(ROOT / ".github/workflows/test.yml")["jobs"]["test"]["steps"]
    ]
    assert "make test" in runs


@pytest.mark.parametrize("name", ["bug", "idea", "slow"])
def test_issue_forms_have_what_github_wants(name: str) -> None:
    form = load(ROOT / f".github/ISSUE_TEMPLATE/{name}.yml")
    assert {"name", "description", "body"} <= set(form)
    ids = [field["id"] for field in form["body"]]
    assert len(set(ids)) == len(ids)
    assert all(
        field["type"] == "textarea" and field["attributes"]["label"] for field in form["body"]
    )


def test_programs_that_wheels_are_tried_with_exist() -> None:
    named = re.findall(r"\{project\}/(\S+?)\"", (ROOT / "pyproject.toml").read_text())
    assert named and all((ROOT / path).is_file() for path in named)


def test_every_fuzz_target_is_described_and_has_a_small_corpus() -> None:
    targets = {path.stem for path in ROOT.glob("fuzz/*_fuzz.cc")}
    assert len(targets) >= 5
    page = (ROOT / "fuzz/README.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == targets
    assert {path.name for path in ROOT.glob("fuzz/corpus/*")} == targets
    for target in targets:
        assert "LLVMFuzzerTestOneInput" in (ROOT / f"fuzz/{target}.cc").read_text()
        sizes = [path.stat().st_size for path in ROOT.glob(f"fuzz/corpus/{target}/*")]
        assert sizes and sum(sizes) <= 32 << 10, "git keeps every version of these files"


def test_tests_that_run_under_sanitizers_exist() -> None:
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    named = re.search(r"^TESTS_OF_ADAPTERS := \$\(addprefix (\S+),(.*)\)$", makefile, re.MULTILINE)
    assert named is not None
    files = [ROOT / (named[1] + name) for name in named[2].split()]
    assert len(files) >= 10 and all(path.is_file() for path in files)


def test_the_security_page_is_linked_and_names_what_exists() -> None:
    for page in ["README.md", "CONTRIBUTING.md"]:
        assert "(SECURITY.md)" in (ROOT / page).read_text()
    page = (ROOT / "SECURITY.md").read_text()
    assert all((ROOT / path).is_file() for path in re.findall(r"\]\((\S+?)\)", page))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"fuzz", "sanitize"} <= set(re.findall(r"`make (\S+)`", page)) <= targets
