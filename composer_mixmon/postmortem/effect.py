"""What the mixture has to do with the loss, with the trend taken out of both.

Loss and shares are regressed on a smooth trend (:mod:`~composer_mixmon.postmortem.trend`), and what is left
of the one on what is left of the others (Frisch and Waugh 1933). Three things keep chance out of the answer:

- **Cross-fitting.** The run is cut into stretches; each is predicted by a fit to the others. The share
  explained is what the shares save of the squared error there: R² out of sample (Campbell and Thompson 2008),
  which is negative where they predict nothing.
- **Block bootstrap** over the same stretches (Künsch 1989) for the intervals: neighbouring rows are no
  independent witnesses.
- **Circular shifts** of the mixture against the loss for the p-value: both keep their own rhythm, and only
  their relation in time is lost. A strictly periodic mixture fits as well one period later, so that there the
  p-value stays high, and the coherence speaks instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from composer_mixmon.postmortem.findings import Coherence, Effect, Estimate
from composer_mixmon.postmortem.trend import local_medians, robust_scale, trend_basis

__all__ = ["Relation", "coherence_at", "relate"]

Floats = npt.NDArray[np.float64]

_FEWEST_ROWS = 40
_STRETCHES = 40
_FEWEST_STRETCHES = 8
_FOLDS = 5
_DIRECTIONS = 30  # of the mixture, at most
_ROWS_A_DIRECTION = 20
_LAGS = 3  # rows by which a loss may be late, or early
_LAG_GAIN = 1.25  # another lag must explain so much more than none, and more than chance does
_CHANCE = 0.05
_RESAMPLES = 2000
_OUTLIER = 6.0  # robust standard deviations beyond which a loss counts as so many
_SEED = 20_240_229


@dataclass(frozen=True)
class Relation:
    """What the mixture has to do with the loss.

    Attributes:
        trend: The loss's trend at each row: float64 (rows,).
        left: The loss less its trend, outliers drawn in: float64 (rows,).
        trend_share: Share of the loss's variance that the trend takes out.
        explained: Share of what is left that the mixture predicts, or ``None``: too few rows, or no mixture
            that varies.
        p: Of the circular shifts, or ``None``.
        lag: Rows by which the loss is late, or ``None``.
        effects: Of each label, the strongest first.
    """

    trend: Floats
    left: Floats
    trend_share: float
    explained: Estimate | None = None
    p: float | None = None
    lag: int | None = None
    effects: tuple[Effect, ...] = ()


def relate(
    loss: Floats, shares: Floats, names: tuple[str, ...], swing: float = 0.0, stay: float = 0.0
) -> Relation:
    """Relate a loss to the mixture.

    Args:
        loss: Finite losses, float64 (rows,).
        shares: Each label's share of the same rows, float64 (rows, labels).
        names: The labels' names.
        swing: Rows from one swing of the mixture to the next; 0 if it does not swing.
        stay: Rows for which it stays as it is.
    """
    basis = trend_basis(len(loss), swing)
    trend, left = _take_out(basis, loss)
    total = float(loss.var())
    share = 1 - float((loss - trend).var()) / total if total > 0 else 0.0
    found = Relation(trend, left, share)
    if len(loss) < _FEWEST_ROWS or not shares.shape[1] or not (left**2).sum() > 0:
        return found
    varying = _without(basis, shares)
    directions = _directions(varying, len(loss))
    stretches = _stretches(len(loss), swing, stay)
    if not directions.shape[1] or len(stretches) < _FEWEST_STRETCHES:
        return found
    lag, p = _shifted(directions, left)
    moved = np.roll(directions, lag, axis=0)
    inside = slice(max(lag, 0), len(loss) + min(lag, 0))
    stretches = np.unique(np.clip(stretches, 0, inside.stop - inside.start - 1))
    explained = _cross_fitted(moved[inside], left[inside], stretches)
    effects = _effects(np.roll(varying, lag, axis=0)[inside], left[inside], stretches, names)
    return Relation(trend, left, share, explained, p, lag, effects)


def _take_out(basis: Floats, loss: Floats) -> tuple[Floats, Floats]:
    """Trend and rest of a loss; outliers of the rest are drawn in: one spike must not be the whole answer."""
    drawn = _drawn_in(loss, local_medians(loss))
    trend = basis @ np.linalg.lstsq(basis, drawn, rcond=None)[0]
    drawn = _drawn_in(loss, trend)
    trend = basis @ np.linalg.lstsq(basis, drawn, rcond=None)[0]
    return trend, drawn - trend


def _drawn_in(loss: Floats, middle: Floats) -> Floats:
    """The loss with outliers moved to six robust standard deviations from its middle."""
    away = loss - middle
    bound = _OUTLIER * robust_scale(away)
    return middle + np.clip(away, -bound, bound) if bound > 0 else loss


def _without(basis: Floats, columns: Floats) -> Floats:
    """Columns less their projection on the trend."""
    gram = basis.T @ basis
    return columns - basis @ np.linalg.lstsq(gram, basis.T @ columns, rcond=None)[0]


def _directions(varying: Floats, rows: int) -> Floats:
    """The directions in which the mixture varies the most, orthonormal: float64 (rows, directions)."""
    variances, axes = np.linalg.eigh(varying.T @ varying)
    order = np.argsort(-variances)[: min(_DIRECTIONS, rows // _ROWS_A_DIRECTION)]
    order = order[variances[order] > 1e-9 * max(float(variances.max()), 1e-9 * rows)]
    return varying @ axes[:, order] / np.sqrt(variances[order])


def _stretches(rows: int, swing: float, stay: float) -> npt.NDArray[np.int64]:
    """First row of each stretch: long enough to be independent and, if there are rows enough, for a swing."""
    swing = min(swing, rows / _FEWEST_STRETCHES)
    length = max(-(-rows // _STRETCHES), int(swing), int(np.ceil(2 * stay)), 3)
    count = max(1, rows // length)
    return np.arange(count, dtype=np.int64) * rows // count


def _shifted(directions: Floats, left: Floats) -> tuple[int, float]:
    """The lag at which the mixture explains the most, and how often another shift explains as much."""
    rows = len(left)
    spectrum = np.fft.rfft(left)
    together = np.zeros(rows)
    for column in directions.T:  # one at a time: memory for one
        together += np.fft.irfft(spectrum * np.conj(np.fft.rfft(column)), rows) ** 2
    explained = together / float((left**2).sum())
    near = np.array([explained[lag] for lag in range(-_LAGS, _LAGS + 1)])
    # The best of as many neighbouring lags, at every other place.
    width = 2 * _LAGS + 1
    others = explained[_LAGS + 1 : rows - _LAGS]
    others = others[: len(others) // width * width].reshape(-1, width).max(axis=1)
    p = float((1 + (others >= near.max()).sum()) / (1 + len(others)))
    lag = int(np.argmax(near)) - _LAGS
    late = p <= _CHANCE and explained[lag] > _LAG_GAIN * explained[0]
    return (lag if late else 0), p


def _cross_fitted(directions: Floats, left: Floats, starts: npt.NDArray[np.int64]) -> Estimate:
    grams = _grams(np.column_stack([directions, left]), starts)
    errors = np.stack([_held_out(grams), grams[:, -1, -1]])
    sums = errors @ _weights(len(starts)).T
    return Estimate(float(1 - errors[0].sum() / errors[1].sum()), *_interval(1 - sums[0] / sums[1]))


def _grams(columns: Floats, starts: npt.NDArray[np.int64]) -> Floats:
    """Products of columns over each stretch: float64 (stretches, columns, columns)."""
    pieces = np.split(columns, starts[1:])
    return np.stack([piece.T @ piece for piece in pieces])


def _held_out(grams: Floats) -> Floats:
    """Squared error of each stretch's last column, by a fit to the other folds: float64 (stretches,)."""
    folds = np.arange(len(grams)) % _FOLDS
    inner, cross, square = grams[:, :-1, :-1], grams[:, :-1, -1], grams[:, -1, -1]
    errors = np.zeros(len(grams))
    for fold in range(_FOLDS):
        out = folds == fold
        squares, products = inner[~out].sum(axis=0), cross[~out].sum(axis=0)
        fit = np.asarray(np.linalg.pinv(squares, 1e-10, hermitian=True) @ products, np.float64)
        errors[out] = square[out] - 2 * cross[out] @ fit + (inner[out] @ fit) @ fit
    return np.maximum(errors, 0.0)


def _weights(stretches: int) -> Floats:
    """How often each stretch comes in each resample: float64 (resamples, stretches)."""
    rng = np.random.default_rng(_SEED)
    return rng.multinomial(stretches, np.full(stretches, 1 / stretches), _RESAMPLES).astype(np.float64)


def _interval(values: Floats) -> tuple[float, float]:
    low, high = np.quantile(values[np.isfinite(values)], [0.025, 0.975]).tolist()
    return low, high


def _effects(
    varying: Floats, left: Floats, starts: npt.NDArray[np.int64], names: tuple[str, ...]
) -> tuple[Effect, ...]:
    """Regression of the loss on each label's share alone, with intervals, the strongest first."""
    products = np.add.reduceat(varying * left[:, None], starts, axis=0)
    squares = np.add.reduceat(varying**2, starts, axis=0)
    weights = _weights(len(starts))
    told: list[tuple[float, Effect]] = []
    floor = 1e-12 * max(float(squares.sum()), 1e-12)
    for label, name in enumerate(names):
        total = float(squares[:, label].sum())
        if total <= floor:
            continue
        slope = float(products[:, label].sum()) / total
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes = (weights @ products[:, label]) / (weights @ squares[:, label])
        low, high = _interval(slopes)
        effect = Effect(name, Estimate(0.1 * slope, 0.1 * low, 0.1 * high))
        told.append((abs(slope) * np.sqrt(total), effect))
    return tuple(effect for _, effect in sorted(told, key=lambda pair: -pair[0]))


def coherence_at(period: float, left: Floats, share: Floats) -> Coherence | None:
    """Magnitude-squared coherence of loss and share at a period, in rows; ``None``: fewer than 4 segments.

    Segments of two periods, half overlapping, under a Hann window (Welch 1967). Independent series stay below
    1 − 0.05^(1/(m − 1)) 95 times in 100 for m independent segments (Carter 1987). Overlapping ones count as
    18/19: neighbours correlate by 1/6 (Welch's equation for the variance).

    Args:
        period: Rows of a swing.
        left: The loss without its trend, float64 (rows,).
        share: A label's share, float64 (rows,).
    """
    length = round(2 * period)
    if length < 8 or len(left) < 2.5 * length:
        return None
    starts = np.arange(0, len(left) - length + 1, length // 2)
    window = np.hanning(length) * np.exp(-2j * np.pi * np.arange(length) / period)
    a, b = (
        np.array([_coefficient(series[s : s + length], window) for s in starts]) for series in (left, share)
    )
    power = float((np.abs(a) ** 2).mean() * (np.abs(b) ** 2).mean())
    if not power > 0:
        return None
    independent = max(2.0, len(starts) * 18 / 19)
    value = float(np.abs((a * np.conj(b)).mean()) ** 2 / power)
    return Coherence(period, min(value, 1.0), float(1 - 0.05 ** (1 / (independent - 1))), len(starts))


def _coefficient(piece: Floats, window: npt.NDArray[Any]) -> complex:
    return complex(((piece - piece.mean()) * window).sum())
