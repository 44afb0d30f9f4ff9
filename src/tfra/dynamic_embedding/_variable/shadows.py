"""Finds the shadow of a Variable: one for eager mode and functions, one per graph of TF1 style."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from tfra.dynamic_embedding._platform.tf import in_plain_graph, tf
from tfra.dynamic_embedding._tf1.graph_shadow import GraphTrainableWrapper
from tfra.dynamic_embedding._training.shadow import TrainableWrapper
from tfra.dynamic_embedding._training.shadow_variable import ShadowVariable, check_params

_making = threading.RLock()


def shadow_of(params: Any) -> TrainableWrapper:
    """Returns the shadow of a Variable. The first call makes it.

    In a graph of TF1 style, the shadow is one of the graph's trainable variables. If `params` is a
    shadow already, it is returned unchanged.
    """
    params = only_one(params)
    if isinstance(params, TrainableWrapper):
        return params
    check_params(params)
    name = f"{params.name}_shadow"
    graph = _plain_graph()
    if graph is None:
        return weight_of(params, name)

    # Programs select trainable variables by the scope in which they made the lookup.
    scope = tf.compat.v1.get_variable_scope().name
    if scope and not name.startswith(f"{scope}/"):
        name = f"{scope}/{name}"

    def make() -> TrainableWrapper:
        # A device function may place variables elsewhere. The shadow belongs on the worker that
        # makes the lookups.
        with tf.init_scope(), tf.device(None), tf.compat.v1.name_scope(None):
            return GraphTrainableWrapper(params, name)

    return _find_or_make(params, graph, make)


def weight_of(params: Any, name: str, distribute_strategy: Any = None) -> ShadowVariable:
    """Returns the shadow of a Variable that layers of Keras have as a weight.

    Outside of graphs of TF1 style it is the one that `shadow_of` returns.

    Args:
        params: The Variable.
        name: The name of the shadow, if this call makes it.
        distribute_strategy: The strategy in whose scope it is made.
    """
    graph = _plain_graph()
    key = None if graph is None else (graph, "weight")

    def make() -> ShadowVariable:
        return ShadowVariable(params, name, distribute_strategy=distribute_strategy)

    found: ShadowVariable = _find_or_make(params, key, make)
    return found


def _plain_graph() -> Any:
    # In a branch of tf.cond, which has its own graph, init_scope returns to the outer graph.
    with tf.init_scope():
        return tf.compat.v1.get_default_graph() if in_plain_graph() else None


def _find_or_make(params: Any, key: Any, make: Callable[[], TrainableWrapper]) -> Any:
    with _making:
        found = params.shadow_of_graph.get(key)
        if found is None:
            found = make()
            found._params = weakref.ref(params)  # The Variable holds its shadow, not the reverse.
            params.shadow_of_graph[key] = found
        return found


def only_one(params: Any) -> Any:
    """Returns the element of a list of length 1, and anything else unchanged."""
    return params[0] if isinstance(params, (list, tuple)) and len(params) == 1 else params
