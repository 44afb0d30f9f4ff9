"""The chief of a cluster with two parameter servers and a worker: python chief.py FOLDER

TF_CONFIG describes the cluster.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from common import DIM, content, de, ids, numbered_rows, rows

DEVICES = [f"/job:ps/replica:0/task:{task}/CPU:0" for task in range(2)]
KEYS = ids(*range(10))
ANY_SHAPE = [tf.TensorSpec(None, tf.int64), tf.TensorSpec(None, tf.float32)]


def make(name: str) -> Any:
    """A Variable on both parameter servers that holds 0 to 9, each in a row of its own number."""
    variable = de.Variable(dim=DIM, devices=DEVICES, name=name, initializer=-1.0)
    variable.upsert(KEYS, numbered_rows(KEYS))
    return variable


def eager_calls(variable: Any) -> dict[str, Any]:
    variable.remove(ids(9, 10))
    found, exists = variable.lookup(ids(8, 9), return_exists=True)
    return {
        "devices": [table.resource_handle.device for table in variable.tables],
        "sizes": [int(variable.size(0)), int(variable.size(1)), int(variable.size())],
        "found": found.numpy().tolist(),
        "exists": exists.numpy().tolist(),
        "content": sorted(content(variable).items()),
    }


def function_call(variable: Any) -> dict[str, Any]:
    @tf.function
    def step(keys: tf.Tensor) -> tf.Tensor:
        variable.upsert(keys, variable.lookup(keys) + 1)
        return variable.lookup(keys)[:, 0]

    return {"numbers": [step(KEYS).numpy().tolist() for _ in range(3)][-1]}


def worker_steps(variable: Any, coordinator: Any) -> dict[str, Any]:
    @tf.function
    def step(keys: tf.Tensor) -> tf.Tensor:
        zeros = tf.zeros([tf.size(keys), DIM])
        variable.accum(keys, zeros, zeros + 1, tf.ones_like(keys, tf.bool))
        return variable.lookup(keys)[:, 0] - tf.cast(keys, tf.float32)

    values = [coordinator.schedule(step, args=(KEYS,)) for _ in range(20)]
    coordinator.join()
    results = {"steps": [value.fetch().tolist() for value in values]}
    per_worker = coordinator.create_per_worker_dataset(
        lambda: tf.data.Dataset.from_tensors([3, 4]).map(lambda keys: tf.cast(keys, tf.int64))
    )
    fed = tf.function(lambda iterator: step(next(iterator)))
    value = coordinator.schedule(fed, args=(iter(per_worker),))
    coordinator.join()
    results["dataset"] = value.fetch().tolist()
    results["content"] = sorted(content(variable).items())
    return results


def error_of(call: Callable[[], Any]) -> tuple[str, str]:
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error).lower()
    raise AssertionError("no error")


def errors(variable: Any, coordinator: Any) -> dict[str, Any]:
    @tf.function(input_signature=ANY_SHAPE)
    def upsert(keys: tf.Tensor, values: tf.Tensor) -> None:
        variable.upsert(keys, values)

    arguments = KEYS, rows(10, 1.0, 77)
    results = {"eager": error_of(lambda: upsert(*arguments))}
    coordinator.schedule(upsert, args=arguments)
    results["worker"] = error_of(coordinator.join)
    results["content"] = sorted(content(variable).items())
    return results


def checkpoint(variable: Any, folder: str) -> dict[str, Any]:
    saver = tf.train.Checkpoint(table=variable)
    path = saver.write(f"{folder}/remote")
    variable.upsert(ids(3, 100, 101), rows(3, -7.0))
    saver.read(path).assert_consumed()
    local = de.Variable(dim=DIM, name="local")
    tf.train.Checkpoint(table=local).read(path).assert_consumed()
    return {
        "remote": sorted(content(variable).items()),
        "sizes": [int(variable.size(0)), int(variable.size(1))],
        "local": sorted(content(local).items()),
    }


def main() -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    results = {
        "eager": eager_calls(make("eager")),
        "function": function_call(make("function")),
        "worker": worker_steps(make("worker"), coordinator),
        "errors": errors(make("errors"), coordinator),
        "checkpoint": checkpoint(make("checkpoint"), sys.argv[1]),
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
