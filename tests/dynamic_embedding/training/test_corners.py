"""What happens around training: lifetimes, copies, refusals, unusual ways to use it."""

from __future__ import annotations

import gc
import pickle
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfra
from tfra.dynamic_embedding._platform.tf import ops

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
de = tfra.dynamic_embedding
layers = de.keras.layers
IDS = np.array([[1, 2], [3, 1]])
TARGETS = np.array([[1.0], [0.0]])


def functional(layer: Any, **settings: Any) -> Any:
    inputs = keras.Input((2,), dtype="int64")
    rows = keras.layers.Flatten()(layer(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1, name="dense")(rows))
    model.compile(**{"optimizer": "adam", "loss": "mse", **settings})
    return model


class Subclassed(keras.Model):
    """A subclassed model: Keras does not know which layers `call` uses."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = layers.SquashedEmbedding(2, initializer="zeros", name="rows")

    def call(self, ids: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        return self.rows(ids, training=training)


def tables() -> int:
    gc.collect()
    return int(ops.tfra_table_count())


def fit_once() -> None:
    functional(layers.Embedding(3)).fit(IDS, TARGETS, verbose=0)


def accumulate_once() -> None:
    optimizer = keras.optimizers.Adam(gradient_accumulation_steps=2)
    functional(layers.Embedding(3), optimizer=optimizer).fit(IDS, TARGETS, verbose=0)


def sparse_lookup_in_a_function() -> None:
    variable = de.Variable(dim=2)
    ids = tf.sparse.from_dense(tf.constant([[1, 2]], tf.int64))
    tf.function(lambda: de.embedding_lookup_sparse(variable, ids, None))()


def step_in_a_function() -> None:
    shadow = de.shadow_ops.ShadowVariable(de.Variable(dim=2))
    optimizer = keras.optimizers.Adam()

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(shadow.lookup(tf.constant([1, 2], tf.int64)))
        optimizer.apply([tape.gradient(loss, shadow)], [shadow])

    step()


@pytest.mark.parametrize(
    "program", [fit_once, accumulate_once, sparse_lookup_in_a_function, step_in_a_function]
)
def test_tables_go_with_what_they_belong_to(program: Any) -> None:
    before = tables()
    program()
    assert tables() == before


def test_a_subclassed_model_is_exported_with_its_rows(tmp_path: Path) -> None:
    model = Subclassed()
    model(IDS)
    model.rows.params.upsert([1, 2, 3], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    signature = [tf.TensorSpec([None, 2], tf.int64)]
    model.export(str(tmp_path / "model"), input_signature=signature, verbose=False)
    served = tf.saved_model.load(str(tmp_path / "model"))
    assert served.serve(tf.constant(IDS)).numpy().tolist() == [[4, 6], [6, 8]]
    tf.saved_model.save(served, str(tmp_path / "again"))
    again = tf.saved_model.load(str(tmp_path / "again"))
    for model in (served, again):
        assert model.serve(tf.constant(IDS)).numpy().tolist() == [[4, 6], [6, 8]]


def test_a_module_with_a_shadow_alone_is_saved_with_its_rows(tmp_path: Path) -> None:
    module = tf.Module()
    module.shadow = de.shadow_ops.ShadowVariable(de.Variable(dim=1))
    module.shadow.params.upsert([1, 2], [[5.0], [6.0]])
    signature = [tf.TensorSpec([None], tf.int64)]
    module.lookup = tf.function(lambda ids: module.shadow.lookup(ids), input_signature=signature)
    for folder in (str(tmp_path / "first"), str(tmp_path / "again")):
        tf.saved_model.save(module, folder)
        module = tf.saved_model.load(folder)
        assert module.lookup(tf.constant([2, 1, 9], tf.int64)).numpy().tolist() == [[6], [5], [0]]


def test_weights_of_a_model_take_tables_along() -> None:
    layer = layers.Embedding(1, initializer="zeros")
    model = functional(layer)
    model.fit(IDS, TARGETS, verbose=0)
    kept, rows = model.get_weights(), layer.params.lookup([1, 2, 3]).numpy()
    slots = layer.params.content()["slots"].numpy()
    model.fit(IDS, TARGETS, verbose=0)
    model.fit(IDS + 10, TARGETS, verbose=0)
    model.set_weights(kept)
    assert int(layer.params.size()) == 3
    np.testing.assert_array_equal(layer.params.lookup([1, 2, 3]), rows)
    assert sorted(layer.params.content()["slots"].numpy().tolist()) == sorted(slots.tolist())


def test_early_stopping_restores_the_rows_of_the_best_epoch() -> None:
    layer = layers.Embedding(2)
    model = functional(layer, optimizer=keras.optimizers.SGD(5.0))  # Diverges.
    seen: list[Any] = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(layer.params.lookup([1, 2, 3]).numpy())
    )
    stop = keras.callbacks.EarlyStopping("loss", patience=2, restore_best_weights=True)
    history = model.fit(IDS, TARGETS, epochs=6, verbose=0, callbacks=[note, stop])
    best = int(np.nanargmin(history.history["loss"]))
    assert best < len(seen) - 1
    np.testing.assert_array_equal(layer.params.lookup([1, 2, 3]), seen[best])


@pytest.mark.parametrize("kind", [layers.Embedding, layers.SquashedEmbedding])
def test_a_lookup_in_one_branch(kind: Any) -> None:
    layer = kind(2)
    layer.build(None)
    ids = tf.constant([[1, 2]], tf.int64)

    @tf.function
    def keys(flag: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.cond(flag, lambda: tf.reduce_sum(layer(ids)), lambda: 0.0)
        return tape.gradient(loss, layer.trainable_variables)[0].indices

    assert sorted(keys(tf.constant(True)).numpy().tolist()) == [1, 2]
    assert keys(tf.constant(False)).numpy().tolist() == []


def test_a_pooled_lookup_in_a_loop_says_what_to_do() -> None:
    layer = layers.SquashedEmbedding(2)
    layer.build(None)

    @tf.function
    def gradient() -> Any:
        with tf.GradientTape() as tape:
            total = tf.constant(0.0)
            for _ in tf.range(3):
                total += tf.reduce_sum(layer(tf.constant([[1, 2]], tf.int64)))
        return tape.gradient(total, layer.trainable_variables)

    with pytest.raises(NotImplementedError, match=r"tf\.while_loop"):
        gradient()


def test_optimizers_of_whole_variables_may_train_the_others() -> None:
    layer = layers.Embedding(2, name="table")
    lamb, adam = keras.optimizers.Lamb(), keras.optimizers.Adam()
    several = keras.optimizers.MultiOptimizer(lambda v: adam if v is layer.shadow else lamb)
    functional(layer, optimizer=several).fit(IDS, TARGETS, verbose=0)
    assert int(layer.params.size()) == 3
    frozen = functional(layers.Embedding(2, trainable=False), optimizer=keras.optimizers.Lamb())
    frozen.fit(IDS, TARGETS, verbose=0)
    with pytest.raises(NotImplementedError, match="Lamb"):
        functional(layers.Embedding(2), optimizer=keras.optimizers.Lamb()).fit(
            IDS, TARGETS, verbose=0
        )


def test_sparse_ids_must_be_in_order() -> None:
    ids = tf.SparseTensor([[1, 0], [0, 0]], tf.constant([1, 2], tf.int64), [2, 1])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"tf\.sparse\.reorder"):
        layers.Embedding(2)(ids)
    assert layers.Embedding(2)(tf.sparse.reorder(ids)).shape == (2, 2)


def test_an_optimizer_of_v1_that_is_not_wrapped() -> None:
    with tf.Graph().as_default():
        variable = de.get_variable("unwrapped", dim=2)
        rows = de.embedding_lookup(variable, tf.constant([0], tf.int64))
        optimizer = tf.compat.v1.train.AdamOptimizer(0.1)
        with pytest.raises(TypeError, match="DynamicEmbeddingOptimizer"):
            optimizer.minimize(tf.reduce_sum(rows))


def test_an_optimizer_that_trains_tables_can_be_pickled() -> None:
    optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.25))
    again = pickle.loads(pickle.dumps(optimizer))
    assert type(again) is keras.optimizers.Adam
    assert float(again.learning_rate) == 0.25


def test_bp_v2_reaches_the_optimizer_inside() -> None:
    inner = keras.optimizers.SGD()
    de.DynamicEmbeddingOptimizer(keras.optimizers.LossScaleOptimizer(inner), bp_v2=True)
    assert inner.bp_v2


def test_zeros_for_gradients_that_are_not_connected() -> None:
    shadow = de.shadow_ops.ShadowVariable(de.Variable(dim=2))
    keras.optimizers.Adam().apply([tf.zeros([0, 2])], [shadow])
    assert int(shadow.params.size()) == 0


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
@pytest.mark.parametrize("gradient_dtype", [tf.float16, tf.float32, tf.float64])
def test_gradients_of_another_type(dtype: tf.DType, gradient_dtype: tf.DType) -> None:
    shadow = de.shadow_ops.ShadowVariable(de.Variable(value_dtype=dtype, dim=2))
    gradient = tf.IndexedSlices(tf.ones([1, 2], gradient_dtype), tf.constant([7], tf.int64))
    keras.optimizers.SGD(0.5).apply([gradient], [shadow])
    assert tf.cast(shadow.params.lookup([7]), tf.float32).numpy().tolist() == [[-0.5, -0.5]]


def test_an_initializer_of_tensorflow_comes_back(tmp_path: Path) -> None:
    normal = tf.random_normal_initializer(1.0, 0.5, seed=3)
    model = functional(layers.Embedding(2, name="e", initializer=normal))
    model.fit(IDS, TARGETS, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    ids = IDS + 1  # Some are new.
    np.testing.assert_array_equal(model.predict(ids, verbose=0), again.predict(ids, verbose=0))


def test_recompiling_forgets_gradients_that_were_accumulated() -> None:
    layer = layers.Embedding(1, initializer="zeros")
    accumulating = {"gradient_accumulation_steps": 2}
    model = functional(layer, optimizer=keras.optimizers.SGD(1.0, **accumulating))
    model.get_layer("dense").set_weights([np.ones((2, 1)), np.zeros(1)])
    model.train_on_batch(IDS, TARGETS * 100)
    model.compile(keras.optimizers.SGD(1.0), "mse")
    model.train_on_batch(IDS, TARGETS)
    # The mean of two squares, of which one is off by 1.
    np.testing.assert_allclose(layer.params.lookup([1, 2, 3]), [[1.0], [1.0], [0.0]])


def test_saving_does_not_take_slots_away_when_training_begins() -> None:
    keys, gradients = tf.range(50, dtype=tf.int64), tf.ones([50, 2])
    for _ in range(40):
        shadow = de.shadow_ops.ShadowVariable(de.Variable(dim=2))
        shadow.params.upsert(keys, gradients)
        going = threading.Event()

        def save(shadow: Any = shadow, going: Any = going) -> None:
            while not going.is_set():
                shadow.params.content()

        thread = threading.Thread(target=save)
        thread.start()
        optimizer = keras.optimizers.Adam(0.1)
        for _ in range(2):
            optimizer.apply([tf.IndexedSlices(gradients, keys)], [shadow])
        going.set()
        thread.join()
        # After the second step: m = 0.9 * 0.1 + 0.1.
        momentum = shadow.params.content()["slots"].numpy()[:, :2]
        np.testing.assert_allclose(momentum, 0.19, rtol=1e-6)
