"""A program of TensorFlow 1: no eager mode, one default graph. python tf1_program.py PATH"""

from __future__ import annotations

import json
import sys

import numpy as np
import tensorflow.compat.v1 as tf

import tfra

tf.disable_v2_behavior()
assert not tf.executing_eagerly()

with tf.variable_scope("tower"):
    users = tfra.dynamic_embedding.get_variable("users", dim=2, initializer=-1.0)
words = tfra.dynamic_embedding.get_variable("words", key_dtype=tf.string, dim=1)
dense = tf.get_variable("dense", [], initializer=tf.zeros_initializer())
keys, values = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.float32, [None, 2])
names = tf.placeholder(tf.string, [None])
count = tf.while_loop(
    lambda i: i < 5, lambda i: i + tf.cast(tf.shape(users.lookup(keys))[0], tf.int32), [0]
)
write = [users.upsert(keys, values), words.upsert(names, tf.ones([2, 1])), dense.assign(3.0)]
fetches = {
    "users": users.lookup(keys),
    "words": words.lookup(names),
    "sizes": [users.size(), words.size()],
    "dense": dense,
    "count": count,
}
feeds = {keys: [1, 2], values: [[1, 2], [3, 4]], names: ["a", "b"]}
missing = {keys: [2, 3], names: ["b", "c"]}
saver = tf.train.Saver()
results = {}

with tf.Session() as session:
    session.run([tf.global_variables_initializer(), tf.tables_initializer()])
    session.run(write, feeds)
    results["written"] = session.run(fetches, missing)
    path = saver.save(session, sys.argv[1])

with tf.Session() as session:
    results["new session"] = session.run([users.size(), words.size()])
    saver.restore(session, path)
    results["restored"] = session.run(fetches, missing)

plain = json.dumps(results, default=lambda value: np.asarray(value).tolist())
print(plain)
