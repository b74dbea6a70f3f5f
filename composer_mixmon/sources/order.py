"""The order of a run, over its epochs and resumptions: counts, hashes and shards of its batches."""

# The steps of a replay are needed apart from its counts of single batches.
# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from composer_mixmon.replay import LabelRanges, Replay
from composer_mixmon.replay.tally import count_pieces
from composer_mixmon.replay.units import LabelPayload
from composer_mixmon.run_record import Target
from composer_mixmon.shards import ShardTable
from composer_mixmon.sources.hashing import replay_hashes
from composer_mixmon.sources.legs import Leg

__all__ = ["RunOrder", "ShardHeat"]

Ints = npt.NDArray[np.int64]
Advance = Callable[[int], object]
"""Is told how many more samples of the order have been computed."""

_BINS = 200


@dataclass(frozen=True)
class ShardHeat:
    """How many samples of which shards came when, in at most 200 × 200 bins.

    Attributes:
        counts: int64 (bins of batches, bins of shards).
        batches: First batch of each bin and, last, the end: int64 (bins of batches + 1,).
        shards: First shard of each bin and, last, their number: int64 (bins of shards + 1,).
    """

    counts: Ints
    batches: Ints
    shards: Ints


@dataclass(frozen=True)
class RunOrder:
    """What the settings of a run say that it was fed.

    Attributes:
        legs: Its stretches, in turn, from batch 0 on.
        names: The labels' names; none where the labels are not known.
        labels: The label of every sample, or ``None``.
        shards: The dataset's shards.
        targets: What the run was meant to be fed.
    """

    legs: tuple[Leg, ...]
    names: tuple[str, ...]
    labels: LabelRanges | None
    shards: ShardTable
    targets: tuple[Target, ...] = ()

    @property
    def batches(self) -> int:
        """Batches of the run."""
        return self.legs[-1].batch + self.legs[-1].batches if self.legs else 0

    @property
    def epochs(self) -> Ints:
        """Composer's epoch of each batch, int64 (batches,)."""
        return np.repeat(
            *np.array([(leg.epoch, leg.batches) for leg in self.legs], np.int64).reshape(-1, 2).T
        )

    def counts(self, labels: LabelRanges, advance: Advance | None = None) -> Ints:
        """Samples of each label in each batch of the run: int64 (batches, labels).

        Args:
            labels: The label of every sample, such as :attr:`labels`.
            advance: Told of the progress.
        """
        counts = np.zeros((self.batches, labels.count), np.int64)
        for leg in self.legs:
            replay = leg.replay()
            counts[leg.batch : leg.batch + leg.batches] = replay.counts(labels, slice(leg.batches)).counts
            if advance:
                advance(leg.batches * replay.global_batch)
        return counts

    def hashes(
        self, first: int = 0, stop: int | None = None, advance: Advance | None = None
    ) -> npt.NDArray[np.uint64]:
        """Order hashes of a range of batches (see ``order_hash``): uint64 (stop − first,).

        Args:
            first: The first batch.
            stop: The one after the last; ``None``: the run's end.
            advance: Told of the progress.
        """
        stop = self.batches if stop is None else stop
        hashes = np.zeros(stop - first, np.uint64)
        for leg, begin, end in self._within(first, stop):
            replay = leg.replay()
            at = leg.batch - first
            hashes[at + begin : at + end] = replay_hashes(replay, range(begin, end))
            if advance:
                advance((end - begin) * replay.global_batch)
        return hashes

    def shard_heat(self, first: int = 0, stop: int | None = None) -> ShardHeat:
        """Count which shards a range of batches came from.

        Args:
            first: The first batch.
            stop: The one after the last; ``None``: the run's end.
        """
        stop = self.batches if stop is None else stop
        edges, shards = _bins(first, stop), _bins(0, len(self.shards))
        bin_of_shard = np.repeat(np.arange(len(shards) - 1), np.diff(shards))
        labels = LabelRanges.of_shards(self.shards.samples, bin_of_shard, len(shards) - 1)
        counts = np.zeros((len(edges) - 1, labels.count), np.int64)
        for leg, begin, end in self._within(first, stop):
            bins = np.searchsorted(edges, np.arange(leg.batch + begin, leg.batch + end), side="right") - 1
            _count_bins(leg.replay(), labels, range(begin, end), bins, counts)
        return ShardHeat(counts, edges, shards)

    def shards_of(self, first: int, stop: int, most: int) -> Ints:
        """Count the samples of each shard in a range of batches: int64 (shards,).

        Args:
            first: The first batch.
            stop: The one after the last.
            most: Samples looked at: of a longer range, its first batches.
        """
        counts = np.zeros(len(self.shards), np.int64)
        for leg, begin, end in self._within(first, stop):
            replay = leg.replay()
            end = min(end, begin + max(1, most // replay.global_batch))
            ids = replay.ids(slice(begin, end))
            shard = np.searchsorted(self.shards.offsets, ids[ids >= 0], side="right") - 1
            counts += np.bincount(shard, minlength=len(counts))[: len(counts)]
        return counts

    def _within(self, first: int, stop: int) -> Iterator[tuple[Leg, int, int]]:
        """The legs that reach into a range of batches, with the range as they count it."""
        for leg in self.legs:
            begin, end = max(first - leg.batch, 0), min(stop - leg.batch, leg.batches)
            if begin < end:
                yield leg, begin, end


def _bins(first: int, stop: int) -> Ints:
    """Edges of at most 200 bins of nearly equal length."""
    bins = min(_BINS, stop - first)
    return first + (stop - first) * np.arange(bins + 1, dtype=np.int64) // max(bins, 1)


def _count_bins(replay: Replay, labels: LabelRanges, chosen: range, bins: Ints, counts: Ints) -> None:
    """Add the labels of batches to the bins of these batches: one pass, and no memory for each batch."""
    ties: list[int] = []
    for group, units in enumerate(replay._units):
        lanes = [
            (lane, np.where(batch >= 0, bins[batch], -1))
            for lane, batch in replay._lanes_with_batches(group, chosen)
        ]
        count_pieces(replay._pieces(group, LabelPayload(units, labels), ties), lanes, counts)
