"""Finds the shadow of a Variable: one for eager mode and functions, one per graph of TF1 style."""

from __future__ import annotations

import threading
import weakref
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
    # In a branch of tf.cond, which has its own graph, init_scope returns to the outer graph.
    with tf.init_scope():
        graph = tf.compat.v1.get_default_graph() if in_plain_graph() else None
    with _making:
        found = params.shadow_of_graph.get(graph)
        if found is None:
            name = f"{params.name}_shadow"
            if graph is None:
                found = ShadowVariable(params, name)
            else:
                # Programs select trainable variables by the scope in which they made the lookup.
                scope = tf.compat.v1.get_variable_scope().name
                if scope and not name.startswith(f"{scope}/"):
                    name = f"{scope}/{name}"
                # A device function may place variables elsewhere. The shadow belongs on the worker
                # that makes the lookups.
                with tf.init_scope(), tf.device(None), tf.compat.v1.name_scope(None):
                    found = GraphTrainableWrapper(params, name)
            found._params = weakref.ref(params)  # The Variable holds its shadow, not the reverse.
            params.shadow_of_graph[graph] = found
        return found


def only_one(params: Any) -> Any:
    """Returns the element of a list of length 1, and anything else unchanged."""
    return params[0] if isinstance(params, (list, tuple)) and len(params) == 1 else params
