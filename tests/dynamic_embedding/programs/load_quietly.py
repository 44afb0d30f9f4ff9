"""Loads SavedModels, and says where what it prints begins: python load_quietly.py FOLDER..."""

from __future__ import annotations

import gc
import sys

import tensorflow as tf

import tfra.dynamic_embedding  # noqa: F401  TensorFlow knows the ops of tables from it.


def main() -> None:
    tf.constant(1)  # TensorFlow has printed what it prints when it starts.
    print("START", file=sys.stderr, flush=True)
    for folder in sys.argv[1:]:
        loaded = tf.saved_model.load(folder)
        del loaded
        gc.collect()  # TensorFlow says what was not restored when it frees the status of a load.


if __name__ == "__main__":
    main()
