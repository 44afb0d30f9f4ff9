"""Dynamic embedding tables for recommender models.

A table maps keys (int64 or strings) to rows, with no fixed vocabulary: a key gets its own row the
first time training meets it.

Example:
>>> import numpy as np
>>> import tfra
>>> table = tfra.Table(dim=4, initializer="normal", optimizer="adam")
>>> table.apply_gradients([42, 7], np.ones((2, 4), np.float32))
>>> len(table)
2
"""

import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

from tfra import _native, admission, initializers, optimizers
from tfra._shared.stats import Histogram, RowHistograms, TableStats
from tfra._shared.threads import get_num_threads, set_num_threads
from tfra._table.memory import estimate_memory
from tfra.spec import TableSpec
from tfra.store import Store, TableStore
from tfra.table import Table

__version__ = _native.engine_version()  # importlib.metadata takes long to import.

if "tensorflow" in sys.modules:
    # TensorFlow can load models with tables only if their ops are registered. If this import fails,
    # the first use of tfra.dynamic_embedding raises the error.
    with suppress(ImportError):
        import_module("tfra.dynamic_embedding")


def __getattr__(name: str) -> Any:
    """Imports `tfra.dynamic_embedding`, and TensorFlow with it, when it is first used."""
    if name == "dynamic_embedding":
        return import_module("tfra.dynamic_embedding")
    raise AttributeError(f"module 'tfra' has no attribute {name!r}")


__all__ = [
    "Histogram",
    "RowHistograms",
    "Store",
    "Table",
    "TableSpec",
    "TableStats",
    "TableStore",
    "__version__",
    "admission",
    "estimate_memory",
    "get_num_threads",
    "initializers",
    "optimizers",
    "set_num_threads",
]
