"""Shuffle units: a stream's shards after up- or down-sampling, and the sample ids or labels in them.

StreamingDataset numbers the samples of an epoch 0, 1, … ("big" ids) unit after unit: every full repeat of
a shard is a unit, and so is the part taken last. Here a unit stays a range; nothing has the epoch's size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from composer_mixmon.replay.sampling import Ints, choose_per_shard
from composer_mixmon.replay.settings import Settings

__all__ = ["IdPayload", "LabelPayload", "LabelRanges", "Payload", "Units", "resample"]


@dataclass(frozen=True)
class Units:
    """The epoch's samples of one or more streams.

    Attributes:
        sizes: int64 (U,). Samples in each unit.
        shard_start: int64 (U,). First underlying sample id of the unit's shard.
        shard_size: int64 (U,). Samples in that shard; a unit of this size is the whole shard.
        seed: Seeds the choice of the samples of partial units.
    """

    sizes: Ints
    shard_start: Ints
    shard_size: Ints
    seed: int

    @property
    def samples(self) -> int:
        """Samples in all units."""
        return int(self.sizes.sum())

    @cached_property
    def starts(self) -> Ints:
        """First big id of each unit and, last, their number: int64 (U + 1,)."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.sizes)])

    @cached_property
    def partial(self) -> NDArray[np.bool_]:
        """Which units hold a part of their shard: bool (U,)."""
        return self.sizes < self.shard_size

    @cached_property
    def chosen(self) -> list[NDArray[np.uint32]]:
        """For each partial unit, in order, the samples taken, counted from the shard's start."""
        rng = np.random.default_rng(self.seed)
        sizes, shards = self.sizes[self.partial].tolist(), self.shard_size[self.partial].tolist()
        return [
            np.sort(np.array(rng.choice(shard, size, False), np.uint32))
            for size, shard in zip(sizes, shards, strict=True)
        ]

    @cached_property
    def chosen_index(self) -> Ints:
        """Index into :attr:`chosen` of each unit (meaningless for whole ones): int64 (U,)."""
        return np.cumsum(self.partial) - 1

    def ids(self, unit: int, begin: int, end: int) -> Ints:
        """Underlying sample ids of a unit's samples ``begin:end``."""
        start = int(self.shard_start[unit])
        if not self.partial[unit]:
            return np.arange(start + begin, start + end)
        return np.add(self.chosen[int(self.chosen_index[unit])][begin:end], start, dtype=np.int64)


def resample(settings: Settings, epoch: int, streams: range) -> Units:
    """Draw an epoch's samples from ``streams`` (streaming's ``resample_streams``).

    Args:
        settings: The dataset's.
        epoch: From 0.
        streams: All streams, or the one that is batched on its own.
    """
    balanced = settings.sampling_method == "balanced"
    by_epoch = settings.shuffle_seed + (epoch if balanced else 0)
    granule_seed = settings.shuffle_seed + (epoch if balanced and settings.shuffle else 0)
    shard_sizes = settings.shard_sizes()
    shard_starts = np.cumsum(shard_sizes) - shard_sizes
    parts: list[tuple[Ints, Ints, Ints]] = []
    for stream in streams:
        part = settings.stream_shards[stream]
        sizes = shard_sizes[part]
        choose = choose_per_shard(sizes, settings.choose[stream], settings.sampling_granularity, granule_seed)
        repeats = choose // np.maximum(sizes, 1)
        rest = choose - repeats * sizes
        count = repeats + (rest > 0)
        owner = np.repeat(np.arange(len(sizes)), count)
        unit_sizes = sizes[owner]
        last = np.cumsum(count) - 1
        unit_sizes[last[rest > 0]] = rest[rest > 0]
        parts.append((unit_sizes, shard_starts[part][owner], sizes[owner]))
    unit_sizes, starts, sizes = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return Units(unit_sizes, starts, sizes, by_epoch)


@dataclass(frozen=True)
class LabelRanges:
    """The label of every underlying sample, as ranges of ids.

    Attributes:
        ends: int64 (R,). Where each range ends (exclusive), ascending; the last is the dataset's size.
        labels: integers (R,) in [0, count).
        count: Number of labels, K.
    """

    ends: Ints
    labels: Ints
    count: int

    @classmethod
    def of_shards(cls, samples_per_shard: Ints, labels: Ints, count: int) -> LabelRanges:
        """Give each shard one label: ``labels`` of shape (shards,)."""
        filled = np.asarray(samples_per_shard) > 0
        ends = np.cumsum(np.asarray(samples_per_shard, np.int64))
        return cls(ends[filled], np.asarray(labels, np.int64)[filled], count)

    @classmethod
    def of_samples(cls, labels: NDArray[Any], count: int) -> LabelRanges:
        """Give each sample a label: ``labels`` of shape (samples,)."""
        last = np.append(np.flatnonzero(labels[1:] != labels[:-1]), len(labels) - 1)
        return cls(last + 1, labels[last].astype(np.int64), count)

    def of_ids(self, ids: Ints) -> Ints:
        """Return the label of each id."""
        return self.labels[np.searchsorted(self.ends, ids, side="right")]

    def fill(self, begin: int, out: NDArray[Any]) -> None:
        """Write the labels of ids ``begin …`` to ``out``."""
        end = begin + len(out)
        first = int(np.searchsorted(self.ends, begin, side="right"))
        last = int(np.searchsorted(self.ends, end, side="left"))
        if first == last:
            out[:] = self.labels[first]
            return
        edges = np.minimum(self.ends[first : last + 1], end)
        out[:] = np.repeat(self.labels[first : last + 1], np.diff(edges, prepend=begin))


class Payload(Protocol):
    """What is carried through a shuffle in place of big ids: the draws do not depend on it.

    Attributes:
        units: Where the samples come from.
        dtype: Smallest type that holds the values.
        bits: Bits that hold any value.
    """

    units: Units
    dtype: np.dtype[Any]
    bits: int

    def equal(self, unit: int) -> bool:
        """Whether all samples of a unit have one value."""
        ...

    def fill(self, unit: int, begin: int, out: NDArray[Any]) -> None:
        """Write the values of a unit's samples ``begin …`` to ``out``."""
        ...


class IdPayload:
    """Underlying sample ids."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self.dtype: np.dtype[Any] = np.dtype(np.int64)
        self.bits = 63

    def equal(self, unit: int) -> bool:
        """Ids differ."""
        return False

    def fill(self, unit: int, begin: int, out: NDArray[Any]) -> None:
        """Write sample ids."""
        out[:] = self.units.ids(unit, begin, begin + len(out))


class LabelPayload:
    """Labels of the samples; where a shard has one label, it is never asked which samples are chosen."""

    def __init__(self, units: Units, labels: LabelRanges) -> None:
        self.units = units
        self.dtype: np.dtype[Any] = np.min_scalar_type(max(labels.count - 1, 0))
        self.bits = max(1, (labels.count - 1).bit_length())
        self._labels = labels
        first = np.searchsorted(labels.ends, units.shard_start, side="right")
        last = np.searchsorted(labels.ends, units.shard_start + units.shard_size, side="left")
        self._mixed = (first != last).tolist()
        self._label = labels.labels[first].tolist()
        self._whole = (~units.partial).tolist()

    def equal(self, unit: int) -> bool:
        """Whether the unit's shard has one label."""
        return not self._mixed[unit]

    def fill(self, unit: int, begin: int, out: NDArray[Any]) -> None:
        """Write label indices."""
        if not self._mixed[unit]:
            out[:] = self._label[unit]
        elif self._whole[unit]:
            self._labels.fill(int(self.units.shard_start[unit]) + begin, out)
        else:
            out[:] = self._labels.of_ids(self.units.ids(unit, begin, begin + len(out)))
