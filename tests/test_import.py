"""`import tfra` is light, and the package has what type checkers look for."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import tfra
from support import run_python

# Packages that tfra knows of and must leave to those who use them.
FOREIGN = ("tensorflow", "torch", "keras", "jax", "ml_dtypes", "tqdm", "scipy", "pandas")


def test_import_needs_numpy_and_nothing_else() -> None:
    printed = run_python("""
        import json
        import sys
        before = set(sys.modules)
        import tfra
        added = {name.partition(".")[0] for name in set(sys.modules) - before}
        print(json.dumps([sorted(added - set(sys.stdlib_module_names)), sorted(sys.modules)]))
    """)
    added, modules = json.loads(printed)
    assert added == ["numpy", "tfra"]
    assert not set(FOREIGN) & set(modules)


def test_import_takes_little_longer_than_numpy() -> None:
    measure = """
        import time
        start = time.perf_counter()
        import numpy
        middle = time.perf_counter()
        import tfra
        print(time.perf_counter() - middle)
    """
    assert min(float(run_python(measure)) for _ in range(5)) < 0.3


def test_import_after_tensorflow_lets_it_load_models_with_tables() -> None:
    printed = run_python("""
        import sys
        import tensorflow
        import tfra
        print("tfra.dynamic_embedding" in sys.modules)
    """)
    assert printed.split()[-1] == "True"


def test_version_is_that_of_the_package() -> None:
    assert tfra.__version__ == version("tfra")


def test_package_is_typed() -> None:
    package = Path(tfra.__file__).parent
    assert (package / "py.typed").is_file()
    stub = package / "_native.pyi"
    assert "class NativeTable" in stub.read_text()


def test_public_names() -> None:
    expected = {
        "Table", "TableStats", "estimate_memory", "get_num_threads", "set_num_threads",
        "initializers", "optimizers", "__version__",
    }  # fmt: skip
    assert expected <= set(dir(tfra))
