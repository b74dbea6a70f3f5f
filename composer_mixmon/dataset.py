"""What a live dataset says of itself: its shards, its own shares and the settings of its order."""

# Torch, Composer and streaming are typed only in part: what comes out of them is unknown to pyright.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import hashlib
import importlib.metadata
import os
from typing import Any

import numpy as np
import numpy.typing as npt
from streaming import StreamingDataset
from streaming.base.format import get_index_basename
from streaming.base.format.mds.reader import MDSReader
from streaming.base.world import World

from composer_mixmon.columns import find_column
from composer_mixmon.evidence import batching_effects
from composer_mixmon.labels import LabelMap
from composer_mixmon.replay.sampling import label_shares
from composer_mixmon.shards import ShardTable, stream_names

__all__ = [
    "check_column",
    "draw_settings",
    "own_shares",
    "rank_batch_size",
    "replication",
    "run_settings",
    "shard_table",
]

_PACKAGES = ("composer-mixmon", "mosaicml", "mosaicml-streaming", "numpy", "torch")
_RESOLVED_LATE = ("num_canonical_nodes", "shuffle_block_size", "shuffle_seed", "initial_physical_nodes")
_ORDER = (
    "epoch_size",
    "sampling_method",
    "sampling_granularity",
    "partition_algo",
    "batch_size",
    "shuffle",
    "shuffle_algo",
    "batching_method",
    "replication",
)


def shard_table(dataset: Any) -> ShardTable:
    """Read the shards of a live dataset.

    Args:
        dataset: A ``StreamingDataset``, or a map-style dataset. That counts as one shard, unless it reads MDS
            shards itself and has their readers in order as ``shards``, as ModernBERT's does.
    """
    if not isinstance(dataset, StreamingDataset):
        readers = _readers(dataset)
        if readers is None:
            return ShardTable.build(["dataset"], [len(dataset)], [0], ["dataset"])
        names, samples = [reader.raw_data.basename for reader in readers], [r.samples for r in readers]
        return ShardTable.build(names, samples, np.zeros(len(names)), ["dataset"])
    basenames = [shard.raw_data.basename for shard in dataset.shards]  # pyright: ignore
    streams = stream_names([_place(stream) for stream in dataset.streams])
    return ShardTable.build(basenames, dataset.samples_per_shard, dataset.stream_per_shard, streams)


def _readers(dataset: Any) -> list[MDSReader] | None:
    """The readers of a map-style dataset that goes through MDS shards one after the other, or ``None``."""
    shards = getattr(dataset, "shards", None)
    if not isinstance(shards, (list, tuple)) or not all(isinstance(shard, MDSReader) for shard in shards):
        return None
    readers: list[MDSReader] = list(shards)
    whole = sum(reader.samples for reader in readers) == len(dataset)
    return readers if whole and len({r.raw_data.basename for r in readers}) == len(readers) else None


def _place(stream: Any) -> str:
    """Where a stream comes from: its remote if it has one, for a local cache may be a temporary folder."""
    return os.path.join(stream.remote or stream.local, stream.split or "")


def own_shares(dataset: Any, label_map: LabelMap) -> npt.NDArray[np.float64]:
    """Each label's share of an epoch after proportion, repeat and choose: float64 (labels,).

    Args:
        dataset: The dataset for which ``label_map`` was built.
        label_map: The labels.
    """
    sizes = _samples_per_stream(dataset)
    edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    choose = [s.choose for s in dataset.streams] if isinstance(dataset, StreamingDataset) else sizes
    return label_shares(np.asarray(choose, np.int64), label_map.counts_within(edges))


def check_column(dataset: Any, column: str) -> str | None:
    """Check that the shards of a dataset have a column of labels; a map-style dataset does not tell.

    Args:
        dataset: A ``StreamingDataset`` or a map-style dataset.
        column: The column's name.

    Returns:
        Which streams lack it, in words, if any.

    Raises:
        ConfigError: No shard has the column, or it holds no labels.
    """
    if not isinstance(dataset, StreamingDataset):
        return None
    encodings = find_column(column, map(vars, dataset.shards))
    lacking = {int(s) for s, e in zip(dataset.stream_per_shard, encodings, strict=True) if e is None}
    if not lacking:
        return None
    streams = shard_table(dataset).streams
    listed = ", ".join(streams[stream] for stream in sorted(lacking))
    return f"samples without the column {column!r} count as unlabelled: there are such in {listed}"


def _samples_per_stream(dataset: Any) -> npt.NDArray[np.int64]:
    """Samples of each stream before any up- or down-sampling: int64 (streams,)."""
    if isinstance(dataset, StreamingDataset):
        return np.asarray(dataset.samples_per_stream, np.int64)
    return np.array([len(dataset)], np.int64)


def replication(loader: Any) -> int:
    """How many neighbouring ranks get the same samples.

    Args:
        loader: The DataLoader.
    """
    return getattr(loader.dataset, "replication", None) or 1


def rank_batch_size(loader: Any) -> int:
    """Samples that a rank gets at a time, the last batch of an epoch apart.

    Args:
        loader: The DataLoader.
    """
    own = loader.dataset.batch_size if isinstance(loader.dataset, StreamingDataset) else None
    return own or loader.batch_size or getattr(loader.batch_sampler, "batch_size", None) or 1


def draw_settings(loader: Any) -> dict[str, float]:
    """How a loader's batches depart from single draws: ``unit`` and ``rounding`` of the evidence.

    Args:
        loader: The DataLoader.
    """
    dataset = loader.dataset
    if not isinstance(dataset, StreamingDataset):
        return {}
    device_batch = rank_batch_size(loader)
    global_batch = device_batch * World.detect().num_ranks // replication(loader)
    unit, rounding = batching_effects(dataset.batching_method, device_batch, global_batch)
    return {"unit": unit, "rounding": rounding}


def run_settings(loader: Any) -> dict[str, Any]:
    """Everything that the order of a run's samples depends on, as plain types for the run's config.

    Values that streaming fills in by itself (canonical nodes, block size, epoch size, each stream's
    samples) are the effective ones, so that the order can be replayed from this and the index files.

    Args:
        loader: The DataLoader.
    """
    dataset = loader.dataset
    settings: dict[str, Any] = {
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "dataset": {"class": f"{type(dataset).__module__}.{type(dataset).__qualname__}"},
        "loader": {
            "batch_size": loader.batch_size,
            "drop_last": loader.drop_last,
            "num_workers": loader.num_workers,
        },
    }
    if isinstance(dataset, StreamingDataset):
        world = World.detect()
        settings["world"] = {"nodes": world.num_nodes, "ranks_per_node": world.ranks_per_node}
        settings["dataset"] |= _order_settings(dataset) | {"streams": _stream_settings(dataset)}
    else:
        settings["dataset"]["samples"] = len(dataset)
    return settings


def _order_settings(dataset: StreamingDataset) -> dict[str, Any]:
    """The settings of a ``StreamingDataset``'s order as they will be in effect."""
    before = {name: getattr(dataset, name) for name in _RESOLVED_LATE}
    try:
        dataset.state_dict(0, from_beginning=True)  # fills them in as iterating will, resumption included
        order = {name: getattr(dataset, name) for name in (*_RESOLVED_LATE, *_ORDER)}
    finally:
        vars(dataset).update(before)
    return {name: int(value) if isinstance(value, np.integer) else value for name, value in order.items()}


def _stream_settings(dataset: StreamingDataset) -> list[dict[str, Any]]:
    names = shard_table(dataset).streams
    return [
        {
            "name": name,
            "remote": stream.remote,
            "local": stream.local,
            "split": stream.split,
            "proportion": float(stream.proportion),
            "repeat": float(stream.repeat),
            "choose": int(stream.choose),
            "samples": int(samples),
            "shards": int(shards),
            "index_sha256": _hash(os.path.join(stream.local, stream.split or "", get_index_basename())),
        }
        for name, stream, samples, shards in zip(
            names, dataset.streams, dataset.samples_per_stream, dataset.shards_per_stream, strict=True
        )
    ]


def _hash(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
