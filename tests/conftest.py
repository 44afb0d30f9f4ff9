"""Settings and fixtures of all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import numpy as np
import pytest

import tfra
from support import ALL_CASES, FLOATING_DTYPES, KEY_DTYPES, NUMERIC_DTYPES, VALUE_DTYPES, Case

# The machines that run the tests are slow and shared, so no example has a deadline.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(params=ALL_CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    """Every key type with every value type, and rows of one, few and many elements."""
    return request.param


@pytest.fixture(params=KEY_DTYPES)
def key_dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=VALUE_DTYPES)
def value_dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=NUMERIC_DTYPES)
def numeric_dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=FLOATING_DTYPES)
def floating_dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240229)


@pytest.fixture
def keep_num_threads() -> Iterator[None]:
    """Undoes `tfra.set_num_threads` after a test."""
    before = tfra.get_num_threads()
    yield
    tfra.set_num_threads(before)
