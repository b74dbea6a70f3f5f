"""Figures of a mixture: pure functions of counts and target.

Counts have labels on their last axis; a target holds the shares that the run is meant to see, which sum
to 1. Everything is a fraction, not a percentage, and finite for counts up to 2**53.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from composer_mixmon._special import binomial_pmf

__all__ = ["chi_square", "chi_square_per_degree", "deviation", "dispersion", "noise_floor"]

Floats = npt.NDArray[np.float64]


def deviation(counts: npt.ArrayLike, target: npt.ArrayLike) -> Floats:
    """Total variation distance ½ Σ|ratio − target| of counts from their target, in [0, 1].

    With two labels at 50:50 it is ``major / total − 0.5``.

    Args:
        counts: Samples of each label, not negative, shape (..., labels).
        target: Shares, shape (labels,) or (..., labels).

    Returns:
        float64 (...). 0 where nothing was counted: no sample speaks against the target.
    """
    counts, target = np.asarray(counts, np.float64), np.asarray(target, np.float64)
    total = counts.sum(-1, keepdims=True)
    away = counts / np.maximum(total, 1) - target
    np.abs(away, out=away)
    return np.where(total[..., 0] > 0, away.sum(-1) / 2, 0.0)


def noise_floor(samples: int, target: npt.ArrayLike) -> float:
    """Deviation that a perfect shuffle shows on average: the expectation under multinomial draws.

    It is Σ ½ E|X_k/n − p_k| with each X_k binomial, by De Moivre's closed form of a binomial's mean
    absolute deviation, E|X − np| = 2 ν (1 − p) P(X = ν) with ν = ⌊np⌋ + 1. For 2,000 samples of two even
    labels it is 0.0089.

    Source: P. Diaconis and S. Zabell, "Closed form summation for classical distributions: variations on a
    theme of De Moivre", Statistical Science 6 (1991).

    Args:
        samples: Number of samples n, 0 to 2**53.
        target: Shares, shape (labels,).

    Returns:
        In [0, 1); 0 for no samples, where :func:`deviation` is 0 too.
    """
    p = np.asarray(target, np.float64)
    p = p[(p > 0) & (p < 1)]  # a label that never or always comes does not vary
    if not samples:
        return 0.0
    n = float(samples)
    above = np.minimum(np.floor(n * p) + 1, n)
    return float(np.sum(above / n * (1 - p) * binomial_pmf(above, n, p)))


def chi_square(counts: npt.ArrayLike, target: npt.ArrayLike) -> Floats:
    """Pearson's Σ (c − np)² / (np) of each row of counts.

    Labels of target 0 have no term: chi-square is not defined there. A count on them shows in
    :func:`deviation` and in the evidence instead.

    Args:
        counts: Samples of each label, not negative, shape (..., labels).
        target: Shares, shape (labels,).

    Returns:
        float64 (...). 0 where nothing was counted.
    """
    counts, target = np.asarray(counts, np.float64), np.asarray(target, np.float64)
    total = counts.sum(-1, keepdims=True)
    surplus = counts - total * target
    weight = np.divide(1, target, out=np.zeros_like(target), where=target > 0)
    np.multiply(surplus, surplus, out=surplus)
    surplus *= weight
    return surplus.sum(-1) / np.maximum(total[..., 0], 1)


def chi_square_per_degree(counts: npt.ArrayLike, target: npt.ArrayLike) -> Floats:
    """:func:`chi_square` over its degrees of freedom, the labels of positive target less one.

    Its mean over batches is the dispersion, so a window's dispersion can be kept up batch by batch.

    Args:
        counts: Samples of each label, not negative, shape (..., labels).
        target: Shares, shape (labels,).

    Returns:
        float64 (...). 1, a perfect shuffle's average, where nothing can speak against one: no sample, or
        fewer than two labels of positive target.
    """
    counts = np.asarray(counts)
    degrees = np.count_nonzero(target) - 1
    if degrees < 1:
        return np.ones(counts.shape[:-1])
    return np.where(counts.sum(-1) > 0, chi_square(counts, target) / degrees, 1.0)


def dispersion(counts: npt.ArrayLike, target: npt.ArrayLike) -> float:
    """Mean of chi²/(labels − 1) over batches: 1 is a perfect shuffle, 70 is one that hardly mixes.

    Args:
        counts: Samples of each label in each batch, shape (batches, labels). Empty batches are left out.
        target: Shares, shape (labels,).

    Returns:
        At least 0; 1 where there is no batch with samples, or no two labels of positive target.
    """
    counts = np.asarray(counts)
    counts = counts[counts.sum(-1) > 0]
    return float(chi_square_per_degree(counts, target).mean()) if len(counts) else 1.0
