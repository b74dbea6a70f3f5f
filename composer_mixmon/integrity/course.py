"""What a pass over a dataset is bound to deliver, all but the ids: how much, and where padding may be."""

# The schedule of a replay is needed apart from its ids.
# pyright: reportPrivateUsage=false
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from composer_mixmon.replay import Replay
from composer_mixmon.replay.schedule import Lane

__all__ = ["Course", "course_of", "map_course"]

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Course:
    """One pass of a DataLoader, to the end of the epoch.

    Attributes:
        start: Samples of the epoch that the pass leaves out, for they have been seen; copies on several
            ranks count once, as in all of these numbers.
        total: Samples of the epoch when the pass is over, ``start`` included; −1 if not known.
        dropped: How many samples that the settings choose for the epoch may be missing at its end.
        uncounted: Which batches may hold samples that come again to fill up the ranks, or because the pass
            begins within a batch: bool (batches,). Any later batch may.
    """

    start: int
    total: int
    dropped: int
    uncounted: Flags

    def counts(self, number: int) -> bool:
        """Whether every sample of a batch of the pass must be one that has not come before."""
        return number < len(self.uncounted) and not self.uncounted[number]


def course_of(replay: Replay, first_sample: int) -> Course:
    """The course of a StreamingDataset.

    Args:
        replay: The rest of the epoch.
        first_sample: Samples of the epoch seen before, as the replay was made with.
    """
    schedule, settings = replay._schedule, replay.settings
    lanes, width = schedule.lanes, replay.global_batch
    random = settings.batching_method == "random"
    start = lanes[0].part.drop if random else first_sample // width * width
    trained, samples = _delivered(replay)
    total = start + samples
    padding = sum(_padding(lane) for lane in {lane.group: lane for lane in lanes}.values())
    uncounted = _padded(replay)
    uncounted[trained:] = True
    uncounted[:1] |= start != first_sample
    return Course(start, total, max(0, settings.epoch_size - total + padding), uncounted)


def map_course(samples: int, length: int, batch: int, ranks: int, drop_last: bool) -> Course:
    """The course of a map-style dataset under a sampler that draws each sample once before any comes again.

    Args:
        samples: Of the dataset.
        length: Samples that the sampler gives to each rank.
        batch: A rank's.
        ranks: Among which the sampler shares out the dataset.
        drop_last: The DataLoader's.
    """
    batches = length // batch if drop_last else -(-length // batch)
    total = (min(length, batches * batch)) * ranks
    uncounted = np.zeros(batches, np.bool_)
    padding = length * ranks - samples
    if ranks > 1 and padding > 0:  # DistributedSampler's come last
        uncounted[max(0, (length - -(-padding // ranks)) // batch) :] = True
    return Course(0, total, max(0, samples - total + max(0, padding)), uncounted)


def _delivered(replay: Replay) -> tuple[int, int]:
    """Batches of which every rank gets a part, and their samples: training ends with the shortest rank."""
    schedule, size = replay._schedule, replay.settings.batch_size
    lane = schedule.lanes[0]
    if replay.settings.batching_method == "device_per_stream":
        batches = int((schedule.lane >= 0).sum(axis=0).min())
        return batches, batches * replay.global_batch
    if replay.settings.batching_method != "random" or len(schedule) <= lane.full_units:
        return len(schedule), len(schedule) * replay.global_batch
    last = lane.positions(np.arange(lane.full_units, len(schedule)))
    sizes = (last >= 0).reshape(len(last), -1, size).sum(axis=2)
    sizes = sizes[(sizes > 0).all(axis=1)]
    return lane.full_units + len(sizes), lane.full_units * replay.global_batch + int(sizes.sum())


def _padding(lane: Lane) -> int:
    """Samples that come again so that nodes and ranks get equally many."""
    return max(0, lane.part.cells - (lane.part.samples - lane.part.drop))


def _padded(replay: Replay) -> Flags:
    """Which batches may hold such samples, or lack some on a rank: bool (batches,)."""
    schedule = replay._schedule
    flags = (schedule.lane < 0).any(axis=1)
    for index, lane in enumerate(schedule.lanes):
        if _padding(lane):
            units = lane.units_of_cells(lane.part.tail_cells())
            flags |= ((schedule.lane == index) & np.isin(schedule.unit, units)).any(axis=1)
    return flags
