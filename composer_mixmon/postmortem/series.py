"""What the charts show: columns instead of batches, the extremes of each kept."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from composer_mixmon.postmortem.course import Course
from composer_mixmon.postmortem.findings import Series
from composer_mixmon.postmortem.losses import Losses
from composer_mixmon.postmortem.rows import Blocks
from composer_mixmon.run_record import RunRecord
from composer_mixmon.sources.order import ShardHeat

__all__ = ["make_series"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_COLUMNS = 1000
_LABELS = 8
_EPOCHS = 8
_PLACES = 100  # bins of an epoch


def make_series(
    record: RunRecord, blocks: Blocks, course: Course | None, losses: Losses | None, heat: ShardHeat | None
) -> Series:
    """Bring a run down to at most 1,000 columns.

    Args:
        record: The run.
        blocks: Its rows, put together.
        course: What the mixture did, if known.
        losses: What the loss did, if known.
        heat: Which shards came when, if known.
    """
    columns = min(_COLUMNS, len(blocks))
    starts = np.arange(columns, dtype=np.int64) * len(blocks) // max(columns, 1)
    shown = _shown(course)
    flat = np.zeros(columns)
    return Series(
        edges=np.append(blocks.first[starts], blocks.stop[-1:]),
        names=tuple(record.names[label] for label in shown),
        more=len(record.names) - len(shown),
        shares=_shares(blocks, course, starts, shown),
        targets=_targets(course, starts, shown),
        deviation=flat if course is None else _highest(course, starts),
        noise=flat if course is None else np.maximum.reduceat(course.along.noise, starts),
        loss=_extremes(record.loss, starts * blocks.rows),
        trend=_trend(losses, len(blocks), starts),
        dispersion=_dispersion(record, course),
        heat=heat,
    )


def _shown(course: Course | None) -> list[int]:
    """The labels that stray the most."""
    if course is None:
        return []
    strays = np.abs(course.along.shares - course.along.targets).max(axis=0, initial=0)
    return np.argsort(-strays, kind="stable")[:_LABELS].tolist()


def _shares(blocks: Blocks, course: Course | None, starts: Ints, shown: list[int]) -> Floats:
    if course is None or blocks.counts is None:
        return np.zeros((len(starts), 0, 3))
    window = course.along.window
    totals = _windows(blocks.counts.sum(axis=1), window)
    # A run that is shorter than a window has no full one: then all of it is shown.
    known = (totals > 0) & ((course.along.length == window) | (len(blocks) < window))
    out = np.full((len(starts), len(shown), 3), np.nan)
    for place, label in enumerate(shown):
        share = np.where(known, _windows(blocks.counts[:, label], window) / np.maximum(totals, 1), np.nan)
        out[:, place] = _extremes(share, starts)
    return out


def _windows(values: Ints, window: int) -> Ints:
    """Sums over the window that ends with each value."""
    sums = np.cumsum(np.concatenate([np.zeros(1, np.int64), values]))
    ends = np.arange(1, len(sums))
    return sums[ends] - sums[np.maximum(ends - window, 0)]


def _targets(course: Course | None, starts: Ints, shown: list[int]) -> Floats:
    if course is None:
        return np.zeros((len(starts), 0))
    place = np.maximum(np.searchsorted(course.along.points, starts, side="right") - 1, 0)
    return course.along.targets[place][:, shown]


def _highest(course: Course, starts: Ints) -> Floats:
    full = np.isfinite(course.along.excess)
    return np.fmax.reduceat(np.where(full, course.along.deviation, np.nan), starts)


def _extremes(values: Floats, starts: Ints) -> Floats:
    """Lowest, mean and highest finite value of each column, NaN where there is none: float64 (columns, 3)."""
    if not len(starts):
        return np.zeros((0, 3))
    finite = np.isfinite(values)
    nan = np.where(finite, values, np.nan)
    known = np.add.reduceat(finite.astype(np.int64), starts)
    sums = np.add.reduceat(np.where(finite, values, 0.0), starts)
    mean = np.where(known > 0, sums / np.maximum(known, 1), np.nan)
    return np.stack([np.fmin.reduceat(nan, starts), mean, np.fmax.reduceat(nan, starts)], axis=1)


def _trend(losses: Losses | None, blocks: int, starts: Ints) -> Floats:
    trend = np.full(blocks, np.nan)
    if losses is not None:
        trend[losses.used] = losses.trend
    return _extremes(trend, starts)[:, 1]


def _dispersion(record: RunRecord, course: Course | None) -> Floats:
    """Mean chi² per degree of freedom by place in the epoch: float64 (epochs, places)."""
    nothing = np.zeros((0, _PLACES))
    if course is None or not len(record.epoch) or (record.epoch < 0).all():
        return nothing
    known = record.epoch >= 0
    epochs, row = np.unique(record.epoch[known], return_inverse=True)
    begin = np.full(len(epochs), np.iinfo(np.int64).max)
    np.minimum.at(begin, row, record.first[known])
    within = record.first[known] - begin[row]
    length = _epoch_length(within, row)
    places = min(_PLACES, length)
    bins = np.minimum(within * places // length, places - 1)
    chosen = row < _EPOCHS
    cell = row[chosen] * places + bins[chosen]
    size = min(len(epochs), _EPOCHS) * places
    total = np.bincount(cell, course.spread[known][chosen], size)
    count = np.bincount(cell, minlength=size)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan).reshape(-1, places)


def _epoch_length(within: Ints, row: Ints) -> int:
    """Batches of the longest epoch."""
    return int(within.max()) + 1 if len(row) else 1
