"""Where a loss leaves its course: for good, or for a moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from composer_mixmon.postmortem.trend import robust_scale

__all__ = ["Left", "find_onset", "find_spikes"]

Floats = npt.NDArray[np.float64]

_BINS = 500
_SMOOTH = 9  # bins of the running median
_SHORTEST = 3  # bins that the loss must have been away
_USUAL = 0.95  # quantile of earlier excursions
_TIMES = 2.0  # by which the last one must exceed it
_PART = 0.1  # of the fall before it
_RETURNED = 0.25  # of the last excursion's height: below, the loss was still on its course
_SPIKE = 10.0  # robust standard deviations
_SPIKES = 5


@dataclass(frozen=True)
class Left:
    """Where the loss left its course for good.

    Attributes:
        row: From which row on.
        kind: ``not finite`` or ``rise``.
        before: Lowest smoothed loss before it.
        after: Mean of the finite losses from there on, or ``None``.
    """

    row: int
    kind: Literal["not finite", "rise"]
    before: float
    after: float | None


def find_onset(loss: Floats) -> Left | None:
    """Find where a loss rises, or breaks, and does not come back.

    A loss that swings with the mixture rises too, and comes back: what counts is an excursion above the
    lowest loss so far that lasts to the end and is higher than those before it.

    Args:
        loss: float64 (rows,), not finite where it is broken or not known.
    """
    finite = np.isfinite(loss)
    if finite.sum() < 2 * _SHORTEST:
        return None
    end = _broken_from(loss)
    rise = _rise(loss[:end])
    if rise is not None:
        row, before = rise
        kind = "rise"
    elif end < len(loss):
        row, kind = end, "not finite"
        before = float(_smooth(loss[:end]).loss.min())
    else:
        return None
    later = loss[row:][finite[row:]]
    return Left(row, kind, before, float(later.mean()) if len(later) else None)


def _broken_from(loss: Floats) -> int:
    """The row from which on no loss is finite; the end if there is none.

    NaN may also mean that nothing was logged, so it must last longer than the usual distance between losses.
    """
    finite = np.isfinite(loss)
    row = int(np.flatnonzero(finite)[-1]) + 1
    usual = _longest(~finite[:row])
    return row if len(loss) - row > max(_TIMES * usual, _SHORTEST) else len(loss)


@dataclass(frozen=True)
class _Smooth:
    """A loss without its noise: at most 1,000 bins.

    Attributes:
        loss: Running median of the bins' medians: float64 (bins,).
        starts: First row of each bin: int64 (bins,).
        noise: Standard deviation of the bins' medians around it.
    """

    loss: Floats
    starts: npt.NDArray[np.int64]
    noise: float


def _smooth(loss: Floats) -> _Smooth:
    rows = np.flatnonzero(np.isfinite(loss))
    size = max(1, len(rows) // _BINS)
    count = len(rows) // size
    medians = np.median(loss[rows[: count * size]].reshape(count, size), axis=1)
    half = min(_SMOOTH, count) // 2
    padded = np.pad(medians, half, mode="edge")
    running = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=1)
    return _Smooth(running, rows[: count * size : size], robust_scale(medians - running))


def _rise(loss: Floats) -> tuple[int, float] | None:
    """Row and lowest loss before the excursion that lasts to the end, if it is one."""
    if np.isfinite(loss).sum() < 4 * _SHORTEST:
        return None
    smooth = _smooth(loss)
    above = smooth.loss - np.minimum.accumulate(smooth.loss)
    lowest = int(np.flatnonzero(above == 0)[-1])
    tail = above[lowest + 1 :]
    if len(tail) < _SHORTEST:
        return None
    level = float(np.median(tail))
    earlier = above[: lowest + 1]
    fall = float(smooth.loss[0] - smooth.loss[lowest])
    usual = float(np.quantile(earlier, _USUAL))
    if level <= max(_TIMES * usual, _PART * fall, _TIMES * smooth.noise, 1e-12) or _longest(
        earlier > level / 2
    ) >= len(tail):
        return None
    last = lowest + int(np.flatnonzero(above[lowest:] <= _RETURNED * level)[-1])
    return int(smooth.starts[min(last + 1, len(smooth.starts) - 1)]), float(smooth.loss[lowest])


def _longest(flags: npt.NDArray[np.bool_]) -> int:
    """Length of the longest stretch that holds."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    return int((edges[1::2] - edges[::2]).max(initial=0))


def find_spikes(height: Floats) -> list[int]:
    """Rows at which a loss jumped up and came back, the highest first, at most five.

    Args:
        height: The loss less its trend, float64 (rows,).
    """
    scale = robust_scale(height)
    high = np.flatnonzero(height > _SPIKE * scale) if scale > 0 else np.zeros(0, np.int64)
    if not len(high) or len(high) > len(height) // 20:
        return []
    groups = np.split(high, np.flatnonzero(np.diff(high) > 3) + 1)
    peaks = [int(group[np.argmax(height[group])]) for group in groups]
    return sorted(peaks, key=lambda row: -height[row])[:_SPIKES]
