"""Special functions that stay accurate where their textbook forms cancel.

numpy has no log-gamma, and at 2**53 samples a difference of log-gammas would have no digit left anyway:
everything here is written so that the large parts cancel on paper, not in floating point.

Source: C. Loader, "Fast and accurate computation of binomial probabilities" (2000).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["binomial_pmf", "deviance_part", "stirling_error"]

Floats = npt.NDArray[np.float64]

# Stirling's series: B_2k / (2k (2k-1)) for k = 1, 2, …; from z = 10 on its seven terms are exact to 3e-17.
_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_SERIES_FROM = 10.0
_HALF_LOG_2PI = 0.9189385332046727
# Below this |v| the deviance is summed as a series in v²; 0.1 is Loader's, and 8 terms reach 1e-17 there.
_NEAR = 0.1
_NEAR_TERMS = 8


def stirling_error(z: npt.ArrayLike) -> Floats:
    """What Stirling's formula lacks: log Γ(z) − [(z − ½) log z − z + ½ log 2π], about 1/(12 z).

    For whole z it is Loader's δ(z). Absolute error a few 1e-15.

    Args:
        z: Greater than 0, any shape.
    """
    z = np.asarray(z, np.float64)
    small = z < _SERIES_FROM
    far = np.where(small, z + _SERIES_FROM, z)
    step = 1 / (far * far)
    series = np.full_like(far, _SERIES[-1])
    for coefficient in _SERIES[-2::-1]:
        series *= step
        series += coefficient
    series /= far
    if small.any():
        series[small] += _shift_down(z[small])
    return series


def _shift_down(z: Floats) -> Floats:
    """stirling_error(z) − stirling_error(z + 10), by Γ(z + 10) = z (z + 1) … (z + 9) Γ(z)."""
    outer = z * (z + 9)  # (z + i) (z + 9 − i) = outer + i (9 − i)
    product = outer * (outer + 8) * (outer + 14) * (outer + 18) * (outer + 20)
    far = z + _SERIES_FROM
    return (far - 0.5) * np.log(far) - _SERIES_FROM - (z - 0.5) * np.log(z) - np.log(product)


def deviance_part(x: npt.ArrayLike, mean: npt.ArrayLike) -> Floats:
    """Loader's bd0: x log(x / mean) + mean − x, at least 0, and accurate where x is near the mean.

    Summed over the labels of a multinomial it is half the deviance.

    Args:
        x: At least 0.
        mean: Greater than 0 where x is; where both are 0 the part is 0.
    """
    x, mean = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(mean, np.float64))
    total, difference = x + mean, x - mean
    v = difference / np.where(total > 0, total, 1)
    seen = x > 0
    # The logarithm of the quotient would overflow for a mean below 1e-308; the difference does not.
    far = x * (np.log(np.where(seen, x, 1)) - np.log(np.where(seen, mean, 1))) - difference
    squared = v * v
    series = np.zeros_like(v)
    for j in range(_NEAR_TERMS, 0, -1):
        series += 1 / (2 * j + 1)
        series *= squared
    return np.where(np.abs(v) < _NEAR, v * (difference + 2 * x * series), far)


def binomial_pmf(x: npt.ArrayLike, n: npt.ArrayLike, p: npt.ArrayLike) -> Floats:
    """Probability of x successes in n trials by Loader's saddle point, for 1 ≤ x ≤ n and 0 < p < 1."""
    x, n, p = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in (x, n, p)))
    every = x >= n
    rest = np.where(every, 1, n - x)
    log_pmf = stirling_error(n) - stirling_error(x) - stirling_error(rest)
    log_pmf -= deviance_part(x, n * p) + deviance_part(rest, n * (1 - p))
    saddle = np.exp(log_pmf - _HALF_LOG_2PI) * np.sqrt(n / rest / x)
    return np.where(every, p**n, saddle)
