"""Ids whose rank is not known when a graph is built: of `tf.TensorSpec(None)` and `placeholder`.

Each program gets ids of several ranks, and must do what it does eagerly, where shapes are known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_support import KERAS_WARNS, Inertia, de

import tfra

v1 = tf.compat.v1
layers = de.keras.layers
pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

DIM = 2
IDS = ([1, 2, 2], [[3, 4], [5, 6]], [[[1]], [[2]]], 3)
KEYS = [1, 2, 3, 4, 5, 6]

# From ids to rows and the trainable.
Lookup = Callable[[Any], tuple[tf.Tensor, Any]]


def as_keys(ids: Any, dtype: tf.DType = tf.int64) -> tf.Tensor:
    keys = tf.constant(ids, tf.int64)
    return tf.strings.as_string(keys) if dtype == tf.string else keys


def train(lookup: Lookup, optimizer: Any, batches: list[Any], spec: Any = None) -> list[Any]:
    """Takes a step for each batch of ids, and returns the rows of each.

    Args:
        lookup: Looks up rows.
        optimizer: An optimizer of Keras.
        batches: Ids.
        spec: What a function is told about the ids. If None, the steps run eagerly.
    """

    def step(ids: Any) -> tf.Tensor:
        with tf.GradientTape() as tape:
            rows, trainable = lookup(ids)
            loss = tf.reduce_sum(rows**2 * [1.0, 2.0])
        optimizer.apply([tape.gradient(loss, trainable)], [trainable])
        return rows

    if spec is not None:
        step = tf.function(step, input_signature=[spec])
    return [step(ids).numpy() for ids in batches]


def assert_trained_alike(
    make: Callable[[], tuple[Any, Lookup]],
    batches: list[Any],
    spec: Any,
    optimizer: Callable[[], Any] = lambda: keras.optimizers.Adam(0.1),
) -> None:
    """Trains two new Variables, one of them in a function that is told `spec` of its ids."""
    (table, lookup), (expected, lookup_expected) = make(), make()
    rows = train(lookup, optimizer(), batches, spec)
    for found, wanted in zip(rows, train(lookup_expected, optimizer(), batches), strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    keys = as_keys(KEYS, table.key_dtype)
    wanted = expected.lookup(keys).numpy()
    assert np.abs(wanted - 1.0).min() > 1e-3
    np.testing.assert_allclose(table.lookup(keys).numpy(), wanted, rtol=1e-6)
    assert int(table.size()) == len(KEYS)


VARIABLES: dict[str, dict[str, Any]] = {
    "one table": {},
    "partitions": {"devices": ["/CPU:0"] * 2},
    "bp_v2": {"bp_v2": True},
    "strings": {"key_dtype": tf.string},
    "computed rows": {"initializer": tf.ones},
    "admission": {"initializer": tf.ones, "admission": tfra.admission.MinCount(1)},
    "bounded": {"kv_creator": de.HkvHashTableCreator()},
}
LOOKUPS: dict[str, Callable[..., Any]] = {
    "plain": lambda table, ids: de.embedding_lookup(table, ids, return_trainable=True),
    "max_norm": lambda table, ids: de.embedding_lookup(
        table, ids, max_norm=1.0, return_trainable=True
    ),
    "unique": lambda table, ids: de.embedding_lookup_unique(table, ids, return_trainable=True),
}
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "rule of the engine": lambda: keras.optimizers.Adam(0.1),
    "row path": lambda: Inertia(0.1),
}


@pytest.mark.parametrize(
    ("kind", "lookup", "optimizer"),
    [(kind, "plain", optimizer) for kind in VARIABLES for optimizer in OPTIMIZERS]
    + [("one table", "max_norm", "row path"), ("strings", "unique", "rule of the engine")],
)
def test_dense_ids(kind: str, lookup: str, optimizer: str) -> None:
    def make() -> tuple[Any, Lookup]:
        table = de.Variable(**{"dim": DIM, "initializer": 1.0, **VARIABLES[kind]})
        return table, lambda ids: LOOKUPS[lookup](table, ids)

    dtype = VARIABLES[kind].get("key_dtype", tf.int64)
    batches = [as_keys(ids, dtype) for ids in IDS]
    assert_trained_alike(make, batches, tf.TensorSpec(None, dtype), OPTIMIZERS[optimizer])


LAYERS: dict[str, Callable[[], Any]] = {
    "Embedding": lambda: layers.Embedding(DIM, initializer="ones"),
    "Embedding, max_norm": lambda: layers.Embedding(DIM, initializer="ones", max_norm=1.0),
    "Squashed": lambda: layers.SquashedEmbedding(DIM, initializer="ones"),
    "Squashed, max": lambda: layers.SquashedEmbedding(DIM, combiner="max", initializer="ones"),
    "FieldWise": lambda: layers.FieldWiseEmbedding(
        DIM, nslots=2, slot_map_fn=lambda ids: ids % 2, initializer="ones"
    ),
}


def new_layer(kind: str) -> tuple[Any, Lookup]:
    layer = LAYERS[kind]()
    return layer.params, lambda ids: (layer(ids), layer.shadow)


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_that_were_not_built(kind: str) -> None:
    batches = [as_keys(ids) for ids in IDS[: 3 if kind == "FieldWise" else 4]]
    assert_trained_alike(lambda: new_layer(kind), batches, tf.TensorSpec(None, tf.int64))


SPARSE = [
    tf.sparse.from_dense(tf.constant(ids, tf.int64))
    for ids in ([[1, 2, 3], [4, 0, 0]], [[0, 0], [5, 0], [6, 1]])
]
RAGGED = [tf.RaggedTensor.from_sparse(ids) for ids in SPARSE]
# The batches of each kind of ids, and what a function is told about them.
BATCHES_OF = {
    "sparse": (SPARSE, tf.SparseTensorSpec(None, tf.int64)),
    "ragged": (RAGGED, tf.RaggedTensorSpec(None, tf.int64, ragged_rank=1)),
}


def weights_of(ids: tf.SparseTensor) -> tf.SparseTensor:
    return ids.with_values(tf.cast(ids.values, tf.float32))


BAGS: dict[str, Callable[..., Any]] = {
    "sum": lambda table, ids: de.embedding_lookup_sparse(
        table, ids, None, combiner="sum", return_trainable=True
    ),
    "max_norm": lambda table, ids: de.embedding_lookup_sparse(
        table, ids, None, max_norm=1.0, return_trainable=True
    ),
    "safe": lambda table, ids: de.safe_embedding_lookup_sparse(table, ids, return_trainable=True),
    "safe, default_id": lambda table, ids: de.safe_embedding_lookup_sparse(
        table, ids, default_id=5, return_trainable=True
    ),
}


@pytest.mark.parametrize("kind", ["sparse", "ragged"])
@pytest.mark.parametrize("lookup", BAGS)
def test_bags(lookup: str, kind: str) -> None:
    def make() -> tuple[Any, Lookup]:
        table = de.Variable(dim=DIM, initializer=1.0)
        return table, lambda ids: BAGS[lookup](table, ids)

    assert_trained_alike(make, *BATCHES_OF[kind])


@pytest.mark.parametrize("combiner", ["sum", "sqrtn"])
def test_weighted_bags(combiner: str) -> None:
    def make() -> tuple[Any, Lookup]:
        table = de.Variable(dim=DIM, initializer=1.0)
        return table, lambda ids: de.embedding_lookup_sparse(
            table, ids, weights_of(ids), combiner=combiner, return_trainable=True
        )

    assert_trained_alike(make, *BATCHES_OF["sparse"])


@pytest.mark.parametrize("kind", ["sparse", "ragged"])
@pytest.mark.parametrize("layer", ["Embedding", "Squashed", "FieldWise"])
def test_bags_of_layers(layer: str, kind: str) -> None:
    assert_trained_alike(lambda: new_layer(layer), *BATCHES_OF[kind])


def test_sparse_ids_that_are_no_matrix_are_refused() -> None:
    layer = LAYERS["Squashed"]()
    call = tf.function(layer, input_signature=[tf.SparseTensorSpec(None, tf.int64)])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[1,2,2\].*\[\?,2\]"):
        call(tf.sparse.from_dense(tf.constant([[[1], [2]]], tf.int64)))


def test_sessions_train_and_read_slots() -> None:
    def momentum() -> Any:
        return de.DynamicEmbeddingOptimizer(v1.train.MomentumOptimizer(0.1, 0.9))

    expected, optimizer = de.Variable(dim=DIM, initializer=1.0), momentum()
    for ids in IDS:
        optimizer.minimize(
            lambda ids=ids: tf.reduce_sum(de.embedding_lookup(expected, ids) ** 2),
            var_list=[expected.get_trainable_by_name("")],
        )
    [slot] = expected.get_slot_variables(optimizer)
    wanted = [[there.lookup(ids).numpy() for there in (expected, slot)] for ids in IDS]

    with tf.Graph().as_default(), v1.Session() as session:
        ids = v1.placeholder(tf.int64)
        table, optimizer = de.Variable(dim=DIM, initializer=1.0), momentum()
        rows, trainable = de.embedding_lookup(table, ids, return_trainable=True)
        step = optimizer.minimize(tf.reduce_sum(rows**2), var_list=[trainable])
        read = [table.lookup(ids), optimizer.get_slot(trainable, "momentum").lookup(ids)]
        session.run(v1.global_variables_initializer())
        for batch in IDS:
            session.run(step, {ids: batch})
        for keys, of_keys in zip(IDS, wanted, strict=True):
            for found, rows in zip(session.run(read, {ids: keys}), of_keys, strict=True):
                assert found.shape == rows.shape
                np.testing.assert_allclose(found, rows, rtol=1e-6)


def test_functions_read_all_that_belongs_to_keys() -> None:
    table = de.Variable(dim=DIM, ttl=60)
    table.set_clock(1000)
    table.upsert(KEYS, tf.ones([len(KEYS), DIM]))

    @tf.function(input_signature=[tf.TensorSpec(None, tf.int64)])
    def read(ids: tf.Tensor) -> Any:
        table.touch(ids)
        values, exists = table.lookup(ids, return_exists=True)
        return values, exists, table.usage(ids)

    for ids in IDS:
        values, exists, (time, count) = read(as_keys(ids))
        assert values.shape == (*np.shape(ids), DIM)
        assert exists.shape == time.shape == count.shape == np.shape(ids)
        assert exists.numpy().all()
