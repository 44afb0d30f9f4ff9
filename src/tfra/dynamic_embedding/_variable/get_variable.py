"""`get_variable`: finds a Variable by its name, or makes one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from tfra.admission import Admission
from tfra.dynamic_embedding._platform.tf import in_plain_graph, tf
from tfra.dynamic_embedding._tables.creators import CuckooHashTableCreator, KVCreator
from tfra.dynamic_embedding._tables.partitions import default_partition_fn
from tfra.dynamic_embedding._variable.same_arguments import same
from tfra.dynamic_embedding._variable.variable import GraphKeys, Variable, device_list

# The Variables made in eager mode. A graph has its Variables in a collection, which it owns.
_eager_variables: dict[str, Variable] = {}


def get_variable(
    name: str,
    key_dtype: Any = tf.int64,
    value_dtype: Any = tf.float32,
    dim: int = 1,
    devices: str | Sequence[str] | None = None,
    partitioner: Callable[[tf.Tensor, int], tf.Tensor] = default_partition_fn,
    shared_name: str | None = "get_variable",
    initializer: Any = None,
    trainable: bool = True,
    checkpoint: bool = True,
    init_size: int = 0,
    kv_creator: KVCreator | None = None,
    restrict_policy: Any = None,
    bp_v2: bool = False,
    admission: Admission | None = None,
    ttl: float | None = None,
    min_norm: float | None = None,
    short_file_name: bool = False,
) -> Variable:
    """Gets a `Variable` object with this name if it exists, or creates a new one.

    The name of the current `tf.compat.v1.variable_scope` is put before `name`. In graphs of
    TensorFlow 1, the `reuse` of the scope says whether the variable may exist: if it is False,
    which it is unless you set it, a second call for a name is an error.

    Example:
    >>> first = tfra.dynamic_embedding.get_variable("films", dim=8)
    >>> first is tfra.dynamic_embedding.get_variable("films", dim=8)
    True

    Args:
        name: A unique name for the `Variable`.
        key_dtype: the type of the key tensors.
        value_dtype: the type of the value tensors.
        dim: the length of the value array for each key.
        devices: the list of devices holding the tables. One table will be created on each device.
        partitioner: a function that returns the index of the table of each key.
        shared_name: Not used.
        initializer: The value to use if a key is missing; see `Variable`.
        trainable: whether optimizers update the rows.
        checkpoint: if True, the contents are saved to and restored from checkpoints.
        init_size: the number of keys to reserve memory for, divided among the tables.
        kv_creator: makes the tables; see `KVCreator`.
        restrict_policy: a policy to restrict the number of keys; see `Variable`.
        bp_v2: whether optimizers update rows by adding to them instead of assigning them.
        admission: which keys may enter; see `Variable`.
        ttl: seconds without an update after which a row expires; see `Variable`.
        min_norm: rows with a smaller L2 norm expire; see `Variable`.
        short_file_name: Not used.

    Returns:
        A `Variable` object.

    Raises:
        ValueError: If the variable exists and was made with other arguments, or its scope in a
            graph does not reuse variables.
    """
    del short_file_name
    with _lock:
        return _get_or_create(
            name,
            key_dtype=key_dtype,
            value_dtype=value_dtype,
            dim=dim,
            devices=devices,
            partitioner=partitioner,
            shared_name=shared_name,
            initializer=initializer,
            trainable=trainable,
            checkpoint=checkpoint,
            init_size=init_size,
            kv_creator=kv_creator,
            restrict_policy=restrict_policy,
            bp_v2=bp_v2,
            admission=admission,
            ttl=ttl,
            min_norm=min_norm,
        )


_lock = threading.RLock()


def _get_or_create(name: str, **arguments: Any) -> Variable:
    if not isinstance(name, str) or not name:
        raise ValueError(f"`name` must be a string that is not empty. Received: {name!r}")
    with tf.init_scope():
        graph = tf.compat.v1.get_default_graph() if in_plain_graph() else None
    scope = tf.compat.v1.get_variable_scope()
    name = f"{scope.name}/{name}" if scope.name else name
    if graph is None:
        existing = _eager_variables.get(name)
    else:
        # The collection of an imported graph contains only names.
        collected = graph.get_collection(GraphKeys.DYNAMIC_EMBEDDING_VARIABLES)
        variables = [v for v in collected if isinstance(v, Variable)]
        existing = next((v for v in variables if v.requested_name == name), None)
    if existing is not None:
        if graph is not None and scope.reuse is False:
            raise ValueError(
                f"Variable {name} already exists, and the variable scope has reuse=False. To get "
                "the existing one, expected tf.compat.v1.variable_scope(..., reuse=True) or "
                "reuse=tf.compat.v1.AUTO_REUSE. Received: a second `get_variable` of the name."
            )
        _require_same(existing, arguments)
        return existing
    variable = Variable(name=name, **arguments)
    if graph is None:
        _eager_variables[name] = variable
    return variable


def _require_same(existing: Variable, arguments: dict[str, Any]) -> None:
    wanted = {
        **arguments,
        "key_dtype": tf.as_dtype(arguments["key_dtype"]),
        "value_dtype": tf.as_dtype(arguments["value_dtype"]),
        "devices": device_list(arguments["devices"]),
        "kv_creator": arguments["kv_creator"] or CuckooHashTableCreator(),
        "initializer": _initializer_or_zero(arguments["initializer"], existing),
        "shared_name": existing.shared_name,
        "restrict_policy": existing.restrict_policy,
    }
    for what, value in wanted.items():
        there = getattr(existing, what)
        if what == "initializer":
            there = _initializer_or_zero(there, existing)
        if not same(there, value):
            raise ValueError(
                f"A variable {existing.name!r} exists with {what}={there!r}. "
                f"Received: {what}={value!r}. Use another name for another variable, or "
                "tfra.dynamic_embedding.Variable, which makes a new one each time."
            )
    policy, wanted_policy = existing.restrict_policy, arguments["restrict_policy"]
    if (policy is None) != (wanted_policy is None) or (
        isinstance(wanted_policy, type) and not isinstance(policy, wanted_policy)
    ):
        raise ValueError(
            f"A variable {existing.name!r} exists with restrict_policy={policy!r}. "
            f"Received: restrict_policy={wanted_policy!r}"
        )


def _initializer_or_zero(initializer: Any, variable: Variable) -> Any:
    if initializer is not None:
        return initializer
    return "" if variable.value_dtype == tf.string else 0
