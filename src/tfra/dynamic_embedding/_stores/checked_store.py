"""Checks what a store of the user returns, at the one place where it enters."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from tfra._shared import arrays
from tfra.spec import TableSpec
from tfra.store import Batch, Keys, Rows, Store

_Read = TypeVar("_Read")

_UINT8, _BOOL, _INT64 = (np.dtype(dtype) for dtype in (np.uint8, np.bool_, np.int64))


class CheckedStore(Store):
    """A store of the user, the results of whose methods are checked.

    Errors name the class of the store and the method. Results of another form that mean the same
    are converted: integers 0 and 1 for bools, narrower integers for keys, any order in memory.

    Args:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store.spec)
        self._store = store
        self.lock = store.lock

    @property
    def spec(self) -> TableSpec:
        """The spec of the store."""
        return self._store.spec

    def lookup(self, keys: Keys) -> tuple[Rows, NDArray[np.bool_]]:
        """Returns the rows of keys, and which keys have one."""
        return self._of_one_spec(
            lambda spec: self._found(spec, "lookup", len(keys), self._store.lookup(keys))
        )

    def assign(self, keys: Keys, rows: Rows) -> None:
        """Inserts or overwrites rows."""
        self._store.assign(keys, rows)

    def remove(self, keys: Keys) -> int:
        """Removes keys, and returns how many were there."""
        return arrays.integer(self._store.remove(keys), f"{self._name_of('remove')}()", 0)

    def clear(self) -> None:
        """Removes all keys."""
        self._store.clear()

    def size(self) -> int:
        """Returns the number of keys."""
        return arrays.integer(self._store.size(), f"{self._name_of('size')}()", 0)

    def export(self) -> Iterator[Batch]:
        """Yields all keys and their rows."""
        yield from self.content()[1]

    def content(self) -> tuple[TableSpec, list[Batch]]:
        """Returns all keys and their rows, and the spec that these rows have."""

        def exported(spec: TableSpec) -> tuple[TableSpec, list[Batch]]:
            batches = self._store.export()
            if not isinstance(batches, Iterable):
                self._refuse("export", "an iterator of batches", batches, TypeError)
            return spec, [self._batch(spec, "export", batch) for batch in batches]

        return self._of_one_spec(exported)

    def import_rows(self, batches: Iterable[Batch]) -> None:
        """Assigns batches."""
        self._store.import_rows(batches)

    def update(
        self, keys: Keys, function: Callable[[Keys, Rows, NDArray[np.bool_]], Batch]
    ) -> None:
        """Lets a function compute rows from the present ones."""
        if type(self._store).update is Store.update:
            super().update(keys, function)
            return

        def checked(some: Any, rows: Any, exists: Any) -> Batch:
            spec = self.spec
            some = self._keys(spec, "update", some)
            return function(some, *self._found(spec, "update", len(some), (rows, exists)))

        self._store.update(keys, checked)

    def change_spec(self, spec: TableSpec, convert: Callable[[Keys, Rows], Rows]) -> None:
        """Takes another spec of the same keys."""
        if type(self._store).change_spec is Store.change_spec:
            super().change_spec(spec, convert)
            return
        old = self.spec

        def checked(keys: Any, rows: Any) -> Rows:
            return convert(*self._batch(old, "change_spec", (keys, rows)))

        self._store.change_spec(spec, checked)
        self._require_spec("change_spec", spec)

    def replace(self, spec: TableSpec, batches: Iterable[Batch]) -> None:
        """Replaces all rows, and takes their spec."""
        self._store.replace(spec, batches)
        self._require_spec("replace", spec)

    def _of_one_spec(self, read: Callable[[TableSpec], _Read]) -> _Read:
        """Returns what a function reads. Reads again if another thread changed the spec meanwhile.

        So readers need not wait for anyone. Only the rule of a spec ever changes.
        """
        while True:
            spec = self.spec
            try:
                result = read(spec)
            except Exception:
                if self.spec.rule == spec.rule:
                    raise
            else:
                if self.spec.rule == spec.rule:
                    return result

    def _found(
        self, spec: TableSpec, method: str, count: int, found: Any
    ) -> tuple[Rows, NDArray[np.bool_]]:
        rows, exists = self._pair(method, "rows and existences", found)
        rows = self._array(method, "rows", rows, _UINT8, (count, spec.row_bytes))
        if isinstance(exists, np.ndarray) and exists.dtype.kind in "iu":
            exists = exists.astype(_BOOL) if np.isin(exists, (0, 1)).all() else exists
        return rows, self._array(method, "existences", exists, _BOOL, (count,))

    def _batch(self, spec: TableSpec, method: str, batch: Any) -> Batch:
        keys, rows = self._pair(method, "keys and rows", batch)
        keys = self._keys(spec, method, keys)
        return keys, self._array(method, "rows", rows, _UINT8, (len(keys), spec.row_bytes))

    def _keys(self, spec: TableSpec, method: str, keys: Any) -> Keys:
        dtype = arrays.key_dtype(spec.key_dtype)
        if isinstance(keys, np.ndarray) and keys.dtype.kind in "iu" and dtype == _INT64:
            keys = keys.astype(_INT64, copy=False) if np.can_cast(keys.dtype, _INT64) else keys
        keys = self._array(method, "keys", keys, dtype, None)
        if dtype == arrays.STRING:
            for key in keys.tolist():
                if type(key) is not bytes:
                    self._refuse(method, "keys that are bytes objects", key, TypeError)
        return keys

    def _pair(self, method: str, parts: str, pair: Any) -> Any:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            self._refuse(method, f"a pair of {parts}", pair, TypeError)
        return pair

    def _array(
        self,
        method: str,
        what: str,
        value: Any,
        dtype: np.dtype[Any],
        shape: tuple[int, ...] | None,
    ) -> NDArray[Any]:
        """Returns a contiguous array. Raises unless it has this dtype and shape; None: a vector."""
        is_array = isinstance(value, np.ndarray) and value.dtype == dtype
        if is_array and (value.shape == shape if shape is not None else value.ndim == 1):
            return np.ascontiguousarray(value)
        name = "object (bytes)" if dtype == arrays.STRING else dtype.name
        expected = f"{what} that are {_array_of(name, '(n,)' if shape is None else shape)}"
        self._refuse(method, expected, value, ValueError if is_array else TypeError)

    def _refuse(
        self, method: str, expected: str, received: Any, error: type[Exception]
    ) -> NoReturn:
        if isinstance(received, np.ndarray):
            shown = _array_of(received.dtype.name, received.shape)
        else:
            shown = reprlib.repr(received)
        verb = "pass" if method in ("update", "change_spec") else "return"
        raise error(f"`{self._name_of(method)}` must {verb} {expected}. Received: {shown}")

    def _require_spec(self, method: str, spec: TableSpec) -> None:
        if self.spec.rule != spec.rule:
            raise ValueError(
                f"`{self._name_of(method)}` must set the spec that it is given, with the rule "
                f"{spec.rule}. Received: {self.spec.rule} afterwards"
            )

    def _name_of(self, method: str) -> str:
        return f"{type(self._store).__name__}.{method}"


def _array_of(dtype: str, shape: Any) -> str:
    return f"{'an' if dtype[0] in 'io' else 'a'} {dtype} array of shape {shape}"
