"""Rows of a record, put together so that no analysis needs more than it can afford."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from composer_mixmon.run_record import RunRecord

__all__ = ["Blocks", "combine", "shares_of"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MOST = 100_000
_FEWEST = 2_000
_CELLS = 4_000_000  # blocks × labels


@dataclass(frozen=True)
class Blocks:
    """Rows put together, as many in each block but the last.

    Attributes:
        first: First batch of each block: int64 (blocks,).
        stop: The batch after its last: int64 (blocks,).
        counts: Samples of each label: int64 (blocks, labels), or ``None``.
        loss: Mean of the finite losses, NaN where there is none: float64 (blocks,).
        rows: Rows of each block but the last.
    """

    first: Ints
    stop: Ints
    counts: Ints | None
    loss: Floats
    rows: int

    def __len__(self) -> int:
        return len(self.first)

    @property
    def span(self) -> float:
        """Batches of a block, as a median."""
        return float(np.median(self.stop - self.first)) if len(self.first) else 1.0


def combine(record: RunRecord) -> Blocks:
    """Put rows together where there are more than 100,000, or more than 4 million counts."""
    labels = max(1, len(record.names))
    most = max(_FEWEST, min(_MOST, _CELLS // labels))
    rows = max(1, -(-len(record.first) // most))
    starts = np.arange(0, len(record.first), rows)
    if not len(starts):
        return Blocks(record.first, record.first, record.counts, record.loss, 1)
    ends = np.append(starts[1:], len(record.first)) - 1
    counts = None if record.counts is None else np.add.reduceat(record.counts, starts, axis=0)
    stop = record.first[ends] + record.span[ends]
    return Blocks(record.first[starts], stop, counts, _means(record.loss, starts), rows)


def _means(loss: Floats, starts: Ints) -> Floats:
    finite = np.isfinite(loss)
    sums = np.add.reduceat(np.where(finite, loss, 0.0), starts)
    known = np.add.reduceat(finite.astype(np.int64), starts)
    return np.where(known > 0, sums / np.maximum(known, 1), np.nan)


def shares_of(counts: Ints) -> Floats:
    """Each label's share of each row of counts (rows, labels); zeros where nothing was counted."""
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
