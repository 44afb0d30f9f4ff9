"""Files of Keras with damaged tables: the right rows, or ValueError and the layer as it was."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from layers_support import KERAS_WARNS, de, layers

import damage
import tfra
from damage import Kind

pytestmark = [
    pytest.mark.filterwarnings(KERAS_WARNS),
    pytest.mark.filterwarnings("ignore:Skipping nested container"),
]

CUSTOM = "custom 61:row:0000000000000000 62:scalar:0000000000000000"
KINDS = [
    Kind("int64", "float32", rule="adam", metadata=True, sums=True),
    Kind("int32", "bfloat16", 2, rule="sgd momentum", waiting=True, sums=True, partitions=2),
    Kind("string", "float32", 1, rule=CUSTOM, waiting=True, metadata=True, sums=True),
    Kind("int64", "float64", 2, rule=CUSTOM, bounded=True, sums=True, partitions=3),
]
EACH = 1000 // len(KINDS)


def model_of(kind: Kind) -> keras.Model:
    options: dict[str, Any] = {"devices": ["/CPU:0"] * kind.partitions, "name": "table"}
    if kind.metadata:
        options["restrict_policy"] = de.TimestampRestrictPolicy
    if kind.waiting:
        options["admission"] = tfra.admission.MinCount(100)
    if kind.bounded:
        strategy = de.HkvEvictStrategy.EPOCHLFU
        config = de.HkvHashTableConfig(max_capacity=1000, evict_strategy=strategy)
        options["kv_creator"] = de.HkvHashTableCreator(config)
    options |= {name: tf.as_dtype(getattr(kind, name)) for name in ("key_dtype", "value_dtype")}
    inputs = keras.Input((2,), dtype=kind.key_dtype)
    return keras.Model(inputs, layers.Embedding(kind.dim, **options)(inputs))


class Loading:
    """A model that loads files one after the other."""

    def __init__(self, kind: Kind, folder: Path, suffix: str = ".weights.h5") -> None:
        self.kind = kind
        self.path = str(folder / f"model{suffix}")
        self.model = model_of(kind)
        self.table = self.model.layers[1].params
        self.table.restore(damage.tensors(kind.columns(seed=1)))
        whole = folder / "whole.keras"
        self.model.save(whole)
        with zipfile.ZipFile(whole) as archive:
            self._members = {name: archive.read(name) for name in archive.namelist()}
        with h5py.File(io.BytesIO(self._members["model.weights.h5"]), "r") as file:
            groups: list[str] = []
            file.visit(groups.append)
            self._group = next(name[: -len("/slots")] for name in groups if name.endswith("/slots"))
            self.arrays = {name: np.asarray(a) for name, a in file[self._group].items()}
        self._before = damage.tensors(kind.columns(seed=2, n=4))
        self.reset()
        self.before = self.state()

    def reset(self) -> None:
        self.table.restore(self._before)

    def state(self) -> Any:
        return damage.state_of(self.table.content(), self.kind)

    def write(self, arrays: dict[str, Any]) -> None:
        """Writes a whole file in which the layer has these arrays."""
        file = io.BytesIO(self._members["model.weights.h5"])
        with h5py.File(file, "r+") as h5:
            group = h5[self._group]
            for name in set(self.arrays) - set(arrays):
                del group[name]
            for name, array in arrays.items():
                if array is not self.arrays.get(name):
                    if name in group:
                        del group[name]
                    group[name] = array
        if self.path.endswith(".h5"):
            Path(self.path).write_bytes(file.getvalue())
            return
        with zipfile.ZipFile(self.path, "w") as archive:
            for name, data in {**self._members, "model.weights.h5": file.getvalue()}.items():
                archive.writestr(name, data)

    def try_arrays(self, what: str, arrays: dict[str, Any]) -> bool:
        """Loads arrays, which must give what they say. Returns whether they were good."""
        self.write(arrays)
        columns = damage.columns_of_arrays(arrays, self.kind)
        expected = None if columns is None else damage.state_of_columns(columns, self.kind)
        if expected is None:
            with pytest.raises(ValueError):
                self.model.load_weights(self.path)
                pytest.fail(f"{what}: was loaded")
            assert self.state() == self.before, what
            return False
        self.model.load_weights(self.path)
        damage.assert_holds(self.state(), expected, what)
        self.reset()
        return True


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("suffix", [".weights.h5", ".keras"])
def test_a_thousand_damaged_files(kind: Kind, suffix: str, tmp_path: Path) -> None:
    loading = Loading(kind, tmp_path, suffix)
    assert loading.try_arrays("whole", loading.arrays)
    good = [
        loading.try_arrays(what, arrays)
        for what, arrays in damage.damaged(loading.arrays, EACH, seed=len(suffix))
    ]
    assert 10 < sum(good) < EACH - 100  # Good and bad arrays were both tried.


def test_a_whole_model_is_not_made_of_a_damaged_file(tmp_path: Path) -> None:
    loading = Loading(KINDS[0], tmp_path, ".keras")
    loading.write(loading.arrays)
    loaded = keras.models.load_model(loading.path)
    found = damage.state_of(loaded.layers[1].params.content(), loading.kind)
    expected = damage.state_of_columns(loading.kind.columns(seed=1), loading.kind)
    assert expected is not None
    damage.assert_holds(found, expected, "whole")
    loading.write({**loading.arrays, "keys": loading.arrays["keys"][:-1]})
    with pytest.raises(ValueError, match=r"`values`: expected shape \[6, 3\]"):
        keras.models.load_model(loading.path)


def refused_with(loading: Loading, message: str, **arrays: Any) -> None:
    loading.write({**loading.arrays, **arrays})
    with pytest.raises(ValueError, match=message):
        loading.model.load_weights(loading.path)
    assert loading.state() == loading.before


def test_keys_of_another_type_are_taken_if_they_fit(tmp_path: Path) -> None:
    loading = Loading(KINDS[1], tmp_path)
    keys = loading.arrays["keys"]
    assert keys.dtype == np.int32
    assert loading.try_arrays("int64", {**loading.arrays, "keys": keys.astype(np.int64)})
    keys = keys.astype(np.int64)
    keys[3] += 2**32  # Truncated, the same key as before.
    refused_with(loading, rf"`keys`: expected integers of int32, received {keys[3]}", keys=keys)
    refused_with(loading, r"`keys`: expected integers .*float64", keys=keys.astype(np.float64))
    wide = Loading(KINDS[0], tmp_path)
    narrow = wide.arrays["keys"].astype(np.int32)
    assert wide.try_arrays("int32", {**wide.arrays, "keys": narrow})


def test_floats_of_another_type_are_rounded(tmp_path: Path) -> None:
    """Also the 16 bits that bfloat16 is saved as, which are no numbers."""
    loading = Loading(KINDS[0], tmp_path)
    values, slots = loading.arrays["values"], loading.arrays["slots"]
    bits = values.astype(tf.bfloat16.as_numpy_dtype).view(np.uint16)
    for other in (values.astype(np.float64), values.astype(np.float16), bits):
        wide = {"values": other, "slots": slots.astype(np.float64)}
        assert loading.try_arrays(str(other.dtype), {**loading.arrays, **wide})


@pytest.mark.parametrize("column", ["keys", "waiting_keys", "sum_keys", "rule"])
def test_lengths_of_strings_that_do_not_fit(column: str, tmp_path: Path) -> None:
    loading = Loading(KINDS[2], tmp_path)
    lengths, text = loading.arrays[f"{column}_lengths"], loading.arrays[f"{column}_bytes"]
    name, longest = f"{column}_lengths", int(np.argmax(lengths))
    for change in (-1, 1, -100, 2**62):
        other = lengths.copy()
        other[longest] += change
        refused_with(loading, f"`{name}`: expected", **{name: other})
    refused_with(loading, f"`{name}`: expected", **{f"{column}_bytes": text[:-1]})
    refused_with(loading, f"`{column}_bytes`: expected", **{f"{column}_bytes": text.astype(int)})


@pytest.mark.parametrize("rule", damage.BAD_RULES, ids=lambda rule: rule[:40])
def test_texts_that_are_no_rule(rule: bytes, tmp_path: Path) -> None:
    loading = Loading(KINDS[0], tmp_path)
    arrays = {"rule_bytes": np.frombuffer(rule, np.uint8), "rule_lengths": np.array([len(rule)])}
    assert not loading.try_arrays(repr(rule[:40]), {**loading.arrays, **arrays})


def test_weights_in_memory(tmp_path: Path) -> None:
    """The array of the shadow, by which Keras reads and assigns the weight."""
    loading = Loading(KINDS[0], tmp_path)
    shadow = loading.model.layers[1].shadow
    array = np.asarray(shadow)
    shadow.assign(array)
    assert loading.state() == loading.before
    rng = np.random.default_rng(0)
    for length in rng.integers(0, len(array), 20).tolist():
        with pytest.raises(ValueError):
            shadow.assign(array[:length])
    for change, match in ((lambda a: a.update(keys=a["keys"] * 0), "again at 1"),
                          (lambda a: a.pop("slots"), "`slots`")):  # fmt: skip
        with np.load(io.BytesIO(array.tobytes())) as file:
            arrays = dict(file)
        change(arrays)
        changed = io.BytesIO()
        np.savez(changed, **arrays)
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=match):
            shadow.assign(np.frombuffer(changed.getvalue(), np.uint8))
    assert loading.state() == loading.before
