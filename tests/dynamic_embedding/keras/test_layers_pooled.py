"""SquashedEmbedding and FieldWiseEmbedding: one row for each example, or for each of its fields."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from layers_support import (
    COUNT,
    DIM,
    KERAS_WARNS,
    ROWS,
    assert_close,
    content,
    dense_step,
    filled,
    layers,
    model_of,
    raises,
    sgd_step,
    table_rows,
)

from support import Array, Shape

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

Squashed, FieldWise = layers.SquashedEmbedding, layers.FieldWiseEmbedding
NSLOTS = 3
COMBINERS = {
    "sum": tf.reduce_sum,
    "mean": tf.reduce_mean,
    "min": tf.reduce_min,
    "max": tf.reduce_max,
    "prod": tf.reduce_prod,
    "std": tf.math.reduce_std,
}
# Each example has ids of every field (the remainder by 3), without equal ones.
FULL_IDS = np.array([[3, 1, 2, 6, 4], [7, 10, 0, 5, 8], [9, 11, 14, 12, 16]])
# The second example has none of field 1, the third only ids of field 2.
GAPPED_IDS = np.array([[3, 1, 2, 6], [0, 5, 2, 5], [2, 5, 8, 2]])
TARGETS = np.array([[1.0], [-2.0], [0.5]], np.float32)


def field_of(ids: tf.Tensor) -> tf.Tensor:
    return ids % NSLOTS


def make_fields(**options: Any) -> Any:
    return filled(FieldWise, **{"nslots": NSLOTS, "slot_map_fn": field_of, **options})


def by_field(table: Any, ids: Array, reduce: Any) -> tf.Tensor:
    """The rows of each field of each example, combined; zeros where there are none."""
    fields = [[example[example % NSLOTS == field] for field in range(NSLOTS)] for example in ids]
    zero = tf.zeros(DIM)
    combined = [
        [reduce(tf.gather(table, of_field), axis=0) if len(of_field) else zero for of_field in row]
        for row in fields
    ]
    return tf.stack([tf.stack(row) for row in combined])


def weights_like(*shape: int) -> Array:
    return np.random.default_rng(8).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("shape", [(5,), (3, 4), (1, 1), (3, 2, 4), (2, 1, 2, 3)], ids=str)
def test_everything_but_the_batch_is_squashed(shape: Shape, combiner: str) -> None:
    layer = filled(Squashed, combiner=combiner)
    ids = np.random.default_rng(9).integers(0, COUNT, shape)
    axes = tuple(range(len(shape)))[1:] or (0,)
    expected = COMBINERS[combiner](ROWS[ids], axis=axes).numpy()
    assert expected.shape == ((shape[0], DIM) if len(shape) > 1 else (DIM,))
    assert_close(layer(tf.constant(ids)), expected)
    assert tuple(layer.compute_output_shape(shape)) == expected.shape


def test_the_default_combiner_is_a_sum() -> None:
    assert_close(filled(Squashed)([[1, 2], [3, 3]]), np.stack([ROWS[1] + ROWS[2], 2 * ROWS[3]]))
    assert_close(make_fields()([[1, 4]]), np.stack([[ROWS[0] * 0, ROWS[1] + ROWS[4], ROWS[0] * 0]]))


def test_no_ids_at_all_are_squashed_to_zeros() -> None:
    out = filled(Squashed)(tf.zeros((2, 0), tf.int64))
    np.testing.assert_array_equal(out, np.zeros((2, DIM)))


def test_examples_of_no_batch() -> None:
    assert filled(Squashed)(tf.zeros((0, 3), tf.int64)).shape == (0, DIM)
    assert make_fields()(tf.zeros((0, 3), tf.int64)).shape == (0, NSLOTS, DIM)


@pytest.mark.parametrize("with_unique", [True, False])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_a_step_through_a_squashed_layer(combiner: str, with_unique: bool) -> None:
    layer, weights = (
        filled(Squashed, combiner=combiner, with_unique=with_unique),
        weights_like(3, DIM),
    )
    sgd_step(layer, FULL_IDS, weights)
    expected = dense_step(
        lambda table: COMBINERS[combiner](tf.gather(table, FULL_IDS), axis=1), weights
    )
    assert_close(table_rows(layer), expected)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("ids", [FULL_IDS, GAPPED_IDS], ids=["full", "gapped"])
def test_ids_of_one_field_are_combined(ids: Array, combiner: str) -> None:
    layer = make_fields(combiner=combiner)
    expected = by_field(ROWS, ids, COMBINERS[combiner]).numpy()
    assert expected.shape == (3, NSLOTS, DIM)
    assert_close(layer(tf.constant(ids)), expected)
    assert tuple(layer.compute_output_shape(ids.shape)) == expected.shape


@pytest.mark.parametrize("with_unique", [True, False])
@pytest.mark.parametrize("combiner", ["sum", "mean", "min", "max", "prod"])
def test_a_step_through_fields(combiner: str, with_unique: bool) -> None:
    layer = make_fields(combiner=combiner, with_unique=with_unique)
    weights = weights_like(3, NSLOTS, DIM)
    sgd_step(layer, FULL_IDS, weights)
    expected = dense_step(lambda table: by_field(table, FULL_IDS, COMBINERS[combiner]), weights)
    assert_close(table_rows(layer), expected)


def test_a_step_with_fields_that_are_empty() -> None:
    layer, weights = make_fields(combiner="mean"), weights_like(3, NSLOTS, DIM)
    sgd_step(layer, GAPPED_IDS, weights)
    expected = dense_step(lambda table: by_field(table, GAPPED_IDS, tf.reduce_mean), weights)
    assert_close(table_rows(layer), expected)


@pytest.mark.parametrize("fields", [np.int32, np.int64])
def test_fields_found_by_a_tf_function(fields: type) -> None:
    slot_map_fn = tf.function(lambda ids: tf.cast(tf.math.mod(ids, NSLOTS), fields))
    expected = by_field(ROWS, GAPPED_IDS, tf.reduce_sum).numpy()
    assert_close(make_fields(slot_map_fn=slot_map_fn)(GAPPED_IDS), expected)


@pytest.mark.parametrize("fields", [False, True], ids=["squashed", "fields"])
def test_a_combiner_of_the_users(fields: bool) -> None:
    def largest(values: tf.Tensor, axis: Any) -> tf.Tensor:
        return tf.reduce_max(values, axis=axis)

    layer = make_fields(combiner=largest) if fields else filled(Squashed, combiner=largest)
    table = -abs(ROWS)  # Zeros would stand out.
    layer.params.upsert(tf.range(COUNT, dtype=tf.int64), table)
    expected = (
        by_field(table, FULL_IDS, tf.reduce_max).numpy() if fields else table[FULL_IDS].max(1)
    )
    assert_close(layer(FULL_IDS), expected)


@pytest.mark.parametrize("combiner", ["sum", "max"])
@pytest.mark.parametrize("fields", [False, True], ids=["squashed", "fields"])
def test_models_of_pooled_layers(fields: bool, combiner: str) -> None:
    make = make_fields if fields else lambda **options: filled(Squashed, **options)
    layer = make(combiner=combiner)
    model = model_of(layer, ids=4)
    assert layer.output.shape == ((None, NSLOTS, DIM) if fields else (None, DIM))
    model.predict(GAPPED_IDS + 1000, verbose=0)
    before = content(layer)
    assert len(before) == COUNT
    model.train_on_batch(GAPPED_IDS + 20, TARGETS)
    assert set(content(layer)) == set(before) | set((GAPPED_IDS + 20).ravel().tolist())


def test_ids_of_unknown_shape_in_a_function() -> None:
    for layer, shape in ((filled(Squashed), (3, DIM)), (make_fields(), (3, NSLOTS, DIM))):
        look = tf.function(layer.__call__, [tf.TensorSpec([None, None], tf.int64)])
        out = look(tf.constant(GAPPED_IDS))
        assert out.shape == shape
        assert_close(out, layer(GAPPED_IDS).numpy())


@pytest.mark.parametrize("fields", [False, True], ids=["squashed", "fields"])
def test_rows_are_cut_before_they_are_combined(fields: bool) -> None:
    layer = make_fields(max_norm=1.0) if fields else filled(Squashed, max_norm=1.0)
    table = tf.clip_by_norm(ROWS, 1.0, axes=[1]).numpy()
    expected = by_field(table, FULL_IDS, tf.reduce_sum).numpy()
    assert_close(layer(FULL_IDS), expected if fields else table[FULL_IDS].sum(1))


@pytest.mark.parametrize("fields", [False, True], ids=["squashed", "fields"])
def test_a_mask_ends_where_ids_are_combined(fields: bool) -> None:
    layer = make_fields() if fields else filled(Squashed)
    ids = tf.constant([[1, 0]], tf.int64)
    assert layer.compute_mask(ids, ids != 0) is None


def test_mixed_precision() -> None:
    for layer in (filled(Squashed, dtype="mixed_float16"), make_fields(dtype="mixed_float16")):
        assert layer(FULL_IDS).dtype == tf.float16
        assert layer.params.value_dtype == tf.float32


def test_strings() -> None:
    names = tf.strings.as_string(GAPPED_IDS)
    squashed = filled(Squashed, key_dtype=tf.string)
    assert_close(squashed(names), ROWS[GAPPED_IDS].sum(1))
    slots = lambda ids: tf.strings.to_number(ids, tf.int32) % NSLOTS  # noqa: E731
    fields = make_fields(key_dtype=tf.string, slot_map_fn=slots)
    assert_close(fields(names), by_field(ROWS, GAPPED_IDS, tf.reduce_sum).numpy())


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: Squashed(DIM, combiner="median"), "median"),
        (lambda: FieldWise(DIM, NSLOTS, slot_map_fn=field_of, combiner="median"), "median"),
        (lambda: FieldWise(DIM, 0, slot_map_fn=field_of), "nslots"),
        (lambda: FieldWise(DIM, -2, slot_map_fn=field_of), "nslots"),
        (lambda: FieldWise(DIM, NSLOTS, slot_map_fn=3), "slot_map_fn"),
        (lambda: FieldWise(DIM, NSLOTS, slot_map_fn=field_of, slots=3), "slots"),
        (lambda: Squashed(DIM)(np.array([[1.5]])), "float"),
        (lambda: FieldWise(DIM, NSLOTS, slot_map_fn=field_of)(np.array([[1.5]])), "float"),
    ],
)
def test_wrong_arguments(make: Any, said: str) -> None:
    raises(make, said)


@pytest.mark.parametrize("field", [-1, NSLOTS])
def test_fields_are_checked_in_graphs_of_tf1_too(field: int) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        layer = FieldWise(DIM, NSLOTS, slot_map_fn=lambda ids: tf.zeros_like(ids) + field)
        rows = layer(tf.constant([[1, 2]], tf.int64))
        with pytest.raises(tf.errors.InvalidArgumentError, match="slot_map_fn gave a"):
            session.run(rows)


def test_the_model_of_a_pooled_layer_has_its_config() -> None:
    layer = keras.models.clone_model(model_of(filled(Squashed, combiner="max"))).layers[1]
    layer.params.upsert(tf.range(COUNT, dtype=tf.int64), ROWS)
    assert_close(layer(FULL_IDS), ROWS[FULL_IDS].max(1))
