"""What a round does, as a function of the seed and the number of the round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tfra

THREADS = 8

FLOATING = ("float32", "float16", "bfloat16", "float64")
NUMERIC = (*FLOATING, "int8", "int32", "int64", "bool")
OPTIMIZERS = (
    "sgd",
    "adagrad",
    "adam",
    "adamw",
    "adamax",
    "nadam",
    "rmsprop",
    "adadelta",
    "ftrl",
    "lion",
    "rowwise_adagrad",
)
STRATEGIES = ("lru", "lfu", "epochlru", "epochlfu", "customized")
FAULTS = ("none", "allocation", "read", "write", "growth")


@dataclass(frozen=True)
class Plan:
    """The table of a round, and how much is done with it.

    Args:
        seed: The seed of the run.
        round: The number of the round.
        kind: The kind of table, one of `KINDS`.
        library: "numpy", "tensorflow", or "both", through one handle.
        key_dtype: "int64", "string" or, for TensorFlow, "int32".
        key_pattern: Which numbers or strings the keys are; see `rows.make_keys`.
        value_dtype: The type of the values.
        dim: The length of a row.
        initializer: The value of keys without a row.
        optimizer: The optimizer of the table, or None.
        metadata: Whether rows have metadata.
        admission: Which keys may enter, or None for all.
        max_capacity: The bound, or None.
        evict_strategy: What the scores of a bounded table are.
        fast_bytes: The memory budget of a tiered table, or None.
        partitions: The number of tables of a Variable.
        keys: The number of keys of each thread.
        batch: No batch is larger.
        phases: How often all threads stop, for the whole content to be checked.
        operations: The operations of each thread in a phase.
    """

    seed: int
    round: int
    kind: str
    library: str = "numpy"
    key_dtype: str = "int64"
    key_pattern: str = "dense"
    value_dtype: str = "float32"
    dim: int = 4
    initializer: str = "zeros"
    optimizer: str | None = None
    metadata: bool = False
    admission: tfra.admission.Admission | None = None
    max_capacity: int | None = None
    evict_strategy: str = "lru"
    fast_bytes: int | None = None
    partitions: int = 1
    keys: int = 2000
    batch: int = 1000
    phases: int = 4
    operations: int = 30

    def rng(self, *numbers: int) -> np.random.Generator:
        """Returns the random numbers of one part of the round."""
        return np.random.default_rng([self.seed, self.round, *numbers])

    @property
    def evicts(self) -> bool:
        """Whether a key may leave because others enter."""
        return self.max_capacity is not None

    @property
    def waits_exactly(self) -> bool:
        """Whether it is known when a key enters: always, or when it is seen often enough."""
        return isinstance(self.admission, (type(None), tfra.admission.MinCount)) and not (
            self.admission and self.evicts
        )

    @property
    def floating(self) -> bool:
        """Whether the values are floating numbers."""
        return self.value_dtype in FLOATING

    def options(self) -> dict[str, Any]:
        """Returns the arguments of `tfra.Table` for this table."""
        return {
            "dim": self.dim,
            "key_dtype": self.key_dtype,
            "value_dtype": self.value_dtype,
            "initializer": self.initializer,
            "seed": 7,
            "optimizer": self.optimizer,
            "metadata": self.metadata,
            "admission": self.admission,
            "max_capacity": self.max_capacity,
            "evict_strategy": self.evict_strategy,
            "fast_bytes": self.fast_bytes,
        }

    def __str__(self) -> str:
        parts = [f"{self.kind}: {self.key_dtype} -> {self.value_dtype}[{self.dim}]"]
        if self.optimizer is not None:
            parts.append(self.optimizer)
        if self.admission is not None:
            parts.append(type(self.admission).__name__)
        if self.max_capacity is not None:
            parts.append(f"{self.evict_strategy} of {self.max_capacity:,}")
        if self.partitions > 1:
            parts.append(f"{self.partitions} partitions")
        return ", ".join(parts)


def _plain(plan: Plan, rng: np.random.Generator) -> Plan:
    return plan


def _strings(plan: Plan, rng: np.random.Generator) -> Plan:
    return replace(plan, value_dtype="string", optimizer=None, dim=int(rng.integers(1, 4)))


def _bounded(plan: Plan, rng: np.random.Generator) -> Plan:
    total = THREADS * plan.keys
    # Small tables evict exactly, and large ones by neighbourhood. Some evict nothing.
    capacity = int(rng.choice([100, 2000, total // 4, total // 2, 2 * total]))
    strategy = str(rng.choice(STRATEGIES))
    return replace(plan, max_capacity=capacity, evict_strategy=strategy)


def _tiered(plan: Plan, rng: np.random.Generator) -> Plan:
    if plan.value_dtype == "string":
        plan = replace(plan, value_dtype="float32")
    return replace(plan, fast_bytes=int(rng.choice([1, 50_000, 400_000])))


def _admission(plan: Plan, rng: np.random.Generator) -> Plan:
    floating = plan if plan.floating else replace(plan, value_dtype="float32")
    rules: list[tfra.admission.Admission] = [
        tfra.admission.MinCount(2),
        tfra.admission.MinCount(4),
        tfra.admission.CountingBloomFilter(2, capacity=5000, error_rate=0.01),
        tfra.admission.Probability(0.5, seed=3),
    ]
    rule = rules[int(rng.integers(len(rules)))]
    optimizer = plan.optimizer or "adagrad"
    return replace(floating, admission=rule, optimizer=optimizer)


def _variable(plan: Plan, rng: np.random.Generator) -> Plan:
    # Sums of small whole numbers are exact, in the optimizer of Keras too.
    trained = plan.value_dtype in ("float32", "float64")
    return replace(
        plan,
        library="tensorflow",
        key_dtype=str(rng.choice(["int64", "int32", "string"])),
        initializer=str(rng.choice(["zeros", "ones"])),
        optimizer="sgd" if trained else None,
        partitions=int(rng.integers(1, 4)),
        operations=20,
    )


def _bounded_variable(plan: Plan, rng: np.random.Generator) -> Plan:
    plan = _variable(_bounded(plan, rng), rng)
    # Scores of one's own come from a function of the keys there.
    strategy = "lru" if plan.evict_strategy == "customized" else plan.evict_strategy
    plan = replace(plan, evict_strategy=strategy)
    return _tiered(plan, rng) if rng.integers(2) else plan


def _shared(plan: Plan, rng: np.random.Generator) -> Plan:
    floating = plan if plan.floating else replace(plan, value_dtype="float32")
    optimizer = plan.optimizer or "adam"
    initializer = str(rng.choice(["zeros", "ones"]))
    return replace(
        floating, library="both", optimizer=optimizer, operations=20, initializer=initializer
    )


def _bounded_tiered(plan: Plan, rng: np.random.Generator) -> Plan:
    return _tiered(_bounded(plan, rng), rng)


def _bounded_admission(plan: Plan, rng: np.random.Generator) -> Plan:
    return _admission(_bounded(plan, rng), rng)


def _tiered_admission(plan: Plan, rng: np.random.Generator) -> Plan:
    return _tiered(_admission(plan, rng), rng)


# The rounds take the kinds in turns, so that a short run has all of them.
KINDS: dict[str, Callable[[Plan, np.random.Generator], Plan]] = {
    "plain": _plain,
    "bounded": _bounded,
    "tiered": _tiered,
    "admission": _admission,
    "variable": _variable,
    "strings": _strings,
    "bounded and tiered": _bounded_tiered,
    "shared by NumPy and TensorFlow": _shared,
    "bounded with admission": _bounded_admission,
    "tiered with admission": _tiered_admission,
    "bounded variable": _bounded_variable,
}


def make_plan(seed: int, number: int, small: bool = False, tensorflow: bool = True) -> Plan:
    """Returns the plan of a round.

    Args:
        seed: The seed of the run.
        number: The number of the round.
        small: Whether to do little in a round, for tests.
        tensorflow: Whether TensorFlow may be used.
    """
    kinds = list(KINDS)
    kind = kinds[number % len(kinds)]
    rng = np.random.default_rng([seed, number])
    value_dtype = str(rng.choice(["float32", *NUMERIC]))
    optimizer = str(rng.choice(OPTIMIZERS)) if value_dtype in FLOATING else None
    plan = Plan(
        seed=seed,
        round=number,
        kind=kind,
        key_dtype=str(rng.choice(["int64", "string"])),
        key_pattern=str(rng.choice(["dense", "spread", "stepped"])),
        value_dtype=value_dtype,
        dim=int(rng.choice([1, 2, 3, 8, 17, 64])),
        initializer=str(rng.choice(["zeros", "ones", "uniform"])),
        optimizer=optimizer if rng.random() < 0.8 else None,
        metadata=bool(rng.integers(2)),
        keys=int(rng.choice([20, 500, 3000])),
        batch=int(rng.choice([10, 300, 2500])),
    )
    if plan.initializer == "uniform" and not plan.floating:
        plan = replace(plan, initializer="ones" if value_dtype != "string" else "zeros")
    plan = KINDS[kind](plan, rng)
    if plan.value_dtype == "string":
        plan = replace(plan, initializer="zeros")
    if plan.library != "numpy" and not tensorflow:
        plan = replace(plan, library="numpy", key_dtype="int64", partitions=1)
    if small:
        plan = replace(plan, keys=min(plan.keys, 300), batch=min(plan.batch, 200), phases=2)
        plan = replace(plan, operations=8)
    return plan
