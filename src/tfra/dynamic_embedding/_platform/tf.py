"""TensorFlow, and all that this package uses of its undocumented parts.

Private imports of TensorFlow and code that depends on its version are only here. All other modules
use its public API.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
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
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable, ResourceVariable
from tensorflow.python.saved_model.registration import register_serializable
from tensorflow.python.saved_model.save_context import in_save_context
from tensorflow.python.trackable.base import VARIABLE_VALUE_KEY
from tensorflow.python.trackable.resource import RestoredResource
from tensorflow.python.training.saving.saveable_object import SaveableObject, SaveSpec

__all__ = [
    "ANONYMOUS",
    "SAVE_FOR_CHECKPOINT",
    "VARIABLE_VALUE_KEY",
    "AutoTrackable",
    "BaseResourceVariable",
    "ResourceVariable",
    "RestoredResource",
    "Saveable",
    "TensorToSave",
    "Trackable",
    "eager_mode",
    "enclosing_graphs",
    "in_control_flow",
    "in_finalized_graph",
    "in_plain_graph",
    "in_saved_model",
    "is_in_while_loop",
    "load_as",
    "on_device_of",
    "ops",
    "tape_may_record",
    "tf",
    "write_plain_object",
]


def load_ops(path: Path) -> Any:
    """Loads the library of ops. It uses only the C API, so one file works for all versions.

    Args:
        path: The file of the library.

    Raises:
        ImportError: If the library was built with another version of the engine.
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
Trackable: Any = tf.__internal__.tracking.Trackable

# The `save_type` that TensorFlow passes to `_trackable_children`. Any other one is a SavedModel.
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

# In a tf.function, ops that only read a resource may run in parallel. Without this hint they run
# one after the other, which is slower but correct.
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

# A VarHandleOp with this `shared_name` has no name: each handle is a resource of its own, which
# TensorFlow frees with the last reference to it.
ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"


def in_plain_graph() -> bool:
    """Whether ops are added to a graph of TF1 style, which a Session runs."""
    return not tf.executing_eagerly() and not tf.inside_function()


def in_finalized_graph() -> bool:
    """Whether no op can be added here, as in a `tf.compat.v1.train.MonitoredSession`."""
    return in_plain_graph() and bool(tf.compat.v1.get_default_graph().finalized)


def in_control_flow() -> bool:
    """Whether ops are added to a branch or loop of TF1 style. Its tensors can't be used outside."""
    return tf.compat.v1.get_default_graph()._get_control_flow_context() is not None


def on_device_of(tensor: tf.Tensor) -> contextlib.AbstractContextManager[Any]:
    """A context that places the ops of a graph of TF1 style on the device of a tensor."""
    if in_plain_graph() and tensor.device:
        return tf.device(tensor.device)
    return contextlib.nullcontext()


def in_saved_model() -> bool:
    """Whether the ops that are made now go into a SavedModel."""
    return bool(in_save_context())


def enclosing_graphs(graph: Any) -> Iterator[Any]:
    """Yields a graph, unless it is None, and those around it, whose tensors it can use."""
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)


def is_in_while_loop(graph: Any) -> bool:
    """Whether a graph is the body of a tf.while_loop, or a function within one."""
    return any(isinstance(each, WhileBodyFuncGraph) for each in enclosing_graphs(graph))


def tape_may_record() -> bool:
    """Whether a gradient tape is recording here."""
    return bool(record.could_possibly_record())


def write_plain_object(proto: Any) -> None:
    """Marks an object in a SavedModel as a plain container of its children."""
    proto.user_object.identifier = "_generic_user_object"
    proto.user_object.version.producer = 1
    proto.user_object.version.min_consumer = 1


def load_as(name: str, saved: type, loaded: type) -> None:
    """Registers the class that objects of another class have after a SavedModel is loaded.

    Args:
        name: The name of both classes in the file.
        saved: The class of the objects that are saved, or a base class of it.
        loaded: The class of the loaded objects, which can be saved again under the same name.
    """
    register_serializable("tfra", name, lambda value: isinstance(value, (saved, loaded)))(loaded)


class Saveable(SaveableObject):  # type: ignore[misc]
    """The part of an object that `tf.compat.v1.train.Saver` saves and restores.

    Args:
        name: The name of the object in the checkpoint.
        tensors: The tensors to save, by name.
        restore: Restores the object from tensors of the same names, and returns an op.
    """

    def __init__(self, name: str, tensors: dict[str, tf.Tensor], restore: Any) -> None:
        specs = [SaveSpec(t, "", f"{name}-{key}") for key, t in tensors.items()]
        super().__init__(next(iter(tensors.values())), specs, name)
        self._keys = list(tensors)
        self._restore = restore

    def restore(self, restored_tensors: Any, restored_shapes: Any) -> Any:
        """Called by the Saver."""
        return self._restore(dict(zip(self._keys, restored_tensors, strict=True)))
