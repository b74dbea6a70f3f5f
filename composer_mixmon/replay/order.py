"""The order that settings imply: sample ids and label counts of every global batch of an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from composer_mixmon.errors import ConfigError
from composer_mixmon.replay.sampling import Ints
from composer_mixmon.replay.schedule import Lane, build_schedule
from composer_mixmon.replay.settings import Settings
from composer_mixmon.replay.shuffles import check_shuffle, identity, shuffled
from composer_mixmon.replay.spans import Pieces, ShuffleSeed
from composer_mixmon.replay.tally import Picker, count_pieces, tally
from composer_mixmon.replay.units import IdPayload, LabelPayload, LabelRanges, Payload, Units, resample
from composer_mixmon.replay.world import World

__all__ = ["Counted", "Replay"]

# Up to this many samples, batches are looked up one by one; above, whole pieces of the order are counted.
_FEW_SAMPLES = 1 << 21


@dataclass(frozen=True)
class Counted:
    """Label counts of consecutive global batches.

    Attributes:
        counts: int64 (batches, K).
        ties: Places in the order where py1e's sort met equal keys with different labels: which of the two
            comes first depends on numpy's build and the CPU. Only a tie that falls on a batch's edge
            changes a count.
    """

    counts: Ints
    ties: int

    @property
    def reproducible(self) -> bool:
        """Whether the counts are the same on any machine."""
        return not self.ties


class Replay:
    """An epoch of a StreamingDataset, from its settings alone.

    Equal to ``streaming.base.batching.generate_work``, read as training reads it: global batches in turn,
    within a batch node by node and rank by rank.

    Args:
        settings: The dataset's.
        world: The processes, before replication.
        epoch: From 0.
        first_sample: Samples of the epoch seen before, as in a checkpoint's ``sample_in_epoch``.

    Raises:
        ConfigError: A combination that StreamingDataset refuses.
    """

    def __init__(self, settings: Settings, world: World, epoch: int = 0, first_sample: int = 0) -> None:
        for name, value in (("epoch", epoch), ("first_sample", first_sample)):
            if value < 0:
                raise ConfigError(name, value, "write a whole number of at least 0")
        self.settings = settings
        self.world = world
        self.epoch = epoch
        apart = settings.batching_method != "random"
        everything = range(settings.streams)
        self._streams = [range(s, s + 1) for s in everything] if apart else [everything]
        dealt = tuple(sum(settings.choose[s] for s in streams) for streams in self._streams)
        if not all(dealt):
            mend = f"{settings.batching_method} batching needs samples of every stream"
            raise ConfigError("choose", list(settings.choose), mend)
        if settings.shuffle:
            for group, samples in enumerate(dealt):
                check_shuffle(settings.shuffle_algo, samples, self._seed(group))
        parallel = world.replicate(settings.replication)
        self._schedule = build_schedule(settings, parallel, epoch, first_sample, dealt)
        self._parallel_ranks = parallel.ranks

    @property
    def batches(self) -> int:
        """Global batches of the rest of the epoch."""
        return len(self._schedule)

    @property
    def global_batch(self) -> int:
        """Samples of a global batch, each replicated sample counted once."""
        return self._schedule.global_batch

    def ids(self, batches: slice = slice(None)) -> Ints:
        """Sample ids of a range of batches: int64 (batches, global batch), −1 for padding.

        Args:
            batches: Counted from the first batch after ``first_sample``; step 1.
        """
        chosen = range(self.batches)[batches]
        return self._values(chosen, [IdPayload(units) for units in self._units], [])

    def rank_ids(self, batches: slice = slice(None)) -> Ints:
        """Sample ids as each rank receives them: int64 (batches, ranks, batch size), −1 for padding.

        Replicated ranks hold the same ids.
        """
        ids = self.ids(batches)
        by_rank = ids.reshape(len(ids), self._parallel_ranks, self.settings.batch_size)
        return np.repeat(by_rank, self.world.ranks // self._parallel_ranks, axis=1)

    def counts(self, labels: LabelRanges, batches: slice = slice(None)) -> Counted:
        """Count labels in a range of batches, without the sample ids.

        Args:
            labels: The label of every underlying sample.
            batches: As for :meth:`ids`.
        """
        chosen = range(self.batches)[batches]
        payloads = [LabelPayload(units, labels) for units in self._units]
        ties: list[int] = []
        if len(chosen) * self.global_batch <= _FEW_SAMPLES:
            values = self._values(chosen, payloads, ties)
            rows = np.nonzero(values >= 0)[0]
            counts = tally(rows, values[values >= 0], labels.count, len(chosen))
        else:
            counts = np.zeros((len(chosen), labels.count), np.int64)
            for group, payload in enumerate(payloads):
                pieces = self._pieces(group, payload, ties)
                count_pieces(pieces, self._lanes_with_batches(group, chosen), counts)
        return Counted(counts, len(ties))

    @cached_property
    def _units(self) -> list[Units]:
        return [resample(self.settings, self.epoch, streams) for streams in self._streams]

    def _values(self, chosen: range, payloads: Sequence[Payload], ties: list[int]) -> Ints:
        """Carry payloads through the order, to the chosen batches only."""
        schedule = self._schedule
        out = np.full((len(chosen), schedule.global_batch), -1, np.int64)
        edges = np.cumsum([0, *schedule.widths])
        positions = np.full(out.shape, -1, np.int64)
        group_of = np.array([lane.group for lane in schedule.lanes])
        for part, begin in enumerate(edges[:-1].tolist()):
            lanes = schedule.lane[chosen.start : chosen.stop, part]
            units = schedule.unit[chosen.start : chosen.stop, part]
            present: list[int] = np.unique(lanes[lanes >= 0]).tolist()
            for index in present:
                rows = np.flatnonzero(lanes == index)
                lane = schedule.lanes[index]
                positions[rows, begin : begin + lane.width] = lane.positions(units[rows])
        for group, payload in enumerate(payloads):
            mine = self._cells_of_group(group_of == group, chosen, edges) & (positions >= 0)
            if mine.any():
                picker = Picker(positions[mine])
                any(picker.feed(piece) for piece in self._pieces(group, payload, ties, positions[mine]))
                out[mine] = picker.values()
        return out

    def _cells_of_group(self, lanes: NDArray[np.bool_], chosen: range, edges: Ints) -> NDArray[np.bool_]:
        lane = self._schedule.lane[chosen.start : chosen.stop]
        return np.repeat(lanes[lane] & (lane >= 0), np.diff(edges), axis=1)

    def _pieces(self, group: int, payload: Payload, ties: list[int], wanted: Ints | None = None) -> Pieces:
        settings = self.settings
        if not settings.shuffle:
            return identity(payload)
        return shuffled(settings.shuffle_algo, payload, self._seed(group), ties, wanted)

    def _seed(self, group: int) -> ShuffleSeed:
        settings = self.settings
        block = settings.shuffle_block_size
        if settings.batching_method != "random":
            block = int(block * settings.proportion[group])
            if not block and settings.batching_method == "device_per_stream":
                mend = f"stream {group} gets no sample of a block: raise one or the other"
                raise ConfigError("shuffle_block_size", settings.shuffle_block_size, mend)
        return ShuffleSeed(settings.num_canonical_nodes, settings.shuffle_seed, self.epoch, block)

    def _lanes_with_batches(self, group: int, chosen: range) -> list[tuple[Lane, Ints]]:
        """For each lane of a group, the chosen batch that each unit goes to, −1 for none."""
        schedule = self._schedule
        lanes = schedule.lane[chosen.start : chosen.stop]
        units = schedule.unit[chosen.start : chosen.stop]
        found: list[tuple[Lane, Ints]] = []
        for index, lane in enumerate(schedule.lanes):
            if lane.group == group:
                batch = np.full(lane.part.cells // lane.width + 2, -1, np.int64)
                rows, parts = np.nonzero(lanes == index)
                batch[units[rows, parts]] = rows
                found.append((lane, batch))
        return found
