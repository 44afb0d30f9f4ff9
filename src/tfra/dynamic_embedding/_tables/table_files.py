"""A table as a file of NumPy; docs/hkv.md says what is in it."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._saving import content_arrays
from tfra.dynamic_embedding._saving.content import Content, content_of, content_types


class TableFiles:
    """The part of `HkvHashTable` that writes and reads files."""

    # Of the table.
    name: str
    owner: Any
    restore_rows: Any
    _key_dtype: tf.DType
    _value_dtype: tf.DType
    _dim: int

    def save(self, directory: Any, file_name: str | None = None) -> Any:
        """Writes the table to a file, in place of one that is there.

        Rows, optimizer slots, scores and the epoch go to `<directory>/<file_name>.npz`, which NumPy
        reads; docs/hkv.md says what is in it. It appears when it is whole.

        Args:
            directory: Where; made if it is not there.
            file_name: The name of the table by default.

        Returns:
            The created Operation, or None if it was done at once.
        """
        owner = None if self.owner is None else self.owner()
        if owner is not None and owner.gradients_wait():
            warnings.warn(
                f"Gradients of {owner.name!r} wait for the end of `gradient_accumulation_steps`. "
                "The file of a table has none of them: save after a step that applies them, or "
                "save the model.",
                stacklevel=2,
            )
        content = content_of([self])  # type: ignore[list-item]
        path = self._file(directory, file_name)
        if tf.executing_eagerly():
            _write(path, content)
            return None

        def write(*tensors: tf.Tensor) -> None:
            _write(path, dict(zip(content, tensors, strict=True)))

        return tf.py_function(write, list(content.values()), [])

    def load(self, directory: Any, file_name: str | None = None) -> Any:
        """Replaces what is in the table by what `save` wrote.

        Args:
            directory: Where it was saved.
            file_name: The name of the table by default.

        Returns:
            The created Operation, or None if it was done at once.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If it is damaged, or holds keys or values of another type, or rows of
                another length.
        """
        path = self._file(directory, file_name)
        if tf.executing_eagerly():
            content = self._read(path)
            try:
                return self.restore_rows(content)
            except (ValueError, tf.errors.InvalidArgumentError) as error:
                raise ValueError(f"{path}: {getattr(error, 'message', error)}") from error
        types = content_types(self._key_dtype, self._value_dtype)

        def read() -> list[tf.Tensor]:
            content = self._read(path)
            return [content[name] for name in types]

        tensors = tf.py_function(read, [], list(types.values()))
        return self.restore_rows(dict(zip(types, tensors, strict=True)))

    def _read(self, path: Path) -> Content:
        if path.is_dir():
            raise ValueError(f"{path}: expected a file that `save` wrote. Received: a directory")
        types = (self._key_dtype, self._value_dtype)
        with path.open("rb") as file:
            arrays = content_arrays.NpzArrays(file, str(path))
            expected = _description(types[0].name, types[1].name, self._dim)
            found = _description(arrays["key_dtype"], arrays["value_dtype"], arrays["dim"])
            if found != expected:
                raise ValueError(f"{path}: expected {expected}, received {found}")
            for name in ("scores", "epoch"):  # All tables of this kind have them.
                if name not in arrays:
                    raise ValueError(f"{path}: expected `{name}`, received a file without it")
            try:
                return content_arrays.to_content(arrays, *types, self._dim)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error

    def _file(self, directory: Any, file_name: str | None) -> Path:
        name = self.name if file_name is None else file_name
        return Path(os.fspath(directory)) / (name.replace("/", "_") + ".npz")


def _description(key_dtype: Any, value_dtype: Any, dim: Any) -> str:
    return f"keys of {key_dtype} and rows of {dim} {value_dtype}"


def _write(path: Path, content: Content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {
        "key_dtype": np.array(content["keys"].dtype.name),
        "value_dtype": np.array(content["values"].dtype.name),
        "dim": np.array(content["values"].shape[1]),
        **content_arrays.to_arrays(content),
    }
    # A file that is not whole never has the name of one that is.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
