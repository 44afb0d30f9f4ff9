"""Measures training: a model through `fit`, and lookup + deduplication + update of rows alone.

Runs in the environment of the system it measures (--system), and in ours also measures the same
model with a static table. `bench/compare_training.py` starts it with the environment variables that
the systems need. Every system gets the same stream of ids. Before anything is timed, its first
updates are compared with those of the rule in NumPy.
"""

from __future__ import annotations

import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np
import workloads
from workloads import FEATURES, NUMBERS, Array, Examples, Plan, Record, Stream, WrongResult

EXAMPLES = 2048  # examples in a batch of the model
HIDDEN = (128, 64)  # units of the model's layers
STATIC_ROWS = 2_000_000
LEARNING_RATE = 0.01
EPSILON = 1e-7
BETA_1, BETA_2 = 0.9, 0.999


@dataclass
class System:
    """What each record says about its system."""

    system: str
    mode: str
    versions: dict[str, str]


class Trainer(ABC):
    """Rows and an optimizer: one `step` is a lookup, a backward pass and an update."""

    def native(self, ids: Array) -> Any:
        """Converts ids (n, FEATURES) to the system's own type; not timed."""
        return ids

    @abstractmethod
    def step(self, ids: Any) -> Any:
        """Trains once on `ids`; returns their rows before the update."""

    def numpy(self, rows: Any) -> Array:
        """Converts the result of `step` to (n, FEATURES, dim); not timed."""
        return np.asarray(rows)

    def ids(self, ids: Array) -> Array:
        """Returns the numbers of the rows of `ids`; by default each id has its own row."""
        return ids

    def size(self) -> int | None:
        """Returns the number of keys, if the system has keys."""
        return None


class Rule:
    """The expected updates of rows, computed with NumPy in float64."""

    def __init__(self, workload: str, ids: Array, dim: int) -> None:
        self._adam = workload != "rowwise_adagrad"
        self._known = np.unique(ids)
        # Adagrad has one accumulator per row, Adam two averages per element.
        self._first = np.zeros((self._known.size, dim))
        self._second = np.zeros((self._known.size, dim if self._adam else 1))
        self._change = np.zeros((self._known.size, dim))
        self._step = 0

    def change(self, ids: Array) -> Array:
        """Returns the sum of all changes of the rows of `ids`."""
        return self._change[np.searchsorted(self._known, ids)]

    def apply(self, ids: Array, gradients: Array) -> None:
        """Takes one step."""
        self._step += 1
        flat = ids.reshape(-1)
        order = np.argsort(flat, kind="stable")
        keys, start = np.unique(flat[order], return_index=True)
        rows = gradients.reshape(flat.size, -1)[order].astype(np.float64)
        gradient = np.add.reduceat(rows, start, axis=0)
        at = np.searchsorted(self._known, keys)
        if self._adam:
            self._first[at] += (1 - BETA_1) * (gradient - self._first[at])
            self._second[at] += (1 - BETA_2) * (gradient**2 - self._second[at])
            correction = np.sqrt(1 - BETA_2**self._step) / (1 - BETA_1**self._step)
            size = np.sqrt(self._second[at]) + EPSILON
            self._change[at] -= LEARNING_RATE * correction * self._first[at] / size
        else:
            self._second[at] += (gradient**2).mean(axis=1, keepdims=True)
            self._change[at] -= LEARNING_RATE * gradient / np.sqrt(self._second[at] + EPSILON)


def check_updates(trainer: Trainer, stream: Stream, workload: str, gradients: Array) -> None:
    """Raises unless the first steps change the rows as the rule says; initial rows may differ."""
    first, second = stream.draw().ids, stream.draw().ids
    rule = Rule(workload, trainer.ids(np.stack([first, second])), gradients.shape[-1])
    starts: dict[int, tuple[Array, Array]] = {}
    for ids in (first, second, first, second):
        rows = trainer.numpy(trainer.step(trainer.native(ids))).copy()
        change = rule.change(trainer.ids(ids))
        rows_then, change_then = starts.setdefault(id(ids), (rows, change))
        wrong = np.abs((rows - rows_then) - (change - change_then)).max()
        if not wrong < 2e-5:
            raise WrongResult(f"expected the updates of {workload}. Received: off by {wrong:.2g}")
        rule.apply(trainer.ids(ids), gradients)


def fixed_gradients(plan: Plan) -> Array:
    """Returns the gradients (n, FEATURES, dim) of the rows, the same in every step."""
    shape = plan.batch // FEATURES, FEATURES, plan.dim
    return np.random.RandomState(0xADA).standard_normal(shape).astype(np.float32)


def embedding_part(system: System, plan: Plan, workload: str, trainer: Trainer) -> Record:
    """Measures the steps of `trainer`; checks its updates before and its size after them."""
    stream = Stream(plan.keys, plan.batch // FEATURES)
    check_updates(trainer, stream, workload, fixed_gradients(plan))
    for examples in stream.known():
        trainer.step(trainer.native(examples.ids))
    rates = []
    for number in range(-1, plan.rounds):
        batches = [trainer.native(stream.draw().ids) for _ in range(plan.round_batches)]
        provide_rows(plan, stream)
        start = time.perf_counter()
        for batch in batches:
            trainer.step(batch)
        seconds = time.perf_counter() - start
        if number >= 0:  # The first round warms up.
            rates.append(plan.round_batches * (plan.batch // FEATURES) * FEATURES / seconds)
    check_size(trainer.size(), stream)
    return training_record(system, plan, workload, stream, **workloads.rates_fields(rates))


def provide_rows(plan: Plan, stream: Stream) -> None:
    """Provides memory for new rows with two slots, also to a system that moves all rows."""
    workloads.provide_memory(3 * stream.count * (4 * plan.dim + 32))


def check_size(size: int | None, stream: Stream) -> None:
    """Raises unless the number of keys is the number of ids that were trained."""
    if size is not None and size != stream.count:
        raise WrongResult(f"expected {stream.count} keys. Received: {size}")


class LayerTrainer(Trainer):
    """One layer for all features, or one layer per feature, in a traced training step."""

    def __init__(self, layers: list[Any], optimizer: Any, gradients: Array) -> None:
        tf = import_module("tensorflow")
        self._tf, self._layers, self._optimizer = tf, layers, optimizer
        self._gradients = self._split(gradients)
        takes_training = "training" in inspect.signature(layers[0].call).parameters
        self._options = {"training": True} if takes_training else {}
        self._traced = tf.function(self._step)

    def _split(self, array: Array) -> list[Any]:
        """Returns a tensor for each layer."""
        parts = array.swapaxes(0, 1) if len(self._layers) > 1 else [array]
        return [self._tf.constant(np.ascontiguousarray(part)) for part in parts]

    def _step(self, ids: list[Any]) -> list[Any]:
        with self._tf.GradientTape() as tape:
            pairs = zip(self._layers, ids, strict=True)
            rows = [layer(part, **self._options) for layer, part in pairs]
        variables = [v for layer in self._layers for v in layer.trainable_variables]
        gradients = tape.gradient(rows, variables, output_gradients=self._gradients)
        self._optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return rows

    def step(self, ids: Any) -> Any:
        return self._traced(ids)

    def native(self, ids: Array) -> Any:
        return self._split(ids)

    def numpy(self, rows: Any) -> Array:
        arrays = [part.numpy() for part in rows]
        return np.stack(arrays, axis=1) if len(arrays) > 1 else arrays[0]

    def size(self) -> int:
        return sum(int(layer.params.size()) for layer in self._layers)


class TableTrainer(Trainer):
    """A `tfra.Table` on NumPy arrays."""

    def __init__(self, plan: Plan, gradients: Array) -> None:
        tfra = import_module("tfra")
        rule = tfra.optimizers.RowwiseAdagrad(
            LEARNING_RATE, initial_accumulator_value=0.0, epsilon=EPSILON
        )
        self._table = tfra.Table(plan.dim, initializer="normal", optimizer=rule)
        self._gradients = gradients
        self._rows = np.empty_like(gradients)

    def step(self, ids: Any) -> Any:
        self._table.lookup(ids, out=self._rows)
        self._table.apply_gradients(ids, self._gradients)
        return self._rows

    def size(self) -> int:
        return len(self._table)


class TorchTrainer(Trainer):
    """`torch.nn.Embedding` with sparse gradients, and SparseAdam."""

    def __init__(self, plan: Plan, gradients: Array) -> None:
        self._torch = torch = import_module("torch")
        self._rows = static_rows(plan)
        self._gradients = torch.from_numpy(gradients)
        self._make(plan)

    def _make(self, plan: Plan) -> None:
        self._table = self._torch.nn.Embedding(self._rows, plan.dim, sparse=True)
        self._optimizer = self._torch.optim.SparseAdam(
            self._table.parameters(), LEARNING_RATE, (BETA_1, BETA_2), EPSILON
        )

    def ids(self, ids: Array) -> Array:
        return ids % self._rows

    def native(self, ids: Array) -> Any:
        return self._torch.from_numpy(self.ids(ids))

    def numpy(self, rows: Any) -> Array:
        return rows.detach().numpy()

    def step(self, ids: Any) -> Any:
        self._optimizer.zero_grad()
        rows = self._table(ids)
        rows.backward(self._gradients)
        self._optimizer.step()
        return rows


class FbgemmTrainer(TorchTrainer):
    """FBGEMM's table on the CPU: the update is fused with the backward pass.

    Bags of one id, summed, are faster than the mode without pooling. One feature with all ids is
    faster than 26 features that share a table.
    """

    def _make(self, plan: Plan) -> None:
        common = import_module("fbgemm_gpu.split_table_batched_embeddings_ops_common")
        training = import_module("fbgemm_gpu.split_table_batched_embeddings_ops_training")
        place = common.EmbeddingLocation.HOST, training.ComputeDevice.CPU
        self._table = training.SplitTableBatchedEmbeddingBagsCodegen(
            [(self._rows, plan.dim, *place)],
            optimizer=training.OptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=LEARNING_RATE,
            eps=EPSILON,
            pooling_mode=common.PoolingMode.SUM,
            stochastic_rounding=False,
        )
        self._table.init_embedding_weights_uniform(-0.05, 0.05)
        self._shape = self._gradients.shape
        self._gradients = self._gradients.reshape(-1, plan.dim)
        self._offsets = self._torch.arange(len(self._gradients) + 1)

    def native(self, ids: Array) -> Any:
        return super().native(ids).reshape(-1)

    def numpy(self, rows: Any) -> Array:
        return super().numpy(rows).reshape(self._shape)

    def step(self, ids: Any) -> Any:
        rows = self._table(ids, self._offsets)
        rows.backward(self._gradients)
        return rows


def static_rows(plan: Plan) -> int:
    """Returns how many rows a table without keys needs for all ids of the embedding part."""
    new = (plan.rounds + 2) * plan.round_batches * plan.batch * workloads.NEW_IDS
    return plan.keys + int(new)


def deep_fm(keras: Any, embedding: Any) -> Any:
    """Returns a factorization machine beside a small network, both over the same rows."""
    tf = import_module("tensorflow")

    class Pairs(keras.layers.Layer):  # type: ignore[misc]
        """The sum of the products of all pairs of rows."""

        def call(self, rows: Any) -> Any:
            total, squares = tf.reduce_sum(rows, 1), tf.reduce_sum(rows * rows, 1)
            return 0.5 * tf.reduce_sum(total * total - squares, 1, keepdims=True)

    layers = keras.layers
    ids = keras.Input((FEATURES,), dtype="int64")
    numbers = keras.Input((NUMBERS,))
    rows = embedding(ids)
    deep = layers.Concatenate()([layers.Flatten()(rows), numbers])
    for units in HIDDEN:
        deep = layers.Dense(units, activation="relu")(deep)
    logit = layers.Add()([Pairs()(rows), layers.Dense(1)(numbers), layers.Dense(1)(deep)])
    return keras.Model([ids, numbers], layers.Activation("sigmoid")(logit))


def dataset(batches: list[Examples], rows: int | None) -> Any:
    """Returns batches for `fit`; for a static table, the ids are taken modulo `rows`."""
    tf = import_module("tensorflow")
    ids = np.stack([batch.ids for batch in batches])
    inputs = ids if rows is None else ids % rows, np.stack([batch.numbers for batch in batches])
    data = (inputs, np.stack([batch.labels for batch in batches]))
    # No autotuning: at its end `fit` waits for the thread of the autotuner, up to seconds after
    # the last step, whatever the layer is.
    options = tf.data.Options()
    options.autotune.enabled = False
    return tf.data.Dataset.from_tensor_slices(data).prefetch(2).with_options(options)


def fit(system: System, plan: Plan, keras: Any, layer: Any, optimizer: Any) -> Record:
    """Measures `fit` of a model with the embedding `layer`, which is static if it is Keras's."""
    plan = replace(plan, batch=EXAMPLES)
    model = deep_fm(keras, layer)
    model.compile(optimizer, "binary_crossentropy")
    rows = getattr(layer, "input_dim", None)
    stream = Stream(plan.keys, plan.batch)
    rates, losses = [], []
    for number in range(-2, plan.rounds):
        # Train every id once, then warm up. A round has twice the steps, because each call of `fit`
        # has a fixed cost.
        drawn = (stream.draw() for _ in range(2 * plan.round_batches))
        batches = list(stream.known() if number == -2 else drawn)
        if number == -2 and rows is not None:
            continue  # A static table has all its rows from the start.
        data = dataset(batches, rows)
        provide_rows(plan, stream)
        start = time.perf_counter()
        history = model.fit(data, verbose=0, shuffle=False)
        seconds = time.perf_counter() - start
        losses.append(history.history["loss"][0])
        if number >= 0:
            rates.append(len(data) * plan.batch / seconds)
    if not losses[-1] < losses[0]:
        raise WrongResult(f"expected the loss to fall. Received: {losses}")
    check_size(None if rows else int(layer.params.size()), stream)
    fields = workloads.rates_fields(rates, "examples")
    return training_record(system, plan, "fit", stream, losses=losses, **fields)


def training_record(
    system: System, plan: Plan, workload: str, stream: Stream, **fields: Any
) -> Record:
    """Returns a record whose workload names the length of a row, since it is measured with two."""
    name = f"{workload}_{plan.dim}"
    return workloads.record(system, plan, name, stream.checksum, final_keys=stream.count, **fields)


def measure_ours(plan: Plan) -> Iterator[Record]:
    """Measures tfra in Keras 3 and over NumPy, and static tables in Keras 3."""
    keras: Any = import_module("keras")
    tf, tfra = import_module("tensorflow"), import_module("tfra")
    tfra.set_num_threads(plan.threads)
    embedding = import_module("tfra.dynamic_embedding.keras")
    versions = versions_of("tfra", "tensorflow-cpu", "tensorflow", "keras", "numpy")
    ours = System("tfra", "keras", versions)
    gradients = fixed_gradients(plan)

    class Gather(keras.layers.Embedding):  # type: ignore[misc]
        """Reads only the rows of the ids; Keras's own layer copies the whole table in each step."""

        def call(self, ids: Any) -> Any:
            return tf.gather(self.embeddings.value, ids)

    def layers(count: int) -> list[Any]:
        return [embedding.layers.Embedding(plan.dim, name=f"layer_{i}") for i in range(count)]

    def adam() -> Any:
        return keras.optimizers.Adam(LEARNING_RATE, BETA_1, BETA_2, EPSILON)

    yield fit(ours, plan, keras, layers(1)[0], adam())
    for name, static in (("static", keras.layers.Embedding), ("gather", Gather)):
        layer, rule = static(STATIC_ROWS, plan.dim), keras.optimizers.SGD(10 * LEARNING_RATE)
        yield fit(System(name, "keras", versions), plan, keras, layer, rule)
    for workload, count in (("adam", 1), ("adam_layers", FEATURES)):
        yield embedding_part(ours, plan, workload, LayerTrainer(layers(count), adam(), gradients))
    table = TableTrainer(plan, gradients)
    yield embedding_part(System("table", "numpy", versions), plan, "rowwise_adagrad", table)
    rowwise = getattr(getattr(embedding, "optimizers", None), "RowwiseAdagrad", None)
    if rowwise is not None:
        rule = rowwise(LEARNING_RATE, initial_accumulator_value=0.0, epsilon=EPSILON)
        trainer = LayerTrainer(layers(1), rule, gradients)
        yield embedding_part(ours, plan, "rowwise_adagrad", trainer)


def measure_peer(plan: Plan) -> Iterator[Record]:
    """Measures TFRA 0.8.1 with Keras 2."""
    keras = import_module("tf_keras")
    embedding = import_module("tensorflow_recommenders_addons").dynamic_embedding
    versions = versions_of("tensorflow-recommenders-addons", "tensorflow-cpu", "tf-keras", "numpy")
    peer = System("peer", "keras", versions)

    def layer(name: str) -> Any:
        return embedding.keras.layers.Embedding(plan.dim, name=f"{name}_{plan.dim}")

    def adam() -> Any:
        rule = keras.optimizers.Adam(LEARNING_RATE, BETA_1, BETA_2, EPSILON)
        return embedding.DynamicEmbeddingOptimizer(rule)

    yield fit(peer, plan, keras, layer("model"), adam())
    trainer = LayerTrainer([layer("alone")], adam(), fixed_gradients(plan))
    yield embedding_part(peer, plan, "adam", trainer)


def measure_torch(plan: Plan) -> Iterator[Record]:
    """Measures PyTorch and FBGEMM."""
    import_module("torch").set_num_threads(plan.threads)
    gradients = fixed_gradients(plan)
    system = System("torch", "eager", versions_of("torch", "numpy"))
    yield embedding_part(system, plan, "adam", TorchTrainer(plan, gradients))
    system = System("fbgemm", "eager", versions_of("fbgemm-gpu-cpu", "torch", "numpy"))
    yield embedding_part(system, plan, "rowwise_adagrad", FbgemmTrainer(plan, gradients))


def versions_of(*distributions: str) -> dict[str, str]:
    """Returns the versions of those packages that are installed."""
    versions = {}
    for name in distributions:
        try:
            versions[name] = version(name)
        except ImportError:
            continue
    return versions


SYSTEMS = {"ours": measure_ours, "peer": measure_peer, "torch": measure_torch}


def main() -> None:
    """Prints one line of JSON per workload and number of keys."""
    parser = workloads.argument_parser(__doc__)
    parser.add_argument("--system", choices=tuple(SYSTEMS), required=True)
    arguments = parser.parse_args()
    if arguments.system != "torch":
        threading = import_module("tensorflow").config.threading
        threading.set_inter_op_parallelism_threads(arguments.threads)
        threading.set_intra_op_parallelism_threads(arguments.threads)
    for plan in workloads.plans(arguments):
        workloads.emit(SYSTEMS[arguments.system](plan))


if __name__ == "__main__":
    main()
