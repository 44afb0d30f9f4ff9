"""Uses an installed tfra with nothing but NumPy; run in a clean environment, prints its version."""

import numpy as np

import tfra

table = tfra.Table(dim=4, key_dtype="string", initializer="normal", optimizer="adam", seed=1)
before = table.lookup(["ann", "bob"])
table.apply_gradients(["ann", "bob", "ann"], np.ones((3, 4), np.float32), learning_rate=0.1)
assert len(table) == 2
np.testing.assert_allclose(table.lookup(["ann", "bob"]), before - 0.1, rtol=1e-4)
print(tfra.__version__)
