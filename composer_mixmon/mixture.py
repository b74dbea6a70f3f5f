"""The books: counts by label over the last window of batches and over the whole run.

Live monitoring, audit and post-mortem all fold rows of per-batch counts into a :class:`Mixture`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from composer_mixmon.logged_labels import LoggedLabels, choose_labels
from composer_mixmon.packing import pack_counts, unpack_counts
from composer_mixmon.statistics import chi_square_per_degree, deviation, noise_floor

__all__ = ["Fold", "Mixture"]

_ROOM = 4  # windows of rows held, so that the window is moved to the front once in three

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Fold:
    """What a few batches make of a mixture, one entry for each batch.

    Attributes:
        before: Batches recorded before the first of them, since the target was set.
        rows: Counts of each batch, int64 (batches, labels).
        window: Counts of the window that ends with each batch, int64 (batches, labels).
        run: Counts of the run up to and with the last batch, int64 (labels,).
        lengths: Batches in that window, int64 (batches,).
        spread: Chi² per degree of freedom of these batches behind those of the window before, float64.
    """

    before: int
    rows: Counts
    window: Counts
    run: Counts
    lengths: npt.NDArray[np.int64]
    spread: Floats

    @property
    def dispersion(self) -> Floats:
        """Mean chi² per degree of freedom over the window that ends with each batch, float64 (batches,)."""
        return np.array([self.dispersion_at(row) for row in range(len(self.rows))], np.float64)

    def dispersion_at(self, row: int) -> float:
        """Its entry for one batch, which may be counted from the last.

        A mean of its own: running sums would carry rounding from batch to batch, over a resumption too.
        """
        row %= len(self.rows)
        end = len(self.spread) - len(self.rows) + row + 1
        return float(self.spread[end - int(self.lengths[row]) : end].mean())


class Mixture:
    """Counts by label in the last ``window`` batches and in the run.

    :meth:`fold` computes, :meth:`commit` records: so the figures of a batch can be logged beside its
    loss while a checkpoint still holds only batches that have been trained on.

    Args:
        target: The shares that the run is meant to see, float64 (labels,), summing to 1.
        window: Batches in the window, at least 1.
    """

    def __init__(self, target: Floats, window: int) -> None:
        self.target = np.asarray(target, np.float64)
        self.window = window
        self._reset()

    def _reset(self) -> None:
        self.run = np.zeros(len(self.target), np.int64)
        self.batches = 0
        self._past_samples = 0  # of earlier targets, and what these meant each label to get
        self._past_meant = np.zeros(len(self.target))
        self._empty_window()

    def _empty_window(self) -> None:
        self._in_window = 0
        # The window's rows end at row `_end`, oldest first, behind rows of zeros where the run is
        # younger than a window; room behind them saves moving a window at every fold.
        self._end = self.window
        self._rows = np.zeros((_ROOM * self.window, len(self.target)), np.int64)
        self._spread = np.zeros(_ROOM * self.window, np.float64)  # chi² per degree of freedom of each row
        self._sum = np.zeros_like(self.run)

    @property
    def recent(self) -> Counts:
        """Counts of the last batches, oldest first, int64 (min(batches, window), labels)."""
        return self._rows[self._end - self._in_window : self._end]

    def fold(self, rows: Counts) -> Fold:
        """Window and run as they are after each of these batches, without recording them.

        Args:
            rows: Counts of each batch, int64 (batches, labels).
        """
        self._make_room(len(rows))
        begin, end = self._end, self._end + len(rows)
        self._rows[begin:end] = rows
        self._spread[begin:end] = chi_square_per_degree(rows, self.target)
        window = rows - self._rows[begin - self.window : end - self.window]
        window[:1] += self._sum
        for before, after in pairwise(window):  # cheaper than cumsum down a few long rows
            after += before
        run = self.run + rows.sum(axis=0)
        lengths = np.minimum(self._in_window + np.arange(1, len(rows) + 1), self.window)
        return Fold(self.batches, rows, window, run, lengths, self._spread[begin - self.window : end].copy())

    def commit(self, fold: Fold) -> None:
        """Record the batches of ``fold``, which must be the last one computed."""
        if len(fold.rows):
            self._sum = fold.window[-1]
        self.run = fold.run
        self.batches += len(fold.rows)
        self._in_window = min(self._in_window + len(fold.rows), self.window)
        self._end += len(fold.rows)

    def update(self, counts: npt.ArrayLike) -> Fold:
        """Record batches, and return what they make of the mixture.

        Args:
            counts: Of one batch, (labels,), or of several, (batches, labels).
        """
        fold = self.fold(np.atleast_2d(np.asarray(counts, np.int64)))
        self.commit(fold)
        return fold

    def retarget(self, target: Floats) -> None:
        """Mean other shares from now on: a new window, and a run that is measured against both."""
        samples = int(self.run.sum())
        self._past_meant = self._past_meant + (samples - self._past_samples) * self.target
        self._past_samples = samples
        self.target = np.asarray(target, np.float64)
        self.batches = 0
        self._empty_window()

    def _run_target(self, samples: int) -> Floats:
        """Shares that a run of so many samples was meant to see, over all targets so far."""
        if not self._past_samples:
            return self.target
        return (self._past_meant + (samples - self._past_samples) * self.target) / samples

    def _make_room(self, rows: int) -> None:
        """Have room for ``rows`` behind the window, moving it to the front where need be."""
        if self._end + rows <= len(self._rows):
            return
        window = slice(self._end - self.window, self._end)
        kept, spread = self._rows[window].copy(), self._spread[window].copy()
        if self.window + rows > len(self._rows):
            self._rows = np.zeros((self.window + rows, len(self.run)), np.int64)
            self._spread = np.zeros(self.window + rows)
        self._rows[: self.window], self._spread[: self.window] = kept, spread
        self._end = self.window

    def metrics(
        self, fold: Fold, names: tuple[str, ...], logged: LoggedLabels | None = None
    ) -> dict[str, float]:
        """Name the figures after the last batch of ``fold`` as they are logged.

        Args:
            fold: At least one batch.
            names: The labels.
            logged: Those with figures of their own; ``None``: chosen by the target.
        """
        logged = logged or choose_labels(names, self.target)
        window = fold.window[-1]
        figures = {
            "mixmon/window/deviation": float(deviation(window, self.target)),
            "mixmon/window/noise_floor": float(noise_floor(int(window.sum()), self.target)),
            "mixmon/window/dispersion": fold.dispersion_at(-1),
            "mixmon/run/deviation": float(deviation(fold.run, self._run_target(int(fold.run.sum())))),
        }
        return figures | logged.ratios("window", window) | logged.ratios("run", fold.run)

    def state_dict(self) -> dict[str, Any]:
        """The counts as plain types: ``run`` a list of int, ``recent`` packed."""
        return {
            "batches": self.batches,
            "run": self.run.tolist(),
            "recent": pack_counts(self.recent),
            "past": [self._past_samples, self._past_meant.tolist() if self._past_samples else []],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the counts of :meth:`state_dict`; a longer window than ours is cut to ours.

        Raises:
            ValueError: The state belongs to another number of labels or is damaged.
        """
        run = np.array(state["run"], np.int64)
        recent = unpack_counts(state["recent"], len(self.target))[-self.window :]
        if run.shape != self.run.shape:
            raise ValueError(f"{len(run)} labels were saved, {len(self.run)} are counted")
        self._reset()
        self.commit(self.fold(recent))
        self.run, self.batches = run, int(state["batches"])
        self._past_samples, meant = state["past"]
        self._past_meant = np.array(meant or np.zeros(len(run)), np.float64)
