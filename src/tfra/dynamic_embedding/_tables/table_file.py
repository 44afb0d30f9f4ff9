"""Tables as `.npz` files of NumPy; docs/hkv.md describes the format."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._saving import content_arrays
from tfra.dynamic_embedding._saving.content import Content


def path_of(directory: Any, file_name: str) -> Path:
    """Returns the path of the file with this name."""
    return Path(os.fspath(directory)) / (file_name.replace("/", "_") + ".npz")


def read(path: Path, key_dtype: tf.DType, value_dtype: tf.DType, dim: int) -> Content:
    """Returns the content that `write` wrote.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is damaged, or holds another kind of table.
    """
    if path.is_dir():
        raise ValueError(f"{path}: expected a file that `save` wrote. Received: a directory")
    types = (key_dtype, value_dtype)
    with path.open("rb") as file:
        arrays = content_arrays.NpzArrays(file, str(path))
        expected = _description(types[0].name, types[1].name, dim)
        found = _description(arrays["key_dtype"], arrays["value_dtype"], arrays["dim"])
        if found != expected:
            raise ValueError(f"{path}: expected {expected}, received {found}")
        for name in ("scores", "epoch"):  # Every HkvHashTable has both.
            if name not in content_arrays.names_in(arrays):
                raise ValueError(f"{path}: expected `{name}`, received a file without it")
        try:
            return content_arrays.to_content(arrays, *types, dim)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _description(key_dtype: Any, value_dtype: Any, dim: Any) -> str:
    return f"keys of {key_dtype} and rows of {dim} {value_dtype}"


def write(path: Path, content: Content) -> None:
    """Writes the content of a table to a file, which it replaces if it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {
        "key_dtype": np.array(content["keys"].dtype.name),
        "value_dtype": np.array(content["values"].dtype.name),
        "dim": np.array(content["values"].shape[1]),
        **content_arrays.to_arrays(content),
    }
    # Write to another name first, so that a file of the final name is always complete.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
