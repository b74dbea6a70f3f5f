"""The books of one run: rows of counts in, metrics and alarms out. Knows nothing of torch or Composer.

A rank's rows wait until the interval ends and all ranks' rows are added up. What has been added up is
the same on every rank; everything that decides anything is computed from it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from composer_mixmon.alarms import Alarm, Alarms, Look, evidence_rule
from composer_mixmon.config import Rule
from composer_mixmon.evidence import Evidence, EvidenceFold, EvidenceSettings
from composer_mixmon.logged_labels import LoggedLabels, choose_labels
from composer_mixmon.mixture import Fold, Mixture
from composer_mixmon.packing import pack_counts, pack_names, unpack_counts, unpack_names
from composer_mixmon.rows import Closed, Rows
from composer_mixmon.token_mixture import TokenMixture

__all__ = ["AddUp", "Expectation", "Monitor", "Rider"]

Counts = npt.NDArray[np.int64]
AddUp = Callable[[Counts], Counts]
"""Adds an int64 array of one shape up over all ranks; returns it on each of them."""

_FORMAT = 3


@dataclass(frozen=True)
class _Draft:
    """An interval computed but not recorded, for its last batch is still being trained on."""

    rows: Rows
    fold: Fold
    tokens: deque[tuple[int, Counts]]
    evidence: EvidenceFold | None
    look: Look


@dataclass(frozen=True)
class Expectation:
    """What is meant to come for a part of a run, and what speaks against it.

    Attributes:
        target: Each label's share, float64 (labels,).
        evidence: What evidence is taken against; ``None``: none is.
    """

    target: npt.NDArray[np.float64]
    evidence: EvidenceSettings | None = None


class Rider(Protocol):
    """Further numbers that travel in the one all-reduce of an interval."""

    def part(self, batches: int) -> Counts:
        """This rank's numbers since the last time, int64 of one shape for ever.

        Args:
            batches: Of how many batches put since then; one more may have been put that does not count yet.
        """
        ...

    def receive(self, total: Counts) -> None:
        """Take their sum over all ranks."""
        ...


class Monitor:
    """Counts batches and draws the conclusions.

    For each batch: :meth:`put` its counts when it has been fetched; at the interval's last batch,
    :meth:`draft` the metrics; :meth:`done` when the batch has been trained on. :meth:`drain` hands out
    what has been added up meanwhile.

    Args:
        names: The labels' names.
        phases: What is meant to come, for each part of the run; at least one.
        window: Batches in the window.
        interval: Batches between two additions over the ranks.
        rules: The alarm's plain thresholds.

    Attributes:
        phase: Index of the part that the run is in.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        phases: Sequence[Expectation],
        window: int,
        interval: int,
        rules: tuple[Rule, ...] = (),
    ) -> None:
        self.names = names
        self.phase = 0
        self._phases = tuple(phases)
        self._window = window
        self._rules = rules
        self._riders: list[Rider] = []
        self._mixture = Mixture(self._phases[0].target, window)
        self._tokens = TokenMixture(len(names), window)
        self._expect()
        self._rows = Rows.empty(interval, len(names))  # this rank's, waiting to be added up
        self._waiting = 0
        self._added = Rows.empty(0, len(names))  # added up for a checkpoint, waiting to be folded
        self._drained = 0  # of these, how many have been handed out
        self._trained: list[tuple[int, int, float]] = []  # batch, epoch, loss of those not handed out
        self._closed: list[Closed] = []
        self._draft: _Draft | None = None
        self._ending = False  # the batch in hand ends an interval

    def _expect(self) -> None:
        """Set up what the phase's target needs."""
        settings = self._phases[self.phase].evidence
        self._evidence = Evidence(settings) if settings else None
        rules = (*self._rules, evidence_rule(settings.threshold)) if settings else self._rules
        self._alarms = Alarms(rules, self.names, self._phases[self.phase].target, self._window)

    def carry(self, rider: Rider) -> None:
        """Have further numbers travel, on every rank in the same order; before the first batch."""
        self._riders.append(rider)

    def enter(self, phase: int) -> None:
        """Go on to another part of the run: a new window and new evidence, the same alarms.

        Nothing may be waiting: call :meth:`finish` before.
        """
        remembered = self._alarms.state_dict()
        self.phase = phase
        self._mixture.retarget(self._phases[phase].target)
        self._tokens.clear()
        self._expect()
        self._alarms.load_state_dict(remembered)

    @property
    def targets(self) -> tuple[npt.NDArray[np.float64], ...]:
        """Each label's target share in each part of the run, float64 (labels,)."""
        return tuple(phase.target for phase in self._phases)

    @property
    def logged(self) -> LoggedLabels:
        """The labels with figures of their own, the same throughout the run."""
        return choose_labels(self.names, self._phases[0].target)

    @property
    def run(self) -> Counts:
        """Counts of the run up to the last interval, over all ranks: int64 (labels,)."""
        return self._mixture.run

    def put(self, counts: Counts, tokens: Counts | None = None, order: int = 0) -> None:
        """Hold what is known of the batch that has been fetched.

        Args:
            counts: This rank's samples of each label, int64 (labels,).
            tokens: Their tokens, int64 (labels,), or ``None`` if they are not known.
            order: This rank's part of the batch's order hash, a signed 64-bit number.
        """
        self._draft = None
        self._ending = False
        self._rows.put(self._waiting, counts, tokens, order)

    def draft(self, batch: int, add_up: AddUp) -> dict[str, float]:
        """Add up the interval that ends with the batch in hand, and name its figures.

        Args:
            batch: That batch's number, counted from 0 over the whole run.
            add_up: Adds up over the ranks.
        """
        self._ending = True
        return self._draft_rows(batch, self._waiting + 1, add_up)

    def done(self, batch: int, epoch: int = -1, loss: float = math.nan) -> tuple[Alarm, ...]:
        """Count the batch in hand: it has been trained on. Returns the alarms, if an interval ends here.

        Args:
            batch: Its number, counted from 0 over the whole run.
            epoch: Its epoch.
            loss: Its loss, over all ranks.
        """
        self._waiting += 1
        self._trained.append((batch, epoch, loss))
        return self._commit() if self._ending else ()

    def drain(self) -> tuple[Closed, ...]:
        """What has been added up since the last call, of batches that have been trained on."""
        closed, self._closed = tuple(self._closed), []
        return closed

    def finish(self, batch: int, add_up: AddUp) -> tuple[dict[str, float], tuple[Alarm, ...]]:
        """Draw up what waits at the end of training: its figures and alarms, or nothing.

        Args:
            batch: Number of the last batch trained on.
            add_up: Adds up over the ranks; called on all ranks or on none.
        """
        if not self._waiting and not len(self._added):
            return {}, ()
        return self._draft_rows(batch, self._waiting, add_up), self._commit()

    def flush(self, add_up: AddUp) -> None:
        """Add up what waits, without ending the interval.

        Args:
            add_up: Adds up over the ranks; called on all ranks or on none.
        """
        if self._waiting:
            self._added = self._with_waiting(self._waiting, add_up)
            table = self._rows.table
            in_hand = table[self._waiting :].copy()  # fetched, but not yet trained on
            table[:] = 0
            table[: len(in_hand)] = in_hand
            self._waiting = 0
            self._close(self._added)
            self._drained = len(self._added)

    def state_dict(self, add_up: AddUp) -> dict[str, Any]:
        """The books as plain types, the same on every rank.

        Args:
            add_up: Adds up over the ranks; called on all ranks or on none.
        """
        self.flush(add_up)
        return {
            "format": _FORMAT,
            "labels": pack_names(self.names),
            "phase": self.phase,
            "mixture": self._mixture.state_dict(),
            "tokens": self._tokens.state_dict(),
            "pending": pack_counts(self._added.table.view(np.uint64)),
            "evidence": self._evidence.state_dict() if self._evidence else {},
            "alarms": self._alarms.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved books.

        Raises:
            ValueError: They are of another format, of other labels, or damaged.
        """
        if state.get("format") != _FORMAT:
            raise ValueError(f"they have the format {state.get('format')!r}, this version reads {_FORMAT}")
        labels = unpack_names(state["labels"])
        if labels != self.names:
            raise ValueError(f"they count the labels {_few(labels)}, this run counts {_few(self.names)}")
        table = unpack_counts(state["pending"], Rows.width(len(self.names)))
        self._added = Rows(len(self.names), table)
        self._drained = len(table)
        self.phase = min(int(state["phase"]), len(self._phases) - 1)
        self._mixture = Mixture(self._phases[self.phase].target, self._window)
        self._mixture.load_state_dict(state["mixture"])
        self._tokens.load_state_dict(state["tokens"])
        self._expect()
        self._alarms.load_state_dict(state["alarms"])
        if self._evidence and state["evidence"]:
            with suppress(ValueError):  # against another target or tolerance: none of it speaks here
                self._evidence.load_state_dict(state["evidence"])

    def _with_waiting(self, waiting: int, add_up: AddUp) -> Rows:
        """What was added up before and the first ``waiting`` rows, which are added up now."""
        table = self._rows.table
        parts = [table.ravel(), *(rider.part(waiting) for rider in self._riders)]
        ends = np.cumsum([len(part) for part in parts])
        total, *sums = np.split(add_up(np.concatenate(parts)), ends[:-1])
        for rider, part in zip(self._riders, sums, strict=True):
            rider.receive(part)
        added = total.reshape(table.shape)[:waiting]
        return Rows(len(self.names), np.concatenate([self._added.table, added]))

    def _draft_rows(self, batch: int, waiting: int, add_up: AddUp) -> dict[str, float]:
        rows = self._with_waiting(waiting, add_up) if waiting else self._added
        fold = self._mixture.fold(rows.counts)
        tokens = self._tokens.fold(rows)
        evidence = self._evidence.fold(rows.counts) if self._evidence else None
        look = self._alarms.look(batch - len(rows) + 1, fold, evidence.log10 if evidence else None)
        self._draft = _Draft(rows, fold, tokens, evidence, look)
        figures = self._mixture.metrics(fold, self.names, self.logged)
        figures |= self._tokens.metrics(tokens, self._mixture.target, self.logged)
        figures["mixmon/alarms"] = float(self._alarms.fired + len(look.alarms))
        if evidence:
            figures["mixmon/evidence"] = float(evidence.log10[-1])
        return figures

    def _commit(self) -> tuple[Alarm, ...]:
        draft, self._draft = self._draft, None
        if draft is not None:
            self._close(draft.rows)
        self._trained = []
        self._added = Rows.empty(0, len(self.names))
        self._drained = 0
        self._rows.table[:] = 0
        self._waiting = 0
        self._ending = False
        if draft is None:  # drafting failed here; the other ranks have not waited either
            return ()
        self._mixture.commit(draft.fold)
        self._tokens.commit(draft.tokens)
        if self._evidence and draft.evidence:
            self._evidence.commit(draft.evidence)
        self._alarms.commit(draft.look)
        return draft.look.alarms

    def _close(self, rows: Rows) -> None:
        """Hand out those of the rows that have not been yet."""
        trained, self._trained = self._trained, []
        if trained:
            batch, epoch, loss = map(np.array, zip(*trained, strict=True))
            fresh = Rows(len(self.names), rows.table[self._drained :])
            self._closed.append(Closed(fresh, batch, epoch, loss))


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
