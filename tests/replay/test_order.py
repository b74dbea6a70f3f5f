"""The replayed order, against streaming's ``generate_work``, id by id."""

from __future__ import annotations

from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from composer_mixmon.errors import MixmonError
from composer_mixmon.replay import ahead, fast, order, permute, py1e, shuffles, spans
from composer_mixmon.replay.order import Replay
from composer_mixmon.replay.sampling import StreamWeight
from composer_mixmon.replay.settings import BATCHING_METHODS, PARTITION_ALGOS, SHUFFLE_ALGOS, Settings
from composer_mixmon.replay.units import LabelRanges
from composer_mixmon.replay.world import World

from .upstream import upstream_batches

thorough = hypothesis_settings(derandomize=True, deadline=None, max_examples=150)
small = st.integers(1, 4)
worlds = st.builds(World, nodes=small, ranks_per_node=small, workers_per_rank=small)


@st.composite
def weights(draw, streams):
    kind = draw(st.sampled_from(["none", "proportion", "absolute"]))
    if kind == "none":
        return [StreamWeight()] * streams
    if kind == "proportion":
        return [StreamWeight(proportion=draw(st.integers(1, 8))) for _ in range(streams)]
    absolute = st.one_of(
        st.just(StreamWeight()),
        st.builds(StreamWeight, repeat=st.sampled_from([0.3, 1.0, 1.7, 2.0])),
        st.builds(StreamWeight, choose=st.integers(1, 200)),
    )
    return [draw(absolute) for _ in range(streams)]


@st.composite
def cases(draw):
    """Settings, world, epoch and first sample, over everything StreamingDataset can be set to."""
    world = draw(worlds)
    streams = draw(st.integers(1, 3))
    shards = [draw(st.lists(st.integers(1, 60), min_size=1, max_size=8)) for _ in range(streams)]
    given_weights = draw(weights(streams))
    sized = all(w.repeat is None and w.choose is None for w in given_weights)
    resumed = draw(st.booleans())
    # A repeat of 0.3 may round every stream to nothing, which is refused: not a case.
    assume(
        any(w.repeat is None or int(w.repeat * sum(s)) for w, s in zip(given_weights, shards, strict=True))
    )
    settings = Settings.resolve(
        world,
        shards,
        given_weights,
        epoch_size=draw(st.one_of(st.none(), st.integers(20, 600))) if sized else None,
        batch_size=draw(st.integers(1, 6)),
        num_canonical_nodes=draw(st.sampled_from([None, 1, 2, 3, 4, 6, 8, 12, 64])),
        shuffle_block_size=draw(st.sampled_from([None, 7, 20, 64, 300])),
        shuffle=draw(st.sampled_from([True, True, True, False])),
        shuffle_algo=draw(st.sampled_from(SHUFFLE_ALGOS)),
        shuffle_seed=draw(st.integers(0, 9999)),
        sampling_method=draw(st.sampled_from(["balanced", "fixed"])),
        sampling_granularity=draw(st.sampled_from([1, 1, 3, 50])),
        partition_algo=draw(st.sampled_from(PARTITION_ALGOS)),
        batching_method=draw(st.sampled_from(BATCHING_METHODS)),
        replication=draw(st.sampled_from([None, None, 1, 2])) if world.ranks % 2 == 0 else None,
        initial_physical_nodes=draw(small) if resumed else None,
        drop_last=draw(st.booleans()),
    )
    first = draw(st.integers(0, settings.epoch_size)) if resumed else 0
    return settings, world, draw(st.integers(0, 3)), first


def outcome(compute):
    """A result, or None where it is refused."""
    try:
        return compute()
    except (ValueError, MixmonError, IndexError):
        return None


both_ways = pytest.mark.parametrize("compiled", [False, True])


@contextmanager
def tiny_chunks(compiled):
    """Make chunks so small that the tiny cases cross their edges, and count by whole pieces."""
    with (
        patch.object(fast, "_WORTH", 0 if compiled else 10**9),
        patch.object(py1e, "_WINDOW", 64),
        patch.object(shuffles, "_CHUNK", 50),
        patch.object(spans, "_CHUNK", 50),
        patch.object(order, "_FEW_SAMPLES", -1),
        patch.object(ahead, "_SIZE", 30),
        patch.object(permute, "_REST", 40),
        patch.object(permute, "_WORDS", 64),
    ):
        yield


@both_ways
@given(case=cases())
@thorough
def test_ids_equal_generate_work(compiled, case):
    """Every id of every batch is where generate_work puts it, and what it refuses we refuse."""
    settings, world, epoch, first = case
    expected = outcome(lambda: upstream_batches(settings, world, epoch, first))
    with tiny_chunks(compiled):
        got = outcome(lambda: Replay(settings, world, epoch, first).ids())
    assert (got is None) == (expected is None)
    if expected is not None:
        assert got.tolist() == expected.tolist()


@both_ways
@given(case=cases(), data=st.data())
@thorough
def test_counts_are_those_of_the_ids(compiled, case, data):
    """Counting labels without ids gives, batch by batch, what counting generate_work's ids gives."""
    settings, world, epoch, first = case
    expected_ids = outcome(lambda: upstream_batches(settings, world, epoch, first))
    if expected_ids is None:
        return
    shards = np.array(settings.samples_per_shard)
    count = data.draw(st.integers(1, 5))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    if data.draw(st.booleans()):
        labels = rng.integers(0, count, shards.sum())
        ranges = LabelRanges.of_samples(labels, count)
    else:
        per_shard = rng.integers(0, count, len(shards))
        labels = np.repeat(per_shard, shards)
        ranges = LabelRanges.of_shards(shards, per_shard, count)
    begin = data.draw(st.integers(0, len(expected_ids)))
    chosen = slice(begin, data.draw(st.one_of(st.none(), st.integers(begin, len(expected_ids)))))
    expected = [np.bincount(labels[row[row >= 0]], minlength=count).tolist() for row in expected_ids[chosen]]
    replay = Replay(settings, world, epoch, first)
    with tiny_chunks(compiled):
        assert replay.counts(ranges, chosen).counts.tolist() == expected
        with patch.object(order, "_FEW_SAMPLES", 10**9):
            assert replay.counts(ranges, chosen).counts.tolist() == expected
        assert replay.ids(chosen).tolist() == expected_ids[chosen].tolist()


@both_ways
@pytest.mark.parametrize("method", BATCHING_METHODS)
@pytest.mark.parametrize("ranks", [1, 3])
def test_counts_of_larger_epochs(method, ranks, compiled):
    """With hundreds of regular columns in each canonical node, counts are still those of the ids."""
    world = World(nodes=2, ranks_per_node=ranks, workers_per_rank=2)
    shards = [np.full(40, 250), np.full(20, 300)]
    settings = Settings.resolve(
        world, shards, batch_size=8, num_canonical_nodes=4, shuffle=True, batching_method=method
    )
    labels = LabelRanges.of_shards(np.concatenate(shards), np.arange(60) % 3, 3)
    ids = upstream_batches(settings, world, 1, 480)
    expected = [np.bincount(labels.of_ids(row[row >= 0]), minlength=3).tolist() for row in ids]
    with tiny_chunks(compiled):
        assert Replay(settings, world, 1, 480).counts(labels).counts.tolist() == expected


@both_ways
@pytest.mark.parametrize("algo", SHUFFLE_ALGOS)
def test_a_batch_alone_is_the_epochs(algo, compiled):
    """A batch is computed from no more of the shuffle than it needs, and from no less."""
    shards = [np.full(200, 40)]
    settings = Settings.resolve(
        World(), shards, batch_size=50, num_canonical_nodes=2, shuffle=True, shuffle_algo=algo,
        shuffle_block_size=800,
    )  # fmt: skip
    with tiny_chunks(compiled):
        replay = Replay(settings, World())
        whole = replay.ids()
        for batch in range(0, replay.batches, 3):
            np.testing.assert_array_equal(replay.ids(slice(batch, batch + 1))[0], whole[batch])


@both_ways
@pytest.mark.parametrize("algo", SHUFFLE_ALGOS)
@pytest.mark.parametrize("chosen", [slice(0, 3), slice(5, 6), slice(40, 90)])
def test_some_batches_of_larger_epochs(algo, chosen, compiled):
    """What is left out of the shuffles of three canonical nodes changes nothing in the batches asked for."""
    world = World(nodes=3, ranks_per_node=2)
    shards = np.random.default_rng(2).integers(1, 250, 120)
    settings = Settings.resolve(
        world,
        [shards],
        batch_size=4,
        num_canonical_nodes=3,
        shuffle=True,
        shuffle_algo=algo,
        shuffle_block_size=400,
    )
    labels = LabelRanges.of_shards(shards, np.arange(120) % 3, 3)
    ids = upstream_batches(settings, world, 1, 0)[chosen]
    expected = [np.bincount(labels.of_ids(row[row >= 0]), minlength=3).tolist() for row in ids]
    with tiny_chunks(compiled), patch.object(order, "_FEW_SAMPLES", 10**9):
        assert Replay(settings, world, 1).counts(labels, chosen).counts.tolist() == expected
        assert Replay(settings, world, 1).ids(chosen).tolist() == ids.tolist()
