"""The wheel, built from this tree, installed where nothing else is, and used there.

The wheel is the one that TFRA_WHEEL names (`make wheel` sets it), or one that is built here: after
`make` has compiled the package that takes seconds.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import tfra

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "tests" / "wheel_programs"


def run(*command: str | Path, cwd: Path) -> str:
    # Without the variables by which Python would find other packages.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def new_environment(folder: Path, *install: str | Path) -> Path:
    """Makes an environment with these packages and returns its Python."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--quiet", *install, cwd=folder.parent)
    return python


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if "TFRA_WHEEL" in os.environ:
        return Path(os.environ["TFRA_WHEEL"]).resolve()
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, ROOT / "tools" / "build_wheel.py", folder, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


@pytest.mark.skipif(sys.platform != "linux", reason="manylinux is for Linux")
def test_the_name_says_which_systems_it_runs_on(wheel: Path) -> None:
    assert wheel.name.startswith(f"tfra-{tfra.__version__}-cp")
    assert "-manylinux_2_" in wheel.name


def test_it_has_each_library_once_beside_the_python_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    libraries = [Path(n) for n in names if ".so" in n or ".dylib" in n]
    stems = sorted(path.name.split(".")[0] for path in libraries)
    # One engine, under its own name: its tables are shared by the two others.
    assert stems == ["_native", "libtfra_engine", "libtfra_tf"]
    assert {path.parent.name for path in libraries} == {"tfra"}
    assert {"tfra/py.typed", "tfra/_native.pyi"} <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"tfra"}


def test_it_says_what_it_needs(metadata: Message) -> None:
    assert metadata["Version"] == tfra.__version__
    needs = metadata.get_all("Requires-Dist", [])
    assert [need for need in needs if "extra ==" not in need] == ["numpy>=1.24"]
    extras = set(metadata.get_all("Provides-Extra", []))
    assert {"bfloat16", "pandas", "tensorflow"} <= extras
    for_tensorflow = [need for need in needs if need.endswith("extra == 'tensorflow'")
                      or need.endswith('extra == "tensorflow"')]  # fmt: skip
    assert {need.split(">")[0] for need in for_tensorflow} == {"tensorflow", "keras"}


def test_it_works_in_an_environment_with_nothing_else(wheel: Path, tmp_path: Path) -> None:
    python = new_environment(tmp_path / "clean", wheel)
    assert run(python, PROGRAMS / "wheel_with_numpy.py", cwd=tmp_path).strip() == tfra.__version__
    printed = run(
        python, "-c", "import pathlib, tfra; print(pathlib.Path(tfra.__file__).parent)",
        cwd=tmp_path,
    )  # fmt: skip
    assert Path(printed.strip()).is_relative_to(tmp_path)
    printed = run(
        python, "-c", "import tfra\ntry: tfra.dynamic_embedding\nexcept ImportError as e: print(e)",
        cwd=tmp_path,
    )  # fmt: skip
    assert "pip install 'tfra[tensorflow]'" in printed


def test_it_works_with_tensorflow(wheel: Path, tmp_path: Path) -> None:
    # TensorFlow takes minutes to install, so this environment borrows the one that is here: later
    # in the path than the wheel, and without the links of editable packages.
    python = new_environment(tmp_path / "with-tensorflow", "--no-deps", wheel)
    found = importlib.util.find_spec("tensorflow")
    assert found is not None and found.origin is not None
    (site,) = (tmp_path / "with-tensorflow" / "lib").glob("python*/site-packages")
    (site / "borrowed.pth").write_text(f"{Path(found.origin).parent.parent}\n")
    printed = run(python, "-c", "import tfra; print(tfra.__file__)", cwd=tmp_path)
    assert Path(printed.strip()).parent.parent == site
    assert run(python, PROGRAMS / "wheel_with_tensorflow.py", cwd=tmp_path).strip()
