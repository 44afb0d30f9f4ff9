"""Settings and fixtures of the tests that use TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
import tensorflow as tf
from tf_support import DEVICES


@pytest.fixture
def session() -> Iterator[tf.compat.v1.Session]:
    """A session of TensorFlow 1, with its graph as the default graph."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        yield session


@pytest.fixture(params=DEVICES.values(), ids=DEVICES.keys())
def devices(request: pytest.FixtureRequest) -> list[str] | None:
    """The devices of a Variable of one table, and of one of three."""
    return request.param
