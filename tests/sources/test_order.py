"""Counts, hashes and shards of a run's order, against the ids of its batches one by one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from composer_mixmon.order_hash import order_hash, order_hashes
from composer_mixmon.replay import LabelRanges, Settings, World
from composer_mixmon.run_record import Resumption
from composer_mixmon.shards import ShardTable
from composer_mixmon.sources import RunOrder
from composer_mixmon.sources import hashing as hashing_module
from composer_mixmon.sources.hashing import replay_hashes
from composer_mixmon.sources.legs import lay_out

SHARDS = [[7] * 40, [5, 0, 11] * 30]
METHODS = ("random", "stratified", "per_stream", "device_per_stream")


def order_of(world: World, **settings: Any) -> RunOrder:
    """A run of 2.5 epochs that was resumed once."""
    found = Settings.resolve(world, SHARDS, batch_size=4, shuffle=True, shuffle_block_size=60, **settings)
    sizes = found.shard_sizes()
    names = [f"{i}.mds" for i in range(len(sizes))]
    streams = np.repeat([0, 1], [len(shards) for shards in SHARDS])
    table = ShardTable.build(names, sizes, streams, ["a", "b"])
    labels = LabelRanges.of_shards(sizes, np.arange(len(sizes)) % 3, 3)
    legs = lay_out(found, world, 40, [Resumption(5, 0, 5 * 4 * world.ranks)])
    return RunOrder(legs, ("x", "y", "z"), labels, table)


def ids_of(order: RunOrder) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    return [row for leg in order.legs for row in leg.replay().ids(slice(leg.batches))]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("world", "more"),
    [
        (World(1, 2), {"shuffle_algo": "py1e"}),
        (World(2, 2), {"shuffle_algo": "py1br", "num_canonical_nodes": 4}),
        (World(2, 2), {"shuffle_algo": "naive", "replication": 2}),
        (World(1, 3), {"shuffle_algo": "py2s", "num_canonical_nodes": 3, "drop_last": True}),
    ],
)
def test_hashes(monkeypatch: pytest.MonkeyPatch, method: str, world: World, more: dict[str, Any]) -> None:
    """One pass over the order gives each batch the hash that its ids have, for every kind of batch."""
    monkeypatch.setattr(hashing_module, "_CHUNK", 64)
    order = order_of(world, batching_method=method, **more)
    ids = ids_of(order)
    expected = np.array([order_hashes(row[None])[0] for row in ids])
    np.testing.assert_array_equal(order.hashes(), expected)
    np.testing.assert_array_equal(order.hashes(3, 33), expected[3:33])
    one = ids[7]
    assert np.uint64(order_hash(one) % 2**64) == order.hashes(7, 8)[0]  # all of them whole batches


def test_a_hash_tells_a_swap() -> None:
    """Two samples that change their places within a batch change its hash alone."""
    order = order_of(World(1, 2))
    leg = order.legs[-1]
    ids = leg.replay().ids(slice(leg.batches))
    ids[1, [0, 1]] = ids[1, [1, 0]]
    differ = replay_hashes(leg.replay(), range(leg.batches)) != order_hashes(ids)
    assert differ.tolist() == [False, True, *itertools.repeat(False, leg.batches - 2)]


@pytest.mark.parametrize("method", METHODS)
def test_counts_and_shards(method: str) -> None:
    """Labels of each batch; and which shards came when, in bins of batches and shards."""
    order = order_of(World(2, 2), batching_method=method)
    ids, told = ids_of(order), list[int]()
    assert order.labels is not None
    label = [np.bincount(order.labels.of_ids(row[row >= 0]), minlength=3) for row in ids]
    np.testing.assert_array_equal(order.counts(order.labels, told.append), label)
    assert sum(told) >= sum((row >= 0).sum() for row in ids)
    assert len(order.epochs) == order.batches == 40
    offsets = order.shards.offsets[1:]
    shard = [np.bincount(np.searchsorted(offsets, row[row >= 0], side="right"), minlength=130) for row in ids]
    heat = order.shard_heat(4, 31)
    assert heat.batches.tolist() == list(range(4, 32))
    assert heat.shards.tolist() == list(range(131))
    np.testing.assert_array_equal(heat.counts, shard[4:31])


def test_shards_in_coarse_bins(monkeypatch: pytest.MonkeyPatch) -> None:
    """More shards and batches than bins are put together, none is lost."""
    from composer_mixmon.sources import order as module

    monkeypatch.setattr(module, "_BINS", 7)
    order = order_of(World(1, 2))
    heat = order.shard_heat()
    assert heat.counts.shape == (7, 7)
    assert (heat.batches[0], heat.batches[-1], heat.shards[-1]) == (0, 40, 130)
    assert heat.counts.sum() == sum((row >= 0).sum() for row in ids_of(order))
    inside = [row[row >= 0] for row in ids_of(order)[heat.batches[2] : heat.batches[3]]]
    shard = np.searchsorted(order.shards.offsets[1:], np.concatenate(inside), side="right")
    expected = [((shard >= a) & (shard < b)).sum() for a, b in itertools.pairwise(heat.shards)]
    np.testing.assert_array_equal(heat.counts[2], expected)
