"""The smooth trend of a loss: what falls whatever the data are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["local_medians", "robust_scale", "trend_basis"]

Floats = npt.NDArray[np.float64]

_KNOTS = 7  # in time and, again, in its logarithm
_ROWS_A_KNOT = 12
_PIECES = 26  # whose medians are taken, evenly in time and, again, in its logarithm


def trend_basis(rows: int, slowest: float = 0.0) -> Floats:
    """Continuous piecewise linear functions of time, with knots evenly in time and in its logarithm.

    A loss falls as a power of time: fast at first, hardly any more at last.

    Args:
        rows: How many rows there are.
        slowest: Rows of the longest swing that must not be taken for a trend.

    Returns:
        float64 (rows, knots): hat functions, which sum to 1.
    """
    most = max(2, min(_KNOTS, rows // _ROWS_A_KNOT))
    even = max(2, min(most, int(rows / (2 * slowest)) + 1)) if slowest else most
    last = max(rows - 1, 1)
    shortest = max(2.0, slowest / 2)
    knots = np.union1d(np.linspace(0, last, even), np.geomspace(1, last, most) if last > 1 else [])
    # Knots that are too close would follow what they should leave.
    kept = [0.0]
    for knot in knots.tolist():
        if knot - kept[-1] >= shortest and last - knot >= shortest:
            kept.append(knot)
    kept.append(float(last))
    return _hats(np.arange(rows, dtype=np.float64), np.array(kept))


def _hats(x: Floats, knots: Floats) -> Floats:
    hats = np.zeros((len(x), len(knots)))
    place = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, len(knots) - 2)
    part = (x - knots[place]) / (knots[place + 1] - knots[place])
    rows = np.arange(len(x))
    hats[rows, place] = 1 - part
    hats[rows, place + 1] = part
    return hats


def local_medians(values: Floats) -> Floats:
    """Medians of pieces of a series, which are short where a loss falls fast: float64 (rows,)."""
    rows = len(values)
    even, early = np.linspace(0, rows, _PIECES), np.geomspace(1, rows, _PIECES)
    edges = np.unique(np.concatenate([even, early]).astype(np.int64))
    pieces = np.split(values, edges[1:-1])
    return np.repeat([np.median(piece) for piece in pieces], [len(piece) for piece in pieces])


def robust_scale(values: Floats) -> float:
    """Standard deviation as the median absolute deviation gives it for a normal distribution."""
    return float(1.4826 * np.median(np.abs(values - np.median(values)))) if len(values) else 0.0
