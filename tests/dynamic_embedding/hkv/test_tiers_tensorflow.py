"""HkvHashTable with rows in a file: training, errors and figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hkv_support import Mode, Strategy, de, keys, rows, scores_of, typed_table
from test_hkv_training import IDS, creator, data, trained
from tier_support import MANY, SMALL, content_of, fill, fit, model_of, step, variable_of

# Keras itself asks TensorFlow's variables for arrays in a way that NumPy 2 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

GIBI = 2**30

# --- Settings.


def test_which_settings_put_rows_into_a_file(tmp_path: Path) -> None:
    def fast_bytes(**settings: Any) -> int | None:
        return de.HkvHashTableConfig(**settings).fast_bytes

    assert fast_bytes() is None
    assert fast_bytes(max_hbm_for_values=GIBI) is None  # The default means all of them.
    assert fast_bytes(max_hbm_for_values=0) is None
    assert fast_bytes(max_hbm_for_values=SMALL) == SMALL
    assert fast_bytes(max_hbm_for_values=3 * GIBI) == 3 * GIBI
    assert fast_bytes(tier_directory=tmp_path) == GIBI
    assert de.HkvHashTableConfig(tier_directory=tmp_path).tier_directory == str(tmp_path)
    by_argument = de.HkvHashTable(
        tf.int64, tf.float32, 0.0, max_hbm_for_values=SMALL, tier_directory=tmp_path
    )
    config = de.HkvHashTableConfig(max_hbm_for_values=SMALL, tier_directory=tmp_path)
    by_config = de.HkvHashTable(tf.int64, tf.float32, 0.0, config=config)
    assert by_argument.fast_bytes == by_config.fast_bytes == SMALL


WRONG: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (ValueError, "max_hbm_for_values", {"max_hbm_for_values": -1}),
    (ValueError, "max_hbm_for_values", {"max_hbm_for_values": 2**63}),
    (TypeError, "max_hbm_for_values", {"max_hbm_for_values": True}),
    (TypeError, "max_hbm_for_values", {"max_hbm_for_values": 1.5}),
    (TypeError, "max_hbm_for_values", {"max_hbm_for_values": None}),
    (ValueError, "max_hbm_for_values", {"max_hbm_for_values": 0, "tier_directory": "/tmp"}),
    (TypeError, "tier_directory", {"tier_directory": 3}),
    (ValueError, "tier_directory", {"tier_directory": ""}),
]


@pytest.mark.parametrize(("error", "said", "options"), WRONG)
def test_wrong_settings(error: type[Exception], said: str, options: dict[str, Any]) -> None:
    for make in (
        lambda: de.HkvHashTable(tf.int64, tf.float32, 0.0, **options),
        lambda: de.HkvHashTableConfig(**options),
    ):
        with pytest.raises(error, match=said) as caught:
            make()
        assert "received" in str(caught.value).lower()


def test_string_values_are_in_memory_only() -> None:
    de.HkvHashTable(tf.int64, tf.string, "")
    with pytest.raises(TypeError, match=r"string values.*received 4096"):
        de.HkvHashTable(tf.int64, tf.string, "", max_hbm_for_values=SMALL)


def test_a_directory_that_is_not_there(mode: Mode, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")

    def use() -> Any:
        table = de.HkvHashTable(
            tf.int64, tf.float32, 0.0, max_hbm_for_values=SMALL, tier_directory=missing
        )
        return table.size()

    with pytest.raises(tf.errors.InternalError, match="can be written to") as caught:
        mode.run(use)
    assert missing in str(caught.value)


# --- The table.

NUMBERS = [
    ("int64", "float32", 3), ("int32", "float16", 1), ("string", "bfloat16", 2),
    ("int64", "float64", None), ("string", "int8", 3), ("int32", "int32", None),
    ("int64", "int64", 2), ("string", "bool", None),
]  # fmt: skip


@pytest.mark.parametrize("types", NUMBERS, ids=str)
def test_tables_of_all_types(types: Any, mode: Mode) -> None:
    key_dtype, value_dtype, dim = types
    tables = [
        typed_table(*types, max_capacity=400, max_hbm_for_values=budget, name=name)
        for budget, name in ((0, "plain"), (SMALL, "tiered"))
    ]
    some = [keys(key_dtype, range(start, start + 300)) for start in (0, 250, 120, 500)]
    values = rows(value_dtype, 300, dim)

    def both(call: Any) -> list[Any]:
        return [mode.run(lambda t=t: call(t)) for t in tables]

    for part in some:
        both(lambda t, part=part: t.insert(part, values))
        left, right = both(lambda t, part=part: t.lookup(part[::-1].copy(), return_exists=True))
        assert [x.tolist() for x in left] == [x.tolist() for x in right]
    left, right = both(
        lambda t: t.insert_and_evict(keys(key_dtype, range(900, 1000)), values[:100])
    )
    assert [sorted(map(str, x.tolist())) for x in left] == [
        sorted(map(str, x.tolist())) for x in right
    ]
    both(lambda t: t.remove(some[3][:50]))
    assert scores_of(tables[0], mode) == scores_of(tables[1], mode)
    left, right = both(lambda t: t.export())
    assert sorted(map(str, zip(*(x.tolist() for x in left), strict=True))) == sorted(
        map(str, zip(*(x.tolist() for x in right), strict=True))
    )


ADAM_ROW = 3 * 8 * 4


def test_an_optimizer_that_comes_later_keeps_the_budget() -> None:
    plain, tiered = (variable_of(budget, capacity=MANY) for budget in (0, SMALL))
    for variable in (plain, tiered):
        fill(variable, MANY)
        optimizer = keras.optimizers.Adam(0.1)
        for start in range(0, 3000, 500):  # The first step gives the rows their slots.
            step(variable, optimizer, tf.range(start, start + 700, dtype=tf.int64))
    assert content_of(plain) == content_of(tiered)
    stats = tiered.stats()
    assert stats.fast_bytes < MANY * ADAM_ROW / 3
    assert stats.slow_bytes > MANY * ADAM_ROW / 2
    assert plain.stats().slow_bytes == plain.stats().slow_hits == 0


def test_each_table_of_a_variable_has_the_budget() -> None:
    one, three = variable_of(50_000), variable_of(50_000, devices=["/CPU:0"] * 3)
    for variable in (one, three):
        fill(variable, 15_000)
    assert len(one.tables) == 1
    parts = [table.stats() for table in (*one.tables, *three.tables)]
    assert all(part.slow_bytes > 50_000 for part in parts)
    assert all(40_000 < part.fast_bytes <= 120_000 for part in parts)
    parts = parts[1:]
    assert three.stats().fast_bytes == sum(part.fast_bytes for part in parts)


# --- Models.


@pytest.fixture(scope="module")
def in_memory() -> Any:
    return trained(creator(IDS))


def test_a_model_trains_to_the_same_bits(in_memory: Any) -> None:
    model, auc = trained(creator(IDS, max_hbm_for_values=SMALL))
    assert auc == in_memory[1]
    left, right = (each.layers[1].params for each in (in_memory[0], model))
    assert content_of(left) == content_of(right)
    stats = right.stats()
    assert stats.slow_hits > 1000
    assert stats.slow_bytes > stats.fast_bytes
    ids = data(2)[0]
    expected = in_memory[0].predict(ids, batch_size=4096, verbose=0)
    np.testing.assert_array_equal(model.predict(ids, batch_size=4096, verbose=0), expected)


def test_a_model_with_too_many_ids_for_both_levels() -> None:
    plain, plain_auc = trained(creator(IDS // 2, Strategy.LFU))
    model, auc = trained(creator(IDS // 2, Strategy.LFU, max_hbm_for_values=SMALL))
    assert auc == plain_auc > 0.75
    stats = model.layers[1].params.stats()
    assert stats.size == IDS // 2
    assert stats.evictions > 0
    assert content_of(plain.layers[1].params) == content_of(model.layers[1].params)


def test_an_optimizer_that_the_engine_does_not_know() -> None:
    class Own(keras.optimizers.Optimizer):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            rate = keras.ops.cast(learning_rate, variable.dtype)
            self.assign_sub(variable, rate * keras.ops.sign(gradient))

    contents = []
    for budget in (0, SMALL):
        variable, optimizer = variable_of(budget), Own(0.1)
        for start in range(0, 1500, 300):
            step(variable, optimizer, tf.range(start, start + 600, dtype=tf.int64))
        contents.append(content_of(variable))
    assert contents[0] == contents[1]
    assert len(contents[0]) == 1800


# --- Figures.


def test_figures_of_variables_and_in_the_logs_of_fit(tmp_path: Path) -> None:
    model = model_of(SMALL)
    callback = de.keras.callbacks.TableStatsCallback(log_dir=tmp_path)
    history = fit(model, callbacks=[callback], epochs=2).history
    params = model.get_layer("ids").params
    stats = params.stats()
    for figure in ("fast_hits", "slow_hits", "io_reads", "bytes_written", "slow_bytes"):
        # The histograms for TensorBoard, which come after, read the file too.
        assert 0 < history[f"{params.name}/{figure}"][-1] <= getattr(stats, figure)
    assert 0 < history[f"{params.name}/fast_hit_rate"][-1] < 1
    tensors = params.stats_tensors()
    assert int(tensors["slow_bytes"]) == stats.slow_bytes
    assert f"file_bytes={stats.slow_bytes / 1024:.1f}KiB" in repr(params)
    assert "file bytes" in params._repr_html_()
    assert any(path.stat().st_size > 0 for path in tmp_path.rglob("events*"))


# --- A full disk.


def test_a_full_disk(tmp_path: Path) -> None:
    code = """
import resource, sys
import numpy as np
import tensorflow as tf
import tfra

resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
table = tfra.dynamic_embedding.HkvHashTable(
    tf.int64, tf.float32, [0.0] * 64, init_capacity=0, max_hbm_for_values=100_000,
    tier_directory=sys.argv[1],
)
written = 0
try:
    for written in range(0, 100_000, 1000):
        keys = tf.range(written, written + 1000, dtype=tf.int64)
        table.insert(keys, tf.fill([1000, 64], float(written)))
except tf.errors.ResourceExhaustedError as error:
    assert sys.argv[1] in str(error), error
assert 2000 < written < 90_000, written
assert int(table.size()) == written
rows, exists = table.lookup(tf.range(written, dtype=tf.int64), return_exists=True)
assert exists.numpy().all()
np.testing.assert_array_equal(rows.numpy()[:, 5], np.arange(written) // 1000 * 1000)
print("whole")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr
