"""The books of one run: rows of counts in, metrics and alarms out. Knows nothing of torch or Composer.

A rank's rows wait until the interval ends and all ranks' rows are added up. What has been added up is
the same on every rank; everything that decides anything is computed from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from composer_mixmon.alarms import Alarm, Alarms, Look
from composer_mixmon.config import Rule
from composer_mixmon.mixture import Fold, Mixture, pack_counts, unpack_counts

__all__ = ["AddUp", "Monitor"]

Counts = npt.NDArray[np.int64]
AddUp = Callable[[Counts], Counts]
"""Adds an int64 array of one shape up over all ranks; returns it on each of them."""

_FORMAT = 1


@dataclass(frozen=True)
class _Draft:
    """An interval computed but not recorded, for its last batch is still being trained on."""

    fold: Fold
    look: Look


class Monitor:
    """Counts batches and draws the conclusions.

    For each batch: :meth:`put` its counts when it has been fetched; at the interval's last batch,
    :meth:`draft` the metrics; :meth:`done` when the batch has been trained on.

    Args:
        names: The labels' names.
        target: Their target shares, float64 (labels,).
        window: Batches in the window.
        interval: Batches between two additions over the ranks.
        rules: The alarm's rules.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        target: npt.NDArray[np.float64],
        window: int,
        interval: int,
        rules: tuple[Rule, ...],
    ) -> None:
        self.names = names
        self._mixture = Mixture(target, window)
        self._alarms = Alarms(rules, names, target, window)
        self._rows = np.zeros((interval, len(names)), np.int64)  # this rank's, waiting to be added up
        self._waiting = 0
        self._added = np.zeros((0, len(names)), np.int64)  # added up for a checkpoint, waiting to be folded
        self._draft: _Draft | None = None
        self._ending = False  # the batch in hand ends an interval

    @property
    def target(self) -> npt.NDArray[np.float64]:
        """Each label's target share, float64 (labels,)."""
        return self._mixture.target

    @property
    def run(self) -> Counts:
        """Counts of the run up to the last interval, over all ranks: int64 (labels,)."""
        return self._mixture.run

    def put(self, row: Counts) -> None:
        """Hold the counts (labels,) of the batch that has been fetched."""
        self._draft = None
        self._ending = False
        self._rows[self._waiting] = row

    def draft(self, batch: int, add_up: AddUp) -> dict[str, float]:
        """Add up the interval that ends with the batch in hand, and name its figures.

        Args:
            batch: That batch's number, counted from 0 over the whole run.
            add_up: Adds up over the ranks.
        """
        self._ending = True
        return self._draft_rows(batch, self._waiting + 1, add_up)

    def done(self) -> tuple[Alarm, ...]:
        """Count the batch in hand: it has been trained on. Returns the alarms, if an interval ends here."""
        self._waiting += 1
        return self._commit() if self._ending else ()

    def finish(self, batch: int, add_up: AddUp) -> tuple[dict[str, float], tuple[Alarm, ...]]:
        """Draw up what waits at the end of training: its figures and alarms, or nothing.

        Args:
            batch: Number of the last batch trained on.
            add_up: Adds up over the ranks; called on all ranks or on none.
        """
        if not self._waiting and not len(self._added):
            return {}, ()
        return self._draft_rows(batch, self._waiting, add_up), self._commit()

    def state_dict(self, add_up: AddUp) -> dict[str, Any]:
        """The books as plain types, the same on every rank.

        Args:
            add_up: Adds up over the ranks; called on all ranks or on none.
        """
        if self._waiting:
            self._added = self._with_waiting(self._waiting, add_up)
            in_hand = self._rows[self._waiting :].copy()  # fetched, but not yet trained on
            self._rows[:] = 0
            self._rows[: len(in_hand)] = in_hand
            self._waiting = 0
        return {
            "format": _FORMAT,
            "labels": list(self.names),
            "mixture": self._mixture.state_dict(),
            "pending": pack_counts(self._added),
            "alarms": self._alarms.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved books.

        Raises:
            ValueError: They are of another format, of other labels, or damaged.
        """
        if state.get("format") != _FORMAT:
            raise ValueError(f"they have the format {state.get('format')!r}, this version reads {_FORMAT}")
        if tuple(state["labels"]) != self.names:
            raise ValueError(
                f"they count the labels {_few(state['labels'])}, this run counts {_few(self.names)}"
            )
        self._added = unpack_counts(state["pending"], len(self.names))
        self._mixture.load_state_dict(state["mixture"])
        self._alarms.load_state_dict(state["alarms"])

    def _with_waiting(self, waiting: int, add_up: AddUp) -> Counts:
        return np.concatenate([self._added, add_up(self._rows)[:waiting]])

    def _draft_rows(self, batch: int, waiting: int, add_up: AddUp) -> dict[str, float]:
        rows = self._with_waiting(waiting, add_up) if waiting else self._added
        fold = self._mixture.fold(rows)
        look = self._alarms.look(batch - len(rows) + 1, fold)
        self._draft = _Draft(fold, look)
        alarms = {"mixmon/alarms": float(self._alarms.fired + len(look.alarms))}
        return self._mixture.metrics(fold, self.names) | alarms

    def _commit(self) -> tuple[Alarm, ...]:
        draft, self._draft = self._draft, None
        self._added = self._added[:0]
        self._rows[:] = 0
        self._waiting = 0
        self._ending = False
        if draft is None:  # drafting failed here; the other ranks have not waited either
            return ()
        self._mixture.commit(draft.fold)
        self._alarms.commit(draft.look)
        return draft.look.alarms


def _few(names: Any) -> str:
    listed = [str(name) for name in names]
    return ", ".join(listed[:5]) + (", …" if len(listed) > 5 else "")
