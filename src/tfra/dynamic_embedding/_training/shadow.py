"""What the shadows for a Variable have in common: lookups that gradients flow from."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.keras2 import is_of_keras2
from tfra.dynamic_embedding._platform.tf import (
    enclosing_graphs,
    in_control_flow,
    in_plain_graph,
    on_device_of,
    ops,
    tape_may_record,
    tf,
)
from tfra.dynamic_embedding._training.trained_variable import TrainedVariable

# .now is True while an optimizer that can train tables applies gradients in this thread.
updating_tables = threading.local()


class TrainableWrapper:
    """Stands for a `Variable` where gradients are taken and applied.

    `ShadowVariable` is the one for eager mode, tf.function and Keras. In graphs of TF1 style,
    `embedding_lookup` makes a variable of TensorFlow that is a `TrainableWrapper` too.

    Attributes:
        max_norm: If not None, rows longer than this are clipped when they are looked up.
    """

    name: Any  # Of the variable that it is besides.
    max_norm: float | None
    _params: Callable[[], TrainedVariable | None]
    _ids: tf.Tensor | None = None  # Of the last eager lookup.
    # Of the last lookup in each graph. The tensors live as long as their graphs.
    _ids_in_graphs: weakref.WeakKeyDictionary[Any, weakref.ref[tf.Tensor]]

    @property
    def params(self) -> TrainedVariable:
        """The `Variable` whose rows are trained."""
        params = self._params()
        if params is None:
            raise ReferenceError("The Variable that this stands for is gone.")
        return params

    def lookup(
        self, ids: tf.Tensor, training: bool | None = None, max_norm: float | None = None
    ) -> tf.Tensor:
        """Looks up rows that gradients flow from, of shape `ids.shape + [dim]`.

        Args:
            ids: Keys, of any shape.
            training: Whether the rows will be trained; by default, whether a tape is recording.
            max_norm: In place of the shadow's own.
        """
        if ids.shape.rank is None:
            # The rows of a vector have a static shape, which gradients and optimizers need.
            rows = self.lookup(tf.reshape(ids, [-1]), training, max_norm)
            return tf.reshape(rows, tf.concat([tf.shape(ids), [self.params.dim]], axis=0))
        if not self.records():
            rows = self.params.lookup(ids)
        else:
            train = self.is_training(training)
            rows = self.params.lookup_to_train(ids) if train else self.params.lookup(ids)
            rows = ops.tfra_trainable_rows(self.gradient_target(), ids, rows)
        check_max_norm(max_norm)
        rows = _clip(rows, self.max_norm if max_norm is None else max_norm)
        self.note_lookup(ids, rows)
        return rows

    def embedding_lookup(
        self, ids: Any, name: str | None = None, max_norm: float | None = None
    ) -> tuple[tf.Tensor, TrainableWrapper]:
        """Looks up rows that gradients flow from, and returns them with this shadow.

        Args:
            ids: Keys. Can be a tensor of any shape.
            name: Not used.
            max_norm: If not None, longer rows are clipped to this L2 norm.

        Returns:
            A pair of a tensor of shape `ids.shape + [dim]`, and the shadow.

        Raises:
            TypeError: If `ids` are not of the key type.
        """
        del name
        ids = arguments.keys_tensor(ids, self.params.key_dtype)
        with on_device_of(ids):
            return self.lookup(ids, max_norm=max_norm), self

    # What programs ask of the shadow that `embedding_lookup` returned for this lookup.

    def note_lookup(self, ids: tf.Tensor, rows: tf.Tensor | None = None) -> None:
        """Remembers the keys of a lookup. Keys in functions and branches are known there only.

        Args:
            ids: The keys.
            rows: Their rows, where these were not pooled.
        """
        del rows
        if tf.executing_eagerly():
            self._ids = ids
            return
        if in_control_flow():
            return
        if in_plain_graph():  # Programs read `ids` after such a graph was finalized.
            with tf.name_scope(f"{self.params.name}_ids"):
                ids = tf.reshape(ids, [-1])
        self._ids_in_graphs[tf.compat.v1.get_default_graph()] = weakref.ref(ids)

    @property
    def ids(self) -> tf.Tensor | None:
        """The keys of the last lookup, a vector; None if there was none here.

        In a function these are the keys of its own last lookup. In a branch or loop without a
        lookup, they are those of the function.
        """
        ids = self._ids
        if not tf.executing_eagerly():
            graphs = enclosing_graphs(tf.compat.v1.get_default_graph())
            known = (self._ids_in_graphs.get(graph) for graph in graphs)
            ids = next((reference() for reference in known if reference is not None), None)
        return ids if ids is None or ids.shape.rank == 1 else tf.reshape(ids, [-1])

    def prefetch_values(self, update: bool = False) -> tf.Tensor:
        """Looks up the rows of `ids` as they are now, of shape `[n, dim]`.

        Args:
            update: Not used: no older rows are kept.

        Raises:
            ValueError: If there are no `ids`.
        """
        del update
        return self.lookup(self._known_ids())

    def read_value(self, do_prefetch: bool = True) -> tf.Tensor:
        """Looks up the rows of `ids`. If there are none here, reads the variable itself.

        Args:
            do_prefetch: Not used: rows are read and updated where they are.
        """
        del do_prefetch
        ids = self.ids
        return self.read_variable() if ids is None else self.lookup(ids)

    def transform(self, result: tf.Tensor) -> tf.Tensor:
        """Returns rows, clipped to `max_norm`."""
        return _clip(result, self.max_norm)

    def update_op(self, v0: Any = None) -> Any:
        """Stores the rows of `ids` that are missing, with their initial values.

        Other rows do not change: optimizers update them where they are.

        Args:
            v0: Not used.

        Returns:
            None, or in a graph an op.

        Raises:
            ValueError: If there are no `ids`.
        """
        del v0
        return self.params.store_new(self._known_ids())

    def _known_ids(self) -> tf.Tensor:
        ids = self.ids
        if ids is None:
            raise ValueError(
                f"The ids of the last lookup of {self.params.name!r} are not known here: expected "
                "one before this, in the same function or outside of all. Use what the lookup "
                "returned."
            )
        return ids

    def size(self) -> tf.Tensor:
        """Returns the number of keys of the `Variable`."""
        return self.params.size()

    def note_step(self) -> None:
        """Called by optimizers when they update the rows, or keep gradients for a later update."""

    def warn_if_untrained(self) -> None:
        """Warns if rows were looked up for training and no optimizer updated them."""

    @staticmethod
    def is_training(training: bool | None) -> bool:
        """Returns what was said, or whether gradients are being recorded here."""
        return tape_may_record() or in_plain_graph() if training is None else bool(training)

    def read_variable(self) -> tf.Tensor:
        """Reads the variable that stands for the rows and has none of them."""
        raise NotImplementedError

    def records(self) -> bool:
        """Whether gradients may be taken of lookups here and now."""
        raise NotImplementedError

    def gradient_target(self) -> tf.Tensor:
        """The handle that gradients are taken with respect to."""
        raise NotImplementedError


def _clip(rows: tf.Tensor, max_norm: float | None) -> tf.Tensor:
    return rows if max_norm is None else tf.clip_by_norm(rows, max_norm, axes=[-1])


def is_updating_tables() -> bool:
    """Whether an optimizer that can train tables is applying gradients in this thread."""
    return bool(vars(updating_tables).get("now"))


def refusal_of_unwrapped(table: str) -> TypeError:
    """Returns the error for an optimizer that would train a shadow in place of its table."""
    return TypeError(
        f"{table!r} is a table, which optimizers of tf.compat.v1 and of Keras 2 train only if they "
        "are wrapped: tfra.dynamic_embedding.DynamicEmbeddingOptimizer(optimizer)"
    )


def is_asked_by_optimizer() -> bool:
    """Whether an optimizer of tf.compat.v1 or of Keras 2 that is not wrapped is calling this code.

    Such an optimizer calls nothing that only optimizers call before it makes its slots, and these
    calls fail in many ways.
    """
    if is_updating_tables():
        return False
    frame: Any = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame is None:
            return False
        for name in ("self", "optimizer"):
            caller = frame.f_locals.get(name)
            if isinstance(caller, tf.compat.v1.train.Optimizer) or is_of_keras2(caller):
                return True
        frame = frame.f_back
    return False


# Between a method of an optimizer and what reads the properties of a variable for it.
_FRAMES = 5


def check_max_norm(max_norm: float | None) -> None:
    """Raises ValueError unless it is None or a positive number."""
    if max_norm is not None and not max_norm > 0:
        raise ValueError(f"`max_norm`: expected None or a number > 0, received {max_norm}")
