"""Order hashes of a replay in one pass over the shuffled order, whatever the number of samples.

A hash is a sum over samples and their places, so each sample is added where it belongs as the order goes by.
"""

# The steps of a replay are needed apart from its ids.
# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from composer_mixmon.order_hash import place_hashes
from composer_mixmon.replay import Replay
from composer_mixmon.replay.partition import Partition
from composer_mixmon.replay.schedule import Lane
from composer_mixmon.replay.tally import Picker
from composer_mixmon.replay.units import IdPayload

__all__ = ["replay_hashes"]

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

# Samples hashed at a time: temporary arrays stay in the cache.
_CHUNK = 1 << 15


def replay_hashes(replay: Replay, chosen: range, places: range | None = None) -> Hashes:
    """Order hashes (see ``order_hash``) of a range of a replay's batches: uint64 (len(chosen),).

    Args:
        replay: The replay.
        chosen: The batches.
        places: Where in the global batch a sample must be to be hashed, such as one rank's; by default
            anywhere.
    """
    places = range(replay.global_batch) if places is None else places
    hashes = np.zeros(len(chosen), np.uint64)
    for group, units in enumerate(replay._units):
        lanes = list(_lanes(replay, group, chosen, places))
        _hash_pieces(replay._pieces(group, IdPayload(units), []), lanes, hashes)
    return hashes


@dataclass(frozen=True)
class _HashLane:
    """Where the samples of a lane go.

    Attributes:
        lane: The lane, cut into single samples.
        width: Samples of a unit.
        place: int64 (width,). Place in its unit of each sample, in the lane's order.
        batch: int64 (units,). The chosen batch of each unit, −1 for none.
        offset: int64 (units,). Where the unit begins in that batch.
        places: Where in the batch a sample must be to be hashed.
    """

    lane: Lane
    width: int
    place: Ints
    batch: Ints
    offset: Ints
    places: range

    def add(self, ordinals: Ints, ids: npt.NDArray[Any], hashes: Hashes) -> None:
        """Add samples, given by ascending places in the lane, to the hashes of their batches."""
        here = ordinals >= 0  # the others were seen before the first batch, or are another lane's
        unit, within = np.divmod(ordinals[here], self.width)
        place = self.offset[unit] + self.place[within]
        wanted = (self.batch[unit] >= 0) & (place >= self.places.start) & (place < self.places.stop)
        unit, place, ids = unit[wanted], place[wanted], ids[here][wanted]
        if not len(unit):
            return
        starts = np.append(0, np.flatnonzero(np.diff(unit)) + 1)
        np.add.at(hashes, self.batch[unit[starts]], np.add.reduceat(place_hashes(ids, place), starts))


def _lanes(replay: Replay, group: int, chosen: range, places: range) -> Iterator[_HashLane]:
    schedule = replay._schedule
    lanes = schedule.lane[chosen.start : chosen.stop]
    units = schedule.unit[chosen.start : chosen.stop]
    edges = np.cumsum([0, *schedule.widths])
    for index, lane in enumerate(schedule.lanes):
        if lane.group == group:
            batch = np.full(lane.part.cells // lane.width + 2, -1, np.int64)
            offset = np.zeros_like(batch)
            rows, parts = np.nonzero(lanes == index)
            batch[units[rows, parts]] = rows
            offset[units[rows, parts]] = edges[parts]
            place = np.argsort(lane.layout)
            yield _HashLane(replace(lane, width=1), lane.width, place, batch, offset, places)


def _hash_pieces(pieces: Iterable[npt.NDArray[Any]], lanes: Sequence[_HashLane], hashes: Hashes) -> None:
    part = lanes[0].lane.part
    tail = part.tail_cells()
    picker = Picker(part.positions(tail))
    start = 0
    for values in pieces:
        picker.feed(values)
        for row, begin, stop in _rows(part, start, start + len(values)):
            columns = range(begin - int(part.rows[row]), stop - int(part.rows[row]))
            for to in lanes:
                if to.lane.rows is None or row in to.lane.rows:
                    to.add(to.lane.units_of_row(row, columns), values[begin - start : stop - start], hashes)
        start += len(values)
    ids = picker.values()
    for to in lanes:
        ordinals = to.lane.units_of_cells(tail)
        order = np.argsort(ordinals)
        to.add(ordinals[order], ids[order], hashes)


def _rows(part: Partition, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Chunks of the regular samples of canonical nodes between two positions of the shuffled order."""
    first, last = np.searchsorted(part.rows, [start, end - 1], side="right").tolist()
    for row in range(first - 1, last):
        regular = min(int(part.rows[row]) + part.regular_columns, int(part.rows[row + 1]))
        stop = min(end, regular)
        for begin in range(max(start, int(part.rows[row])), stop, _CHUNK):
            yield row, begin, min(begin + _CHUNK, stop)
