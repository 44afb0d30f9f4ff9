"""TensorFlow as this package sees it.

The one home of what TensorFlow does not document: private imports and whatever depends on its
version. Everything else uses TensorFlow's public API only.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from tfra import _native

try:
    import tensorflow as tf
except ImportError as error:
    raise ImportError(
        "tfra.dynamic_embedding needs TensorFlow 2.16 or later, which is not installed. "
        "Install it with: pip install 'tfra[tensorflow]'"
    ) from error

from tensorflow.python.checkpoint.tensor_callable import Callable as TensorToSave
from tensorflow.python.eager import record
from tensorflow.python.eager.context import eager_mode
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph
from tensorflow.python.ops.resource_variable_ops import ResourceVariable
from tensorflow.python.saved_model.registration import register_serializable
from tensorflow.python.saved_model.save_context import in_save_context
from tensorflow.python.trackable.resource import RestoredResource
from tensorflow.python.training.saving.saveable_object import SaveableObject, SaveSpec

__all__ = [
    "ANONYMOUS",
    "SAVE_FOR_CHECKPOINT",
    "AutoTrackable",
    "ResourceVariable",
    "RestoredResource",
    "Saveable",
    "TensorToSave",
    "eager_mode",
    "in_control_flow",
    "in_plain_graph",
    "in_saved_model",
    "is_in_while_loop",
    "load_as",
    "ops",
    "tape_may_record",
    "tf",
    "write_plain_object",
]


def load_ops(path: Path) -> Any:
    """Loads the ops: one library for every version of TensorFlow, since it uses the C API only.

    Args:
        path: The library's file.

    Raises:
        ImportError: If it was built with another version of the engine.
    """
    loaded = tf.load_op_library(str(path))
    built_with = ctypes.CDLL(str(path)).TfraBuiltWith
    built_with.restype = ctypes.c_char_p
    expected, received = built_with().decode(), _native.engine_version()
    if expected != received:
        raise ImportError(
            f"{path.name} was built with another version of the engine: expected libtfra_engine "
            f"{expected}, received {received}. Install tfra again."
        )
    return loaded


ops: Any = load_ops(Path(_native.__file__).with_name("libtfra_tf.so"))

AutoTrackable: Any = tf.__internal__.tracking.AutoTrackable

# What TensorFlow asks an object's children for; the other answer is for a SavedModel.
SAVE_FOR_CHECKPOINT = "checkpoint"

_READ_ONLY_OPS = (
    "TfraLookup",
    "TfraLookupPooled",
    "TfraSize",
    "TfraExport",
    "TfraExportBatch",
    "TfraContent",
    "TfraLookupMetadata",
    "TfraStats",
    "TfraHistograms",
    "TfraExportScores",
    "TfraExportKeysAndScores",
    "TfraExportIf",
    "TfraSizeIf",
    "TfraLookupScores",
    "TfraContains",
    "TfraEpoch",
    "TfraTrainableRows",
    "TfraTrainablePooled",
)

# In a tf.function, ops that only read one resource may run side by side. Without the hint they
# take turns, which is slower and just as right.
try:
    from tensorflow.python.framework.auto_control_deps_utils import register_read_only_resource_op
except ImportError:
    pass
else:
    for _op in _READ_ONLY_OPS:
        register_read_only_resource_op(_op)

for _op in _READ_ONLY_OPS:
    if _op not in ("TfraTrainableRows", "TfraTrainablePooled", "TfraLookupPooled"):
        tf.no_gradient(_op)

tf.no_gradient("TfraFindOrInsert")
tf.no_gradient("TfraInsertAndEvict")

# What VarHandleOp takes for "no name": each such handle is a resource of its own, which goes with
# the last reference to it.
ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"


def in_plain_graph() -> bool:
    """Whether ops are added to a graph of TF1 style, that a Session runs."""
    return not tf.executing_eagerly() and not tf.inside_function()


def in_control_flow() -> bool:
    """Whether ops are added to a branch or loop of TF1 style, whose tensors can't leave it."""
    return tf.compat.v1.get_default_graph()._get_control_flow_context() is not None


def in_saved_model() -> bool:
    """Whether what is made here and now goes into a SavedModel."""
    return bool(in_save_context())


def is_in_while_loop(graph: Any) -> bool:
    """Whether a graph is the body of a tf.while_loop, or of a function that it calls."""
    while graph is not None:
        if isinstance(graph, WhileBodyFuncGraph):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def tape_may_record() -> bool:
    """Whether a gradient tape is recording here."""
    return bool(record.could_possibly_record())


def write_plain_object(proto: Any) -> None:
    """Says in a SavedModel that an object is nothing but its children."""
    proto.user_object.identifier = "_generic_user_object"
    proto.user_object.version.producer = 1
    proto.user_object.version.min_consumer = 1


def load_as(name: str, saved: type, loaded: type) -> None:
    """Says which class the objects of another one are when a SavedModel is loaded.

    Args:
        name: What stands for both in the file.
        saved: The class of what is saved, or a class above it.
        loaded: The class of what is loaded, which is saved as this again.
    """
    register_serializable("tfra", name, lambda value: isinstance(value, (saved, loaded)))(loaded)


class Saveable(SaveableObject):  # type: ignore[misc]
    """What `tf.compat.v1.train.Saver` saves and restores of an object.

    Args:
        name: Its name in the checkpoint.
        tensors: What is saved, by name.
        restore: Called with tensors of the same names; returns an op.
    """

    def __init__(self, name: str, tensors: dict[str, tf.Tensor], restore: Any) -> None:
        specs = [SaveSpec(t, "", f"{name}-{key}") for key, t in tensors.items()]
        super().__init__(next(iter(tensors.values())), specs, name)
        self._keys = list(tensors)
        self._restore = restore

    def restore(self, restored_tensors: Any, restored_shapes: Any) -> Any:
        """Called by the Saver."""
        return self._restore(dict(zip(self._keys, restored_tensors, strict=True)))
