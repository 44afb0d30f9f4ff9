"""Reads and replaces the rows of several stores together: those of a Variable's partitions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfra import _native
from tfra.dynamic_embedding._stores.store_rows import StoreContent, StoreRows
from tfra.store import Keys, TableStore

Array = NDArray[Any]


def read_stores(stores: Sequence[StoreRows]) -> tuple[Keys, Array, Array, str]:
    """Returns what is saved of stores: keys, values, slots side by side, and the spec as JSON.

    All slots are those of one rule, which the spec has. Stores have different rules after the first
    step of an optimizer that failed in one of them: then those it did not reach are read as if it
    had.
    """
    contents = [store.content() for store in stores]
    # `max` returns the first of equal ones.
    latest = max(contents, key=lambda each: (not each.is_stale, bool(each.spec.slots)))
    keys, values, slots = zip(*(each.columns(latest) for each in contents), strict=True)
    # As the engine saves it: without what only matters to this process.
    spec = dataclasses.replace(latest.spec, capacity=0, tier_directory=None)
    text = _native.parse_spec(spec.to_json())
    return np.concatenate(keys), np.concatenate(values), np.concatenate(slots), text


def replace_stores(stores: Sequence[StoreRows], contents: Sequence[TableStore]) -> None:
    """Replaces the rows of all stores, and unbinds their optimizers.

    If one store fails, the rows of those before it are put back.

    Args:
        stores: The stores.
        contents: The new rows of each store, and their rule.

    Raises:
        RuntimeError: If rows could not be put back; or what the store raised.
    """
    replaced: list[tuple[StoreRows, StoreContent | None]] = []
    try:
        for store, content in zip(stores, contents, strict=True):
            # Only a store that another one may follow is ever put back.
            old = store.content() if len(replaced) < len(stores) - 1 else None
            store.replace(content.spec.rule, content.export())
            replaced.append((store, old))
    except BaseException as error:
        _put_back(replaced, error)
        raise
    for store in stores:
        store.unbind()


def _put_back(
    replaced: Sequence[tuple[StoreRows, StoreContent | None]], error: BaseException
) -> None:
    second = None
    for store, old in replaced:
        try:
            if old is not None:
                store.replace(old.spec.rule, old.batches())
        except Exception as failed:
            second = failed
    if second is not None:
        raise RuntimeError(
            f"A restore failed ({error!r}), and putting the rows of another partition back failed "
            f"too ({second!r}). Some partitions have their old rows, and others those of the "
            "checkpoint: restore again."
        ) from error
