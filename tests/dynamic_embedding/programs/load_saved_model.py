"""Uses a SavedModel in a process that never saw its classes: python load_saved_model.py FOLDER"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tensorflow as tf

import tfra  # noqa: F401  TensorFlow knows the ops of tables from it.

v1 = tf.compat.v1
USERS, WORDS = [1, 5, 777], [b"short", b"long" * 30, b"missing"]


def plain(value: Any) -> Any:
    return tf.nest.map_structure(lambda item: np.asarray(item).tolist(), value)


def ask(model: Any) -> Any:
    return plain(model.ask(tf.constant(USERS, tf.int64), tf.constant(WORDS)))


def train(model: Any) -> int:
    """Writes to a user that was there, and to one that was not."""
    return int(model.train(tf.constant([5, 777], tf.int64), tf.fill([2, 4], 9.0)))


def with_second_loader(folder: str) -> dict[str, Any]:
    first, second = tf.saved_model.load(folder), tf.saved_model.load(folder)
    results = {"first": ask(first), "size": train(first), "trained": ask(first)}
    results["second"] = ask(second)
    results["third"] = ask(tf.saved_model.load(folder))
    signature = second.signatures["serving_default"]
    inputs = {"users": tf.constant(USERS, tf.int64), "words": tf.constant(WORDS)}
    results["signature"] = plain(signature(**inputs))
    return results


def with_first_loader(folder: str) -> list[Any]:
    """What two Sessions answer, of which the first was trained before the second was asked."""
    answers = []
    with v1.Session(graph=tf.Graph()) as first, v1.Session(graph=tf.Graph()) as second:
        for session in (first, second):
            with session.graph.as_default():
                model = v1.saved_model.load(session, ["serve"], folder)
            ask, train = (model.signature_def[name] for name in ("serving_default", "train"))
            for signature, feeds in (
                (ask, {"users": USERS, "words": WORDS}),
                (train, {"users": [5, 777], "values": np.full((2, 4), 9.0)}),
                (ask, {"users": USERS, "words": WORDS}),
            ):
                outputs = {name: output.name for name, output in signature.outputs.items()}
                feeds = {signature.inputs[name].name: value for name, value in feeds.items()}
                answers.append(plain(session.run(outputs, feeds)))
    return answers


if __name__ == "__main__":
    folder = sys.argv[1]
    print(json.dumps({"v2": with_second_loader(folder), "v1": with_first_loader(folder)}))
