"""Effective settings, against StreamingDataset itself, and their plain form."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from streaming import MDSWriter, Stream, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from streaming.base.world import World as UpstreamWorld
from torch.utils.data import DataLoader

from composer_mixmon.errors import ConfigError, DatasetError
from composer_mixmon.replay.index import read_index
from composer_mixmon.replay.order import Replay
from composer_mixmon.replay.sampling import StreamWeight
from composer_mixmon.replay.settings import BATCHING_METHODS, Settings
from composer_mixmon.replay.world import World

SHARDS = [[7, 9, 4], [20, 3]]


def resolve(world=None, **options):
    return Settings.resolve(world or World(), SHARDS, **({"batch_size": 4} | options))


@pytest.mark.parametrize(
    ("algo", "nodes", "given", "canonical", "block"),
    [
        ("py1e", 1, None, 1, 4_000_000),
        ("py1e", 4, None, 4, 1_000_000),
        ("py1br", 32, None, 32, 1 << 18),
        ("naive", 2, 0, 2, 2_000_000),
        ("py1s", 2, None, 128, 1 << 18),
        ("py2s", 1, None, 64, 1 << 18),
        ("py1s", 2, 6, 6, 666_666),
    ],
)
def test_defaults_depend_on_algorithm_and_nodes(algo, nodes, given, canonical, block):
    """Canonical nodes and block are filled in as StreamingDataset._resume fills them in."""
    settings = resolve(World(nodes=nodes), shuffle_algo=algo, num_canonical_nodes=given)
    assert (settings.num_canonical_nodes, settings.shuffle_block_size) == (canonical, block)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("replication", [1, 2, 3, 4, 8, 16])
def test_worlds_are_replicated_as_streaming_replicates_them(nodes, ranks, replication):
    """Nodes and ranks after replication, or the refusal, are upstream's."""
    upstream = UpstreamWorld(nodes, ranks, 2, 0)
    if nodes * ranks % replication:
        with pytest.raises(ConfigError, match="replication"):
            World(nodes, ranks, 2).replicate(replication)
        return
    expected = upstream.replicate(replication)
    got = World(nodes, ranks, 2).replicate(replication)
    assert (got.nodes, got.ranks_per_node) == (expected.num_nodes, expected.ranks_per_node)


def test_replicated_ranks_receive_the_same_ids():
    """With replication 2, ranks 0 and 1 see the same samples, and so do 2 and 3."""
    replay = Replay(resolve(World(ranks_per_node=4), replication=2), World(ranks_per_node=4))
    ids = replay.rank_ids()
    assert ids.shape == (replay.batches, 4, 4)
    assert (ids[:, 0] == ids[:, 1]).all()
    assert (ids[:, 2] == ids[:, 3]).all()
    assert not (ids[0, 0] == ids[0, 2]).any()


def test_settings_survive_json():
    """What is written as plain JSON is read back equal."""
    settings = resolve(weights=[StreamWeight(repeat=0.7), StreamWeight(choose=11)], replication=1)
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_records_of_another_kind_are_refused():
    """Unknown, missing and mistyped keys and other formats are named."""
    record = resolve().to_dict()
    with pytest.raises(ConfigError, match=r"settings\.colour"):
        Settings.from_dict(record | {"colour": 1})
    with pytest.raises(ConfigError, match=r"settings\.shuffle_seed"):
        Settings.from_dict({k: v for k, v in record.items() if k != "shuffle_seed"})
    with pytest.raises(ConfigError, match=r"settings\.format"):
        Settings.from_dict(record | {"format": 2})
    with pytest.raises(ConfigError, match=r"settings\.choose"):
        Settings.from_dict(record | {"choose": 3})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shuffle_algo", "py3x"),
        ("batching_method", "mixed"),
        ("partition_algo", ""),
        ("sampling_method", None),
        ("sampling_granularity", 0),
        ("num_canonical_nodes", -1),
        ("shuffle_seed", -1),
        ("shuffle_block_size", 0),
        ("batch_size", 0),
        ("batch_size", 2.0),
        ("replication", 0),
        ("shuffle", "yes"),
        ("colour", 1),
    ],
)
def test_values_that_make_no_sense_are_refused(field, value):
    """Each is refused by name before anything is computed."""
    with pytest.raises(ConfigError, match=field):
        resolve(**{field: value})


def test_shards_that_do_not_fit_are_refused():
    """Empty streams, negative shards and shards of no stream are DatasetErrors."""
    settings = resolve()
    for changes in (
        {"samples_per_shard": (7, 9, 4, 0, 0)},
        {"samples_per_shard": (7, 9, 4, 24, -1)},
        {"samples_per_shard": (7, 9, 4, 20)},
    ):
        with pytest.raises(DatasetError):
            replace(settings, **changes)


@pytest.mark.parametrize(("epoch", "first"), [(-1, 0), (0, -1), (0, 10_000)])
def test_epochs_and_samples_out_of_range_are_refused(epoch, first):
    """A start before the beginning or behind the end is refused."""
    with pytest.raises(ConfigError, match=r"epoch|first_sample"):
        Replay(resolve(), World(), epoch, first)


@pytest.fixture
def streams(tmp_path):
    """Two streams on disk; each sample holds its own id."""
    clean_stale_shared_memory()
    number = 0
    for name, samples in (("ja", 150), ("en", 90)):
        with MDSWriter(out=str(tmp_path / name), columns={"id": "int"}, size_limit=400) as out:
            for _ in range(samples):
                out.write({"id": number})
                number += 1
    return tmp_path


@pytest.mark.parametrize(("method", "workers"), [*((m, 0) for m in BATCHING_METHODS), ("random", 2)])
def test_a_real_dataset_delivers_the_replayed_ids(streams, method, workers):
    """Two epochs through a DataLoader equal the replay from index.json files and from the dataset."""
    options = {
        "batch_size": 8,
        "shuffle": True,
        "shuffle_algo": "py1e",
        "shuffle_block_size": 400,
        "batching_method": method,
        "num_canonical_nodes": 2,
        "shuffle_seed": 7,
    }
    world = World(workers_per_rank=workers)
    dataset = StreamingDataset(
        streams=[Stream(local=str(streams / "ja"), repeat=1.3), Stream(local=str(streams / "en"), choose=61)],
        **options,
    )
    from_index = Settings.resolve(
        world,
        [read_index(streams / name).samples for name in ("ja", "en")],
        [StreamWeight(repeat=1.3), StreamWeight(choose=61)],
        **options,
    )
    assert Settings.of_dataset(dataset, world) == from_index
    loader = DataLoader(dataset, batch_size=8, num_workers=workers)
    for epoch in range(2):
        delivered = [batch["id"].tolist() for batch in loader]
        replayed = Replay(from_index, world, epoch).ids()
        assert [row[row >= 0].tolist() for row in replayed] == delivered
    assert np.unique(replayed).size > 100
