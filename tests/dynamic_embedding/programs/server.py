"""One task of a cluster: python server.py CLUSTER_AS_JSON JOB INDEX; prints "ready" and serves."""

from __future__ import annotations

import json
import sys

import tensorflow as tf

import tfra

# The ops of tables are known to the servers that loaded them.
assert tfra.dynamic_embedding.Variable

server = tf.distribute.Server(json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
print("ready", flush=True)
server.join()
