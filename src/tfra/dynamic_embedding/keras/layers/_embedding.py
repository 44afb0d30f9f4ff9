"""The layer `Embedding`, whose weights are a `Variable`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfra._shared import limits
from tfra.dynamic_embedding._lookup.pooling import Bags, Combiner, combiner_function
from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.keras import (
    compiled_optimizer,
    explain_arrays_of_strings,
    keras,
    require_backend,
)
from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._saving.content import content_of_rows, last_of_equal_keys
from tfra.dynamic_embedding._tables.partitions import default_partition_fn
from tfra.dynamic_embedding._training.adoption import adopt
from tfra.dynamic_embedding._training.shadow import check_max_norm
from tfra.dynamic_embedding._training.shadow_variable import ShadowVariable
from tfra.dynamic_embedding._variable.shadows import weight_of
from tfra.dynamic_embedding._variable.variable import Variable
from tfra.dynamic_embedding.keras.layers import _config
from tfra.dynamic_embedding.keras.layers import _shared_tables as shared_tables
from tfra.dynamic_embedding.keras.layers._ids import (
    MaskOfIds,
    check_input_dtype,
    ids_of,
    is_padding,
)

DEFAULT_NAME = "DynamicEmbeddingLayer"

# Keyword arguments with their defaults: those of the Variable, and others.
_VARIABLE_ARGUMENTS = {
    "bp_v2": False,
    "restrict_policy": None,
    "init_capacity": 0,
    "partitioner": default_partition_fn,
    "kv_creator": None,
    "checkpoint": True,
    "admission": None,
    "ttl": None,
    "min_norm": None,
}
_KEYWORD_ARGUMENTS = {
    **_VARIABLE_ARGUMENTS,
    "max_norm": None,
    "distribute_strategy": None,
    "keep_distribution": False,
    "short_file_name": False,
    "mask_zero": False,
    "embeddings_regularizer": None,
}

# Arguments of keras.layers.Embedding that these layers do not have, and what to write instead.
_INSTEAD = {
    "input_dim": "a table needs no number of ids. Write {layer}({output_dim})",
    "output_dim": "the length of the rows is the first argument. Write {layer}({output_dim})",
    "embeddings_initializer": "write initializer={value!r}",
    "embeddings_constraint": "write max_norm={value!r}, a number, to clip rows that are looked up",
    "input_length": "the input has it: write keras.Input(({value},), dtype='int64')",
    "weights": "write layer.params.upsert(ids, rows), once the layer exists",
}


@keras.saving.register_keras_serializable(package="tfra")
class Embedding(keras.layers.Layer):  # type: ignore[misc]
    """An embedding layer without a fixed vocabulary.

    Acts like `keras.layers.Embedding`, except that every id has a row of its own: the layer needs
    no vocabulary size, and no two ids share a row. A row is stored when a training step first
    updates it; until then it has its initial value. Evaluation and prediction store nothing.

    Ids may have any shape, and the result has one more dimension. The rows of ragged and sparse ids
    are combined along the last dimension of the ids.

    Example:
    >>> embedding = tfra.dynamic_embedding.keras.layers.Embedding(8)
    >>> ids = tf.constant([[15, 2], [4, 92], [22, 4]], dtype=tf.int64)
    >>> embedding(ids).shape.as_list()
    [3, 2, 8]

    Layers share a table with each other and with lookup functions if they are given the same
    `Variable` as `params`. All of them train it, with one set of slots; freezing one of the layers
    freezes the table for all. What describes the table (types, `initializer`, `devices`, `ttl` and
    similar arguments) is given to the `Variable`. Files contain the table once, and
    `keras.models.load_model` makes one table again.

    Example:
    >>> films = tfra.dynamic_embedding.Variable(dim=8, name="films")
    >>> seen = tfra.dynamic_embedding.keras.layers.SquashedEmbedding(8, params=films)
    >>> candidate = tfra.dynamic_embedding.keras.layers.Embedding(8, params=films)
    >>> seen.params is candidate.params
    True

    The config of such a layer does not tell who else shares its table. So `from_config` and
    `keras.models.clone_model` raise an error, unless you say which `Variable` the new layers share:

    >>> copies = tfra.dynamic_embedding.Variable(dim=8, name="copies")
    >>> with keras.saving.custom_object_scope({"films": copies}):
    ...     copy = type(seen).from_config(seen.get_config())
    >>> copy.params is copies
    True

    Args:
        embedding_size: An object convertible to int. Length of embedding vector to every feature
            id.
        key_dtype: Dtype of the embedding keys to weights. Default is int64.
        value_dtype: Dtype of the embedding weight values. Default is float32.
        combiner: A string or a function to combine rows: "sqrtn", or what comes after
            `tf.math.reduce_`: "sum", "mean", "min", "max", "prod", "std"; or a function of a tensor
            and `axis`.
        initializer: Initializer to the embedding values. Default is RandomNormal. See `Variable`.
        devices: List of devices to place the embedding layer parameter.
        name: Name of the embedding layer.
        with_unique: Bool. Accepted but not needed: equal ids cost almost nothing.
        **kwargs: The arguments of `keras.layers.Layer`, and
            trainable: Bool. Whether the layer is trainable. Default is True.
            bp_v2: Bool. Whether rows are updated by adding to them. Default is False.
            restrict_policy: A class that restricts the number of rows; see `Variable`.
            init_capacity: Integer. The number of ids to reserve memory for.
            partitioner: A function to route the keys to specific devices.
            kv_creator: A KVCreator object to create the tables.
            max_norm: If not None, longer rows are clipped to this L2 norm.
            distribute_strategy: The strategy in whose scope the weights of the layer are.
            keep_distribution: Bool. Whether the config of the layer contains its devices.
            checkpoint: Bool. Whether checkpoints of TensorFlow save the rows. Files of Keras always
                do.
            admission: The rule for which ids may enter, of `tfra.admission`; see `Variable`.
            ttl: Seconds after which a row expires; see `Variable`.
            min_norm: Rows with a smaller L2 norm expire; see `Variable`.
            params: A `Variable` for the layer to use instead of making one.
            mask_zero: Bool. Whether the id 0, or an empty string, is padding: it is masked, as in
                `keras.layers.Embedding`, and left out where rows are combined.
            embeddings_regularizer: A regularizer of Keras, or its name, for the rows of each batch.
                Each of them counts once.

    Raises:
        TypeError: If a type is not supported, or ids are of another type.
        ValueError: If an argument is unknown or out of range.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Refuses arguments of `keras.layers.Embedding` before one of its own is found missing."""
        if cls.__init__.__module__.startswith("tfra."):
            _check_names(cls, kwargs)
        return super().__new__(cls, *args, **kwargs)

    def __init__(
        self,
        embedding_size: int,
        key_dtype: Any = tf.int64,
        value_dtype: Any = tf.float32,
        combiner: Combiner = "sum",
        initializer: Any = None,
        devices: Any = None,
        name: str = DEFAULT_NAME,
        with_unique: bool = True,
        **kwargs: Any,
    ) -> None:
        require_backend()
        self_arguments = {n: kwargs.pop(n, d) for n, d in _KEYWORD_ARGUMENTS.items()}
        params = kwargs.pop("params", None)
        embedding_size = arguments.convertible_integer(
            embedding_size, "embedding_size", 1, limits.MAX_DIM
        )
        if isinstance(key_dtype, (int, np.integer)):
            layer = type(self).__name__
            raise TypeError(
                f"`key_dtype`: expected the type of the ids, received {key_dtype}. Does "
                f"{layer}({embedding_size}, {key_dtype}) mean {embedding_size} ids, as in Keras? A "
                f"table needs no number of ids: write {layer}({key_dtype})."
            )
        key_dtype = arguments.key_dtype(key_dtype)
        value_dtype = arguments.value_dtype(value_dtype)
        regularizer = keras.regularizers.get(self_arguments["embeddings_regularizer"])
        self_arguments["embeddings_regularizer"] = regularizer
        if params is not None:
            of_table = {"initializer": initializer, "devices": devices}
            of_table |= {n: self_arguments[n] for n in _VARIABLE_ARGUMENTS}
            _check_params(params, embedding_size, key_dtype, value_dtype, of_table)
            key_dtype, value_dtype = params.key_dtype, params.value_dtype
            initializer, devices = params.initializer, params.devices
        if not value_dtype.is_floating:
            raise TypeError(f"`value_dtype`: expected a floating type, received {value_dtype.name}")
        if value_dtype != tf.float32:
            kwargs.setdefault("dtype", value_dtype.name)
        _check_names(type(self), kwargs)
        super().__init__(name=_unique(name), **kwargs)
        self.embedding_size = embedding_size
        init_capacity = self_arguments["init_capacity"]
        arguments.integer(init_capacity, "init_capacity", 0, limits.MAX_KEYS)
        self.key_dtype = key_dtype
        if key_dtype == tf.string:
            explain_arrays_of_strings()
        self.value_dtype = value_dtype
        if combiner == "sqrt_n":  # The spelling of tf.sparse.segment_sqrt_n.
            combiner = "sqrtn"
        if combiner != "sqrtn":
            combiner_function(combiner)
        self.combiner = combiner
        self.initializer = initializer
        if initializer is None and params is None:
            self.initializer = keras.initializers.RandomNormal()
        elif isinstance(initializer, str):
            self.initializer = keras.initializers.get(initializer)
        self.devices = devices
        self.with_unique = with_unique
        self._arguments = self_arguments
        self.max_norm = self_arguments["max_norm"]
        check_max_norm(self.max_norm)
        self.mask_zero = bool(self_arguments["mask_zero"])
        self.embeddings_regularizer = regularizer
        self.supports_masking = True
        self.supports_jit = False  # XLA has no tables.
        self._allow_non_tensor_positional_args = True
        self._shadow: ShadowVariable | None = None
        self._params: Variable | None = params
        self._makes_table = params is None
        if params is not None:
            shared_tables.note_shared(params)
        self._failed: Exception | None = None

    @property
    def params(self) -> Variable:
        """The `Variable` that holds the rows."""
        self._make_variable()
        assert self._params is not None
        return self._params

    @property
    def shadow(self) -> ShadowVariable:
        """The shadow of the `Variable`, which is a trainable weight of all layers that share it."""
        self._make_variable()
        assert self._shadow is not None
        return self._shadow

    def build(self, input_shape: Any = None) -> None:
        """Makes the `Variable`. The shape of the ids does not matter."""
        self._make_variable()
        self.built = True

    def _make_variable(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self._shadow is not None:
            return
        params = self._params
        if params is None:
            with tf.init_scope():
                params = self._new_variable()
            shared_tables.set_saver(params, self)
        name = "shadow" if self._makes_table else f"{params.name}_shadow"
        shadow = weight_of(params, name, self._arguments["distribute_strategy"])
        trainable = self.trainable and shadow.trainable
        try:
            # A checkpoint that was restored before the layer was built is restored here.
            self._params = params
            # Keras tracks the shadow as a trainable weight only if it is trainable now. A frozen
            # layer may be trained later, so the shadow is frozen after the assignment.
            shadow.trainable = True
            self._shadow = shadow
            shadow.trainable = trainable
        except Exception as error:
            # Keras hides the error of its first attempt to build a model. The next attempt must not
            # go on without the rows.
            self._failed = error
            raise

    def _new_variable(self) -> Variable:
        given = self._arguments
        return Variable(
            key_dtype=self.key_dtype,
            value_dtype=self.value_dtype,
            dim=self.embedding_size,
            devices=self.devices,
            partitioner=given["partitioner"],
            name=f"{self.name}-parameter",
            initializer=self.initializer,
            trainable=self.trainable,
            checkpoint=given["checkpoint"],
            init_size=given["init_capacity"],
            kv_creator=given["kv_creator"],
            restrict_policy=given["restrict_policy"],
            bp_v2=given["bp_v2"],
            admission=given["admission"],
            ttl=given["ttl"],
            min_norm=given["min_norm"],
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer. Keras could not build it for ids of unknown rank, which it accepts."""
        if not self.built:
            shapes = [getattr(x, "shape", None) for x in tf.nest.flatten((args, kwargs))]
            if any(isinstance(shape, tf.TensorShape) and shape.rank is None for shape in shapes):
                self.build(None)
        return super().__call__(*args, **kwargs)

    def call(self, ids: Any, training: bool | None = None) -> tf.Tensor:
        """Looks up the rows of ids.

        Args:
            ids: A tensor of any shape, a `tf.RaggedTensor` or a `tf.SparseTensor`.
            training: Whether the rows are going to be trained.

        Returns:
            A tensor of shape `ids.shape + [embedding_size]`; for ragged and sparse ids
            `ids.shape[:-1] + [embedding_size]`.
        """
        ids = self._prepare(ids, training)
        if isinstance(ids, tf.RaggedTensor):
            return self._combine(Bags.of_ragged(ids), training)
        if isinstance(ids, tf.SparseTensor):
            return self._combine(Bags.of_sparse(ids), training)
        return self._cast(self._lookup(ids, training))

    def _prepare(self, ids: Any, training: bool | None) -> Any:
        if training is False:
            self.shadow.warn_if_untrained()
        elif self.trainable:
            optimizer = compiled_optimizer()
            if optimizer is not None:
                adopt(optimizer)
        return ids_of(ids, self.key_dtype)

    def _lookup(self, ids: tf.Tensor, training: bool | None) -> tf.Tensor:
        self._add_penalty(ids, training)
        return self.shadow.lookup(ids, training, self.max_norm)

    def _combine(self, bags: Bags, training: bool | None) -> tf.Tensor:
        if self.mask_zero:
            bags = bags.without(is_padding(bags.keys))
        self._add_penalty(bags.keys, training)
        return self._cast(bags.lookup(self.shadow, self.combiner, training, self.max_norm))

    def _add_penalty(self, ids: tf.Tensor, training: bool | None) -> None:
        """Adds what the regularizer says of the rows of ids, each row once, to the losses."""
        if self.embeddings_regularizer is None or not self.trainable:
            return
        distinct, _ = tf.unique(tf.reshape(ids, [-1]))
        rows = self.shadow.lookup(distinct, training)
        rows = tf.cast(rows, arguments.compute_dtype(self.value_dtype))
        self.add_loss(self.embeddings_regularizer(rows))

    def _cast(self, rows: tf.Tensor) -> tf.Tensor:
        return tf.cast(rows, self.compute_dtype)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Returns the shape of the rows of dense ids of this shape."""
        return (*input_shape, self.embedding_size)

    def compute_output_spec(self, ids: Any, training: bool | None = None) -> Any:
        """Returns the shape and dtype of the result of a call."""
        check_input_dtype(ids.dtype, self.key_dtype)
        if not type(self).call.__module__.startswith("tfra."):
            # A subclass of the user has its own call(), which may return another shape.
            return keras.Operation.compute_output_spec(self, ids)
        shape = tuple(ids.shape)
        if getattr(ids, "ragged", False) or getattr(ids, "sparse", False):
            shape = (*shape[:-1], self.embedding_size)
        else:
            shape = tuple(self.compute_output_shape(shape))
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Returns the mask of the ids, or None if the rows of several ids are combined."""
        is_bags = isinstance(inputs, (tf.RaggedTensor, tf.SparseTensor))
        if is_bags or getattr(inputs, "sparse", False) or getattr(inputs, "ragged", False):
            return None
        if not self.mask_zero:
            return mask
        if not isinstance(inputs, keras.KerasTensor):
            inputs = ids_of(inputs, self.key_dtype)
        own = MaskOfIds()(inputs)
        has_mask = all(part is not None for part in keras.tree.flatten(mask))
        return keras.ops.logical_and(own, mask) if has_mask else own

    # --- The methods of Keras for weights.

    def count_params(self) -> int:
        """Returns the number of elements in all rows that are stored now.

        Raises:
            ValueError: If the layer isn't built yet.
        """
        if not self.built:
            raise ValueError(f"Layer {self.name!r} has no weights yet: it was not built.")
        return int(self.params.size()) * self.embedding_size

    def get_weights(self) -> list[Any]:
        """Returns all keys and their rows, as arrays."""
        return [tensor.numpy() for tensor in self.params.export()]

    def set_weights(self, weights: list[Any]) -> None:
        """Replaces all keys and their rows, or none if it fails. Slots and waiting keys go.

        Args:
            weights: Two arrays, as `get_weights` returns them. The last one of equal keys wins.

        Raises:
            ValueError: If `weights` are not keys and one row for each key.
        """
        if len(weights) != 2 or len(weights[0]) != len(weights[1]):
            raise ValueError(
                f"Expected two arrays of one length, keys and rows. Received {len(weights)} arrays "
                f"of shapes {[getattr(w, 'shape', None) for w in weights]}"
            )
        keys = arguments.keys_tensor(weights[0], self.key_dtype)
        rows = arguments.values_tensor(weights[1], self.value_dtype)
        arguments.check_rows(keys, rows, [self.embedding_size], "weights")
        self.params.restore(content_of_rows(self.params.tables[0], *last_of_equal_keys(keys, rows)))

    @property
    def _shared_table(self) -> Any:
        """What saves the rows in files of Keras, which look for it here; None for the layer itself.

        The name is part of the format of these files.
        """
        saver = None if self._params is None else shared_tables.saver_of(self._params)
        return None if saver is self else saver

    def save_own_variables(self, store: Any) -> None:
        """Writes the content of the Variable to a file of Keras, if no other object saves it."""
        self.shadow.warn_if_untrained()
        if self._shared_table is None:
            shared_tables.save(self.params, store)

    def load_own_variables(self, store: Any) -> None:
        """Replaces the content of the Variable by what `save_own_variables` wrote.

        Raises:
            ValueError: If the file is damaged, or from another kind of layer. The layer is then
                unchanged.
        """
        if self._shared_table is None:
            shared_tables.load(self.params, store, self.name)
        elif shared_tables.has_table(store):
            raise ValueError(
                f"Layer {self.name!r} can't be loaded: it shares the table {self.params.name!r}. "
                "Received a file in which it has a table of its own."
            )

    def get_config(self) -> dict[str, Any]:
        """Returns the config of the layer."""
        config = {
            **super().get_config(),
            "embedding_size": self.embedding_size,
            "key_dtype": self.key_dtype.name,
            "value_dtype": self.value_dtype.name,
            "combiner": _config.serialize(self.combiner),
            "with_unique": self.with_unique,
        }
        for name, value in self._arguments.items():
            if value is not _KEYWORD_ARGUMENTS[name] and name != "distribute_strategy":
                config[name] = _config.serialize(value)
        keep_devices = self._arguments["keep_distribution"]
        if self._makes_table:
            config["initializer"] = _config.serialize(self.initializer)
            if keep_devices:
                config["devices"] = self.devices
        if self._params is not None and shared_tables.is_shared(self._params):
            config["params"] = shared_tables.to_config(self._params, keep_devices)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Makes a layer from its config.

        Raises:
            ValueError: If the layer shares a table, and nothing says with which others.
        """
        config = dict(config)
        shared = config.pop("params", None)
        params = None if shared is None else shared_tables.from_config(shared)
        config = {name: _config.deserialize(value, name) for name, value in config.items()}
        if "initializer" in config:  # The layer made its table.
            layer = cls(**config)
            if params is not None:
                _check_params(params, layer.embedding_size, layer.key_dtype, layer.value_dtype, {})
                layer._params = params
                shared_tables.set_saver(params, layer)
        elif params is not None:
            layer = cls(**config, params=params)
        else:
            raise ValueError(
                f"Layer {config['name']!r} shares the table {shared['name']!r} with others "
                "(`params`), but its config does not tell with which. Say it: with "
                f"keras.saving.custom_object_scope({{{shared['name']!r}: a Variable, old or "
                "new}). keras.models.load_model finds out itself, from a .keras file."
            )
        name = config.get("name")
        if name is not None:
            layer.name = name  # Not made unique again, even if it is the default name.
        return layer


BasicEmbedding = Embedding


def _check_names(layer: type, kwargs: dict[str, Any]) -> None:
    """Raises ValueError if an argument is one of `keras.layers.Embedding` that layers lack."""
    for name, instead in _INSTEAD.items():
        if name in kwargs:
            size = kwargs.get("output_dim", kwargs.get("embedding_size", "embedding_size"))
            written = instead.format(layer=layer.__name__, output_dim=size, value=kwargs[name])
            raise ValueError(f"`{name}`: {written}. Received: {name}={kwargs[name]!r}")


def _unique(name: str) -> str:
    """Returns a name; a default name that is in use gets a number."""
    if name not in (DEFAULT_NAME, "SlotDynamicEmbeddingLayer"):
        return name
    number = keras.backend.get_uid(name)
    return name if number == 1 else f"{name}_{number - 1}"


def _check_params(
    params: Any,
    embedding_size: int,
    key_dtype: tf.DType,
    value_dtype: tf.DType,
    of_table: dict[str, Any],
) -> None:
    """Raises unless `params` is a Variable that no other argument contradicts.

    Args:
        params: What the layer was given.
        embedding_size: Its other arguments, which must be those of the Variable. Types may also be
            the defaults.
        key_dtype: See `embedding_size`.
        value_dtype: See `embedding_size`.
        of_table: The arguments that describe a table, which must have their defaults.
    """
    if not isinstance(params, Variable):
        raise TypeError(
            f"`params`: expected a tfra.dynamic_embedding.Variable, received {params!r}"
        )
    for name, received, expected in (
        ("embedding_size", embedding_size, (params.dim,)),
        ("key_dtype", key_dtype, (params.key_dtype, tf.int64)),
        ("value_dtype", value_dtype, (params.value_dtype, tf.float32)),
    ):
        if received not in expected:
            raise ValueError(
                f"`{name}`: expected {expected[0]!r}, as the Variable {params.name!r} has that is "
                f"given as `params`. Received: {received!r}"
            )
    for name, value in of_table.items():
        if value is not _VARIABLE_ARGUMENTS.get(name):
            raise ValueError(
                f"`{name}` describes the table. Received: {name}={value!r} and `params`, a "
                f"Variable that exists. Give `{name}` to the Variable instead."
            )
