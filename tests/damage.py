"""Contents of tables with one thing wrong, and what loading each of them must give.

A content is a set of columns: arrays by name, strings as objects. Files hold columns as arrays of
numbers, with a string column as its bytes and lengths. `damaged` changes one array of a content at
a time, inside a container that stays intact. `state_of_columns` says, on its own, what a table must
hold after it has loaded them: None if loading must fail.

What can't be noticed without checksums, and is therefore loaded as the arrays say: other bits in
values, slots, metadata, scores, counts and filters, a key that became another key that is not there
yet, and rows or keys of one column in another order. A key never loses its row, and never gets the
row of another place of the arrays.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfra import _native
from tfra._shared.json_values import bytes_value, number_value, of_bytes_value

Columns = dict[str, Any]
State = dict[str, Any]

_SLOTS = {"none": 0, "sgd": 0, "sgd momentum": 1, "adam": 2, "nadam": 2, "adamax": 2, "lion": 1}
_SLOTS |= {"adam amsgrad": 3, "adamw": 2, "adagrad": 1, "rmsprop": 1, "adadelta": 2, "ftrl": 2}
_ACCUMULATORS = ("adagrad", "rowwise_adagrad", "ftrl")
_CUSTOM = re.compile(r"((?:[0-9a-f]{2})+):(row|scalar):([0-9a-f]{16})")


@dataclass(frozen=True)
class Kind:
    """A kind of table, and what its content has."""

    key_dtype: str
    value_dtype: str
    dim: int = 3
    rule: str = "none"
    metadata: bool = False
    bounded: bool = False  # Scores, and an epoch.
    waiting: bool = False  # Waiting keys with exact counts.
    sums: bool = False  # Sums of accumulated gradients.
    partitions: int = 1

    def __str__(self) -> str:
        flags = [name for name in ("metadata", "bounded", "waiting", "sums") if getattr(self, name)]
        name = self.rule.split(" ")[0]
        return "-".join([self.key_dtype, self.value_dtype, name, *flags, str(self.partitions)])

    @property
    def types(self) -> dict[str, str]:
        """The dtype of each column."""
        slots = "float64" if self.value_dtype == "float64" else "float32"
        types = {"keys": self.key_dtype, "values": self.value_dtype, "slots": slots}
        types |= {"metadata": "int32", "scores": "int64", "rule": "string", "epoch": "int64"}
        types |= {"waiting_keys": self.key_dtype, "waiting_seen": "int32", "waiting_filter": "int8"}
        return types | ({"sum_keys": self.key_dtype, "sums": slots} if self.sums else {})

    def columns(self, seed: int, n: int = 7) -> Columns:
        """A content of n keys and some waiting keys, all different."""
        rng = np.random.default_rng(seed)
        w, s = (3 if self.waiting else 0), (2 if self.sums else 0)
        numbers = rng.permutation(1000)[: n + w + s] - 500
        keys = self._typed(numbers, self.key_dtype)
        elements = slot_elements(rule_of(self.rule.encode()), self.dim)
        assert elements is not None
        columns = {
            "keys": keys[:n],
            "values": self._typed(rng.integers(-99, 99, (n, self.dim)), self.value_dtype),
            "slots": rng.standard_normal((n, elements)),
            "metadata": rng.integers(1, 1000, (n, 2 if self.metadata else 0)),
            "scores": rng.integers(1, 1000, n if self.bounded else 0),
            "rule": np.array([self.rule.encode()], object),
            "epoch": np.array([3, 7] if self.bounded else [0, 0]),
            "waiting_keys": keys[n : n + w],
            "waiting_seen": rng.integers(1, 9, (w, 2)),
            "waiting_filter": np.zeros(0),
            "sum_keys": keys[n + w :],
            "sums": rng.standard_normal((s, self.dim)),
        }
        return {name: _as(columns[name], dtype) for name, dtype in self.types.items()}

    def _typed(self, numbers: Any, dtype: str) -> Any:
        if dtype != "string":
            return numbers
        texts = [b"k" * (number % 4) + b"%d" % number for number in numbers.ravel().tolist()]
        texts[0] = b""
        strings = np.empty(len(texts), object)
        strings[:] = texts
        return strings.reshape(numbers.shape)


def rule_of(text: bytes) -> dict[str, Any] | None:
    """The rule that a content says, in the form of a spec; None if it is not one.

    Contents hold the JSON form of a spec. Those of version 0.1 hold the text of a rule.
    """
    if text.startswith(b"{"):
        try:
            return json.loads(_native.parse_spec(text.decode()))["rule"]
        except ValueError:
            return None
    name, *words = text.decode("latin-1").split(" ")
    if name == "custom":
        slots = [_CUSTOM.fullmatch(word) for word in words]
        return (
            None if None in slots else {"kind": "custom", "slots": [_slot(s) for s in slots if s]}
        )
    rule: dict[str, Any] = {"kind": name}
    accumulator = 0.1
    if words and (found := re.fullmatch(r"initial_accumulator=([0-9a-f]{16})", words[-1])):
        (accumulator,) = struct.unpack("<d", bytes.fromhex(found[1]))
        if name not in _ACCUMULATORS or accumulator == 0.1:
            return None
        words.pop()
    rule |= dict.fromkeys(words, True)
    if name in _ACCUMULATORS:
        rule["initial_accumulator"] = number_value(accumulator)
    return rule if len(words) == len(set(words)) else None


def _slot(slot: re.Match[str]) -> dict[str, Any]:
    (initial,) = struct.unpack("<d", bytes.fromhex(slot[3]))
    name = bytes_value(bytes.fromhex(slot[1]))
    return {"name": name, "scalar": slot[2] == "scalar", "initial": number_value(initial)}


def slot_elements(rule: dict[str, Any] | None, dim: int) -> int | None:
    """How many numbers the slots of a row have; None if a table can't have the rule."""
    if rule is None:
        return None
    if rule["kind"] == "custom":
        names = [of_bytes_value(slot["name"]) for slot in rule["slots"]]
        good = len(names) <= 64 and len(set(names)) == len(names)
        if not good or any(not 1 <= len(name) <= 256 for name in names):
            return None
        return sum(1 if slot["scalar"] else dim for slot in rule["slots"])
    initial = float(rule.get("initial_accumulator", 0.1))
    switches = [name for name in rule if name not in ("kind", "initial_accumulator")]
    count = _SLOTS.get(" ".join([rule["kind"], *switches]))
    return count * dim if count is not None and np.isfinite(initial) and initial >= 0 else None


def _as(array: Any, dtype: str) -> Any:
    return array if dtype == "string" else array.astype(tf.as_dtype(dtype).as_numpy_dtype)


def tensors(columns: Columns) -> dict[str, tf.Tensor]:
    """The content that `Variable.restore` takes."""
    return {
        name: tf.constant(column, tf.string if column.dtype == object else None)
        for name, column in columns.items()
    }


# --- What must be loaded.


def columns_of_arrays(arrays: dict[str, Any], kind: Kind) -> Columns | None:
    """The columns that the arrays of a file say; None if they are damaged."""
    columns: Columns = {}
    for name, dtype in kind.types.items():
        if name in ("scores", "epoch") and name not in arrays:
            columns[name] = np.zeros(0, np.int64)
            continue
        if name in ("sum_keys", "sums") and not {"sum_keys", "sum_keys_bytes", "sums"} & {
            field.replace("lengths", "bytes") for field in arrays
        }:
            continue
        column = (
            _strings_of(arrays, name) if dtype == "string" else _numbers_of(arrays, name, dtype)
        )
        if column is None:
            return None
        if name == "values" and dtype == "string":
            if len(column) % kind.dim:
                return None
            column = column.reshape(-1, kind.dim)
        columns[name] = column
    return columns


def _strings_of(arrays: dict[str, Any], name: str) -> Any:
    lengths, data = arrays.get(f"{name}_lengths"), arrays.get(f"{name}_bytes")
    if lengths is None or data is None or lengths.ndim != 1 or data.ndim != 1:
        return None
    if lengths.dtype.kind not in "iu" or data.dtype != np.uint8:
        return None
    rest, strings = data.tobytes(), []
    for length in lengths.tolist():
        if not 0 <= length <= len(rest):
            return None
        strings.append(rest[:length])
        rest = rest[length:]
    column = np.empty(len(strings), object)
    column[:] = strings
    return None if rest else column


def _numbers_of(arrays: dict[str, Any], name: str, dtype: str) -> Any:
    array = arrays.get(name)
    if array is None:
        return None
    wanted = tf.as_dtype(dtype)
    if wanted.is_floating:
        if array.dtype == np.uint16:  # bfloat16 is saved as uint16.
            array = array.view(tf.bfloat16.as_numpy_dtype)
        elif array.dtype.kind != "f":
            return None
        with np.errstate(all="ignore"):
            return array.astype(wanted.as_numpy_dtype)
    if wanted == tf.bool or array.dtype.kind not in "iu":
        return array if array.dtype == wanted.as_numpy_dtype else None
    fits = all(wanted.min <= number <= wanted.max for number in array.ravel().tolist())
    return array.astype(wanted.as_numpy_dtype) if fits else None


def state_of_columns(columns: Columns, kind: Kind) -> State | None:
    """What a table of that kind holds with this content; None if it must refuse it.

    A field is None where the content leaves it open.
    """
    columns = dict(columns)
    for name, dtype in kind.types.items():
        if name in ("sum_keys", "sums") and name not in columns:
            continue
        wanted = object if dtype == "string" else tf.as_dtype(dtype).as_numpy_dtype
        if name not in columns or columns[name].dtype != wanted:
            return None
    rule = columns["rule"]
    if rule.shape != (1,):
        return None
    saved = rule_of(rule[0])
    elements = slot_elements(saved, kind.dim)
    has_rule = saved is not None and saved["kind"] != "none"
    if elements is None or (has_rule and not tf.as_dtype(kind.value_dtype).is_floating):
        return None
    n, w = columns["keys"].size, columns["waiting_keys"].size
    shapes: dict[str, list[tuple[int, ...]]] = {
        "keys": [(n,)],
        "values": [(n, kind.dim)],
        "slots": [(n, elements)],
        "metadata": [(n, 2), (n, 0)],
        "scores": [(n,), (0,)],
        "epoch": [(2,), (0,)],
        "waiting_keys": [(w,)],
        "waiting_seen": [(w, 2)],
        "waiting_filter": [(columns["waiting_filter"].size,)],
    }
    if "sums" in columns:
        s = columns["sum_keys"].size
        shapes |= {"sum_keys": [(s,)], "sums": [(s, kind.dim)]}
    if any(columns[name].shape not in allowed for name, allowed in shapes.items()):
        return None
    for name in ("keys", "waiting_keys", "sum_keys"):
        if name in columns and len(set(columns[name].tolist())) != columns[name].size:
            return None
    epoch = columns["epoch"].tolist()
    if (columns["scores"] < 0).any() or min(epoch, default=0) < 0:
        return None
    if epoch and epoch[0] >= 2**31:
        return None
    if (columns["waiting_seen"][:, 1] == 0).any():
        return None
    if kind.waiting and columns["waiting_filter"].size:
        return None  # The state belongs to another admission rule.

    def by_key(keys: str, rows: str) -> dict[Any, Any]:
        found = [row.tobytes() if row.dtype != object else row.tolist() for row in columns[rows]]
        return dict(zip(columns[keys].tolist(), found, strict=True))

    state: State = {"values": by_key("keys", "values"), "rule": None, "slots": None}
    if has_rule:
        state |= {"rule": json.dumps(saved, sort_keys=True), "slots": by_key("keys", "slots")}
    has_metadata = kind.metadata and columns["metadata"].shape[1] == 2
    state["metadata"] = by_key("keys", "metadata") if has_metadata else None
    has_scores = kind.bounded and columns["scores"].size == n
    scores = dict(zip(columns["keys"].tolist(), columns["scores"].tolist(), strict=False))
    state["scores"] = scores if has_scores else None
    state["epoch"] = epoch if kind.bounded and epoch else None
    state["waiting"] = by_key("waiting_keys", "waiting_seen") if kind.waiting else None
    if kind.sums:
        state["sums"] = by_key("sum_keys", "sums") if "sums" in columns else {}
    return state


def state_of(content: dict[str, tf.Tensor], kind: Kind) -> State:
    """The part of a saved content that a table holds."""
    columns = {name: tensor.numpy() for name, tensor in content.items() if name in kind.types}
    columns = {name: c.astype(object) if name == "rule" else c for name, c in columns.items()}
    state = state_of_columns(columns, kind)
    assert state is not None
    return state


def assert_holds(state: State, expected: State, what: str) -> None:
    """Fails unless the state has all expected fields."""
    for name, value in expected.items():
        if value is not None:
            assert state[name] == value, f"{what}: other {name}"


# --- What may go wrong.


def damaged(arrays: dict[str, Any], count: int, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Copies of the arrays of a file, or of columns, each with one thing wrong, and what it is."""
    rng = np.random.default_rng(seed)
    names = sorted(arrays)
    for number in range(count):
        name = names[number % len(names)]
        for _ in range(20):  # Some kinds of damage do not apply to all arrays.
            change = _CHANGES[rng.integers(len(_CHANGES))]
            other = arrays[names[rng.integers(len(names))]]
            try:
                after = change(rng, arrays[name], other)
            except _DoesNotApply:
                continue
            break
        what = f"{number}: {name}: {change.__name__.strip('_')}"
        mutated = {n: a for n, a in arrays.items() if n != name}
        yield what, mutated if after is None else {**mutated, name: after}


class _DoesNotApply(Exception):
    pass


def _some(rng: Any, array: Any) -> int:
    """The place of an element along the first axis."""
    if array.ndim == 0 or len(array) == 0 or array.size == 0:
        raise _DoesNotApply
    return int(rng.integers(len(array)))


def _only_numbers(array: Any) -> None:
    if array.dtype.kind in "OUSb":
        raise _DoesNotApply


def _drop_one(rng: Any, array: Any, other: Any) -> Any:
    return np.delete(array, _some(rng, array), axis=0)


def _repeat_one(rng: Any, array: Any, other: Any) -> Any:
    i = _some(rng, array)
    return np.insert(array, i, array[i], axis=0)


def _overwrite_by_another(rng: Any, array: Any, other: Any) -> Any:
    after = array.copy()
    after[_some(rng, array)] = array[_some(rng, array)]
    return after


def _swap_two(rng: Any, array: Any, other: Any) -> Any:
    i, j = _some(rng, array), _some(rng, array)
    after = array.copy()
    after[[i, j]] = array[[j, i]]
    return after


def _transpose(rng: Any, array: Any, other: Any) -> Any:
    return array.T.copy() if array.ndim > 1 else array.reshape(-1, 1)


def _reshape(rng: Any, array: Any, other: Any) -> Any:
    return array.reshape(-1) if array.ndim > 1 else array.reshape(1, -1)


def _truncate(rng: Any, array: Any, other: Any) -> Any:
    return array[: _some(rng, array)].copy()


def _extend(rng: Any, array: Any, other: Any) -> Any:
    _only_numbers(array)
    more = np.zeros((int(rng.integers(1, 4)), *array.shape[1:]), array.dtype)
    return np.concatenate([array, more]) if array.ndim else np.array([array, array])


def _widen(rng: Any, array: Any, other: Any) -> Any:
    _only_numbers(array)
    if array.ndim < 2:
        raise _DoesNotApply
    return np.concatenate(
        [array, array[:, :1] if array.shape[1] else np.zeros_like(array, shape=(len(array), 1))],
        axis=1,
    )


def _empty(rng: Any, array: Any, other: Any) -> Any:
    return array[:0].copy() if array.ndim else np.zeros(0, array.dtype)


def _scalar(rng: Any, array: Any, other: Any) -> Any:
    if array.size == 0:
        raise _DoesNotApply
    return array.reshape(-1)[:1].reshape(()).copy()


def _remove(rng: Any, array: Any, other: Any) -> Any:
    return None


def _of_another_field(rng: Any, array: Any, other: Any) -> Any:
    return other.copy()


def _other_dtype(rng: Any, array: Any, other: Any) -> Any:
    _only_numbers(array)
    choices = ["int8", "uint8", "int16", "uint16", "int32", "int64", "uint64", "float16"]
    with np.errstate(all="ignore"):
        return array.astype(rng.choice([*choices, "float32", "float64", "bool"]))


def _odd_number(rng: Any, array: Any, other: Any) -> Any:
    i, after = _some(rng, array), array.copy()
    _only_numbers(array)
    if array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        odd: list[Any] = [0, limits.max, limits.min, limits.max - 1, limits.max // 2]
        odd += [-1] if limits.min else []
    else:
        odd = [np.nan, np.inf, -np.inf, 0.0, -0.0]
    after.reshape(-1)[i] = odd[rng.integers(len(odd))]
    return after


def _other_by_one(rng: Any, array: Any, other: Any) -> Any:
    if array.dtype.kind not in "iu":
        raise _DoesNotApply
    i, after = _some(rng, array), array.copy()
    with np.errstate(all="ignore"):
        after.reshape(-1)[i] += after.dtype.type(1) if rng.integers(2) else ~after.dtype.type(0)
    return after


def _negated(rng: Any, array: Any, other: Any) -> Any:
    if array.dtype.kind != "i":
        raise _DoesNotApply
    i, after = _some(rng, array), array.copy()
    after.reshape(-1)[i] = -after.reshape(-1)[i] - 1
    return after


def _random_bits(rng: Any, array: Any, other: Any) -> Any:
    _some(rng, array)
    if array.dtype == object:
        after, i = array.copy(), int(rng.integers(array.size))
        text = bytearray(after.reshape(-1)[i] or b"\0")
        text[rng.integers(len(text))] ^= 1 << int(rng.integers(8))
        after.reshape(-1)[i] = bytes(text)
        return after
    _only_numbers(array)
    raw = bytearray(array.tobytes())
    for _ in range(int(rng.integers(1, 4))):
        raw[rng.integers(len(raw))] ^= 1 << int(rng.integers(8))
    return np.frombuffer(bytes(raw), array.dtype).reshape(array.shape).copy()


def _noise(rng: Any, array: Any, other: Any) -> Any:
    _only_numbers(array)
    return np.frombuffer(rng.bytes(array.nbytes), array.dtype).reshape(array.shape).copy()


_CHANGES: list[Callable[[Any, Any, Any], Any]] = [
    _drop_one, _repeat_one, _overwrite_by_another, _swap_two, _transpose, _reshape, _truncate,
    _extend, _widen, _empty, _scalar, _remove, _of_another_field, _other_dtype, _odd_number,
    _other_by_one, _negated, _random_bits, _noise,
]  # fmt: skip

# Texts of a rule that only look like one, or say more than one may.
BAD_RULES = [
    b"", b" ", b"adam ", b" adam", b"adam  amsgrad", b"adam amsgrad amsgrad", b"adam nesterov",
    b"ADAM", b"adam\0", b"adam amsgrad=1", b"adam custom", b"sgd nesterov", b"none momentum",
    b"sgd centered",
    b"adagrad initial_accumulator=", b"adagrad initial_accumulator=zz", b"\xff\xfe",
    b"adagrad initial_accumulator=" + struct.pack("<d", -1.0).hex().encode(),
    b"adagrad initial_accumulator=" + struct.pack("<d", np.nan).hex().encode(),
    b"custom 61:row", b"custom 61:row:00", b"custom 61:column:0000000000000000",
    b"custom :row:0000000000000000", b"custom 6:row:0000000000000000",
    b"custom 61:row:0000000000000000 61:row:0000000000000000",
    b"custom 61:row:0000000000000000:", b"custom 6G:row:0000000000000000",
    b"custom " + b"61" * 300 + b":row:0000000000000000",
    b"custom " + b" ".join(b"%08x:row:0000000000000000" % i for i in range(65)),
    b"custom " + b" ".join(b"%08x:row:0000000000000000" % i for i in range(1_000_000)),
]  # fmt: skip
