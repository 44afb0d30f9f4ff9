"""Tables and variables of a SavedModel that was loaded: fit to be saved once more."""

from __future__ import annotations

import weakref
from typing import Any

from tfra.dynamic_embedding._platform.tf import (
    SAVE_FOR_CHECKPOINT,
    AutoTrackable,
    RestoredResource,
    eager_mode,
    tf,
)


class LoadedTable(RestoredResource):  # type: ignore[misc]
    """A table of a SavedModel: the functions that it was saved with make and restore it.

    It goes with its handle, which functions of the model hold that are kept for themselves. It does
    not go with this object: TensorFlow copies it to save it again. And not by the function that it
    was saved with, which may be gone before.
    """

    @property
    def resource_handle(self) -> tf.Tensor:
        """The handle of the table, which is made when first asked for."""
        is_new = self._resource_handle is None
        handle = super().resource_handle
        if is_new and tf.executing_eagerly():
            going = weakref.finalize(handle, _destroy, tf.identity(handle))
            going.atexit = False
        return handle

    def __del__(self) -> None:
        pass


def _destroy(handle: tf.Tensor) -> None:
    with eager_mode():
        tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)


class LoadedVariable(AutoTrackable):  # type: ignore[misc]
    """A Variable of a SavedModel: an object that has tables."""

    def _trackable_children(self, save_type: str = SAVE_FOR_CHECKPOINT, **kwargs: Any) -> Any:
        children = super()._trackable_children(save_type, **kwargs)
        # TensorFlow sets these two, and saves them by itself.
        for name in ("_serialize_to_tensors", "_restore_from_tensors"):
            children.pop(name, None)
        return children

    def _add_trackable_child(self, name: str, value: Any) -> None:
        setattr(self, name, value)
