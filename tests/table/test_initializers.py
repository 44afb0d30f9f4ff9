"""The value of a key that was never written: a pure function of the seed and the key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tfra
from support import (
    FLOATING_DTYPES,
    KEY_DTYPES,
    assert_identical,
    make_keys,
    make_values,
    numpy_dtype,
)
from tfra import initializers as init
from tfra import optimizers

RANDOM = ("uniform", "normal", "truncated_normal")

# float32 bits of the row of key 0, seed 0. To change them breaks every model that was saved.
GOLDEN_ROWS = {
    "uniform": "BD00B142 3CE1384E BD396D7E",
    "normal": "BD36FA3C 3D1AA8B0 BDAB2D93",
    "truncated_normal": "BD2C497B 3D123F6D BD98BF09",
}


@pytest.fixture(params=RANDOM)
def random_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("name", GOLDEN_ROWS)
def test_rows_are_those_of_every_release_before(name: str) -> None:
    row = tfra.Table(3, initializer=name, seed=0).lookup(0)
    assert " ".join(f"{bits:08X}" for bits in row.view(np.uint32).tolist()) == GOLDEN_ROWS[name]


@pytest.mark.usefixtures("keep_num_threads")
@pytest.mark.parametrize("key_dtype", KEY_DTYPES)
def test_a_row_depends_on_seed_and_key_alone(
    random_name: str, floating_dtype: str, key_dtype: str
) -> None:
    options: dict[str, Any] = {"key_dtype": key_dtype, "value_dtype": floating_dtype}
    table = tfra.Table(7, initializer=random_name, seed=5, **options)
    numbers = np.arange(-1000, 3000)
    rows = table.lookup(make_keys(key_dtype, numbers))
    shuffled = np.random.default_rng(0).permutation(len(numbers))
    for threads in (1, 2, 5):
        tfra.set_num_threads(threads)
        again = table.lookup(make_keys(key_dtype, numbers[shuffled]))
        assert_identical(again, rows[shuffled])
    assert_identical(
        table.lookup(make_keys(key_dtype, numbers.reshape(8, 500))), rows.reshape(8, 500, 7)
    )
    for at in range(0, 4000, 500):
        assert_identical(table.lookup(make_keys(key_dtype, numbers[at])), rows[at])
    table.upsert(make_keys(key_dtype, [10_000]), np.zeros((1, 7), rows.dtype))
    other = tfra.Table(7, initializer=random_name, seed=5, capacity=9999, metadata=True, **options)
    for one in (table, other):
        assert_identical(one.lookup(make_keys(key_dtype, numbers)), rows)


def test_a_gradient_inserts_the_value_that_lookup_showed(
    random_name: str, floating_dtype: str, key_dtype: str
) -> None:
    table = tfra.Table(
        9,
        key_dtype=key_dtype,
        value_dtype=floating_dtype,
        initializer=random_name,
        optimizer=optimizers.SGD(learning_rate=0.0),
    )
    keys = make_keys(key_dtype, range(300))
    before = table.lookup(keys)
    table.apply_gradients(keys, np.ones((300, 9), before.dtype))
    assert len(table) == 300
    after, exists = table.lookup(keys, return_exists=True)
    assert exists.all()
    assert_identical(after, before)


def test_other_keys_and_other_seeds_have_other_rows(random_name: str, key_dtype: str) -> None:
    keys = make_keys(key_dtype, range(2000))
    rows = np.concatenate(
        [tfra.Table(4, key_dtype=key_dtype, initializer=random_name, seed=seed).lookup(keys)
         for seed in (0, 1, 2, 2**32, 2**63 - 1)]
    )  # fmt: skip
    assert len(np.unique(rows, axis=0)) == len(rows)
    # Elements repeat by chance only: of 40000, few have an equal among 2^23 or more values.
    assert len(np.unique(rows)) > 0.99 * rows.size


def sample(initializer: init.Initializer, value_dtype: str = "float32") -> np.ndarray:
    table = tfra.Table(16, value_dtype=value_dtype, initializer=initializer, seed=1)
    return table.lookup(np.arange(20_000)).astype(np.float64)


# Limits are five standard errors of 320000 samples; 16-bit types add their rounding.
@pytest.mark.parametrize("value_dtype", FLOATING_DTYPES)
def test_uniform_is_flat_between_its_bounds(value_dtype: str) -> None:
    x = sample(init.Uniform(-1.0, 3.0), value_dtype)
    assert x.min() >= -1.0
    assert x.max() <= 3.0
    assert x.min() < -0.999
    assert x.max() > 2.98
    shares = np.histogram(x, bins=16, range=(-1, 3))[0] / x.size
    np.testing.assert_allclose(shares, 1 / 16, atol=0.0022 if "16" not in value_dtype else 0.006)
    assert abs(x.mean() - 1.0) < 0.0105


@pytest.mark.parametrize("value_dtype", FLOATING_DTYPES)
def test_normal_has_its_mean_deviation_and_tails(value_dtype: str) -> None:
    z = (sample(init.Normal(0.5, 2.0), value_dtype) - 0.5) / 2.0
    assert abs(z.mean()) < 0.009
    assert abs(z.std() - 1) < 0.0065
    assert abs((z**3).mean()) < 0.035
    assert abs((z**4).mean() - 3) < 0.09
    # The share beyond one and three deviations.
    assert abs((np.abs(z) > 1).mean() - 0.3173) < 0.0045
    assert abs((np.abs(z) > 3).mean() - 0.0027) < 0.0005


@pytest.mark.parametrize("value_dtype", FLOATING_DTYPES)
def test_truncated_normal_ends_at_two_deviations(value_dtype: str) -> None:
    z = (sample(init.TruncatedNormal(-0.5, 0.25), value_dtype) + 0.5) / 0.25
    assert np.abs(z).max() <= 2.0
    assert np.abs(z).max() > 1.98
    assert abs(z.mean()) < 0.009
    assert abs(z.std() - 0.8796) < 0.0065
    # P(|z| > 1) = (0.3173 - 0.0455) / (1 - 0.0455).
    assert abs((np.abs(z) > 1).mean() - 0.2848) < 0.0045


def test_elements_of_neighbouring_rows_are_unrelated(random_name: str) -> None:
    table = tfra.Table(16, initializer=random_name)
    x = table.lookup(np.arange(20_000)).astype(np.float64)
    within_rows = np.corrcoef(x.T)
    between_rows = np.corrcoef(x[:-1].T, x[1:].T)[:16, 16:]
    np.fill_diagonal(within_rows, 0)
    for correlations in (within_rows, between_rows):
        assert np.abs(correlations).max() < 5 / np.sqrt(20_000)


DEFAULTS = [
    ("uniform", init.Uniform()), ("normal", init.Normal()), ("zeros", init.Zeros()),
    ("truncated_normal", init.TruncatedNormal()), ("ones", init.Ones()),
    ("uniform", init.Uniform(minval=-0.05, maxval=0.05)),
    ("normal", init.Normal(mean=0.0, stddev=0.05)),
    ("truncated_normal", init.TruncatedNormal(mean=0.0, stddev=0.05)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "initializer"), DEFAULTS)
def test_a_name_means_all_defaults(name: str, initializer: init.Initializer) -> None:
    by_name, by_object = (tfra.Table(5, initializer=given, seed=2) for given in (name, initializer))
    assert_identical(by_name.lookup(range(50)), by_object.lookup(range(50)))


def test_zeros_ones_and_numbers_fill_the_row(numeric_dtype: str) -> None:
    dtype = numpy_dtype(numeric_dtype)
    for initializer, expected in (
        ("zeros", 0), (init.Zeros(), 0), ("ones", 1), (init.Ones(), 1), (1, 1),
        (init.Constant(0), 0), (init.Constant(1), 1),
    ):  # fmt: skip
        table = tfra.Table(3, value_dtype=numeric_dtype, initializer=initializer)
        assert_identical(table.lookup([[1, 2]]), np.full((1, 2, 3), expected, dtype))


def test_an_array_is_the_row(value_dtype: str, rng: np.random.Generator) -> None:
    row = make_values(value_dtype, (3,), rng)
    for initializer in (row, init.Constant(row)):
        table = tfra.Table(3, value_dtype=value_dtype, initializer=initializer)
        assert_identical(table.lookup([4, 5]), np.stack([row, row]))


def test_numbers_are_rounded_to_the_value_type(floating_dtype: str) -> None:
    for initializer in (0.1, init.Constant(0.1)):
        table = tfra.Table(2, value_dtype=floating_dtype, initializer=initializer)
        assert_identical(table.lookup(1), np.full(2, 0.1, numpy_dtype(floating_dtype)))


def test_the_row_is_copied() -> None:
    row = np.array([1.0, 2.0], np.float32)
    table = tfra.Table(2, initializer=row)
    row[:] = 7
    np.testing.assert_array_equal(table.lookup(1), [1, 2])


def test_strings_fill_string_rows() -> None:
    for initializer, expected in (
        ("?", [b"?", b"?"]), (b"\0!", [b"\0!", b"\0!"]), (["a", b"b"], [b"a", b"b"]),
        ("zeros", [b"", b""]),
    ):  # fmt: skip
        table = tfra.Table(2, value_dtype="string", initializer=initializer)
        assert table.lookup(1).tolist() == expected
        assert table.lookup(1, b"d").tolist() == [b"d", b"d"]


def test_constants_are_equal_if_their_bits_are() -> None:
    array = np.array([1.0, 2.0], np.float32)
    groups: list[list[Any]] = [
        [1.0, float("1")], [2.0], [1], [True], ["a"], [b"a"], [0.0], [-0.0],
        [float("nan"), float("nan")], [[1.0, 2.0], (1.0, 2.0)], [[1.0, float("nan")]] * 2,
        [array, array.copy()], [array.astype(np.float64)], [array.reshape(1, 2)],
        [np.float32(1)], [np.array(["a", "b"], object), np.array(["a", "b"], object)],
    ]  # fmt: skip
    constants = [
        (number, init.Constant(value)) for number, group in enumerate(groups) for value in group
    ]
    for number, one in constants:
        for other_number, other in constants:
            assert (one == other) == (number == other_number), (one, other)
            if one == other:
                assert hash(one) == hash(other)
    assert init.Constant(0.0) != init.Zeros()
