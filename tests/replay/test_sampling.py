"""Weights and sampling, against streaming's own functions."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from streaming import Stream
from streaming.base.sampling import get_sampling
from streaming.base.util import number_abbrev_to_int

from composer_mixmon.errors import ConfigError, DatasetError
from composer_mixmon.replay.sampling import (
    StreamWeight,
    apply_weights,
    choose_per_shard,
    choose_per_stream,
    label_shares,
    parse_epoch_size,
)

relative = st.builds(StreamWeight, proportion=st.floats(0, 10))
absolute = st.one_of(
    st.just(StreamWeight()),
    st.builds(StreamWeight, repeat=st.floats(0, 4)),
    st.builds(StreamWeight, choose=st.integers(0, 500)),
)
weight_lists = st.one_of(
    st.lists(relative, min_size=1, max_size=5),
    st.lists(absolute, min_size=1, max_size=5),
    st.lists(st.just(StreamWeight()), min_size=1, max_size=5),
)


def upstream(weights, samples, epoch_size, seed):
    streams = [Stream(local="unused", **copy.copy(vars(weight))) for weight in weights]
    size = Stream.apply_weights(streams, samples, epoch_size, seed)
    return size, [s.choose for s in streams], [s.proportion for s in streams]


@given(weight_lists, st.data())
@settings(derandomize=True, deadline=None, max_examples=300)
def test_weights_are_applied_as_streaming_applies_them(weights, data):
    """Every mix of proportion, repeat, choose, nothing and epoch size gives streaming's numbers."""
    samples = np.array(
        data.draw(st.lists(st.integers(1, 1000), min_size=len(weights), max_size=len(weights)))
    )
    absolute_given = weights[0].proportion is None and any(w.specified for w in weights)
    epoch_size = None if absolute_given else data.draw(st.one_of(st.none(), st.integers(1, 3000)))
    assume(weights[0].proportion is None or sum(w.proportion for w in weights) > 0)
    seed = data.draw(st.integers(0, 2**32))
    try:
        ours = apply_weights(weights, samples, epoch_size, seed)
    except ConfigError:
        assert sum(w.repeat is None and w.choose is None for w in weights) == 0
        return
    size, choose, proportion = upstream(weights, samples, epoch_size, seed)
    assert ours.choose.tolist() == choose
    assert ours.proportion.tolist() == proportion
    assert ours.choose.sum() == size
    assert choose_per_stream(weights, samples, epoch_size, seed).tolist() == choose


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(any),
    st.integers(0, 1500),
    st.integers(1, 40),
    st.integers(0, 99),
)
@settings(derandomize=True, deadline=None, max_examples=400)
def test_shards_are_sampled_as_streaming_samples_them(sizes, choose, granularity, seed):
    """Samples drawn from each shard equal get_sampling's, empty shards and short granules included."""
    samples = np.array(sizes, np.int64)
    expected = get_sampling(samples, choose, granularity, seed, 0, False)
    assert choose_per_shard(samples, choose, granularity, seed).tolist() == expected.tolist()


@pytest.mark.parametrize("text", ["100k", " 64M", "77b", "1.5t", "12", "0"])
def test_epoch_sizes_are_read_as_streaming_reads_them(text):
    """Abbreviated epoch sizes mean the same number, and zero means none."""
    assert (parse_epoch_size(text) or 0) == number_abbrev_to_int(text)


@pytest.mark.parametrize("text", ["1e9", "ten", "-5", "k", "1.5", "nank", "infb"])
def test_an_epoch_size_that_is_no_number_is_refused(text):
    """A size that streaming would refuse too is a ConfigError that quotes it."""
    with pytest.raises(ConfigError, match="epoch_size"):
        parse_epoch_size(text)


def test_nothing_given_means_that_streams_decide():
    """No epoch size and size zero are the same to StreamingDataset."""
    assert parse_epoch_size(None) is None
    assert parse_epoch_size(0) is None


@pytest.mark.parametrize(
    "bad", [{"proportion": -1.0}, {"repeat": float("nan")}, {"choose": -2}, {"repeat": 1.0, "choose": 3}]
)
def test_a_weight_that_makes_no_sense_is_refused(bad):
    """Negative, infinite and doubled weights are refused before anything is computed."""
    with pytest.raises(ConfigError):
        StreamWeight(**bad)


def test_relative_and_absolute_weights_do_not_mix():
    """A proportion beside a repeat, or an epoch size beside a repeat, is refused."""
    two = np.array([10, 10])
    with pytest.raises(ConfigError, match="proportion"):
        choose_per_stream([StreamWeight(proportion=1), StreamWeight(repeat=1)], two, None, 0)
    with pytest.raises(ConfigError, match="epoch_size"):
        choose_per_stream([StreamWeight(repeat=1), StreamWeight()], two, 5, 0)
    with pytest.raises(DatasetError, match="stream 1 has no samples"):
        choose_per_stream([StreamWeight(), StreamWeight()], np.array([1, 0]), None, 0)


def test_shares_follow_what_streams_give():
    """A stream taken 3 times counts 3 times, its labels in the parts they have in it."""
    shares = label_shares(np.array([30, 10]), np.array([[4, 6, 0], [0, 5, 15]]))
    assert shares.tolist() == pytest.approx([12 / 40, 20.5 / 40, 7.5 / 40])


def test_shares_of_a_sampled_stream_without_labels_are_refused():
    """Silence about a stream that is sampled would shift everyone else's share."""
    with pytest.raises(DatasetError, match="stream 1"):
        label_shares(np.array([1, 1]), np.array([[1, 1], [0, 0]]))
