"""Tables that several layers share: their rows are saved once, and loading makes one table again.

Files of Keras: Keras saves each object that it finds in an attribute of a layer, and each object
once. So all layers that share a Variable have the same object in an attribute, its *saver*: the
layer that made the Variable, or a `_Saver` if the user made it.

Configs: the config of each of these layers describes the Variable, under a number that is the same
in all of them. `keras.models.load_model` remembers what it made for a number. All other ways from a
config to a layer forget it after each layer, so they take only a Variable that the user gives.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from tfra.dynamic_embedding._platform.keras import keras, loaded_objects
from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._saving import content_arrays
from tfra.dynamic_embedding._tables.partitions import default_partition_fn
from tfra.dynamic_embedding._variable.variable import Variable
from tfra.dynamic_embedding.keras.layers import _config

_savers: weakref.WeakKeyDictionary[Variable, Callable[[], Any]] = weakref.WeakKeyDictionary()
_shared: weakref.WeakSet[Variable] = weakref.WeakSet()


def save(params: Variable, store: Any) -> None:
    """Writes the content of a Variable to a file of Keras."""
    for name, array in content_arrays.to_arrays(params.content()).items():
        store[name] = array


def load(params: Variable, store: Any, layer: str) -> None:
    """Replaces the content of a Variable by what `save` wrote.

    Raises:
        ValueError: If the file is damaged, or of a Variable of other types. This one is then
            unchanged.
    """
    dtypes = params.key_dtype, params.value_dtype
    try:
        content = content_arrays.to_content(store, *dtypes, params.dim)
        content_arrays.check(content, layer, params.dim)
        params.restore(content)
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        message = getattr(error, "message", error)
        raise ValueError(f"Layer {layer!r} can't be loaded: {message}") from error


def has_table(store: Any) -> bool:
    """Whether `save` wrote to this place of a file."""
    return bool(content_arrays.names_in(store) & {"keys", "keys_lengths"})


class _Saver(keras.layers.Layer):  # type: ignore[misc]
    """Saves a Variable that no layer made. Keras finds it in the layers, and calls its methods."""

    def __init__(self, params: Variable) -> None:
        super().__init__(name="shared_table")
        self._params = weakref.ref(params)  # The layers hold the Variable, which holds this.

    def save_own_variables(self, store: Any) -> None:
        """Called by Keras."""
        save(self._found(), store)

    def load_own_variables(self, store: Any) -> None:
        """Called by Keras."""
        params = self._found()
        load(params, store, params.name)

    def _found(self) -> Variable:
        params = self._params()
        assert params is not None
        return params


def set_saver(params: Variable, layer: Any) -> None:
    """Lets the layer that made a Variable save it, unless another object does."""
    if _savers.get(params, lambda: None)() is None:
        _savers[params] = weakref.ref(layer)


def saver_of(params: Variable) -> Any:
    """Returns what saves a Variable for all layers that share it."""
    saver = _savers.get(params, lambda: None)()
    if saver is None:
        saver = _Saver(params)
        _savers[params] = lambda: saver
    return saver


def note_shared(params: Variable) -> None:
    """Notes that a layer was given this Variable."""
    _shared.add(params)


def is_shared(params: Variable) -> bool:
    """Whether a layer was given this Variable."""
    return params in _shared


def to_config(params: Variable, keep_devices: bool) -> dict[str, Any]:
    """Returns the description of a shared Variable for the configs of its layers."""
    policy, partitioner = params.restrict_policy, params.partitioner
    described = {
        "name": params.seed_name,
        "key_dtype": params.key_dtype.name,
        "value_dtype": params.value_dtype.name,
        "dim": params.dim,
        "initializer": params.initializer,
        "partitioner": None if partitioner is default_partition_fn else partitioner,
        "trainable": params.trainable,
        "checkpoint": params.checkpoint,
        "init_size": params.init_size,
        "kv_creator": params.kv_creator,
        "restrict_policy": None if policy is None else type(policy),
        "bp_v2": params.bp_v2,
        "admission": params.admission,
        "ttl": params.ttl,
        "min_norm": params.min_norm,
        "devices": params.devices if keep_devices else None,
    }
    config = {n: _config.serialize(value) for n, value in described.items() if value is not None}
    return {**config, "shared": id(params)}


def from_config(config: dict[str, Any] | Variable) -> Variable | None:
    """Returns the Variable that `to_config` described; None if it is not known who shares it."""
    if isinstance(config, Variable):
        return config
    given = keras.saving.get_registered_object(config["name"])
    if isinstance(given, Variable):
        return given
    loaded = loaded_objects()
    if loaded is None:
        return None
    number = "tfra", config["shared"]
    if number not in loaded:
        loaded[number] = _make(config)
    return loaded[number]


def _make(config: dict[str, Any]) -> Variable:
    options = {n: _config.deserialize(value, n) for n, value in config.items() if n != "shared"}
    if isinstance(options.get("initializer"), str):  # The name of a class of initializers.
        options["initializer"] = keras.initializers.get(options["initializer"])
    return Variable(**options)
