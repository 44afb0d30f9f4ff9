"""Tables as `.npz` files of NumPy; docs/hkv.md describes the format."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import threading
from pathlib import Path
from typing import IO, Any

import numpy as np

from tfra._shared.files import is_at
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
    _remove_parts(path)
    # Write to another name first, so that a file of the final name is always complete.
    part = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}{_PART}")
    with _open_locked(part) as file:
        try:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


# The end of the name of a file that is being written. Its writer holds a lock: a part that nobody
# has locked is left over from a process that was killed.
_PART = ".part"


def _open_locked(part: Path) -> IO[bytes]:
    while True:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        file = os.fdopen(os.open(part, flags, 0o666), "wb")
        with contextlib.suppress(OSError):  # Some file systems have no locks.
            fcntl.flock(file, fcntl.LOCK_EX)
        if is_at(file.fileno(), part):
            return file
        file.close()  # Another process took it for one that is left over.


def _remove_parts(path: Path) -> None:
    """Removes what is left of saves to this path whose process was killed."""
    of_path = re.compile(re.escape(path.name) + r"\.\d+(-\d+)?" + re.escape(_PART))
    parts: list[Path] = []
    with contextlib.suppress(OSError):  # Some folders can be written to, but not listed.
        parts = [part for part in path.parent.iterdir() if of_path.fullmatch(part.name)]
    for part in parts:
        with contextlib.suppress(OSError):
            _remove_unlocked(part)


def _remove_unlocked(part: Path) -> None:
    file = os.open(part, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_ISREG(os.fstat(file).st_mode) and is_at(file, part):
            part.unlink()
    finally:
        os.close(file)
