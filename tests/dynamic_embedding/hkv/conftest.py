"""Fixtures of the tests of bounded tables."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
import tensorflow as tf
from hkv_support import Mode


@pytest.fixture(params=["eager", "function", "session"])
def mode(request: pytest.FixtureRequest) -> Iterator[Mode]:
    """The ways in which TensorFlow runs ops."""
    if request.param != "session":
        yield Mode(request.param)
        return
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        yield Mode(request.param, session)
