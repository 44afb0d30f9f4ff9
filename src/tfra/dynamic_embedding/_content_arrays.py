"""The content of tables as arrays of numbers, which files of Keras and of NumPy hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfra._tf import tf
from tfra.dynamic_embedding._content import Content


def to_arrays(content: Content) -> dict[str, np.ndarray[Any, Any]]:
    """Returns arrays of numbers: strings as their bytes and lengths."""
    arrays = {}
    for name, tensor in content.items():
        array = tensor.numpy()
        if tensor.dtype == tf.string:
            strings = array.reshape(-1).tolist()
            arrays[f"{name}_lengths"] = np.array([len(s) for s in strings], np.int64)
            arrays[f"{name}_bytes"] = np.frombuffer(b"".join(strings), np.uint8)
        elif tensor.dtype == tf.bfloat16:
            arrays[name] = array.view(np.uint16)
        else:
            arrays[name] = array
    return arrays


def to_content(store: Any, key_dtype: tf.DType, value_dtype: tf.DType) -> Content:
    """Returns what `to_arrays` was given.

    Raises:
        ValueError: If the keys in the file are of another kind.
    """
    if ("keys_lengths" in store) != (key_dtype == tf.string):
        found = "strings" if "keys_lengths" in store else "integers"
        raise ValueError(f"Expected a file with keys of {key_dtype.name}. Received one of {found}")
    content = {
        "slots": tf.constant(np.asarray(store["slots"])),
        "metadata": tf.constant(np.asarray(store["metadata"])),
        "rule": tf.constant(_strings(store, "rule")),
        "waiting_seen": tf.constant(np.asarray(store["waiting_seen"])),
        "waiting_filter": tf.constant(np.asarray(store["waiting_filter"])),
    }
    for name in ("scores", "epoch"):  # Files written before there were scores have none.
        if name in store:
            content[name] = tf.constant(np.asarray(store[name]), tf.int64)
    keys = ["keys", "waiting_keys"]
    if "sums" in store:  # Nor have others sums of gradients.
        content["sums"] = tf.constant(np.asarray(store["sums"]))
        keys.append("sum_keys")
    for name in keys:
        if key_dtype == tf.string:
            content[name] = tf.constant(_strings(store, name), tf.string)
        else:
            content[name] = tf.constant(np.asarray(store[name]), key_dtype)
    strings = value_dtype == tf.string  # In one row: the file does not say how long theirs are.
    values = _strings(store, "values") if strings else np.asarray(store["values"])
    if value_dtype == tf.bfloat16 and values.dtype == np.uint16:
        values = values.view(tf.bfloat16.as_numpy_dtype)
    content["values"] = tf.constant(values, value_dtype)
    return content


def check(content: Content, name: str, dim: int) -> None:
    """Raises ValueError unless the rows have this length."""
    if content["values"].shape[1] != dim:
        raise ValueError(
            f"Layer {name!r} has rows of length {dim}. Received a file with rows of length "
            f"{content['values'].shape[1]}. Make the layer with the length that was saved."
        )


def _strings(store: Any, name: str) -> np.ndarray[Any, Any]:
    ends = np.cumsum(np.asarray(store[f"{name}_lengths"])).tolist()
    text = np.asarray(store[f"{name}_bytes"]).tobytes()
    strings = np.empty(len(ends), dtype=object)
    begin = 0
    for i, end in enumerate(ends):
        strings[i] = text[begin:end]
        begin = end
    return strings
