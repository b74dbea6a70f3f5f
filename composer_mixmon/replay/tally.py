"""From pieces of a shuffled order to values at given positions, and to label counts of batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from composer_mixmon.replay import fast
from composer_mixmon.replay.sampling import Ints
from composer_mixmon.replay.schedule import Lane

__all__ = ["Picker", "count_pieces", "tally"]


# Samples counted at a time: temporary arrays stay in the cache, and memory is not mapped anew for each.
_CHUNK = 1 << 15


def tally(rows: Ints, labels: NDArray[Any], count: int, num_rows: int) -> Ints:
    """Count pairs of row and label: int64 (num_rows, count)."""
    pairs = rows * count
    pairs += labels
    return np.bincount(pairs, minlength=num_rows * count).reshape(num_rows, count)


class Picker:
    """Picks the values at given positions out of pieces that come one after the other.

    Args:
        positions: int64 (n,), not negative, in any order, repeats allowed.
    """

    def __init__(self, positions: Ints) -> None:
        self._sorted, self._inverse = np.unique(positions, return_inverse=True)
        self._values = np.empty(len(self._sorted), np.int64)
        self._done = 0
        self._fed = 0

    def feed(self, values: NDArray[Any]) -> bool:
        """Take what is wanted of the next piece; whether nothing more is wanted."""
        stop = int(np.searchsorted(self._sorted, self._fed + len(values)))
        self._values[self._done : stop] = values[self._sorted[self._done : stop] - self._fed]
        self._done = stop
        self._fed += len(values)
        return stop == len(self._sorted)

    def values(self) -> Ints:
        """Values at the positions given: int64 (n,)."""
        return self._values[self._inverse]


def count_pieces(pieces: Iterable[NDArray[Any]], lanes: Sequence[tuple[Lane, Ints]], counts: Ints) -> None:
    """Add the labels of a shuffled order to the counts of the batches they go to.

    Args:
        pieces: The whole order, as labels.
        lanes: Lanes over this order, all of one partition, each with int64 (units,): the row of
            ``counts`` that each unit belongs to, −1 for none.
        counts: int64 (batches, K), changed in place.
    """
    part = lanes[0][0].part
    tail = part.tail_cells()
    positions = part.positions(tail)
    picker = Picker(positions)
    rows = part.rows
    start = 0
    for values in pieces:
        picker.feed(values)
        end = start + len(values)
        first, last = np.searchsorted(rows, [start, end - 1], side="right").tolist()
        for row in range(first - 1, last):
            regular = min(int(rows[row]) + part.regular_columns, int(rows[row + 1]))
            for begin in range(max(start, int(rows[row])), min(end, regular), _CHUNK):
                stop = min(begin + _CHUNK, end, regular)
                columns = range(begin - int(rows[row]), stop - int(rows[row]))
                _count_row(row, columns, values[begin - start : stop - start], lanes, counts)
        start = end
    labels = picker.values()
    for lane, batch_of_unit in lanes:
        units = lane.units_of_cells(tail)
        batch = np.where(units >= 0, batch_of_unit[units], -1)
        counted = batch >= 0
        counts += tally(batch[counted], labels[counted], counts.shape[1], len(counts))


def _count_row(
    row: int, columns: range, labels: NDArray[Any], lanes: Sequence[tuple[Lane, Ints]], counts: Ints
) -> None:
    for lane, batch_of_unit in lanes:
        if lane.rows is not None and row not in lane.rows:
            continue
        units = lane.units_of_row(row, columns)
        begin = int(np.searchsorted(units, 0)) if units[0] < 0 else 0  # seen before the first batch
        if begin < len(units):
            _add(units[begin:], labels[begin:], batch_of_unit, counts, lane.part.samples)


def _add(units: Ints, labels: NDArray[Any], batch_of_unit: Ints, counts: Ints, samples: int) -> None:
    """Count labels of ascending units in the units' batches; −1 is no batch."""
    kernels = fast.kernels(samples)
    if kernels is not None:
        kernels.tally(units, labels, batch_of_unit, counts)
        return
    first, last = int(units[0]), int(units[-1])
    per_unit = tally(units - first, labels, counts.shape[1], last - first + 1)
    batch = batch_of_unit[first : last + 1]
    np.add.at(counts, batch[batch >= 0], per_unit[batch >= 0])  # several units may share a batch
