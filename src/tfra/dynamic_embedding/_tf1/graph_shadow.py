"""The shadow of a Variable in a graph of TF1 style."""

from __future__ import annotations

import weakref

from tfra.dynamic_embedding._platform.tf import (
    ResourceVariable,
    in_control_flow,
    in_plain_graph,
    tape_may_record,
    tf,
)
from tfra.dynamic_embedding._training import model_mode
from tfra.dynamic_embedding._training.row_gradients import graphs_of_branches
from tfra.dynamic_embedding._training.shadow import (
    TrainableWrapper,
    is_asked_by_optimizer,
    is_updating_tables,
    refusal_of_unwrapped,
)
from tfra.dynamic_embedding._training.trained_variable import TrainedVariable


class GraphTrainableWrapper(TrainableWrapper, ResourceVariable):  # type: ignore[misc]
    """The shadow of a `Variable` in a graph of TF1 style, among its trainable variables."""

    _rows: tf.Tensor | None = None  # Of the last lookup.

    def __init__(self, params: TrainedVariable, name: str) -> None:
        keys = tf.compat.v1.GraphKeys
        collections = [keys.LOCAL_VARIABLES]
        if params.trainable:
            collections.append(keys.TRAINABLE_VARIABLES)
        super().__init__(
            # Optimizers make the initial value of a slot from the variable: one row is enough.
            initial_value=lambda: tf.zeros([1, params.dim], params.value_dtype),
            trainable=params.trainable,
            collections=collections,
            name=name,
        )
        self._params = lambda: params
        self.max_norm = None
        self._ids_in_graphs = weakref.WeakKeyDictionary()

    def records(self) -> bool:
        """Whether gradients can be taken of lookups that are made now."""
        return self.trainable and model_mode.get_model_mode() != model_mode.ModelMode.INFERENCE

    def gradient_target(self) -> tf.Tensor:
        """The handle that gradients are taken with respect to."""
        if not in_plain_graph():
            graphs_of_branches.add(tf.compat.v1.get_default_graph())
        elif tape_may_record():
            ResourceVariable.read_value(self)  # A tape watches the variables that are read.
        return self.handle

    # --- Used as a tensor, for penalties and summaries, a shadow is the rows of its last lookup.

    def note_lookup(self, ids: tf.Tensor, rows: tf.Tensor | None = None) -> None:
        """Remembers the keys and the rows of a lookup, for `value`.

        The rows of a lookup in a function, branch or loop are not remembered: their tensor can't be
        used outside. A pooled lookup passes no rows, so an op that looks them up is added to the
        graph. It runs only if a Session needs `value`.
        """
        super().note_lookup(ids)
        if not in_plain_graph() or in_control_flow():
            return
        if rows is None:
            self.lookup(ids)
        else:
            self._rows = tf.reshape(rows, [-1, self.params.dim])

    def value(self) -> tf.Tensor:
        """Returns the rows of the last lookup, `[n, dim]`; before the first, reads the variable."""
        if self._rows is None:
            return self.read_value()
        if tape_may_record() and not in_control_flow():
            return self.read_value()  # The tape did not see the last lookup.
        return self._rows

    def _as_graph_element(self) -> tf.Tensor:
        return super()._as_graph_element() if self._rows is None else self._rows

    def read_value(self, do_prefetch: bool = True) -> tf.Tensor:
        """Looks up the rows of `ids`. Without `ids`, and in branches, reads the variable itself.

        Args:
            do_prefetch: Not used: rows are read and updated in place.
        """
        # TensorFlow reads variables in a branch when it makes moving averages of them.
        return self.read_variable() if in_control_flow() else super().read_value(do_prefetch)

    def read_variable(self) -> tf.Tensor:
        """Reads the variable itself, which has one row of zeros."""
        return ResourceVariable.read_value(self)

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of `value`. Optimizers, which make slots of this shape, see one row.

        Raises:
            TypeError: If the optimizer can't train tables: it would train the shadow instead.
        """
        if self._rows is None or is_updating_tables():
            return super().shape
        if is_asked_by_optimizer():
            raise refusal_of_unwrapped(self.params.name)
        return self._rows.shape

    @property
    def constraint(self) -> None:
        """None. Optimizers read this property before they apply a sparse gradient.

        Raises:
            TypeError: If the optimizer can't train tables.
        """
        if not is_updating_tables():
            raise refusal_of_unwrapped(self.params.name)
