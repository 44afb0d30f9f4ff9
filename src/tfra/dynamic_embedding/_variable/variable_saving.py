"""What of a Variable is saved: its tables together, restored into as many as there are."""

from __future__ import annotations

import copy
from typing import Any

from tfra.dynamic_embedding._platform.tf import SAVE_FOR_CHECKPOINT, tf
from tfra.dynamic_embedding._saving.content import (
    Content,
    content_of,
    content_types,
    content_when_written,
    keep_content,
)
from tfra.dynamic_embedding._tables.partitions import Shards


class VariableSaving:
    """The part of `Variable` that checkpoints and SavedModels ask."""

    # Of the Variable.
    checkpoint: bool
    partitioner: Any
    tables: Any
    _key_dtype: tf.DType
    _value_dtype: tf.DType
    _shards: Shards
    _types_of_sums: Any
    _content_of_sums: Any
    _restore_sums: Any

    def content(self) -> Content:
        """Returns all that is saved of the variable, as tensors by name."""
        return {**content_of(self.tables), **self._content_of_sums()}

    def restore(self, content: Content) -> Any:
        """Replaces what is in the variable by what `content` returned.

        The first op checks all of it, the sums of gradients included.
        """
        restored = self._shards.restore(content)
        with tf.control_dependencies([] if restored is None else [restored]):
            sums = self._restore_sums(content)
        return None if tf.executing_eagerly() else tf.group(restored, *sums)

    def _trackable_children(self, save_type: str = SAVE_FOR_CHECKPOINT, **kwargs: Any) -> Any:
        tables = {f"table_{i}": table for i, table in enumerate(self.tables)}
        if save_type == SAVE_FOR_CHECKPOINT:
            # It has nothing to save; but by this child Keras finds out, before it makes a
            # SavedModel, that there are resources. The same for any number of tables.
            return {"table_0": tables["table_0"]}
        return tables

    def _export_to_saved_model_graph(self, object_map: Any, tensor_map: Any, **kwargs: Any) -> Any:
        for table in self.tables:
            table._export_to_saved_model_graph(object_map, tensor_map, **kwargs)
        exported = copy.copy(self)
        tables = [object_map[table] for table in self.tables]
        object.__setattr__(exported, "_shards", Shards(tables, self.partitioner))
        object_map[self] = exported
        return []

    def _serialize_to_tensors(self) -> dict[str, Any]:
        if not self.checkpoint:
            return {}
        types = {**content_types(self._key_dtype, self._value_dtype), **self._types_of_sums()}
        return content_when_written(self.tables, self.content, types)

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        keep_content(self, object_map, self.content() if self.checkpoint else {})

    def _restore_from_tensors(self, restored_tensors: Content) -> Any:
        return self.restore(restored_tensors) if self.checkpoint else tf.no_op()
