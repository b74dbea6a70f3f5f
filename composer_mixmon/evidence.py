"""Evidence against "no label is further from its target than the tolerance", looked at after every batch.

Two steps, both in natural logarithms until the reading:

1. An **e-value** of counts (:func:`log_e_value`): how much better a free mixture explains them than the
   best one within the tolerance. Under any mixture within the tolerance its expectation is at most 1.
2. A **Shiryaev-Roberts e-detector** (:class:`Evidence`) that multiplies e-values up from every possible
   start of a bias, at several scales, so that it may be looked at after every batch for ever.

**The promise.** A scale of s batches cuts the run into blocks of s. Let e_t be the e-value of the open
block's counts after batch t, and R the scale's reading at the end of the block before; then its reading is
(R + s) e_t. For the true mixture q, e_t is at most the likelihood ratio N_t of the block so far, numerator
over q, which is a martingale that starts at 1 in every block. So the reading is at most a process that gains
s at the start of every block and is a martingale otherwise. At any stopping time τ its expectation is
s E⌈τ/s⌉ ≤ E τ + s − 1, and the mean over the scales has at most E τ + mean(s) − 1. An alarm at a mean of A +
mean(s) − 1 therefore needs E τ ≥ A: **at least A batches to a false alarm on average**, however often one
looks, over resumptions too, for independent draws of one mixture within the tolerance.

Three departures from independent draws of one mixture keep the expectation of a block's e-value at most 1:

- *A mixture that varies within a block*, as long as the block's mean is within the tolerance: for every
  mixture θ of the numerator, E Π (θ_k/q_k)^c_k is a product of terms with mean 1, at most 1 (AM-GM).
- *Drawing without replacement*, by Hoeffding's convex ordering (1963): the ratio is convex in the counts.
- *Samples that come in units*, such as whole batches of one stream: counts over the unit are a sum of means
  over units, and the ratio is convex in each, so by Jensen's inequality single draws would give more.

Source: J. Shin, A. Ramdas and A. Rinaldo, "E-detectors: a nonparametric framework for sequential change
detection" (NEJSDS 2023), for sums of e-processes started at every time and their average run length.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from composer_mixmon.e_value import Null, log_e_value, log_mean
from composer_mixmon.errors import ConfigError
from composer_mixmon.packing import pack_counts, unpack_counts

__all__ = ["Evidence", "EvidenceFold", "EvidenceSettings", "batching_effects", "log_e_value"]

Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

# Counts worked on at once, so that an epoch of a million batches needs no more memory than a few.
_AT_ONCE = 1 << 14
# No block carries more than this beyond the threshold over to the next, as a log10: after a bias of ten
# thousand batches the reading falls as fast as after one of ten, and the next bias is an event of its own.
# Less evidence only makes the promise safer.
_SURPLUS = 3.0
_STATE_VERSION = 1


@dataclass(frozen=True, eq=False)
class EvidenceSettings:
    """What counts as healthy, and how rarely that may be called a bias.

    Attributes:
        target: Shares the run is meant to see, float64 (labels,), summing to 1. Best the dataset's own after
            proportion, repeat and choose: a share it cannot meet will be found.
        tolerance: Largest bias of a label's share that is not worth an alarm, in [0, 1).
        false_alarm_every: Batches to a false alarm, at least, on average.
        unit: Samples that come together, see :func:`batching_effects`.
        rounding: By how much whole samples may shift a share; added to the tolerance.
        scales: Batches in a block of each scale, ascending.

    Raises:
        ConfigError: Any of these is out of its range.
    """

    target: Floats
    tolerance: float
    false_alarm_every: float = 1_000_000
    unit: float = 1
    rounding: float = 0.0
    scales: tuple[int, ...] = (1, 8, 64, 512)

    def __post_init__(self) -> None:
        target = np.array(self.target, np.float64)
        if target.ndim != 1 or not target.size or not np.all((target >= 0) & (target <= 1)):
            raise ConfigError("target", self.target, "give each label's share, a number from 0 to 1")
        if abs(target.sum() - 1) > 1e-9:
            raise ConfigError(
                "target", self.target, f"the shares sum to {target.sum():.12g}: make them sum to 1"
            )
        if not 0 <= self.tolerance < 1:
            raise ConfigError(
                "alarm.tolerance", self.tolerance, "give a share from 0 to below 1, such as 0.05"
            )
        if not 1 <= self.false_alarm_every < math.inf:
            raise ConfigError("alarm.false_alarm_every", self.false_alarm_every, "give at least 1 batch")
        if not 1 <= self.unit < math.inf:
            raise ConfigError("unit", self.unit, "give the samples that come together, at least 1")
        if not 0 <= self.rounding <= 1:
            raise ConfigError("rounding", self.rounding, "give a share from 0 to 1")
        if not self.scales or min(self.scales) < 1:
            raise ConfigError("scales", self.scales, "give numbers of batches, such as (1, 8, 64, 512)")
        object.__setattr__(self, "target", target / target.sum())

    @property
    def threshold(self) -> float:
        """Reading of :meth:`Evidence.update` from which there is an alarm, a log10: see the promise above."""
        return math.log10(self.false_alarm_every + sum(self.scales) / len(self.scales) - 1)


def batching_effects(batching_method: str, device_batch: int, global_batch: int) -> tuple[int, float]:
    """What a StreamingDataset's batching method does to a healthy mixture, for :class:`EvidenceSettings`.

    ``per_stream`` and ``device_per_stream`` fill whole batches, or whole batches of a rank, from one stream;
    ``stratified`` rounds each stream's part of a batch to whole samples, the same way in every batch.

    Args:
        batching_method: ``random``, ``stratified``, ``per_stream`` or ``device_per_stream``.
        device_batch: Samples of a batch on one rank.
        global_batch: Samples of a batch over all ranks.

    Returns:
        The unit in samples, and the rounding as a share.
    """
    effects = {
        "stratified": (1, 1 / global_batch),
        "per_stream": (global_batch, 0.0),
        "device_per_stream": (device_batch, 0.0),
    }
    return effects.get(batching_method, (1, 0.0))


@dataclass(frozen=True, eq=False)
class _State:
    """What an e-detector remembers.

    Attributes:
        batches: Batches since the start.
        start: log(R + s), R each scale's reading at the end of its last block, float64 (runs, scales).
        block: Counts of each scale's open block, int64 (runs, scales, labels).
    """

    batches: int
    start: Floats
    block: Counts


@dataclass(frozen=True, eq=False)
class EvidenceFold:
    """What a few batches make of the evidence.

    Attributes:
        log10: Reading after each batch, float64 (batches,), or (batches, runs) for several runs.
        state: What to remember after the last.
    """

    log10: Floats
    state: _State


class Evidence:
    """The e-detector of one run, or of many simulated ones at once.

    :meth:`fold` computes, :meth:`commit` records, as in :class:`~composer_mixmon.mixture.Mixture`. There is
    an alarm where the reading reaches ``settings.threshold``.

    Args:
        settings: What counts as healthy.
        runs: Simulated runs side by side, or None for one.
    """

    def __init__(self, settings: EvidenceSettings, runs: int | None = None) -> None:
        self.settings = settings
        self._runs = runs
        self._null = Null(settings.target, settings.tolerance + settings.rounding)
        self._scales = np.array(settings.scales)
        self._log_scales = np.log(self._scales)
        self._enough = (settings.threshold + _SURPLUS) * math.log(10)
        self.reset()

    def reset(self) -> None:
        """Forget everything, as at the start of a run or of a new target."""
        rows, scales = self._runs or 1, len(self.settings.scales)
        start = np.tile(self._log_scales, (rows, 1))
        self._state = _State(0, start, np.zeros((rows, scales, len(self.settings.target)), np.int64))

    def update(self, rows: npt.ArrayLike) -> Floats:
        """Look at batches and record them; arguments and readings are those of :meth:`fold`."""
        fold = self.fold(rows)
        self.commit(fold)
        return fold.log10

    def commit(self, fold: EvidenceFold) -> None:
        """Record the batches of ``fold``, which must be the last one computed."""
        self._state = fold.state

    def fold(self, rows: npt.ArrayLike) -> EvidenceFold:
        """Readings as they are after each of these batches, without recording them.

        Args:
            rows: Counts of each batch, (batches, labels), or (batches, runs, labels) for several runs.
        """
        rows = np.asarray(rows, np.int64)
        if self._runs is None:
            rows = rows[:, None, :]
        log10, state = np.empty(rows.shape[:2]), self._state
        step = max(1, _AT_ONCE // max(1, state.block.size))
        for begin in range(0, len(rows), step):
            piece = slice(begin, begin + step)
            log10[piece], state = self._advance(state, rows[piece])
        return EvidenceFold(log10[:, 0] if self._runs is None else log10, state)

    def _advance(self, state: _State, rows: Counts) -> tuple[Floats, _State]:
        """Readings (batches, runs) after rows (batches, runs, labels), and what to remember."""
        closed = (state.batches + np.arange(1, len(rows) + 1))[:, None] % self._scales == 0
        so_far, block = _so_far(state.block, rows, closed)
        flat = so_far.reshape(-1, so_far.shape[-1]) / self.settings.unit
        log_e = self._null.log_e_value(flat).reshape(so_far.shape[:-1])
        readings, start = self._multiply(state.start, log_e, closed)
        return log_mean(readings, -1) / math.log(10), _State(state.batches + len(rows), start, block)

    def _multiply(self, start: Floats, log_e: Floats, closed: Flags) -> tuple[Floats, Floats]:
        """Logarithms of each scale's readings (batches, runs, scales), and the new start."""
        readings = np.empty_like(log_e)
        for batch, e in enumerate(log_e):
            readings[batch] = start + e
            carried = np.minimum(readings[batch], self._enough)
            start = np.where(closed[batch], np.logaddexp(carried, self._log_scales), start)
        return readings, start

    def state_dict(self) -> dict[str, Any]:
        """What one run must remember over a resumption, as plain types."""
        return {
            "version": _STATE_VERSION,
            "null": self._fingerprint(),
            "batches": self._state.batches,
            "start": self._state.start[0].tolist(),
            "block": pack_counts(self._state.block[0]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` saved: a resumed run then reads what an uninterrupted one does.

        Raises:
            ValueError: It has another version, or speaks of another target, tolerance, unit or scales.
        """
        if state["version"] != _STATE_VERSION:
            raise ValueError(
                f"evidence of version {state['version']} was saved, {_STATE_VERSION} is understood"
            )
        if state["null"] != self._fingerprint():
            raise ValueError("the evidence saved is against another target, tolerance, unit or scales")
        start = np.array(state["start"], np.float64)
        block = unpack_counts(state["block"], len(self.settings.target))
        self._state = _State(int(state["batches"]), start[None], block[None])

    def _fingerprint(self) -> str:
        """What the evidence is against, in 16 letters."""
        settings = self.settings
        told = (
            settings.tolerance,
            settings.rounding,
            settings.unit,
            settings.scales,
            settings.target.tolist(),
        )
        return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def _so_far(block: Counts, rows: Counts, closed: Flags) -> tuple[Counts, Counts]:
    """Counts of each scale's open block after each batch (batches, runs, scales, labels), and at last."""
    so_far = np.empty((len(rows), *block.shape), np.int64)
    for batch, row in enumerate(rows):
        np.add(block, row[:, None], out=so_far[batch])
        block = np.where(closed[batch][:, None], 0, so_far[batch])
    return so_far, block
