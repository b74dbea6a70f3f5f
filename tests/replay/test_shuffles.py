"""Below the order: bulk permutations, the thread that draws ahead, py1e's sort, label ranges."""

from __future__ import annotations

import threading
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streaming.base.shuffle import get_shuffle

from composer_mixmon.replay import ahead as ahead_module
from composer_mixmon.replay import fast, permute
from composer_mixmon.replay.ahead import ahead
from composer_mixmon.replay.order import Replay
from composer_mixmon.replay.py1e import sort_by_position
from composer_mixmon.replay.settings import Settings
from composer_mixmon.replay.shuffles import ShuffleSeed, shuffled
from composer_mixmon.replay.units import IdPayload, LabelPayload, LabelRanges, Units
from composer_mixmon.replay.world import World


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.int64])
@given(st.integers(30, 4000), st.integers(0, 2**40))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_bulk_shuffle_is_numpys(dtype, n, seed):
    """Steps taken together leave what numpy leaves after one step at a time."""
    expected = (np.arange(n) * 7 % 251).astype(dtype)
    got = expected.copy()
    np.random.default_rng(seed).shuffle(expected)
    with patch.object(permute, "_REST", 20), patch.object(permute, "_WORDS", 64):
        permute.shuffle(got, np.random.PCG64(seed))
    assert got.tolist() == expected.tolist()


def test_bulk_shuffle_is_numpys_at_its_real_sizes():
    """Three million places, with the sizes that are used."""
    expected = np.arange(3_000_000, dtype=np.uint32)
    got = expected.copy()
    np.random.default_rng(5).shuffle(expected)
    permute.shuffle(got, np.random.PCG64(5))
    assert (got == expected).all()


@pytest.mark.parametrize("algo", ["py1e", "py1br", "py1s", "py2s", "naive"])
@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("compiled", [False, True])
def test_shuffles_are_streamings_at_their_real_sizes(algo, nodes, compiled, monkeypatch):
    """Two million samples, with the real windows, buffers and thread: ids and labels in streaming's order."""
    monkeypatch.setattr(fast, "_WORTH", 0 if compiled else 10**9)
    sizes = np.random.default_rng(3).integers(500, 20_000, 200)
    expected = get_shuffle(algo, sizes, nodes, 11, 2, 100_000)
    starts = np.cumsum(sizes) - sizes
    units = Units(sizes, starts, sizes, 0)
    labels = np.repeat(np.arange(200) % 3, sizes)
    seed = ShuffleSeed(nodes, 11, 2, 100_000)
    for payload, wanted in (
        (IdPayload(units), expected),
        (LabelPayload(units, LabelRanges.of_samples(labels, 3)), labels[expected]),
    ):
        ties: list[int] = []
        got = np.concatenate([piece.copy() for piece in shuffled(algo, payload, seed, ties)])
        assert (got == wanted).all()
        assert not ties


@given(st.lists(st.lists(st.integers(0, 99), max_size=30), max_size=12), st.integers(1, 20))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_what_goes_ahead_arrives_whole(pieces, size):
    """Pieces come out in other sizes, with nothing lost, doubled or out of order, though memory is reused."""
    everything = [value for piece in pieces for value in piece]
    buffer = np.empty(30, np.int64)

    def flow():
        for piece in pieces:
            buffer[: len(piece)] = piece
            yield (buffer[: len(piece)],)

    with patch.object(ahead_module, "_SIZE", size):
        got = [int(v) for (part,) in ahead(flow(), 10**9) for v in part]
    assert got == everything


def endless():
    while True:
        yield (np.zeros(1000, np.int64),)


def test_nobody_draws_on_when_nobody_reads_on():
    """Closing the reader ends the thread."""
    before = threading.active_count()
    flow = ahead(endless(), 10**9)
    next(flow)
    assert threading.active_count() == before + 1
    flow.close()
    assert threading.active_count() == before


def test_an_error_ahead_is_raised_where_it_is_read():
    """The exception of the thread reaches the caller."""

    def failing():
        yield (np.arange(5),)
        raise MemoryError("no more")

    flow = ahead(failing(), 10**9)
    with pytest.raises(MemoryError, match="no more"):
        list(flow)


positions = st.floats(0, 1e9) | st.sampled_from([0.0, 1.0, 2.5, 5e-324, 1e-300])


dense = st.lists(st.integers(0, 200).map(lambda quarter: quarter / 4), max_size=60)


@pytest.mark.parametrize("kernels", [None, fast.kernels(fast._WORTH)])
@given(
    places=st.lists(positions, max_size=60) | dense,
    bits=st.sampled_from([1, 4, 8, 16, 20, 63]),
    seed=st.integers(0, 99),
)
@settings(derandomize=True, deadline=None, max_examples=300)
def test_samples_are_sorted_by_position(kernels, places, bits, seed):
    """Whatever the spread of positions, values come in their order, and ties of unequal values are told."""
    values = np.random.default_rng(seed).integers(0, 2 ** min(bits, 62), len(places))
    array = np.array(places, np.float64)
    got = values.copy()
    ties = sort_by_position(array.copy(), got, bits, kernels)
    ordered = sorted(zip(places, values.tolist(), strict=True))
    by_place: dict[float, list[int]] = {}
    for place, value in ordered:
        by_place.setdefault(place, []).append(value)
    found = iter(got.tolist())
    for equal in by_place.values():
        assert sorted(next(found) for _ in equal) == equal
    assert bool(len(ties)) == any(len(set(equal)) > 1 for equal in by_place.values())


def test_ties_are_reported_as_not_reproducible():
    """Where a tie was met, the counts say that they may differ on another CPU."""
    settings_ = Settings.resolve(World(), [[40] * 10], batch_size=5, shuffle=True, shuffle_block_size=100)
    labels = LabelRanges.of_shards(np.full(10, 40), np.arange(10) % 2, 2)
    assert Replay(settings_, World()).counts(labels).reproducible
    with patch("composer_mixmon.replay.py1e.place", lambda _draws, _offset, _n, _block, out: out.fill(3.0)):
        counted = Replay(settings_, World()).counts(labels)
    assert counted.ties > 0
    assert not counted.reproducible


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.data())
@settings(derandomize=True, deadline=None, max_examples=150)
def test_label_ranges_are_the_labels(labels, data):
    """Lookups and fills equal indexing the array of labels."""
    array = np.array(labels)
    ranges = LabelRanges.of_samples(array, 5)
    begin = data.draw(st.integers(0, len(labels) - 1))
    end = data.draw(st.integers(begin + 1, len(labels)))
    out = np.empty(end - begin, np.int64)
    ranges.fill(begin, out)
    assert out.tolist() == labels[begin:end]
    assert ranges.of_ids(np.arange(len(labels))).tolist() == labels
