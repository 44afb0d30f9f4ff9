"""All that a Variable holds, as what Keras takes for the array of a weight."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._saving import content_arrays
from tfra.dynamic_embedding._saving.content import Content


class EmptyWithContent(np.ndarray[Any, Any]):
    """An array without rows, with the content of a Variable.

    So that `model.get_weights()` and `set_weights()`, which callbacks use, take tables along.
    Copies have the content too; what is computed from it has none.
    """

    content: Any = None

    @classmethod
    def of(cls, content: Content) -> EmptyWithContent:
        """Returns an array of the shape and the type of the rows, but for their number."""
        values = content["values"]
        array = np.zeros([0, values.shape[1]], values.dtype.as_numpy_dtype).view(cls)
        array.content = content
        return array

    def __array_finalize__(self, source: Any) -> None:
        self.content = getattr(source, "content", None)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        plain = [i.view(np.ndarray) if isinstance(i, EmptyWithContent) else i for i in inputs]
        return getattr(ufunc, method)(*plain, **kwargs)

    def __deepcopy__(self, memo: Any) -> EmptyWithContent:
        return self.copy()

    def __reduce__(self) -> Any:
        function, arguments, state = tuple(super().__reduce__())
        content = None
        if self.content is not None:
            content = {name: tensor.numpy() for name, tensor in self.content.items()}
        return function, arguments, (state, content)

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state[0])
        if state[1] is not None:
            self.content = {name: tf.constant(array) for name, array in state[1].items()}


def to_bytes(content: Content) -> np.ndarray[Any, Any]:
    """Returns the content as numbers that any file can hold."""
    file = io.BytesIO()
    np.savez(file, **content_arrays.to_arrays(content))  # type: ignore[arg-type]
    return np.frombuffer(file.getvalue(), np.uint8)


def from_bytes(
    array: np.ndarray[Any, Any], key_dtype: tf.DType, value_dtype: tf.DType, dim: int
) -> Content:
    """Returns what `to_bytes` was given.

    Raises:
        ValueError: If it is anything else.
    """
    arrays = content_arrays.NpzArrays(io.BytesIO(array.tobytes()), "The weights of a table")
    return content_arrays.to_content(arrays, key_dtype, value_dtype, dim)
