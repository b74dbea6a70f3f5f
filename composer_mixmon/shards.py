"""The shards of a dataset, in the order in which sample ids count through them."""

from __future__ import annotations

import os.path
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from composer_mixmon.errors import DatasetError

__all__ = ["ShardTable", "stream_names"]


@dataclass(frozen=True)
class ShardTable:
    """Which shards a dataset has, how large they are and which stream each belongs to.

    Sample id ``i`` lies in the shard whose half-open range of ids holds ``i``, when the shards' sizes
    are laid end to end (the *physical* ids of ``StreamingDataset``, before any up- or down-sampling).

    Attributes:
        names: One unique name a shard: its file name as in index.json, such as ``ja/shard.00000.mds``,
            preceded by the stream's name where there are several streams.
        samples: Samples in each shard, int64 of shape (shards,).
        streams: The streams' names, in the dataset's order.
        stream_of_shard: Index into ``streams`` of each shard, int64 of shape (shards,).
    """

    names: tuple[str, ...]
    samples: npt.NDArray[np.int64]
    streams: tuple[str, ...]
    stream_of_shard: npt.NDArray[np.int64]

    @classmethod
    def build(
        cls,
        basenames: Sequence[str],
        samples: npt.ArrayLike,
        stream_of_shard: npt.ArrayLike,
        streams: Sequence[str],
    ) -> ShardTable:
        """Name the shards and check that the parts fit together.

        Args:
            basenames: The shards' file names as in index.json.
            samples: Samples in each shard, shape (shards,).
            stream_of_shard: Index of each shard's stream, shape (shards,), ascending.
            streams: The streams' names.

        Raises:
            DatasetError: No shard at all, or a name that occurs twice.
        """
        if not len(basenames):
            raise DatasetError("the dataset has no shards: its index.json lists none")
        of_shard = np.asarray(stream_of_shard, np.int64)
        if len(streams) > 1:
            names = tuple(f"{streams[s]}/{name}" for s, name in zip(of_shard, basenames, strict=True))
        else:
            names = tuple(basenames)
        if len(set(names)) < len(names):
            twice = Counter(names).most_common(1)[0][0]
            raise DatasetError(f"the shard {twice!r} is listed twice: give each shard a name of its own")
        return cls(names, np.asarray(samples, np.int64), tuple(streams), of_shard)

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """First sample id of each shard and, last, the number of samples: int64 (shards + 1,)."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.samples)])

    @property
    def total(self) -> int:
        """Samples in the dataset."""
        return int(self.samples.sum())

    def __len__(self) -> int:
        return len(self.names)


def stream_names(paths: Sequence[str]) -> tuple[str, ...]:
    """Name streams by the shortest ends of their paths that tell them apart.

    ``["/data/wiki/ja/train", "/data/wiki/en/train"]`` become ``("ja/train", "en/train")``, and then, as
    ``train`` tells nothing, ``("ja", "en")``: parts that all share are left out at both ends.

    Args:
        paths: Where each stream lies, one for each stream (remote or local folder).

    Returns:
        Unique names; streams of the very same path are told apart by ``#1``, ``#2``, …
    """
    parts = [[p for p in path.replace(os.path.sep, "/").split("/") if p not in ("", ".")] for path in paths]
    while len(set(map(tuple, parts))) > 1 and min(map(len, parts)) > 1 and len({p[-1] for p in parts}) == 1:
        parts = [p[:-1] for p in parts]
    depth = 1
    while len({tuple(p[-depth:]) for p in parts}) < len(set(map(tuple, parts))):
        depth += 1
    names = ["/".join(p[-depth:]) or "stream" for p in parts]
    return tuple(
        name if names.count(name) == 1 else f"{name}#{names[:i].count(name) + 1}"
        for i, name in enumerate(names)
    )
