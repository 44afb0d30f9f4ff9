"""The shadow of a Variable: one for eager mode and functions, one for each graph of TF1 style."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from tfra.dynamic_embedding._platform.tf import in_plain_graph, tf
from tfra.dynamic_embedding._tf1.graph_shadow import GraphTrainableWrapper
from tfra.dynamic_embedding._training.shadow import TrainableWrapper
from tfra.dynamic_embedding._training.shadow_variable import ShadowVariable, check_params

_making = threading.RLock()


def stand_in_of(params: Any) -> TrainableWrapper:
    """Returns what stands for a Variable in lookups, which is made when first asked for.

    In a graph of TF1 style, it is one of the graph's trainable variables. What is one already is
    returned as it is.
    """
    params = only_one(params)
    if isinstance(params, TrainableWrapper):
        return params
    check_params(params)
    with tf.init_scope():  # A branch of tf.cond has a graph of its own, within that of TF1 style.
        owner = tf.compat.v1.get_default_graph() if in_plain_graph() else None
    with _making:
        found = params.stand_ins.get(owner)
        if found is None:
            name = f"{params.name}_shadow"
            if owner is None:
                found = ShadowVariable(params, name)
            else:
                # On the worker whose lookups it stands for, whatever places variables here.
                with tf.init_scope(), tf.device(None):
                    found = GraphTrainableWrapper(params, name)
            found._params = weakref.ref(params)  # It is the Variable that holds on to this one.
            params.stand_ins[owner] = found
        return found


def only_one(params: Any) -> Any:
    """Returns what a list of one holds, and anything else as it is."""
    return params[0] if isinstance(params, (list, tuple)) and len(params) == 1 else params
