"""Writes the golden files: small saved contents that every later version has to read.

Run it with the version whose files are wanted, and with an empty folder:

    python tests/golden/make_contents.py tests/golden/0.1.0

The folder gets one file or checkpoint for each case of `CASES`, and `expected.json`. That file says
what each table held when it was saved, and what it held after one more training step (except for
`.npz`, which is the file of a table without its model).

`tests/dynamic_embedding/saving/test_golden_contents.py` loads each content, compares it with
`expected.json`, takes the same training step and compares again. Never write
the files of a released version again.

Only public names are used here, so that this program runs with every version.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import tfra

de = tfra.dynamic_embedding
layers = de.keras.layers

DIM = 3
WIDTH = 2  # Ids in each example.
BATCH = 4
STRINGS = [b"", b"\0", b"a", b"a\0", b"a\0b", b"\xff\xfe", b"x" * 40]


@keras.saving.register_keras_serializable("golden")
class CountingOptimizer(keras.optimizers.Optimizer):
    """An optimizer that the engine has no rule for: two slots, one of which starts from ones."""

    def build(self, variables: Any) -> None:
        if self.built:
            return
        super().build(variables)
        make = self.add_variable_from_reference
        self.moments = [make(v, name="moment") for v in variables]
        self.steps = [make(v, name="steps", initializer="ones") for v in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        moment, steps = self.moments[index], self.steps[index]
        self.assign(moment, 0.5 * moment + gradient)
        self.assign_add(steps, keras.ops.ones_like(gradient))
        self.assign_sub(variable, keras.ops.cast(learning_rate, variable.dtype) * moment / steps)


@keras.saving.register_keras_serializable("golden")
def score_of_key(keys: tf.Tensor) -> tf.Tensor:
    """Scores of the strategy CUSTOMIZED: the keys, squared."""
    return tf.cast(keys * keys, tf.int64)


@dataclass(frozen=True)
class Case:
    """One saved content: how to make it, and how to save it."""

    kind: str  # "keras", "weights", "npz", "checkpoint" of a model, or "variable": its checkpoint.
    key_dtype: str = "int64"
    value_dtype: str = "float32"
    optimizer: Callable[..., Any] = keras.optimizers.Adam
    strategy: str | None = None  # Of eviction: then the tables are bounded.
    partitions: int = 1
    options: Callable[[], dict[str, Any]] = dict
    accumulated: int | None = None  # Steps for each update of the optimizer.


CASES = {
    "adam": Case("keras", options=lambda: {"restrict_policy": de.FrequencyRestrictPolicy}),
    "own_optimizer": Case(
        "keras", "string", "float16", CountingOptimizer, options=lambda: {"ttl": 100.0}
    ),
    "bounded_lru": Case("keras", "int32", strategy="LRU"),
    "accumulating": Case("weights", partitions=2, accumulated=2),
    "waiting_filter": Case(
        "weights",
        "string",
        "bfloat16",
        options=lambda: {"admission": tfra.admission.CountingBloomFilter(2, 100, 0.01)},
    ),
    "waiting_keys": Case(
        "checkpoint",
        "int32",
        "float32",
        options=lambda: {"admission": tfra.admission.MinCount(2), "ttl": 100.0},
        partitions=2,
    ),
    "bounded_strings": Case("checkpoint", "string", "float16", CountingOptimizer, "LRU"),
    "drawn": Case(
        "checkpoint",
        optimizer=keras.optimizers.Ftrl,
        options=lambda: {"admission": tfra.admission.Probability(0.5, seed=3)},
    ),
    "metadata": Case(
        "variable", options=lambda: {"restrict_policy": de.TimestampRestrictPolicy}, partitions=2
    ),
    "strings": Case("variable", "string", "bfloat16", partitions=2),
    "string_values": Case("variable", "int64", "string"),
    "table_customized": Case("npz", strategy="CUSTOMIZED"),
    "table_epochs": Case("npz", "string", "bfloat16", strategy="EPOCHLFU"),
    "table_int32": Case("npz", "int32", "float16", CountingOptimizer, "LFU"),
}
CAPACITY = 7  # Of each bounded table.


def devices_of(case: Case) -> list[str]:
    """One device for each partition."""
    return ["/CPU:0"] * case.partitions


def creator_of(case: Case) -> Any:
    """The maker of bounded tables; None for unbounded ones."""
    if case.strategy is None:
        return None
    config = de.HkvHashTableConfig(
        init_capacity=4,
        max_capacity=CAPACITY,
        max_hbm_for_values=2**20 if case.strategy == "LRU" else 0,
        evict_strategy=de.HkvEvictStrategy[case.strategy],
        step_per_epoch=2 if case.strategy.startswith("EPOCH") else 0,
        gen_scores_fn=score_of_key if case.strategy == "CUSTOMIZED" else None,
    )
    return de.HkvHashTableCreator(config)


def keys_of(case: Case, numbers: Any) -> tf.Tensor:
    """The keys of some small numbers; strings have odd bytes among them."""
    numbers = np.asarray(numbers)
    if case.key_dtype == "string":
        names = STRINGS + [b"%d" % number for number in range(100)]
        return tf.constant(np.array(names, object)[numbers], tf.string)
    signs = np.where(numbers % 3 == 0, -1, 1)
    return tf.constant(numbers * signs, case.key_dtype)


def build(name: str) -> Any:
    """Makes the Variable or the compiled model of a case, without rows."""
    case = CASES[name]
    options = {"devices": devices_of(case), "name": "ids", **case.options()}
    types = {"key_dtype": tf.as_dtype(case.key_dtype), "value_dtype": tf.as_dtype(case.value_dtype)}
    if case.kind == "variable":
        return de.Variable(dim=DIM, **types, **options)
    start = keras.initializers.RandomNormal(seed=3)
    creator = creator_of(case)
    layer = layers.Embedding(DIM, initializer=start, kv_creator=creator, **types, **options)
    inputs = keras.Input((WIDTH,), dtype=case.key_dtype)
    flat = keras.layers.Flatten()(keras.layers.Activation("linear", dtype="float32")(layer(inputs)))
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(flat))
    model.compile(case.optimizer(0.05, gradient_accumulation_steps=case.accumulated), "mse")
    return model


def variable_of(built: Any) -> Any:
    """The Variable of a case."""
    return built.get_layer("ids").params if isinstance(built, keras.Model) else built


def fill(name: str, built: Any) -> None:
    """Writes or trains rows: some keys more often than others, and more than a bound allows."""
    for step in range(5):
        _write_or_train(CASES[name], built, step)


def go_on(name: str, built: Any) -> None:
    """One more step: keys that are there, keys that wait, and new ones."""
    _write_or_train(CASES[name], built, 5)


def _write_or_train(case: Case, built: Any, step: int) -> None:
    variable_of(built).set_clock(1000 + 10 * step)
    rng = np.random.default_rng(step)
    numbers = np.minimum(rng.geometric(0.1, (BATCH, WIDTH)) + step, 30)
    if case.kind == "variable":
        keys = keys_of(case, np.unique(numbers))
        rows = rng.standard_normal((len(keys), DIM))
        if case.value_dtype == "string":
            built.upsert(keys, np.char.mod("%.3f", rows).astype(object))
        else:
            built.upsert(keys, tf.cast(rows, case.value_dtype))
    else:
        targets = rng.standard_normal((BATCH, 1)).astype(np.float32)
        built.train_on_batch(keys_of(case, numbers), targets)


def file_of(name: str, folder: Path) -> Path:
    """The file of a case; of a checkpoint, what its files begin with."""
    return folder / (name + {"keras": ".keras", "weights": ".weights.h5"}.get(CASES[name].kind, ""))


def save(name: str, built: Any, folder: Path) -> None:
    """Writes the file of a case."""
    kind, path = CASES[name].kind, file_of(name, folder)
    if kind == "keras":
        built.save(path)
    elif kind == "weights":
        built.save_weights(path)
    elif kind == "npz":
        variable_of(built).tables[0].save(folder, name)
    else:
        tf.train.Checkpoint(saved=built).write(str(path))


def load(name: str, folder: Path) -> Any:
    """Reads the file of a case, into a new Variable or model."""
    kind, path = CASES[name].kind, file_of(name, folder)
    if kind == "keras":
        return keras.models.load_model(path)
    built = build(name)
    if kind == "weights":
        built.optimizer.build(built.trainable_variables)
        built.load_weights(path)
    elif kind == "npz":
        go_on(name, built)  # So that the table has the slots of this optimizer, which it replaces.
        variable_of(built).tables[0].load(folder, name)
    else:
        tf.train.Checkpoint(saved=built).read(str(path)).assert_existing_objects_matched()
    return built


def state_of(name: str, built: Any) -> dict[str, Any]:
    """What is in the tables of a case, ordered by key, as JSON has it.

    There are slots only where the optimizer has trained these tables: after loading, only where a
    file was loaded into tables that it had trained before.
    """
    variable, case = variable_of(built), CASES[name]
    keys, values = (tensor.numpy() for tensor in variable.export())
    order = np.argsort(keys)
    columns = {"values": values}
    if isinstance(built, keras.Model):
        for slot in variable.get_slot_variables(built.optimizer):
            columns[f"slot {slot.slot_name}"] = slot.lookup(keys).numpy()
    if case.options().keys() & {"ttl", "restrict_policy"}:
        columns["time"], columns["count"] = (part.numpy() for part in variable.usage(keys))
    if case.strategy is not None:
        found, scores = (part.numpy() for part in variable.export_keys_and_scores(100))
        by_key = dict(zip(found.tolist(), scores.tolist(), strict=True))
        columns["scores"] = np.array([by_key[key] for key in keys.tolist()])
    state: dict[str, Any] = {"keys": _plain(keys[order])}
    state |= {column: _plain(array[order]) for column, array in columns.items()}
    state["size"], state["waiting"] = int(variable.size()), variable.stats().waiting
    if case.strategy is not None:
        state["epochs"] = [int(table.epoch()) for table in variable.tables]
        state["capacity"] = [table.max_capacity for table in variable.tables]
    if isinstance(built, keras.Model) and case.kind != "npz":
        # The file of a table has nothing of the model around it.
        state["iterations"] = int(built.optimizer.iterations)
        state["dense"] = [_plain(weights) for weights in built.layers[-1].get_weights()]
    return state


def _plain(array: Any) -> Any:
    """Numbers as they are; bytes as the text that has them as Latin-1."""
    if array.dtype == object:
        texts = np.array([item.decode("latin-1") for item in array.ravel()], object)
        return texts.reshape(array.shape).tolist()
    return array.astype(np.float64 if array.dtype.kind in "fV" else array.dtype).tolist()


def main() -> None:
    """Writes all cases to the folder that the command names."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    expected = {}
    for name in CASES:
        built = build(name)
        fill(name, built)
        saved = state_of(name, built)
        save(name, built, folder)
        expected[name] = {"saved": saved}
        if CASES[name].kind != "npz":
            for column in [column for column in saved if column.startswith("slot ")]:
                del saved[column]
            go_on(name, built)
            expected[name]["after one more step"] = state_of(name, built)
    text = {name: json.dumps(states) for name, states in expected.items()}
    lines = ",\n".join(f"{json.dumps(name)}: {states}" for name, states in text.items())
    (folder / "expected.json").write_text("{\n" + lines + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
