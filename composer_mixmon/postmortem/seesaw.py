"""Whether a mixture swings, how, and what the length of its swings is the length of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Swing", "find_drift", "find_swing", "relations"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_SMALLEST = 0.02  # standard deviation of a share, beyond the noise, that is a swing
_CERTAIN = 5.0  # standard errors by which the variance must exceed the noise
_CYCLES = 3
_TURN = 0.125  # part of its range by which a share must pass the middle of it to count as up, or down
_NEAR = 0.15  # lengths that differ by less are the same
_MULTIPLES = (0.5, 1, 2, 4)
_TENTHS = 10
_STEADY = 0.5  # share of the variance over tenths of the run that a line must explain to be a drift


@dataclass(frozen=True)
class Swing:
    """A mixture that swings, in rows.

    Attributes:
        label: Index of the label that swings the most.
        period: Mean rows from one swing up to the next.
        cycles: Swings seen.
        stay: Lag at which the autocorrelation reaches 0, by its first, straight part.
        amplitude: Standard deviation of the share beyond the noise.
    """

    label: int
    period: float
    cycles: int
    stay: float
    amplitude: float


def find_swing(shares: Floats, samples: Ints, targets: Floats) -> Swing | None:
    """Find the label that swings the most.

    Args:
        shares: Each label's share of each row, float64 (rows, labels).
        samples: Samples of each row, int64 (rows,).
        targets: Its target there, float64 (rows, labels) or (labels,).
    """
    if len(shares) < 4 * _CYCLES:
        return None
    away = shares - targets
    away = away - away.mean(axis=0)
    expected = (targets * (1 - targets) / np.maximum(samples, 1)[:, None]).mean(axis=0)
    excess = (away**2).mean(axis=0) - expected
    label = int(np.argmax(excess))
    error = float(expected[label]) * np.sqrt(2 / len(shares))
    if excess[label] < max(_SMALLEST**2, _CERTAIN * error):
        return None
    series, amplitude = away[:, label], float(np.sqrt(excess[label]))
    stay = _stay(series)
    period, cycles = _cycles(series, stay)
    return Swing(label, period, cycles, stay, amplitude) if cycles >= _CYCLES else None


def _stay(series: Floats) -> float:
    """Where the straight part of the autocorrelation, from lag 1 on, reaches 0, in rows."""
    rows = len(series)
    spectrum = np.abs(np.fft.rfft(series, 2 * rows)) ** 2
    covariance = np.fft.irfft(spectrum)[: rows // 2] / np.arange(rows, rows - rows // 2, -1)
    if not covariance[1] > 0:
        return 1.0
    # Lag 0 holds the noise of single rows too, lag 1 hardly any.
    fallen = np.flatnonzero(covariance[1:] < 0.4 * covariance[1])
    until = int(fallen[0]) + 1 if len(fallen) else len(covariance) - 1
    if until < 3:
        return float(until)
    slope, start = np.polyfit(np.arange(1, until + 1), covariance[1 : until + 1], 1)
    return float(np.clip(-start / slope, 1, rows)) if slope < 0 else float(rows)


def _cycles(series: Floats, stay: float) -> tuple[float, int]:
    """Mean rows between swings up, and how many there are."""
    width = max(1, round(stay / 2))
    smooth = np.convolve(series, np.full(width, 1 / width), "valid")
    low, high = np.quantile(smooth, [0.005, 0.995]).tolist()  # a label that comes rarely is mostly low
    away = (smooth - (low + high) / 2) / max(high - low, 1e-300)
    side = np.where(away > _TURN, 1, np.where(away < -_TURN, -1, 0))
    at = np.flatnonzero(side)
    ups = at[1:][(side[at[1:]] > 0) & (side[at[:-1]] < 0)]
    if len(ups) < 2:
        return float(len(series)), len(ups)
    return float(ups[-1] - ups[0]) / (len(ups) - 1), len(ups)


def relations(lengths: Mapping[str, float], known: Mapping[str, float]) -> tuple[str, ...]:
    """Say which lengths are a half, one, two or four of which others.

    Args:
        lengths: What was found, in batches, by name, such as ``{"one period": 32.0}``.
        known: What the settings imply, in batches, by name, such as ``{"shard": 16.0}``.
    """
    found: list[str] = []
    for what, length in lengths.items():
        for name, unit in known.items():
            times = length / unit if unit > 0 else 0
            multiple = min(_MULTIPLES, key=lambda multiple: abs(times / multiple - 1))
            if abs(times / multiple - 1) <= _NEAR:
                count = {0.5: "half a", 1: "one", 2: "two", 4: "four"}[multiple]
                plural = "s" * (multiple > 1)
                found.append(
                    f"{what} ({length:.1f} batches) is {count} {name}{plural} ({unit:.1f} batches each)"
                )
    return tuple(found)


def find_drift(
    shares: Floats, samples: Ints, targets: Floats, tolerance: float
) -> list[tuple[int, float, float]]:
    """Find labels whose share drifts from the run's first tenth to its last, by more than the tolerance.

    Args:
        shares: Each label's share of each row, float64 (rows, labels).
        samples: Samples of each row, int64 (rows,).
        targets: Its target there, float64 (rows, labels): what was meant to change is no drift.
        tolerance: The smallest drift told of.

    Returns:
        Label, share of the first tenth and of the last, the largest drift first.
    """
    if len(shares) < 2 * _TENTHS:
        return []
    edges = np.arange(_TENTHS) * len(shares) // _TENTHS
    weight = np.add.reduceat(samples, edges)[:, None]
    means = np.add.reduceat(shares * samples[:, None], edges) / np.maximum(weight, 1)
    away = means - np.add.reduceat(
        np.broadcast_to(targets, shares.shape) * samples[:, None], edges
    ) / np.maximum(weight, 1)
    time = np.linspace(-1, 1, _TENTHS)
    slope = time @ away / (time @ time)
    left = away - away.mean(axis=0) - time[:, None] * slope
    steady = 1 - left.var(axis=0) / np.maximum(away.var(axis=0), 1e-300)
    moved = np.abs(away[-1] - away[0])
    chosen = np.flatnonzero((moved > tolerance) & (steady > _STEADY))
    order = chosen[np.argsort(-moved[chosen])]
    return [(int(label), float(means[0, label]), float(means[-1, label])) for label in order]
