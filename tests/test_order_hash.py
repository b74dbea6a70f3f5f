"""The order hash against SplitMix64's published numbers and whole-number arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_mixmon.order_hash import order_hash, order_hashes

WORD = 1 << 64
IDS = st.lists(st.integers(0, 2**40), min_size=1, max_size=40)


def by_hand(ids: list[int], first: int = 0) -> int:
    """The definition in Python's whole numbers."""
    total = 0
    for place, sample in enumerate(ids, start=first):
        z = (sample + (place + 1) * 0x9E3779B97F4A7C15) % WORD
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % WORD
        z = (z ^ z >> 27) * 0x94D049BB133111EB % WORD
        total += z ^ z >> 31
    return total % WORD


def array(ids: list[int]) -> np.ndarray:
    return np.array(ids, np.int64)


@pytest.mark.parametrize(
    ("place", "output"), [(0, 0xE220A8397B1DCDAF), (1, 0x6E789E6AA1B965F4), (2, 0x06C45D188009454F)]
)
def test_it_is_splitmix64(place: int, output: int) -> None:
    """Sample 0 at place k, from 0, is the number that SplitMix64 draws after k others from the seed 0."""
    assert order_hash(array([0]), place) % WORD == output


@settings(derandomize=True, deadline=None)
@given(IDS, st.integers(0, 10**7))
def test_it_is_the_sum_of_the_mixed_places(ids: list[int], first: int) -> None:
    """A rank's part equals the definition, as a signed 64-bit number."""
    part = order_hash(array(ids), first)
    assert -(1 << 63) <= part < 1 << 63
    assert part % WORD == by_hand(ids, first)


@settings(derandomize=True, deadline=None)
@given(IDS, st.data())
def test_ranks_add_up_in_int64(ids: list[int], data: st.DataObject) -> None:
    """Wherever the batch is cut, an int64 sum of the parts is the hash of the whole."""
    cut = data.draw(st.integers(0, len(ids)))
    parts = np.array([order_hash(array(ids[:cut])), order_hash(array(ids[cut:]), cut)], np.int64)
    assert parts.sum().view(np.uint64) == order_hashes(array([*ids])[None])[0] == by_hand(ids)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.lists(st.integers(-1, 99), min_size=6, max_size=6), min_size=1, max_size=5))
def test_padding_is_left_out(batches: list[list[int]]) -> None:
    """Of a padded batch, only the samples at their places count."""
    found = order_hashes(array(batches))  # type: ignore[arg-type]
    for batch, hashed in zip(batches, found, strict=True):
        assert sum(by_hand([s], place) for place, s in enumerate(batch) if s >= 0) % WORD == hashed


def test_what_differs_hashes_differently() -> None:
    """Every swap of two samples, and every exchange of one for its neighbour, changes the hash."""
    ids = np.arange(64)
    hashes = {order_hash(ids)}
    for first in range(64):
        for second in range(first):
            swapped = ids.copy()
            swapped[[first, second]] = swapped[[second, first]]
            hashes.add(order_hash(swapped))
        changed = ids.copy()
        changed[first] += 64
        hashes.add(order_hash(changed))
    assert len(hashes) == 1 + 64 * 63 // 2 + 64


def test_places_are_far_apart() -> None:
    """Ids below 2**38 at different places below 2**24 never are the same number before mixing."""
    apart = np.arange(1, 1 << 24, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert np.minimum(apart, -apart).min() > 1 << 38
