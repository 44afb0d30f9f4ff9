"""Uses an installed tfra with TensorFlow and Keras: trains a layer, prints TensorFlow's version."""

import keras
import numpy as np
import tensorflow as tf

import tfra

variable = tfra.dynamic_embedding.Variable(dim=2, initializer=1.0)
variable.upsert([7], [[2.0, 3.0]])
assert variable.lookup([7, 8]).numpy().tolist() == [[2.0, 3.0], [1.0, 1.0]]

ids = keras.Input((1,), dtype="int64")
rows = tfra.dynamic_embedding.keras.layers.Embedding(4, name="ids")(ids)
model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
model.compile("adam", "mse")
model.fit(np.array([[1], [2], [1]]), np.array([1.0, 0.0, 1.0]), verbose=0)
assert int(model.get_layer("ids").params.size()) == 2
print(tf.__version__)
