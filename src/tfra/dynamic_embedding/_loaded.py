"""Tables and variables of a SavedModel that was loaded: fit to be saved once more."""

from __future__ import annotations

from typing import Any

from tfra._tf import SAVE_FOR_CHECKPOINT, AutoTrackable, RestoredResource, tf


class LoadedTable(RestoredResource):  # type: ignore[misc]
    """A table of a SavedModel: the functions it was saved with make, restore and destroy it."""

    def _export_to_saved_model_graph(self, object_map: Any, tensor_map: Any, **kwargs: Any) -> Any:
        handles = super()._export_to_saved_model_graph(object_map, tensor_map, **kwargs)
        # A copy of this object, made for the graph; when it goes, the table must not.
        object_map[self]._destroy_resource = tf.no_op
        return handles


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
