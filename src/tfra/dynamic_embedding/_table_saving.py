"""What checkpoints ask of a table."""

from __future__ import annotations

from typing import Any

from tfra._tf import ops, tf
from tfra.dynamic_embedding._content import (
    Content,
    content_of,
    content_types,
    content_when_written,
    keep_content,
    require_length,
)


class TableSaving:
    """The part of `HashTable` that checkpoints use. See _content.py for what they hold."""

    # Of the table.
    resource_handle: tf.Tensor
    key_dtype: tf.DType
    value_dtype: tf.DType
    _checkpoint: bool
    _create_at: Any

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

    def restore_rows(
        self,
        content: Content,
        parts: Any = (),
        part: int = 0,
        part_count: int = 1,
        waiting_parts: Any = (),
    ) -> Any:
        """Replaces what is in the table, and returns the op that does.

        Args:
            content: Tensors as `content_of` makes them.
            parts: For each key the number of the table it belongs to, if there are several,
            part: the number of this one,
            part_count: and how many there are.
            waiting_parts: As `parts`, for the keys that wait to enter.
        """
        require_length(content, self)  # type: ignore[arg-type]
        handle = self.resource_handle

        def restore_admission(after: Any) -> Any:
            with tf.control_dependencies([] if after is None else [after]):
                return ops.tfra_restore_admission(
                    handle,
                    keys=content["waiting_keys"],
                    seen=content["waiting_seen"],
                    filter=content["waiting_filter"],
                    parts=tf.convert_to_tensor(waiting_parts, tf.int32),
                    part=part,
                    part_count=part_count,
                )

        # SavedModel's loader for TF1 restores before it initializes.
        created = self._create_at(handle)
        # Once before the rows, which also clear it: a state of another rule is an error, and must
        # not leave half of a checkpoint behind.
        fits = restore_admission(created)
        with tf.control_dependencies([] if fits is None else [fits]):
            restored = ops.tfra_restore(
                handle,
                keys=content["keys"],
                values=content["values"],
                slots=content["slots"],
                metadata=content["metadata"],
                rule=content["rule"],
                parts=tf.convert_to_tensor(parts, tf.int32),
                part=part,
                part_count=part_count,
                # Files of other tables have none.
                scores=content.get("scores", tf.zeros([0], tf.int64)),
                epoch=content.get("epoch", tf.zeros([0], tf.int64)),
            )
        return restore_admission(restored)
