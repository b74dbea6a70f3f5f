"""The draws of a shuffle, by numpy and compiled, against numpy's generator."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_mixmon.replay import fast
from composer_mixmon.replay.draws import CompiledDraws, NumpyDraws, draws_for

kernels = fast.kernels(fast._WORTH)
sizes = st.integers(0, 40) | st.integers(0, 5000)
steps = st.one_of(
    st.tuples(st.just("shuffle"), sizes, st.sampled_from([np.uint8, np.uint32, np.int64])),
    st.tuples(st.just("skip_shuffle"), sizes),
    st.tuples(st.just("integers"), st.integers(-5, 100), st.sampled_from([1, 2, 100, 2**31 + 1, 2**32])),
    st.tuples(st.just("add_uniform"), st.floats(-1e6, 0), st.floats(0, 1e6), sizes),
    st.tuples(st.just("skip_places"), st.lists(sizes, max_size=4), st.integers(1, 2**32)),
)


def both(step, draws, rng):
    """Take one step with our draws and with numpy's generator, and compare what comes out."""
    kind, *given_ = step
    if kind == "shuffle":
        expected = (np.arange(given_[0]) % 251).astype(given_[1])
        got = expected.copy()
        rng.shuffle(expected)
        draws.shuffle(got)
        assert got.tolist() == expected.tolist()
    elif kind == "skip_shuffle":
        rng.shuffle(np.empty(given_[0]))
        draws.skip_shuffle(given_[0])
    elif kind == "integers":
        low, width = given_
        assert draws.integers(low, low + width) == rng.integers(low, low + width)
    elif kind == "add_uniform":
        low, high, size = given_
        got = np.arange(size, dtype=float)
        draws.add_uniform(low, high, got)
        assert got.tolist() == (np.arange(size) + rng.uniform(low, high, size)).tolist()
    else:
        for size in given_[0]:
            rng.integers(0, given_[1])
            rng.random(size)
        draws.skip_places(np.array(given_[0], np.int64), 0, given_[1])


@pytest.mark.parametrize("make", [NumpyDraws, lambda seed: CompiledDraws(seed, kernels)])
@given(seed=st.integers(0, 2**40), taken=st.lists(steps, max_size=12))
@settings(derandomize=True, deadline=None, max_examples=250)
def test_every_draw_is_numpys(make, seed, taken):
    """Whatever is drawn in whatever order, results are those of one numpy generator, to the last bit."""
    draws, rng = make(seed), np.random.default_rng(seed)
    for step in [*taken, ("integers", 0, 2**31 + 1), ("add_uniform", 0.0, 1.0, 2), ("shuffle", 70, np.uint8)]:
        both(step, draws, rng)


def test_small_epochs_and_numbers_beyond_32_bits_are_numpys():
    """Numba is not imported where it does not pay, nor asked for what its loops cannot draw."""
    assert isinstance(draws_for(1, 1000), NumpyDraws)
    assert isinstance(draws_for(1, 10**8), CompiledDraws)
    assert isinstance(draws_for(1, 2**33), NumpyDraws)
    assert isinstance(draws_for(1, 10**8, block=2**33), NumpyDraws)


def test_without_numba_numpy_draws(monkeypatch):
    """Where numba cannot be imported, nothing fails."""
    fast._compiled.cache_clear()
    monkeypatch.setitem(sys.modules, "composer_mixmon.replay.kernels", None)
    assert isinstance(draws_for(1, 10**8), NumpyDraws)
    fast._compiled.cache_clear()


def test_loops_compile_where_nothing_can_be_cached():
    """A function that numba finds no place to cache beside, as in an installation that cannot be written."""
    found = {}
    exec("def double(number): return 2 * number", found)  # a function of no file
    assert kernels._compiled(found["double"])(4) == 8
