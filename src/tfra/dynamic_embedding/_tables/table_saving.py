"""What checkpoints ask of a table."""

from __future__ import annotations

from typing import Any

from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._saving.content import (
    Content,
    content_of,
    content_types,
    content_when_written,
    keep_content,
    restore_tables,
)


class TableSaving:
    """The part of `HashTable` that checkpoints use. See `_saving/content.py` for what they hold."""

    # Of the table.
    key_dtype: tf.DType
    value_dtype: tf.DType
    _checkpoint: bool

    def _serialize_to_tensors(self) -> dict[str, Any]:
        if not self._checkpoint:
            return {}
        tables: list[Any] = [self]
        types = content_types(self.key_dtype, self.value_dtype)
        return content_when_written(tables, lambda: content_of(tables), types)

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        tables: list[Any] = [self]
        keep_content(self, object_map, content_of(tables) if self._checkpoint else {})

    def _restore_from_tensors(self, restored_tensors: Content) -> Any:
        return self.restore_rows(restored_tensors) if self._checkpoint else tf.no_op()

    def restore_rows(self, content: Content) -> Any:
        """Replaces what is in the table by what `content_of` made, and returns the op that does."""
        tables: list[Any] = [self]
        return restore_tables(tables, content)
