"""What models of Keras 2 with tables do beside training: weights, files, callbacks, summaries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from layers_support import layers
from training_support import de

tf_keras = pytest.importorskip("tf_keras")

# tf_keras 2.16 seeds initializers with random.randint(1, 1e9).
pytestmark = pytest.mark.filterwarnings("ignore:non-integer arguments:DeprecationWarning")

IDS = np.array([[1, 2], [3, 2], [4, 5]])
TARGETS = np.array([[1.0], [-2.0], [0.5]], np.float32)


class Rated(tf_keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.head = layers.SquashedEmbedding(3, name="rows"), tf_keras.layers.Dense(1)

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        return self.head(self.rows(ids))


def wrapped(kind: Any = tf_keras.optimizers) -> Any:
    return de.DynamicEmbeddingOptimizer(kind.Adam(0.1))


def trained(make: Any = Rated, **options: Any) -> Any:
    model = make()
    model.compile(wrapped(), loss="mse")
    model.fit(IDS, TARGETS, verbose=0, **options)
    return model


# --- Files. Those of Keras 2 contain the weights of its own layers only.


@pytest.mark.parametrize(
    "save",
    [
        lambda model, path: model.save_weights(f"{path}.h5"),
        lambda model, path: model.save_weights(f"{path}.weights.h5"),
        lambda model, path: model.save_weights(path, save_format="h5"),
        lambda model, path: model.save(f"{path}.keras"),
        lambda model, path: model.save(f"{path}.h5"),
        lambda model, path: model.save(path, True, "keras"),
        lambda model, path: tf_keras.models.save_model(model, f"{path}.h5"),
        lambda model, path: tf_keras.saving.save_model(model, f"{path}.keras"),
        lambda model, path: tf_keras.models.save_model(model, path, save_format="h5"),
    ],
)
def test_files_without_rows_are_refused(save: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no rows of tables such as 'rows-parameter'.*checkpoint"):
        save(trained(), str(tmp_path / "saved"))
    assert not list(tmp_path.iterdir())


def test_a_callback_does_not_write_files_without_rows(tmp_path: Path) -> None:
    callback = tf_keras.callbacks.ModelCheckpoint(tmp_path / "best.h5", save_weights_only=True)
    with pytest.raises(ValueError, match="no rows of tables"):
        trained(callbacks=[callback])


class Tower(tf_keras.layers.Layer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.rows = layers.SquashedEmbedding(3, name="rows")

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        return self.rows(ids)


class Towers(tf_keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.tower, self.head = Tower(), tf_keras.layers.Dense(1)

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        return self.head(self.tower(ids))


def test_a_table_in_a_layer_of_keras_2(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="'rows-parameter' was looked up for training, and no opt"):
        model = trained(Towers)
    with pytest.raises(ValueError, match="no rows of tables"):
        model.save_weights(tmp_path / "saved.h5")


class InList(Rated):
    """A model that looks up a Variable, which Keras 2 does not list, in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.tables = None, [de.Variable(dim=3, name="rows-parameter")]

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        return self.head(tf.reduce_sum(de.embedding_lookup(self.tables[0], ids), axis=1))


def test_a_variable_in_a_list(tmp_path: Path) -> None:
    model = InList()
    model(IDS)
    with pytest.raises(ValueError, match="no rows of tables such as 'rows-parameter'"):
        model.save_weights(tmp_path / "saved.h5")


def test_other_models_are_saved_as_before(tmp_path: Path) -> None:
    trained()
    model = tf_keras.Sequential([tf_keras.layers.Dense(1)])
    model.build((None, 2))
    model.save_weights(tmp_path / "dense.h5")
    model.save(tmp_path / "dense.keras")
    loaded = tf_keras.models.load_model(tmp_path / "dense.keras")
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])
    rows = trained()
    rows.save(tmp_path / "served")
    served = tf_keras.models.load_model(tmp_path / "served")
    np.testing.assert_allclose(served(IDS), rows(IDS), rtol=1e-6)


# --- Weights.


def test_weights_of_a_model_take_tables_along() -> None:
    model, other = trained(), Rated()
    other(IDS)
    other.set_weights(model.get_weights())
    np.testing.assert_array_equal(other(IDS), model(IDS))
    lines: list[str] = []
    model.summary(print_fn=lines.append)
    assert any("Total params" in line for line in lines)


def test_early_stopping_restores_the_rows_of_the_best_epoch() -> None:
    """The mode is wrong on purpose, so that the first epoch is the best."""
    stop = tf_keras.callbacks.EarlyStopping(
        "loss", patience=2, mode="max", restore_best_weights=True
    )
    tf_keras.utils.set_random_seed(1)
    stopped = trained(epochs=9, callbacks=[stop])
    assert len(stopped.history.history["loss"]) == 3
    tf_keras.utils.set_random_seed(1)
    once = trained(epochs=1)
    np.testing.assert_allclose(stopped(IDS), once(IDS), rtol=1e-5)


# --- A shadow of one's own is a weight of the model.


class Own(tf_keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.shadow = de.shadow_ops.ShadowVariable(de.Variable(dim=3, name="own", initializer=1.0))
        self.head = tf_keras.layers.Dense(1)

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        return self.head(tf.reduce_sum(de.shadow_ops.embedding_lookup(self.shadow, ids), axis=1))


class Listed(Own):
    """As programs wrote it that listed the shadow themselves."""

    @property
    def trainable_variables(self) -> list[Any]:
        return [*super().trainable_variables, self.shadow]


@pytest.mark.parametrize("make", [Own, Listed])
@pytest.mark.parametrize("kind", [tf_keras.optimizers, tf_keras.optimizers.legacy])
def test_fit_trains_a_shadow(kind: Any, make: Any) -> None:
    model = make()
    model.compile(wrapped(kind), loss="mse")
    model.fit(IDS, TARGETS, verbose=0)
    rows = model.shadow.params.lookup([1, 9]).numpy()
    np.testing.assert_allclose(np.abs(rows - 1.0), [[0.1] * 3, [0.0] * 3], atol=1e-3)
    model.shadow.trainable = False
    assert all(variable is not model.shadow for variable in Own.trainable_weights.fget(model))


@pytest.mark.parametrize("kind", [tf_keras.optimizers, tf_keras.optimizers.legacy])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_fit_needs_a_wrapped_optimizer(kind: Any, optimizer: str) -> None:
    for make in (Rated, Own):
        model = make()
        model.compile(getattr(kind, optimizer)(0.1), loss="mse")
        with pytest.raises(TypeError, match=r"is a table.*DynamicEmbeddingOptimizer\("):
            model.fit(IDS, TARGETS, verbose=0)
