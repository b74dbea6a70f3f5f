"""E-value of counts against "every label's share is within the tolerance of its target".

Sources: M. Lindon and A. Malek, "Anytime-valid inference for multinomial count data" (NeurIPS 2022), for the
Dirichlet numerator; L. Wasserman, A. Ramdas and S. Balakrishnan, "Universal inference" (PNAS 2020), for its
quotient by the largest likelihood.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from composer_mixmon._special import deviance_part, stirling_error

__all__ = ["Null", "log_e_value", "log_mean"]

Floats = npt.NDArray[np.float64]

# How closely the numerator's mixtures sit around the target, as a number of samples: from "anything" to
# "within a percent". Averaging over four costs at most log 4 of evidence.
_CONCENTRATIONS = np.array([10.0, 100.0, 1_000.0, 10_000.0])
# The numerator expects at least this part of an even share of every label, so that labels of no target, or
# hardly any, can speak too.
_LEAST_PART = 1e-3
# Share granted to a label whose target and tolerance are 0. The null forbids such a sample, so one of them is
# proof; granting a trillionth keeps the evidence finite, and only makes it more careful.
_FORBIDDEN_SHARE = 1e-12


def log_e_value(counts: npt.ArrayLike, target: npt.ArrayLike, tolerance: float) -> Floats:
    """Natural logarithm of the e-value of counts against "every share is within tolerance of its target".

    The numerator is the Dirichlet-multinomial likelihood of the counts around the target, averaged over
    concentrations of 10, 100, 1,000 and 10,000; the denominator is the largest multinomial likelihood of any
    mixture within the tolerance, found exactly.

    A count on a label whose target and tolerance are both 0 is proof; it is given about log(1e12) each.

    Args:
        counts: Samples of each label, not negative, shape (..., labels); fractions of draws are allowed.
        target: Shares, shape (labels,), summing to 1.
        tolerance: In [0, 1].

    Returns:
        float64 (...), finite; 0 where nothing was counted.
    """
    counts = np.asarray(counts, np.float64)
    null = Null(np.asarray(target, np.float64), tolerance)
    return null.log_e_value(counts.reshape(-1, counts.shape[-1])).reshape(counts.shape[:-1])


class Null:
    """The mixtures within a tolerance of a target, and the numerator that speaks against them."""

    def __init__(self, target: Floats, tolerance: float) -> None:
        self.low = np.maximum(target - tolerance, 0)
        self.high = np.minimum(target + tolerance, 1)
        self.forbidden = self.high == 0
        self.single = bool(np.all(self.low == self.high))
        prior = np.maximum(target, _LEAST_PART / len(target))
        self.prior = prior / prior.sum()
        self.kappa = _CONCENTRATIONS[:, None, None]
        self.kappa_error = stirling_error(self.kappa)
        self.alpha = self.kappa * self.prior
        self.alpha_error = stirling_error(self.alpha)

    def log_e_value(self, counts: Floats) -> Floats:
        """The e-value's logarithm of each row of counts, float64 (rows, labels) to (rows,).

        Numerator and denominator are both taken relative to the likelihood at the counts' own shares: what is
        left of each is small, so nothing cancels.
        """
        total = counts.sum(-1)
        return log_mean(self._numerators(counts, total[:, None]), 0) + self._half_deviance(counts, total)

    def _numerators(self, counts: Floats, total: Floats) -> Floats:
        """Dirichlet-multinomial likelihoods, as logarithms relative to the likelihood at the own shares.

        The logarithm of Γ(κ) / Γ(n + κ) Π Γ(c + α) / Γ(α) less Σ c log (c/n). By Stirling's formula its
        large parts are Σ c log((c + α) n / (c (n + κ))) and Σ α log((c + α) κ / (α (n + κ))): both logarithms
        are near 0 where the shares are near the prior, and are taken of the distance from 1.

        Args:
            counts: float64 (rows, labels).
            total: Their sums, float64 (rows, 1).

        Returns:
            float64 (concentrations, rows).
        """
        surplus, reach = counts - total * self.prior, total + self.kappa
        own = np.log1p(surplus / np.where(counts > 0, counts, 1) * (-self.kappa / reach))
        own *= counts
        grown, grown_total = np.log1p(counts / self.alpha), np.log1p(total / self.kappa)
        away = surplus / self.prior / reach
        pull = np.where(away < -0.5, grown - grown_total, np.log1p(np.maximum(away, -0.5)))
        own += self.alpha * pull - grown / 2
        own += stirling_error(counts + self.alpha) - self.alpha_error
        whole = grown_total / 2 - stirling_error(reach) + self.kappa_error
        return own.sum(-1) + whole[..., 0]

    def _half_deviance(self, counts: Floats, total: Floats) -> Floats:
        """Logarithm of the likelihood at the counts' own shares over the largest within the tolerance."""
        shares = counts / np.maximum(total, 1e-300)[:, None]
        outside = np.any((shares < self.low) | (shares > self.high), axis=-1) & (total > 0)
        deviance = np.zeros(len(counts))
        if outside.any():
            counts, total = counts[outside], total[outside, None]
            nearest = self.most_likely(counts)
            allowed = np.where(self.forbidden, 0, counts)
            deviance[outside] = deviance_part(allowed, total * nearest).sum(-1) + self._proof(counts, total)
        return deviance

    def _proof(self, counts: Floats, total: Floats) -> Floats:
        """What forbidden labels add to the half deviance."""
        if not self.forbidden.any():
            return np.zeros(len(counts))
        counts = counts[:, self.forbidden]
        excess = counts / (total * _FORBIDDEN_SHARE)
        return np.sum(counts * (np.log(np.where(counts > 0, excess, 1)) - 1), axis=-1)

    def most_likely(self, counts: Floats) -> Floats:
        """The mixture within the tolerance under which each row of counts is most likely.

        By the Karush-Kuhn-Tucker conditions it is q = clip(μ c, low, high) with the μ at which q sums to 1.
        That sum is piecewise linear in μ, with a corner where a label leaves its lower or meets its upper
        bound: sort the corners, find the piece that holds 1, solve it. Where even every counted label at its
        upper bound leaves some share over, the labels without a count take it.
        """
        if self.single:
            return np.broadcast_to(self.low, counts.shape)
        seen = counts > 0
        divisor = np.where(seen, counts, 1)
        leave, meet = np.where(seen, self.low / divisor, 0), np.where(seen, self.high / divisor, 0)
        corners = np.concatenate([leave, meet], axis=-1)
        order = np.argsort(corners, axis=-1)
        corners = np.take_along_axis(corners, order, -1)
        sign = np.where(order < counts.shape[-1], 1.0, -1.0)
        slope = np.cumsum(sign * np.take_along_axis(np.concatenate([counts, counts], -1), order, -1), -1)
        sums = self.low.sum() + np.cumsum(slope[:, :-1] * np.diff(corners, axis=-1), axis=-1)
        piece = np.sum(sums < 1, axis=-1, keepdims=True)  # the corner with the same number begins the piece
        last = corners.shape[-1] - 1
        begin = np.take_along_axis(corners, piece, -1)
        end = np.take_along_axis(corners, np.minimum(piece + 1, last), -1)
        free = seen & (leave <= begin) & (meet >= end) & (leave < meet)
        fixed = np.where(meet <= begin, np.where(seen, self.high, self.low), self.low)
        counted = np.where(free, counts, 0).sum(-1, keepdims=True)
        left = 1 - np.where(free, 0, fixed).sum(-1, keepdims=True)
        scale = np.where(counted > 0, left / np.where(counted > 0, counted, 1), begin)
        nearest = np.where(seen, np.clip(counts * scale, self.low, self.high), self.low)
        return self._fill(nearest, seen)

    def _fill(self, nearest: Floats, seen: npt.NDArray[np.bool_]) -> Floats:
        """Give what is left of 1 to the labels without a count, as far as their upper bounds allow."""
        room = np.where(seen, 0, self.high - self.low)
        left = np.maximum(1 - nearest.sum(-1, keepdims=True), 0)
        whole = room.sum(-1, keepdims=True)
        return nearest + room * np.minimum(left / np.where(whole > 0, whole, 1), 1)


def log_mean(logs: Floats, axis: int) -> Floats:
    """Logarithm of the mean of what ``logs`` are the logarithms of."""
    top = logs.max(axis, keepdims=True)
    return np.squeeze(top, axis) + np.log(np.exp(logs - top).mean(axis))
