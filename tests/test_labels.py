"""Sample ids become labels exactly, for any shape of dataset."""

from __future__ import annotations

import fnmatch
import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_mixmon.errors import ConfigError, DatasetError
from composer_mixmon.labels import LabelMap, label_by_groups, label_by_position, label_by_stream
from composer_mixmon.shards import ShardTable, stream_names

fixed = settings(derandomize=True, deadline=None)


def table(samples: list[int], streams: list[int] | None = None, names: list[str] | None = None) -> ShardTable:
    streams = streams or [0] * len(samples)
    return ShardTable.build(
        names or [f"shard.{i:05d}.mds" for i in range(len(samples))],
        samples,
        streams,
        [f"s{i}" for i in range(max(streams) + 1)],
    )


@fixed
@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 3)), min_size=1, max_size=60))
def test_lookup_is_a_walk_over_the_ranges(ranges: list[tuple[int, int]]) -> None:
    """Every id of the dataset gets the label of the range it lies in."""
    lengths, labels = zip(*ranges, strict=True)
    walked = np.repeat(labels, lengths)
    label_map = LabelMap("abcd", np.cumsum(lengths), labels)
    assert np.array_equal(label_map(np.arange(len(walked))), walked)


def test_lookup_over_a_very_uneven_dataset() -> None:
    """One huge shard among a hundred thousand shards of one sample costs no wrong label."""
    samples = np.ones(100_001, np.int64)
    samples[500] = 3_000_000_000
    ends = np.cumsum(samples)
    labels = np.arange(len(samples)) % 7
    label_map = LabelMap("abcdefg", ends, labels)
    ids = np.random.default_rng(1).integers(0, ends[-1], 5000)
    ids[:2000] = np.random.default_rng(2).permutation(500)[:1].repeat(2000) + np.arange(2000) % 500
    ids[2000:3000] = ends[-1] - 1 - np.arange(1000)
    assert np.array_equal(label_map(ids), labels[np.searchsorted(ends, ids, side="right")])


@pytest.mark.parametrize("bad", [-1, 30])
def test_foreign_id_is_refused(bad: int) -> None:
    """An id that the dataset does not have raises instead of counting as something."""
    with pytest.raises(DatasetError, match=f"sample id {bad} is not in the dataset of 30 samples"):
        label_by_stream(table([10, 20]))(np.array([3, bad]))


@fixed
@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=30).filter(
        lambda s: any(n for n, _ in s)
    )
)
def test_streams_and_empty_shards(shards: list[tuple[int, bool]]) -> None:
    """By stream, each sample has its stream's label; shards without samples hold none."""
    stream = np.cumsum([new for _, new in shards])
    stream -= stream[0]
    samples = [n for n, _ in shards]
    label_map = label_by_stream(table(samples, stream.tolist()))
    assert np.array_equal(label_map(np.arange(sum(samples))), np.repeat(stream, samples))


@fixed
@given(st.integers(2, 40), st.integers(40, 10_000))
def test_positions_are_equal_parts(parts: int, total: int) -> None:
    """Position labels cut the dataset into contiguous parts that differ by one sample at most."""
    got = label_by_position(table([total]), parts)(np.arange(total))
    assert (np.diff(got) >= 0).all()
    sizes = np.bincount(got, minlength=parts)
    assert sizes.max() - sizes.min() <= 1


def test_more_parts_than_samples_is_refused() -> None:
    """Ten parts of nine samples cannot be equal."""
    with pytest.raises(ConfigError, match=r"labels\.position: 10: the dataset has 9 samples"):
        label_by_position(table([9]), 10)


NAMES = [f"{group}/shard.{i:05d}.mds" for group in ("ja", "en", "misc") for i in range(3)]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({"ja": ["ja/*"], "en": ["en/*"], "rest": ["misc/*"]}, ["ja"] * 3 + ["en"] * 3 + ["rest"] * 3),
        ({"en": ["en/*"]}, ["unlabelled"] * 3 + ["en"] * 3 + ["unlabelled"] * 3),
        ({"a": ["0:4"], "b": ["4:"]}, ["a"] * 4 + ["b"] * 5),
        (
            {"a": [":1", "*/shard.00002.mds"]},
            ["a"] + ["unlabelled", "a"] + ["unlabelled", "unlabelled", "a"] * 2,
        ),
        ({"unlabelled": ["ja/*"]}, ["unlabelled"] * 9),
    ],
)
def test_groups_of_shards(groups: dict[str, list[str]], expected: list[str]) -> None:
    """Globs and ranges pick shards; what none picks is counted as unlabelled."""
    shards = table([2] * 9, names=NAMES)
    label_map = label_by_groups(shards, groups)
    got = [label_map.names[i] for i in label_map(np.arange(0, 18, 2))]
    assert got == expected
    assert len(set(label_map.names)) == len(label_map.names)


@fixed
@given(st.lists(st.sampled_from(["*", "ja/*", "*.0000[02].mds", "e?/*", "*misc*"]), min_size=1, max_size=3))
def test_globs_are_fnmatch(patterns: list[str]) -> None:
    """A group holds exactly the shards that fnmatch accepts for one of its patterns."""
    label_map = label_by_groups(table([1] * 9, names=NAMES), {"x": patterns})
    got = {name for name, i in zip(NAMES, label_map(np.arange(9)), strict=True) if label_map.names[i] == "x"}
    assert got == {name for name in NAMES for p in patterns if fnmatch.fnmatchcase(name, p)}


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"ja": ["jp/*"]}, "labels.shards.ja: 'jp/*': matches none of the 9 shards ('ja/shard.00000.mds' to"),
        ({"ja": ["9:"]}, "labels.shards.ja: '9:': matches none"),
        (
            {"a": ["ja/*"], "b": ["2:4"]},
            "shard 'ja/shard.00002.mds' belongs to 'a' too: make the groups disjoint",
        ),
    ],
)
def test_bad_groups(groups: dict[str, list[str]], message: str) -> None:
    """A pattern without shards and groups that overlap are refused, with the shards' names."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        label_by_groups(table([2] * 9, names=NAMES), groups)


@fixed
@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=20),
    st.lists(st.integers(0, 200), max_size=5),
    st.randoms(use_true_random=False),
)
def test_counts_within(samples: list[int], cuts: list[int], random: object) -> None:
    """The samples of each label between any edges are those that a walk finds there."""
    total = sum(samples)
    labels = np.arange(len(samples)) % 3
    label_map = LabelMap("abc", np.cumsum(samples), labels)
    edges = np.array([0, *sorted({c for c in cuts if 0 < c < total}), total])
    walked = np.repeat(labels, samples)
    expected = [np.bincount(walked[a:b], minlength=3) for a, b in itertools.pairwise(edges)]
    assert np.array_equal(label_map.counts_within(edges), expected)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/data/wiki"], ("wiki",)),
        (["/data/ja/train", "/data/en/train"], ("ja", "en")),
        (["s3://bucket/ja/v1/", "s3://bucket/en/v2"], ("v1", "v2")),
        (["/a/web/ja", "/b/web/en", "/a/code/ja"], ("web/ja", "web/en", "code/ja")),
        (["/x/ja", "/x/ja"], ("ja#1", "ja#2")),
        (["", ""], ("stream#1", "stream#2")),
    ],
)
def test_stream_names(paths: list[str], names: tuple[str, ...]) -> None:
    """Streams are named by the shortest ends of their paths that tell them apart."""
    assert stream_names(paths) == names


def test_shards_of_several_streams_have_their_stream_in_the_name() -> None:
    """Two streams may both have a shard.00000.mds; one stream may not."""
    two = ShardTable.build(["a.mds", "a.mds"], [1, 1], [0, 1], ["ja", "en"])
    assert two.names == ("ja/a.mds", "en/a.mds")
    with pytest.raises(DatasetError, match=re.escape("the shard 'a.mds' is listed twice")):
        ShardTable.build(["a.mds", "a.mds"], [1, 1], [0, 0], ["ja"])
    with pytest.raises(DatasetError, match="has no shards"):
        ShardTable.build([], [], [], ["ja"])
