"""The oracle: streaming's own ``generate_work`` over a stand-in that needs no shards and no shared memory."""

from __future__ import annotations

import logging
import warnings
from types import MethodType, SimpleNamespace

import numpy as np
from streaming.base.batching import generate_work
from streaming.base.dataset import StreamingDataset
from streaming.base.world import World as UpstreamWorld


def stand_in(settings):
    """What ``generate_work`` reads of a StreamingDataset, taken from our settings."""
    sizes = np.array(settings.samples_per_shard, np.int64)
    per_stream = np.array(settings.shards_per_stream, np.int64)
    dataset = SimpleNamespace(
        samples_per_shard=sizes,
        sample_offset_per_shard=sizes.cumsum() - sizes,
        num_streams=len(per_stream),
        shard_offset_per_stream=per_stream.cumsum() - per_stream,
        shards_per_stream=per_stream,
        streams=[
            SimpleNamespace(choose=choose, proportion=proportion)
            for choose, proportion in zip(settings.choose, settings.proportion, strict=True)
        ],
        epoch_size=settings.epoch_size,
        epoch_seed_change=settings.shuffle and settings.sampling_method == "balanced",
        sampling_method=settings.sampling_method,
        sampling_granularity=settings.sampling_granularity,
        partition_algo=settings.partition_algo,
        num_canonical_nodes=settings.num_canonical_nodes,
        batch_size=settings.batch_size,
        shuffle=settings.shuffle,
        shuffle_algo=settings.shuffle_algo,
        shuffle_seed=settings.shuffle_seed,
        shuffle_block_size=settings.shuffle_block_size,
        initial_physical_nodes=settings.initial_physical_nodes,
    )
    dataset.resample_streams = MethodType(StreamingDataset.resample_streams, dataset)
    return dataset


def upstream_work(settings, world, epoch, first_sample):
    """``generate_work`` as it is: (nodes, ranks, workers, batches per worker, batch size)."""
    parallel = UpstreamWorld(world.nodes, world.ranks_per_node, world.workers_per_rank, 0)
    if settings.replication is not None:
        parallel = parallel.replicate(settings.replication)
    logging.getLogger("streaming").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = stand_in(settings)
        return generate_work(settings.batching_method, dataset, parallel, epoch, first_sample)


def upstream_batches(settings, world, epoch, first_sample):
    """Global batches in the order of training, without those that nobody gets."""
    work = upstream_work(settings, world, epoch, first_sample)
    nodes, ranks, _, _, size = work.shape
    batches = work.transpose(3, 2, 0, 1, 4).reshape(-1, nodes * ranks * size)
    batches = batches[(batches >= 0).any(1)]
    if settings.drop_last:
        batches = batches[_full_or_absent(batches.reshape(len(batches), nodes * ranks, size))]
    return batches


def _full_or_absent(by_rank):
    """Whether no rank's part of a batch is short (a rank that got nothing is not short)."""
    present = (by_rank >= 0).sum(2)
    return ((present == 0) | (present == by_rank.shape[2])).all(1)
