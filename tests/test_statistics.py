"""Figures of a mixture against scipy, mpmath and enumeration."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_mixmon._special import binomial_pmf, deviance_part, stirling_error
from composer_mixmon.statistics import chi_square, chi_square_per_degree, deviation, dispersion, noise_floor

HUGE = 2**53
TARGETS = [
    [0.5, 0.5],
    [0.1, 0.2, 0.7],
    [1 / 3, 1 / 3, 1 / 3],
    [0.999, 0.001],
    [1e-9, 1 - 1e-9],
    [0.25, 0.0, 0.75],
]
counts_and_target = st.integers(1, 8).flatmap(
    lambda k: st.tuples(
        st.lists(st.integers(0, 10**6), min_size=k, max_size=k),
        st.lists(st.floats(0, 1), min_size=k, max_size=k)
        .filter(lambda weights: sum(weights) > 0.01)
        .map(lambda weights: np.array(weights) / sum(weights)),
    )
)


def every_count(samples: int, labels: int) -> np.ndarray:
    """All ways in which the samples can fall on the labels."""
    rows = itertools.product(range(samples + 1), repeat=labels)
    return np.array([row for row in rows if sum(row) == samples])


def exact_floor(samples: int, target: list[float]) -> mpmath.mpf:
    """De Moivre's formula in 60 digits, with binomials from log-gamma functions."""
    with mpmath.workdps(60):
        total = mpmath.mpf(0)
        for p in (mpmath.mpf(float(p)) for p in target if 0 < p < 1):
            above = int(mpmath.floor(samples * p)) + 1
            log_pmf = (
                mpmath.loggamma(samples + 1)
                - mpmath.loggamma(above + 1)
                - mpmath.loggamma(samples - above + 1)
                + above * mpmath.log(p)
                + (samples - above) * mpmath.log(1 - p)
            )
            total += above * (1 - p) * mpmath.exp(log_pmf) / samples
        return total


def test_deviation_of_two_even_labels_is_the_major_share_less_a_half():
    """With two labels at 50:50 the deviation is major / total − 0.5."""
    assert deviation([60, 40], [0.5, 0.5]) == pytest.approx(0.1, rel=1e-14)
    assert deviation([[0, 9], [4, 4]], [0.5, 0.5]).tolist() == [0.5, 0.0]


def test_deviation_is_the_largest_difference_over_any_set_of_labels():
    """Total variation distance is the largest gap between two distributions over all events."""
    rng = np.random.default_rng(1)
    counts, target = rng.integers(0, 50, 6), rng.dirichlet(np.ones(6))
    ratio = counts / counts.sum()
    events = itertools.product([False, True], repeat=6)
    largest = max(abs((ratio - target)[list(event)].sum()) for event in events)
    assert deviation(counts, target) == pytest.approx(largest, rel=1e-13)


def test_deviation_of_nothing_is_zero():
    """No sample speaks against a target."""
    assert deviation([[0, 0], [1, 0]], [0.3, 0.7]).tolist() == [0.0, pytest.approx(0.7)]


def test_deviation_takes_a_target_for_each_row():
    """A changing target broadcasts against the rows of counts."""
    assert deviation([[1, 1], [1, 3]], [[0.5, 0.5], [0.25, 0.75]]).tolist() == [0.0, 0.0]


@given(counts_and_target)
@settings(max_examples=200, derandomize=True, deadline=None)
def test_deviation_is_a_fraction_and_does_not_know_the_labels_order(case):
    """The deviation lies in [0, 1] and stays when labels change places."""
    counts, target = case
    found = deviation(counts, target)
    assert 0 <= found <= 1 + 1e-12
    assert deviation(counts[::-1], target[::-1]) == pytest.approx(float(found), rel=1e-12, abs=1e-15)


def test_noise_floor_of_two_even_labels():
    """2,000 samples of two even labels deviate by 0.0089 on average."""
    assert noise_floor(2000, [0.5, 0.5]) == pytest.approx(0.0089, abs=5e-5)


@pytest.mark.parametrize("samples", [1, 2, 3, 10, 255, 2000, 10**6, 2**31 + 1, HUGE - 1, HUGE])
@pytest.mark.parametrize("target", TARGETS)
def test_noise_floor_is_exact_from_one_sample_to_two_to_the_53(samples, target):
    """The floor is within 1e-12 of a computation in 60 digits."""
    assert noise_floor(samples, target) == pytest.approx(float(exact_floor(samples, target)), rel=1e-12)


@pytest.mark.parametrize("target", [[0.5, 0.5], [0.2, 0.3, 0.5], [0.0, 0.4, 0.6], [0.1, 0.2, 0.3, 0.4]])
@pytest.mark.parametrize("samples", [1, 2, 5, 7])
def test_noise_floor_is_the_expected_deviation(samples, target):
    """Averaging the deviation over all multinomial outcomes gives the floor."""
    rows = every_count(samples, len(target))
    chances = scipy.stats.multinomial.pmf(rows, samples, target)
    assert noise_floor(samples, target) == pytest.approx(np.sum(chances * deviation(rows, target)), rel=1e-12)


@pytest.mark.parametrize("target", [[1.0], [1.0, 0.0], [0.0, 1.0, 0.0]])
def test_noise_floor_is_zero_where_nothing_can_vary(target):
    """One label that always comes never deviates; nor do no samples."""
    assert noise_floor(1000, target) == 0.0
    assert noise_floor(0, [0.5, 0.5]) == 0.0


@pytest.mark.parametrize("target", TARGETS)
def test_chi_square_is_scipys(target):
    """Pearson's statistic over the labels of positive target."""
    counts = np.random.default_rng(3).multinomial(5000, target)
    meant = np.array(target) > 0
    expected = scipy.stats.chisquare(counts[meant], 5000 * np.array(target)[meant]).statistic
    assert chi_square(counts, target) == pytest.approx(expected, rel=1e-9)


def test_dispersion_of_a_perfect_shuffle_is_one():
    """Its expectation over all outcomes is exactly 1, whatever the samples and the target."""
    rows, target = every_count(6, 3), [0.2, 0.3, 0.5]
    chances = scipy.stats.multinomial.pmf(rows, 6, target)
    assert np.sum(chances * chi_square_per_degree(rows, target)) == pytest.approx(1, rel=1e-12)


def test_dispersion_is_the_mean_over_batches_that_hold_samples():
    """Empty batches are left out."""
    counts = np.array([[10, 30], [0, 0], [25, 15]])
    expected = np.mean([scipy.stats.chisquare(row).statistic for row in counts[[0, 2]]])
    assert dispersion(counts, [0.5, 0.5]) == pytest.approx(expected, rel=1e-12)


def test_dispersion_is_one_where_nothing_can_speak_against_a_shuffle():
    """One label, or no batch, gives the value of a perfect shuffle."""
    assert dispersion([[5], [7]], [1.0]) == 1.0
    assert dispersion([[5, 0], [7, 1]], [1.0, 0.0]) == 1.0
    assert dispersion(np.zeros((3, 2), int), [0.5, 0.5]) == 1.0
    assert dispersion(np.zeros((0, 2), int), [0.5, 0.5]) == 1.0


def test_dispersion_of_batches_of_one_label_is_the_batch_size():
    """A loader that sends 256 samples of one of two even labels at a time has a dispersion of 256."""
    assert dispersion([[256, 0], [0, 256]], [0.5, 0.5]) == pytest.approx(256, rel=1e-12)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("labels", [1, 2, 1000, 10_000])
@pytest.mark.parametrize("sure", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2**31 + 1, HUGE])
def test_figures_are_finite_without_warnings_at_the_extremes(labels, sure, count):
    """1 to 10,000 labels, shares of 0 and 1, counts from 0 to 2**53."""
    target = np.eye(labels)[0] if sure else np.full(labels, 1 / labels)
    counts = np.zeros((2, labels), np.int64)
    counts[0, 0] = counts[1, -1] = count
    figures = [deviation(counts, target), chi_square(counts, target), chi_square_per_degree(counts, target)]
    assert all(np.isfinite(figure).all() for figure in figures)
    assert math.isfinite(dispersion(counts, target))
    assert 0 <= noise_floor(count, target) <= 1


@given(st.floats(1e-6, 1e16))
@settings(max_examples=300, derandomize=True, deadline=None)
def test_stirling_error_is_exact(z):
    """What Stirling's formula lacks, against 60 digits."""
    with mpmath.workdps(60):
        x = mpmath.mpf(z)
        exact = mpmath.loggamma(x) - (x - 0.5) * mpmath.log(x) + x - mpmath.log(2 * mpmath.pi) / 2
    assert float(stirling_error(z)) == pytest.approx(float(exact), rel=1e-12, abs=1e-14)


@given(st.floats(1e-3, 1e9), st.floats(-0.999, 3))
@settings(max_examples=300, derandomize=True, deadline=None)
def test_deviance_part_keeps_its_digits_near_the_mean(mean, away):
    """It is x log(x / mean) + mean − x, against 60 digits."""
    x = mean * (1 + away**3)
    with mpmath.workdps(60):
        a, b = mpmath.mpf(x), mpmath.mpf(mean)
        exact = a * mpmath.log(a / b) + b - a
    assert float(deviance_part(x, mean)) == pytest.approx(float(exact), rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("n", [1, 2, 20, 300])
@pytest.mark.parametrize("p", [0.01, 0.3, 0.5, 0.97])
def test_binomial_pmf_is_exact(n, p):
    """Every outcome from 1 to n."""
    x = np.arange(1, n + 1)
    exact = np.array(
        [
            float(mpmath.binomial(n, int(k)) * mpmath.mpf(p) ** int(k) * (1 - mpmath.mpf(p)) ** (n - int(k)))
            for k in x
        ]
    )
    np.testing.assert_allclose(binomial_pmf(x, n, p), exact, rtol=1e-11, atol=1e-290)
