"""The `kv_creator` of a Variable, which makes its tables."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

from tfra.dynamic_embedding._platform.keras import keras
from tfra.dynamic_embedding._tables.config import (
    CuckooHashTableConfig,
    HkvEvictStrategy,
    HkvHashTableConfig,
    checked_config,
)
from tfra.dynamic_embedding._tables.cuckoo_hash_table import CuckooHashTable
from tfra.dynamic_embedding._tables.hash_table import HashTable
from tfra.dynamic_embedding._tables.hkv_hash_table import HkvHashTable


class KVCreator(abc.ABC):
    """Makes the tables of a `Variable`. A subclass decides the class of the tables.

    Args:
        config: Settings that `create` uses.
        saver: Must be None: checkpoints of TensorFlow and files of Keras save the tables.

    Raises:
        NotImplementedError: If `saver` is not None.
    """

    config: Any = None  # The constructor of a subclass may not call the one below.

    def __init__(self, config: Any = None, saver: None = None) -> None:
        if saver is not None:
            raise NotImplementedError(
                "`saver`: expected None, since tables are saved by tf.train.Checkpoint, SavedModel "
                f"and files of Keras, received {saver!r}"
            )
        self.config = config

    def get_config(self) -> dict[str, Any]:
        """Returns the settings as plain values, which Keras saves with a layer."""
        return {"config": None if self.config is None else dataclasses.asdict(self.config)}

    @abc.abstractmethod
    def create(
        self,
        key_dtype: Any = None,
        value_dtype: Any = None,
        default_value: Any = None,
        name: str | None = None,
        checkpoint: bool | None = None,
        init_size: int | None = None,
        config: Any = None,
        device: str | None = None,
        shard_saveable_object_fn: None = None,
    ) -> HashTable:
        """Returns a new table.

        Args:
            key_dtype: the type of the key tensors.
            value_dtype: the type of the value tensors.
            default_value: the value of missing keys. Pass it on to the table unchanged.
            name: the name of the table.
            checkpoint: whether the table saves itself. A Variable saves its tables together.
            init_size: the number of keys to reserve memory for.
            config: settings that replace those of the creator.
            device: the device of the table.
            shard_saveable_object_fn: must be None. Checkpoints save tables without it.
        """


class CuckooHashTableCreator(KVCreator):
    """Makes tables of the class `CuckooHashTable`.

    Example:
    >>> de = tfra.dynamic_embedding
    >>> creator = de.CuckooHashTableCreator()
    >>> de.Variable(dim=2, kv_creator=creator).tables[0].name
    'DynamicEmbedding_Variable-1of1'
    """

    def __init__(self, config: CuckooHashTableConfig | None = None, saver: None = None) -> None:
        super().__init__(config, saver)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> CuckooHashTableCreator:
        """Returns the creator that `get_config` described."""
        settings = config["config"]
        return cls(None if settings is None else CuckooHashTableConfig(**settings))

    def create(
        self,
        key_dtype: Any = None,
        value_dtype: Any = None,
        default_value: Any = None,
        name: str | None = None,
        checkpoint: bool | None = None,
        init_size: int | None = 0,
        config: CuckooHashTableConfig | None = None,
        device: str | None = None,
        shard_saveable_object_fn: None = None,
    ) -> CuckooHashTable:
        """Returns a new table; see `KVCreator.create`."""
        return CuckooHashTable(
            key_dtype,
            value_dtype,
            default_value,
            name=name or "CuckooHashTable",
            checkpoint=bool(checkpoint),
            init_size=init_size or 0,
            config=config or self.config,
            device=device or "",
            shard_saveable_object_fn=shard_saveable_object_fn,
        )


class HkvHashTableCreator(KVCreator):
    """Makes tables of the class `HkvHashTable`.

    The capacities and the memory budget of the config hold for each table; a Variable has one table
    on each device. To save a layer with a `gen_scores_fn`, register the function in Keras: put
    `@keras.saving.register_keras_serializable()` before it.

    Example:
    >>> de = tfra.dynamic_embedding
    >>> config = de.HkvHashTableConfig(init_capacity=1024, max_capacity=1024)
    >>> variable = de.Variable(dim=2, kv_creator=de.HkvHashTableCreator(config))
    >>> type(variable.tables[0]).__name__
    'HkvHashTable'
    """

    def __init__(self, config: HkvHashTableConfig | None = None, saver: None = None) -> None:
        super().__init__(checked_config(config), saver)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> HkvHashTableCreator:
        """Returns the creator that `get_config` described."""
        settings = config["config"]
        if settings is None:
            return cls()
        settings = dict(settings, evict_strategy=HkvEvictStrategy(settings["evict_strategy"]))
        if isinstance(settings["gen_scores_fn"], dict):  # Keras saves a function as a dict.
            saved = settings["gen_scores_fn"]
            settings["gen_scores_fn"] = keras.saving.deserialize_keras_object(saved)
        return cls(HkvHashTableConfig(**settings))

    def create(
        self,
        key_dtype: Any = None,
        value_dtype: Any = None,
        default_value: Any = None,
        name: str | None = None,
        checkpoint: bool | None = None,
        init_size: int | None = None,
        config: HkvHashTableConfig | None = None,
        device: str | None = None,
        shard_saveable_object_fn: None = None,
    ) -> HkvHashTable:
        """Returns a new table; see `KVCreator.create`. The config sets the capacity."""
        return HkvHashTable(
            key_dtype,
            value_dtype,
            default_value,
            name=name or "HkvHashTable",
            checkpoint=bool(checkpoint),
            config=config or self.config,
            device=device or "",
            shard_saveable_object_fn=shard_saveable_object_fn,
        )
