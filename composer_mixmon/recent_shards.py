"""Which shards the last batches came from, worked out only when an alarm asks for it."""

from __future__ import annotations

import dataclasses
from collections import deque

import numpy as np
import numpy.typing as npt

from composer_mixmon.alarms import Alarm
from composer_mixmon.shards import ShardTable

__all__ = ["RecentShards"]

_SHOWN = 5
_MOST_IDS = 1 << 22  # kept at most: 32 MiB


class RecentShards:
    """This rank's sample ids of the last batches.

    Args:
        shards: The dataset's shards.
        batches: How many batches to keep, as long as they are no more than four million samples.
    """

    def __init__(self, shards: ShardTable, batches: int) -> None:
        self._shards = shards
        self._recent: deque[tuple[int, npt.NDArray[np.int64]]] = deque(maxlen=batches)
        self._ids = 0

    def put(self, batch: int, ids: npt.NDArray[np.int64]) -> None:
        """Keep the sample ids of a batch."""
        if len(self._recent) == self._recent.maxlen:
            self._ids -= len(self._recent.popleft()[1])
        self._recent.append((batch, ids))
        self._ids += len(ids)
        while self._ids > _MOST_IDS and len(self._recent) > 1:
            self._ids -= len(self._recent.popleft()[1])

    def involve(self, alarm: Alarm) -> Alarm:
        """Add to an alarm the shards that gave most of its window's samples on this rank."""
        ids = [ids for batch, ids in self._recent if alarm.first <= batch <= alarm.batch]
        if not ids:
            return alarm
        shard = np.searchsorted(self._shards.offsets, np.concatenate(ids), side="right") - 1
        found, counts = np.unique(shard, return_counts=True)
        most = np.argsort(-counts, kind="stable")[:_SHOWN]
        involved = {self._shards.names[found[i]]: int(counts[i]) for i in most}
        return dataclasses.replace(alarm, shards=involved)
