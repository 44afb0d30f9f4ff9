"""Callbacks of `fit`: they restrict, expire, and report to the logs and to TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from upkeep_support import (
    DIM,
    KERAS_WARNS,
    MinCount,
    callbacks,
    de,
    key_set,
    layers,
    model_of,
    targets,
)

import tfra

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

STEPS = 6


class Sizes(keras.callbacks.Callback):
    """Records the size of a table after each step and each epoch, and advances the clock."""

    def __init__(self, variable: Any) -> None:
        super().__init__()
        self.variable = variable
        self.now = 1000
        self.steps: list[int] = []
        self.epochs: list[int] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.now += 1
        self.variable.set_clock(self.now)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps.append(int(self.variable.size()))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(int(self.variable.size()))


def fit(layer: Any, *extra: Any, epochs: int = 2, sizes_last: bool = True) -> Sizes:
    """Each step has two ids of its own, the same in each epoch."""
    model = model_of(layer, 2)
    x, sizes = np.arange(2 * STEPS).reshape(STEPS, 2), Sizes(layer.params)
    order = [*extra, sizes] if sizes_last else [sizes, *extra]
    options = {"batch_size": 1, "shuffle": False, "verbose": 0, "epochs": epochs}
    sizes.history = model.fit(x, targets(STEPS), callbacks=order, **options).history
    return sizes


def test_restrict_at_the_end_of_each_epoch(devices: list[str] | None) -> None:
    layer = layers.Embedding(DIM, devices=devices, restrict_policy=de.TimestampRestrictPolicy)
    sizes = fit(layer, callbacks.RestrictCallback(6))
    assert sizes.steps[:STEPS] == [2, 4, 6, 8, 10, 12]
    assert sizes.epochs == [6, 6]
    assert key_set(layer.params) == {6, 7, 8, 9, 10, 11}
    assert layer.params.stats().restrict_runs == 2 * layer.params.shard_num


def test_restrict_every_few_steps() -> None:
    layer = layers.Embedding(DIM, restrict_policy=de.TimestampRestrictPolicy)
    sizes = fit(layer, callbacks.RestrictCallback(3, freq=4))
    assert sizes.steps == [2, 4, 6, 3, 5, 7, 9, 3, 5, 7, 9, 3]
    assert sizes.epochs == [7, 3]


def test_restrict_waits_for_its_trigger() -> None:
    layer = layers.Embedding(DIM, restrict_policy=de.TimestampRestrictPolicy)
    sizes = fit(layer, callbacks.RestrictCallback(2, trigger=7, freq=1), epochs=1)
    assert sizes.steps == [2, 4, 6, 2, 4, 6]


def test_restrict_goes_on_counting_steps_in_the_next_fit() -> None:
    layer = layers.Embedding(DIM, restrict_policy=de.FrequencyRestrictPolicy)
    callback = callbacks.RestrictCallback(1, freq=4)
    model = model_of(layer, 2)
    runs = []
    for _ in range(2):
        x = np.arange(6).reshape(3, 2)
        model.fit(x, targets(3), batch_size=1, verbose=0, callbacks=[callback])
        runs.append(layer.params.stats().restrict_runs)
    assert runs == [0, 1]


def test_expire_by_time() -> None:
    layer = layers.Embedding(DIM, ttl=2)
    sizes = fit(layer, callbacks.ExpireCallback(freq=1), epochs=1)
    assert sizes.steps == [2, 4, 6, 6, 6, 6]  # The ids of this second and of the two before it.
    layer = layers.Embedding(DIM, ttl=2)
    sizes = fit(layer, callbacks.ExpireCallback(ttl=3))
    assert sizes.steps[:STEPS] == [2, 4, 6, 8, 10, 12]
    assert sizes.epochs == [8, 8]
    assert layer.params.stats().expirations == 8


def test_expire_by_norm() -> None:
    layer = layers.Embedding(DIM, initializer="zeros", min_norm=1.0)
    sizes = fit(layer, callbacks.ExpireCallback(norm_writes=2))
    assert sizes.epochs == [12, 0]
    layer = layers.Embedding(DIM, initializer="zeros", min_norm=1.0)
    assert fit(layer, callbacks.ExpireCallback(min_norm=1e-9), epochs=1).epochs == [12]


def test_both_together() -> None:
    layer = layers.Embedding(
        DIM, restrict_policy=de.FrequencyRestrictPolicy, ttl=3, admission=MinCount(1)
    )
    sizes = fit(layer, callbacks.ExpireCallback(), callbacks.RestrictCallback(5), epochs=1)
    assert sizes.epochs == [5]
    stats = layer.params.stats()
    assert (stats.expirations, stats.evictions) == (4, 3)


def test_all_tables_of_a_model() -> None:
    """Also tables of a model within the model, but not tables without a policy."""
    ids = keras.Input((2,), dtype="int64")
    policy = {"restrict_policy": de.FrequencyRestrictPolicy}
    outer = layers.SquashedEmbedding(DIM, name="outer", **policy)
    inner = layers.SquashedEmbedding(DIM, name="inner", **policy)
    free = layers.SquashedEmbedding(DIM, name="free")
    tower = keras.Sequential([keras.Input((2,), dtype="int64"), inner])
    together = keras.layers.Concatenate()([outer(ids), tower(ids), free(ids)])
    model = keras.Model(ids, keras.layers.Dense(1)(together))
    model.compile("sgd", "mse")
    x = np.arange(20).reshape(10, 2)
    history = model.fit(
        x, targets(10), verbose=0,
        callbacks=[callbacks.RestrictCallback(7), callbacks.TableStatsCallback(figures=["size"])],
    ).history  # fmt: skip
    assert [int(layer.params.size()) for layer in (outer, inner, free)] == [7, 7, 20]
    found = {name: values for name, values in history.items() if name.endswith("/size")}
    assert found == {f"{n}-parameter/size": [s] for n, s in
                     (("outer", 7), ("inner", 7), ("free", 20))}  # fmt: skip


class Plain(keras.Model):  # type: ignore[misc]
    """A model that gets its weights in the first step."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.embedding, self.head = layer, keras.layers.Dense(1)

    def call(self, ids: Any) -> Any:
        return self.head(self.embedding(ids))


@pytest.mark.parametrize("freq", ["epoch", 2])
def test_models_that_are_built_by_their_first_step(freq: Any) -> None:
    def build(**options: Any) -> tuple[Any, Any]:
        layer = layers.SquashedEmbedding(DIM, name="late", **options)
        model = Plain(layer)
        model.compile("sgd", "mse")
        assert not model.built
        return layer, model

    x, options = np.arange(20).reshape(10, 2), {"verbose": 0, "batch_size": 1}
    layer, model = build(restrict_policy=de.FrequencyRestrictPolicy, min_norm=0.0)
    both = [callbacks.RestrictCallback(4, freq=freq), callbacks.ExpireCallback(freq=freq)]
    model.fit(x, targets(10), callbacks=both, **options)
    assert int(layer.params.size()) == 4
    for callback in (callbacks.RestrictCallback(4, freq=freq), callbacks.ExpireCallback(freq=freq)):
        layer, model = build()
        with pytest.raises(ValueError, match=r"Received.*late"):
            model.fit(x, targets(10), callbacks=[callback], **options)
        assert int(layer.params.size()) == 2  # After one step, not at the end.


def test_tables_of_the_same_name(tmp_path: Path) -> None:
    ids = keras.Input((2,), dtype="int64")
    policy = {"restrict_policy": de.FrequencyRestrictPolicy}
    same = [layers.SquashedEmbedding(DIM, name="same", **policy) for _ in range(3)]
    towers = [keras.Sequential([keras.Input((2,), dtype="int64"), layer]) for layer in same]
    together = keras.layers.Concatenate()([tower(ids) for tower in towers])
    model = keras.Model(ids, keras.layers.Dense(1)(together))
    model.compile("sgd", "mse")
    watch = callbacks.TableStatsCallback(tmp_path, figures=["size"])
    history = model.fit(
        np.arange(20).reshape(10, 2), targets(10), verbose=0,
        callbacks=[callbacks.RestrictCallback(7), watch],
    ).history  # fmt: skip
    assert [int(layer.params.size()) for layer in same] == [7, 7, 7]
    names = ["same-parameter", "same-parameter_1", "same-parameter_2"]
    assert sorted(n for n in history if n.endswith("/size")) == [f"{n}/size" for n in names]
    assert {f"{n}/size" for n in names} <= set(events(tmp_path / "tables").Tags()["tensors"])


@pytest.mark.parametrize(
    ("freq", "together", "runs"), [(8, 4, 5), (8, 1, 5), (2, 4, 10), (6, 4, 6), (40, 8, 1)]
)
def test_steps_are_counted_also_where_many_are_one_call(
    freq: int, together: int, runs: int
) -> None:
    layer = layers.SquashedEmbedding(DIM, restrict_policy=de.FrequencyRestrictPolicy)
    model = keras.Sequential([keras.Input((2,), dtype="int64"), layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=together)
    options = {"verbose": 0, "batch_size": 1, "epochs": 2}
    x = np.arange(40).reshape(20, 2)
    model.fit(x, targets(20), callbacks=[callbacks.RestrictCallback(1, freq=freq)], **options)
    assert layer.params.stats().restrict_runs == runs


def test_models_without_such_tables() -> None:
    layer = layers.Embedding(DIM, name="plain")
    for callback, needed in (
        (callbacks.RestrictCallback(1), "restrict_policy"),
        (callbacks.ExpireCallback(ttl=1), "ttl"),
    ):
        with pytest.raises(ValueError, match=rf"{needed}.*Received.*plain"):
            fit(layer, callback)
    assert int(layer.params.size()) == 0


@pytest.mark.parametrize(
    ("error", "said", "make"),
    [
        (TypeError, "num_reserved", lambda: callbacks.RestrictCallback(1.5)),
        (ValueError, "num_reserved", lambda: callbacks.RestrictCallback(-1)),
        (TypeError, "trigger", lambda: callbacks.RestrictCallback(1, trigger="2")),
        ((TypeError, ValueError), "freq", lambda: callbacks.RestrictCallback(1, freq=0)),
        ((TypeError, ValueError), "freq", lambda: callbacks.RestrictCallback(1, freq="batch")),
        ((TypeError, ValueError), "freq", lambda: callbacks.ExpireCallback(freq=1.5)),
        (ValueError, "ttl", lambda: callbacks.ExpireCallback(ttl=-1)),
        (TypeError, "min_norm", lambda: callbacks.ExpireCallback(min_norm="1")),
        (ValueError, "norm_writes", lambda: callbacks.ExpireCallback(norm_writes=-1)),
        (ValueError, "norm_writes", lambda: callbacks.ExpireCallback(norm_writes=2**32)),
    ],
)
def test_wrong_arguments(error: Any, said: str, make: Any) -> None:
    with pytest.raises(error, match=said) as caught:
        make()
    assert "received" in str(caught.value).lower()


def test_a_figure_that_is_none() -> None:
    layer = layers.Embedding(DIM)
    with pytest.raises(ValueError, match=r"`figures`.*'sise'"):
        fit(layer, callbacks.TableStatsCallback(figures=["sise"]), epochs=1)


# --- Figures.


def test_figures_in_the_logs() -> None:
    layer = layers.Embedding(DIM, name="ids", admission=MinCount(2))
    seen: list[dict[str, Any]] = []
    last = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(dict(logs or {}))
    )
    sizes = fit(layer, callbacks.TableStatsCallback(), last, epochs=3)
    history = sizes.history
    assert history["ids-parameter/size"] == [0, 12, 12]
    assert history["ids-parameter/refused"] == [12, 12, 12]
    assert history["ids-parameter/updates"] == [0, 0, 12]
    names = {name.removeprefix("ids-parameter/") for name in history if name != "loss"}
    assert names == set(layer.params.stats().as_dict())
    assert [logs["ids-parameter/size"] for logs in seen] == [0, 12, 12]


def test_chosen_figures_stop_training_early() -> None:
    layer = layers.Embedding(DIM, name="ids")
    stop = keras.callbacks.EarlyStopping("ids-parameter/size", patience=1, mode="max")
    figures = callbacks.TableStatsCallback(figures=["size", "bytes"])
    history = fit(layer, figures, stop, epochs=9).history
    assert history["ids-parameter/size"] == [12, 12]
    assert set(history) == {"loss", "ids-parameter/size", "ids-parameter/bytes"}


def events(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    accumulator.Reload()
    return accumulator


def series(accumulator: EventAccumulator, tag: str) -> list[tuple[int, Any]]:
    return [(e.step, tf.make_ndarray(e.tensor_proto)) for e in accumulator.Tensors(tag)]


def plugins(accumulator: EventAccumulator, tag: str) -> str:
    return accumulator.SummaryMetadata(tag).plugin_data.plugin_name


@pytest.mark.parametrize(("freq", "at"), [("epoch", [6, 12]), (4, [4, 8, 12])])
def test_tensorboard_reads_what_is_written(tmp_path: Path, freq: Any, at: list[int]) -> None:
    layer = layers.Embedding(DIM, name="ids", initializer="ones", ttl=100)
    sizes = fit(layer, callbacks.TableStatsCallback(tmp_path, freq=freq), sizes_last=False)
    found = events(tmp_path / "tables")
    figures = {tag.removeprefix("ids-parameter/") for tag in found.Tags()["tensors"]}
    assert figures == {*layer.params.stats().as_dict(), "norm", "frequency", "age"}
    assert plugins(found, "ids-parameter/size") == "scalars"
    scalars = series(found, "ids-parameter/size")
    assert [step for step, _ in scalars] == at
    assert [int(value) for _, value in scalars] == [sizes.steps[step - 1] for step in at]
    updates = [int(value) for _, value in series(found, "ids-parameter/updates")]
    assert updates == [max(0, 2 * (step - STEPS)) for step in at]
    for what in ("norm", "frequency", "age"):
        tag = f"ids-parameter/{what}"
        assert plugins(found, tag) == "histograms"
        histograms = series(found, tag)
        assert [step for step, _ in histograms] == at
        for step, buckets in histograms:
            assert buckets.shape[1] == 3
            assert buckets[:, 2].sum() == sizes.steps[step - 1]
            assert (buckets[:, 0] < buckets[:, 1]).all()
            np.testing.assert_array_equal(buckets[1:, 0], buckets[:-1, 1])
    last = series(found, "ids-parameter/frequency")[-1][1]
    assert last.tolist() == [[2.0, 4.0, 12.0]]  # Each id was in two steps.
    norms = series(found, "ids-parameter/norm")[-1][1]
    expected = np.linalg.norm(layer.params.export()[1], axis=1)
    assert norms[0, 0] <= expected.min() < norms[0, 1]
    assert norms[-1, 0] <= expected.max() < norms[-1, 1]
    ages = series(found, "ids-parameter/age")[-1][1]
    assert ages[:, 2].tolist() == [2, 2, 4, 4]  # 0; 1; 2 and 3; 4 and 5 seconds.


def test_writing_by_hand(tmp_path: Path) -> None:
    variable = de.Variable(dim=DIM)
    variable.upsert([1, 2, 3], tf.constant([[0.0, 0.0], [3.0, 4.0], [1e30, 0.0]]))
    writer = tf.summary.create_file_writer(str(tmp_path))
    with writer.as_default():
        de.tensorboard.write_stats(variable, step=7, name="mine")
        de.tensorboard.write_histograms(variable, step=7, name="mine")
    writer.close()
    found = events(tmp_path)
    assert [(s, int(v)) for s, v in series(found, "mine/size")] == [(7, 3)]
    ((step, buckets),) = series(found, "mine/norm")
    assert (step, buckets[:, 2].sum()) == (7, 3)
    assert np.isfinite(buckets).all()
    assert "mine/age" not in found.Tags()["tensors"]  # Keys have no metadata.


# --- The projector.


def read_projector(folder: Path) -> tuple[np.ndarray, list[str], str]:
    rows = np.loadtxt(folder / "rows.tsv", delimiter="\t", ndmin=2)
    labels = (folder / "labels.tsv").read_text(encoding="utf-8").splitlines()
    return rows, labels, (folder / "projector_config.pbtxt").read_text(encoding="utf-8")


def test_projector_files(tmp_path: Path, devices: list[str] | None) -> None:
    variable = de.Variable(tf.string, dim=3, devices=devices, name="words")
    words = ["ada", "gr\u00e4fin", "a\tb\nc", ""]
    values = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    variable.upsert(tf.constant(words), values)
    folder = de.tensorboard.export_to_projector(variable, tmp_path / "new" / "folder")
    rows, labels, config = read_projector(folder)
    assert folder == tmp_path / "new" / "folder"
    shown = {"ada": 0, "gr\u00e4fin": 1, "a b c": 2, "(empty)": 3}
    assert sorted(labels) == sorted(shown)
    for row, label in zip(rows, labels, strict=True):
        np.testing.assert_allclose(row, values[shown[label]], rtol=1e-6)
    from google.protobuf import text_format
    from tensorboard.plugins.projector import ProjectorConfig

    (embedding,) = text_format.Parse(config, ProjectorConfig()).embeddings
    assert embedding.tensor_name == "words"
    for path in (embedding.tensor_path, embedding.metadata_path):
        assert (folder / path).is_file()


def test_projector_of_chosen_keys(tmp_path: Path) -> None:
    variable = de.Variable(dim=2, initializer=5.0)
    variable.upsert([1, 2, 3], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    folder = de.tensorboard.export_to_projector(variable, tmp_path, [3, 1, 9], ["c", "a", "x"])
    rows, labels, _ = read_projector(folder)
    assert (rows.tolist(), labels) == ([[5, 6], [1, 2], [5, 5]], ["c", "a", "x"])
    de.tensorboard.export_to_projector(variable, tmp_path, max_rows=2)
    rows, labels, _ = read_projector(tmp_path)
    assert len(rows) == len(labels) == 2
    assert set(labels) < {"1", "2", "3"}
    for options in ({"labels": ["a"]}, {"keys": [1, 2], "labels": ["a"]}):
        with pytest.raises(ValueError, match=r"`labels`.*Received"):
            de.tensorboard.export_to_projector(variable, tmp_path, **options)


def test_figures_of_a_table_are_all_in_its_dict() -> None:
    figures = tfra.Table(1).stats().as_dict()
    assert {"size", "capacity", "load", "bytes", "hit_rate", "lookups", "waiting"} <= set(figures)
