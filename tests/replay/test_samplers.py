"""First elements of permutations, against torch, numpy, scipy and a plain loop."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_mixmon.errors import ConfigError
from composer_mixmon.replay import permute, samplers
from composer_mixmon.replay.samplers import (
    GENERATORS,
    biased_sampler,
    deciles,
    first_of_permutation,
    remainder_excess,
    uniformity,
)


@given(st.integers(1, 300), st.integers(0, 2**63 - 1), st.data())
@settings(derandomize=True, deadline=None, max_examples=150)
def test_torch_is_matched_bit_by_bit(n, seed, data):
    """Below the size at which torch 2.6 changes, both generators are the installed torch.randperm."""
    first = data.draw(st.integers(1, n))
    expected = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:first].tolist()
    assert first_of_permutation("torch", n, first, seed).tolist() == expected
    assert first_of_permutation("torch-legacy", n, first, seed).tolist() == expected


@given(st.integers(1, 600), st.integers(0, 2**64 - 1), st.data())
@settings(derandomize=True, deadline=None, max_examples=150)
def test_numpy_is_matched_bit_by_bit(n, seed, data):
    """Followed backwards in small stretches, elements are where permutation(n) puts them."""
    first = data.draw(st.integers(1, n))
    expected = np.random.Generator(np.random.PCG64DXSM(seed)).permutation(n)[:first].tolist()
    with (
        patch.object(permute, "_REST", 30),
        patch.object(permute, "_WORDS", 64),
        patch.object(permute, "_STRETCH", data.draw(st.sampled_from([7, 40, 1000]))),
    ):
        assert first_of_permutation("pcg64dxsm", n, first, seed).tolist() == expected


def test_numpy_is_matched_at_real_sizes():
    """Three million samples, with the stretches that are used."""
    expected = np.random.Generator(np.random.PCG64DXSM(4)).permutation(3_000_000)[:20_000]
    assert (first_of_permutation("pcg64dxsm", 3_000_000, 20_000, 4) == expected).all()


@given(st.integers(2, 400), st.integers(0, 2**32 - 1), st.data())
@settings(derandomize=True, deadline=None, max_examples=150)
def test_wide_draws_are_shuffled_inside_out(n, seed, data):
    """The blockwise shuffle of large sizes, run on small ones, is torch 2.6's loop written out."""
    first = data.draw(st.integers(1, n))
    twister = np.random.RandomState(seed)
    expected = list(range(n))
    for number in range(n):
        upper, lower = twister.randint(0, 1 << 32, 2, dtype=np.uint32).tolist()
        place = (upper << 32 | lower) % (number + 1)
        expected[number] = expected[place]
        expected[place] = number
    with patch.object(samplers, "_WIDE_FROM", 2), patch.object(samplers, "_CHUNK", 64):
        assert first_of_permutation("torch", n, first, seed).tolist() == expected[:first]


def test_the_old_randperm_is_biased_at_a_billion():
    """2³² mod 1e9 = 294,967,296: the lowest 29 % come 5/4 as often as the rest, so 16 % above their share."""
    n, first = 1_000_000_000, 200_000
    old = deciles(first_of_permutation("torch-legacy", n, first, 1), n)
    assert old[:2].mean() / (first / 10) == pytest.approx(5 / 4.294967296, abs=0.02)
    assert old[3:].mean() / (first / 10) == pytest.approx(4 / 4.294967296, abs=0.02)
    assert uniformity(old).log10_p < -100


@given(st.integers(10, 6000), st.integers(4, 12), st.integers(1, 10))
@settings(derandomize=True, deadline=None, max_examples=300)
def test_excess_is_that_of_all_words(n, bits, parts):
    """The expectation equals counting the remainders of every word there is, also where n exceeds them."""
    counts = deciles(np.arange(1 << bits) % n, n, parts)
    size = deciles(np.arange(n), n, parts)
    assert remainder_excess(n, bits, parts) == pytest.approx(counts / 2**bits * n / size - 1, abs=1e-12)


def test_22_bits_show_what_32_bits_do_at_a_billion():
    """The old algorithm with 22-bit words at 0.23·2²² is off as expected, and as 32 bits are at 0.23·2³²."""
    n, first = int(0.23 * 2**22), 500
    counts = np.zeros(10)
    for seed in range(800):
        words = np.random.default_rng(seed).integers(0, 1 << 22, first, np.uint32)
        counts += deciles(samplers._sparse(words, n), n)
    # The share of a tenth of 400,000 draws varies by 0.5 %.
    assert counts / counts.mean() - 1 == pytest.approx(remainder_excess(n, 22), abs=0.02)
    assert remainder_excess(n, 22) == pytest.approx(remainder_excess(int(0.23 * 2**32)), abs=1e-5)
    assert remainder_excess(n, 22)[0] == pytest.approx(0.15, abs=0.01)


def test_biased_samplers_are_told_by_size_and_version():
    """At 1e9 samples torch 2.5 is told of, with its +16 %; torch 2.6 is not, nor 2.5 at 1e7 samples."""
    assert "16.4% too many of tenth 1" in biased_sampler(10**9, "2.5.1+cu124")
    assert biased_sampler(10**9, "2.6.0+cu124") is None
    assert biased_sampler(10**9, "2.10.0") is None
    assert biased_sampler(10**7, "2.5.1") is None
    assert biased_sampler(2**29, "2.5.1") is None  # 2³² is a multiple of it
    assert biased_sampler(2, "2.5.1") is None


def test_even_parts_pass():
    """A million and its permutation's first tenth are even."""
    n, first = 1_000_000, 100_000
    for generator in GENERATORS:
        assert uniformity(deciles(first_of_permutation(generator, n, first, 1), n)).log10_p > -3


@given(st.lists(st.integers(0, 10_000), min_size=2, max_size=40).filter(any))
@settings(derandomize=True, deadline=None, max_examples=300)
def test_uniformity_is_pearsons_test(counts):
    """Statistic and tail are scipy's, down to where scipy's tail underflows."""
    found = uniformity(np.array(counts))
    expected = scipy.stats.chisquare(counts)
    assert found.chi_square == pytest.approx(expected.statistic, rel=1e-12)
    tail = scipy.stats.chi2.logsf(found.chi_square, found.degrees) / np.log(10)
    if np.isfinite(tail):
        assert found.log10_p == pytest.approx(tail, rel=1e-9, abs=1e-12)
    else:
        assert found.log10_p < -300


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize(("n", "first", "seed"), [(0, 1, 0), (5, 6, 0), (5, 0, 0), (5, 1, -1), (2**60, 1, 0)])
def test_numbers_out_of_range_are_refused(generator, n, first, seed):
    """Nothing is computed for impossible requests."""
    with pytest.raises(ConfigError):
        first_of_permutation(generator, n, first, seed)


def test_an_unknown_generator_is_refused_by_name():
    """The message lists the generators there are."""
    with pytest.raises(ConfigError, match="torch-legacy"):
        first_of_permutation("cuda", 5, 1, 0)
