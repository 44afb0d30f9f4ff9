"""The part of a Variable that holds the sums of accumulated gradients."""

from __future__ import annotations

from tfra.dynamic_embedding._platform.tf import in_plain_graph, in_saved_model, tf
from tfra.dynamic_embedding._saving.content import Content, Replacement
from tfra.dynamic_embedding._training.gradient_sums import GradientSums, no_sums, sum_types


class VariableSums:
    """The sums of gradients of a Variable, made when an optimizer needs them or a restore has them.

    Args:
        key_dtype: The type of the keys.
        value_dtype: The type of the values. Only floating values have gradients.
        dim: The length of a row.
        name: The name of the Variable.
    """

    def __init__(self, key_dtype: tf.DType, value_dtype: tf.DType, dim: int, name: str) -> None:
        self._key_dtype, self._value_dtype, self._dim = key_dtype, value_dtype, dim
        self._name = f"{name}-gradient_sums"
        self._sums: GradientSums | None = None

    def get(self) -> GradientSums:
        """Returns the sums. The first call makes them."""
        if self._sums is None:
            self._sums = GradientSums(self._key_dtype, self._value_dtype, self._dim, self._name)
        return self._sums

    def wait(self) -> bool:
        """Whether there are accumulated gradients; False in a graph, where it is not known."""
        return self._sums is not None and tf.executing_eagerly() and bool(self._sums.size())

    def types(self) -> dict[str, tf.DType]:
        """Returns the names and dtypes of what `content` returns."""
        if not self._value_dtype.is_floating:
            return {}
        return sum_types(self._key_dtype, self._value_dtype)

    def content(self) -> Content:
        """Returns what a checkpoint saves, as tensors by name."""
        if not self._value_dtype.is_floating:
            return {}
        if self._sums is None or in_saved_model():  # A SavedModel is not trained.
            return no_sums(self._key_dtype, self._value_dtype, self._dim)
        return self._sums.content()

    def replacements(self, content: Content) -> list[Replacement]:
        """Returns what replaces the sums by those of `content`, if there are any."""
        if not self._value_dtype.is_floating or in_saved_model() or in_plain_graph():
            return []
        if "sum_keys" not in content:  # An earlier version, which saved no sums, wrote it.
            content = no_sums(self._key_dtype, self._value_dtype, self._dim)
        if self._sums is None and content["sum_keys"].shape == [0]:
            return []
        return [self.get().replacement(content)]
