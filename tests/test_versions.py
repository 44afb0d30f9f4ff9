"""Adapters refuse an engine of another version than the one they were built with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tfra
from support import run_python
from tfra import _native

OTHER = "9.9.9"


def copied(folder: Path, *names: str) -> Path:
    """Copies libraries of the package to a folder."""
    for name in names:
        shutil.copy(Path(_native.__file__).with_name(name), folder)
    return folder / names[0]


def say_another_version(library: Path) -> None:
    """Makes a library of another version: it differs in the bytes of the version alone."""
    version = tfra.__version__.encode() + b"\0"
    assert len(OTHER) < len(version)
    content = library.read_bytes()
    assert version in content
    library.write_bytes(content.replace(version, OTHER.encode().ljust(len(version), b"\0")))


def test_engines_have_the_version_of_the_package() -> None:
    assert _native.engine_version() == tfra.__version__


@pytest.mark.parametrize("is_other", [False, True], ids=["same", "other"])
def test_the_bindings_refuse_another_engine(tmp_path: Path, is_other: bool) -> None:
    bindings = copied(tmp_path, Path(_native.__file__).name, "libtfra_engine.so")
    if is_other:
        say_another_version(tmp_path / "libtfra_engine.so")
    printed = run_python(f"""
        from importlib.machinery import ExtensionFileLoader
        from importlib.util import module_from_spec, spec_from_file_location

        loader = ExtensionFileLoader("_native", {str(bindings)!r})
        try:
            loader.exec_module(module_from_spec(spec_from_file_location("_native", loader=loader)))
            print("loaded")
        except ImportError as error:
            print(error)
    """)
    refused = f"expected libtfra_engine {tfra.__version__}, received {OTHER}"
    assert (refused if is_other else "loaded") in printed


def test_the_ops_refuse_another_engine(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    library = copied(tmp_path, "libtfra_tf.so")
    say_another_version(library)
    printed = run_python(f"""
        from pathlib import Path
        from tfra.dynamic_embedding._platform.tf import load_ops

        try:
            load_ops(Path({str(library)!r}))
        except ImportError as error:
            print(error)
    """)
    assert f"expected libtfra_engine {OTHER}, received {tfra.__version__}" in printed
