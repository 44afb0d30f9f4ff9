"""`StoreCreator`: gives a Variable tables whose rows are in a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfra.dynamic_embedding._platform.keras import keras
from tfra.dynamic_embedding._stores.store_table import StoreTable
from tfra.dynamic_embedding._tables.config import refuse_saveables
from tfra.dynamic_embedding._tables.creators import KVCreator
from tfra.spec import TableSpec
from tfra.store import Store


class StoreCreator(KVCreator):
    """Makes tables whose rows are in a `tfra.Store`: a backend written in Python.

    Lookups, training by any optimizer, exports, checkpoints and files of Keras use the methods of
    the store. Each training step reads the rows of its batch, with their optimizer slots, and
    writes them back. Results and saved files are the same as with other tables, so a Variable with
    a store can load what one without saved, and the reverse. A SavedModel can't contain such
    tables. Arguments that need more than keys, values and slots (`restrict_policy`, `ttl`,
    `min_norm`, `admission`) raise an error.

    To save a layer with a `StoreCreator`, register `make` in Keras: put
    `@keras.saving.register_keras_serializable()` before it.

    Example:
    >>> de = tfra.dynamic_embedding
    >>> def make(spec, name):
    ...     return tfra.TableStore(tfra.Table.from_spec(spec))
    >>> variable = de.Variable(dim=2, kv_creator=de.StoreCreator(make))
    >>> variable.upsert([7], [[1.0, 2.0]])
    >>> variable.tables[0].store.size()
    1

    Args:
        make: Called for each table with a `tfra.TableSpec` and the name of the table; returns a
            `tfra.Store` of that spec. The rule may differ, if the store already has rows, and so
            may the capacity. Each table needs a store of its own.

    Raises:
        TypeError: If `make` can't be called.
    """

    def __init__(self, make: Callable[[TableSpec, str], Store]) -> None:
        super().__init__()
        if not callable(make):
            raise TypeError(f"`make`: expected a function that returns a store. Received: {make!r}")
        self._make = make

    def get_config(self) -> dict[str, Any]:
        """Returns the name by which Keras knows `make`."""
        return {"make": keras.saving.get_registered_name(self._make)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> StoreCreator:
        """Returns the creator that `get_config` described."""
        make = keras.saving.get_registered_object(config["make"])
        if make is None:
            raise ValueError(
                f"`make`: expected a function or class that Keras knows, received "
                f"{config['make']!r}. Put @keras.saving.register_keras_serializable() before it."
            )
        return cls(make)

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
    ) -> StoreTable:
        """Returns a new table; see `KVCreator.create`."""
        refuse_saveables(shard_saveable_object_fn)
        return StoreTable(
            self._make,
            key_dtype,
            value_dtype,
            default_value,
            name or "StoreTable",
            bool(checkpoint),
            device or "",
        )
