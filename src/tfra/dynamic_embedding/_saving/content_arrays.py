"""The content of tables as arrays of numbers, which files of Keras and of NumPy hold."""

from __future__ import annotations

import math
import zipfile
from typing import IO, Any

import h5py  # Comes with Keras.
import numpy as np

from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._saving.content import Content, content_types

_Array = np.ndarray[Any, Any]

# Files written before there were scores have none of these.
_SCORES = ("scores", "epoch")


def to_arrays(content: Content) -> dict[str, _Array]:
    """Returns arrays of numbers: strings as their bytes and lengths."""
    arrays = {}
    for name, tensor in content.items():
        array = tensor.numpy()
        if tensor.dtype == tf.string:
            strings = array.reshape(-1).tolist()
            arrays[f"{name}_lengths"] = np.array([len(s) for s in strings], np.int64)
            arrays[f"{name}_bytes"] = np.frombuffer(b"".join(strings), np.uint8)
        elif tensor.dtype == tf.bfloat16:
            arrays[name] = array.view(np.uint16)
        else:
            arrays[name] = array
    return arrays


def to_content(store: Any, key_dtype: tf.DType, value_dtype: tf.DType, dim: int) -> Content:
    """Returns what `to_arrays` was given.

    Whether the arrays fit one another, the op that restores them checks.

    Args:
        store: The arrays by name.
        key_dtype: Of the table. Integers of another type are taken if each of them fits.
        value_dtype: Of the table. Floats are rounded to it, integers taken as keys are.
        dim: The length of a row, which strings in a file do not tell.

    Raises:
        ValueError: If an array is missing, or holds what can't be of these types.
    """
    names = names_in(store)
    if ("keys_lengths" in names) != (key_dtype == tf.string):
        found = "strings" if "keys_lengths" in names else "integers"
        raise ValueError(f"Expected a file with keys of {key_dtype.name}. Received one of {found}")
    types = content_types(key_dtype, value_dtype)
    content = {}
    if names & {"sums", "sum_keys", "sum_keys_lengths"}:
        # Files written before gradients were accumulated have none.
        types |= {"sum_keys": key_dtype, "sums": arguments.compute_dtype(value_dtype)}
    for name, dtype in types.items():
        if name in _SCORES and name not in names:
            content[name] = tf.zeros([0], dtype)
        elif dtype == tf.string:
            content[name] = tf.constant(_strings(store, name), tf.string)
        else:
            content[name] = tf.constant(_numbers(store, name, dtype))
    if value_dtype == tf.string:
        count = content["values"].shape[0]
        if count % dim:
            _refuse("values", f"rows of {dim} strings", f"{count} strings")
        content["values"] = tf.reshape(content["values"], [-1, dim])
    return content


def names_in(store: Any) -> set[str]:
    """Returns the names of the arrays in a store; those of Keras 3.9 do not support `in`."""
    return set(store.keys())


def check(content: Content, name: str, dim: int) -> None:
    """Raises ValueError unless the rows have this length."""
    shape = content["values"].shape
    if shape.rank != 2 or shape[1] != dim:
        found = f"length {shape[1]}" if shape.rank == 2 else f"shape {shape[1:]}"
        raise ValueError(
            f"Layer {name!r} has rows of length {dim}. Received a file with rows of {found}. Make "
            "the layer with the length that was saved."
        )


class NpzArrays:
    """The arrays of a zip that NumPy wrote; of `to_content`, and of `to_arrays`.

    Takes no more memory than the arrays have bytes in the file, and unpickles nothing. Compressed
    arrays are refused.

    Args:
        file: The file, open for reading.
        where: What errors call it.

    Raises:
        ValueError: If it is not such a zip; and whenever an array is damaged.
    """

    def __init__(self, file: IO[bytes], where: str) -> None:
        self._where = where
        try:
            self._archive = zipfile.ZipFile(file)
            names = self._archive.namelist()
        except Exception as error:
            raise self._error(f"{error}. No other file, such as a pickle, is read") from error
        if len(set(names)) != len(names):
            raise self._error("two arrays of one name")
        self._names = set(names)

    def keys(self) -> set[str]:
        """Returns the names of the arrays."""
        return {name.removesuffix(".npy") for name in self._names if name.endswith(".npy")}

    def __getitem__(self, name: str) -> _Array:
        if f"{name}.npy" not in self._names:
            raise self._error(f"a file without `{name}`")
        try:
            return self._read(f"{name}.npy")
        except Exception as error:  # Of zipfile, zlib, struct, ast and NumPy: many kinds.
            raise self._error(f"`{name}`: {type(error).__name__}: {error}") from error

    def _read(self, member: str) -> _Array:
        if self._archive.getinfo(member).compress_type != zipfile.ZIP_STORED:
            raise ValueError("expected an array that is not compressed")  # It could be of any size.
        with self._archive.open(member) as stream:
            version = np.lib.format.read_magic(stream)
            headers = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }
            if version not in headers:
                raise ValueError(f"expected version 1.0 or 2.0 of the format, received {version}")
            shape, fortran_order, dtype = headers[version](stream)
            if dtype.hasobject or min(shape, default=0) < 0:
                raise ValueError(f"expected numbers, received {dtype} of shape {shape}")
            data = stream.read()  # Grows with what is there, whatever the header says.
        array = np.frombuffer(data, dtype)
        if math.prod(shape) != array.size:
            raise ValueError(f"expected {math.prod(shape)} numbers, received {array.size}")
        return array.reshape(shape, order="F" if fortran_order else "C")

    def _error(self, received: str) -> ValueError:
        return ValueError(f"{self._where}: expected a file that `save` wrote. Received: {received}")


def _refuse(name: str, expected: str, received: str) -> None:
    raise ValueError(f"`{name}`: expected {expected}, received {received}")


def _array(store: Any, name: str) -> _Array:
    if name not in names_in(store):
        raise ValueError(f"`{name}`: expected an array of this name, received a file without it")
    try:
        array = store[name]
        # An HDF5 file need not hold the numbers of an array: a few bytes can claim gigabytes.
        if isinstance(array, h5py.Dataset) and array.id.get_storage_size() < array.nbytes:
            raise ValueError(f"{array.nbytes} bytes of which the file does not have all")
        return np.asarray(array)
    except Exception as error:  # Whatever the library of the file raises.
        raise ValueError(f"`{name}`: expected an array, received {error}") from error


def _numbers(store: Any, name: str, dtype: tf.DType) -> _Array:
    """Returns an array as one of a type of numbers."""
    array, wanted = _array(store, name), dtype.as_numpy_dtype
    if dtype.is_floating:
        bfloat16 = tf.bfloat16.as_numpy_dtype
        if array.dtype == np.uint16:  # As `to_arrays` has them; there are no values of that type.
            array = array.view(bfloat16)
        if array.dtype.kind != "f" and array.dtype != bfloat16:
            _refuse(name, "floats", str(array.dtype))
        with np.errstate(over="ignore"):
            return array.astype(wanted, copy=False)
    if dtype == tf.bool:
        if array.dtype != np.bool_:
            _refuse(name, "bool", str(array.dtype))
        return array
    return _integers(name, array, np.dtype(wanted))


def _integers(name: str, array: _Array, dtype: np.dtype[Any]) -> _Array:
    """Returns integers as those of another type, if each of them fits."""
    if array.dtype.kind not in "iu":
        _refuse(name, f"integers of {dtype}", str(array.dtype))
    if array.dtype != dtype and array.size:
        limits = np.iinfo(dtype)
        for extreme in (int(array.min()), int(array.max())):
            if not limits.min <= extreme <= limits.max:
                _refuse(name, f"integers of {dtype}", f"{extreme} in an array of {array.dtype}")
    return array.astype(dtype, copy=False)


def _strings(store: Any, name: str) -> _Array:
    lengths_name, bytes_name = f"{name}_lengths", f"{name}_bytes"
    lengths = _integers(lengths_name, _array(store, lengths_name), np.dtype(np.int64))
    text = _array(store, bytes_name)
    if text.dtype != np.uint8 or text.ndim != 1:
        _refuse(bytes_name, "uint8 of one dimension", f"{text.dtype} of shape {text.shape}")
    if lengths.ndim != 1:
        _refuse(lengths_name, "one dimension", f"shape {lengths.shape}")
    if lengths.size and not 0 <= int(lengths.min()) <= int(lengths.max()) <= text.size:
        _refuse(
            lengths_name,
            f"lengths of 0 to {text.size} bytes",
            f"{int(lengths.min())} to {int(lengths.max())}",
        )
    ends = np.cumsum(lengths).tolist()
    if (ends[-1] if ends else 0) != text.size:
        _refuse(lengths_name, f"a sum of {text.size}", str(ends[-1] if ends else 0))
    data = text.tobytes()
    strings = np.empty(len(ends), dtype=object)
    begin = 0
    for i, end in enumerate(ends):
        strings[i] = data[begin:end]
        begin = end
    return strings
