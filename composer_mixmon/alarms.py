"""When to speak up: thresholds on the window's figures, with patience, grace and hysteresis.

Rules look at every batch, in order, whether they are told of one batch at a time or of a hundred.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from composer_mixmon.config import Rule
from composer_mixmon.mixture import Fold
from composer_mixmon.statistics import deviation

__all__ = ["Alarm", "Alarms", "Look", "evidence_rule"]

_LABELS_SHOWN = 3
_QUIET = 3.0  # an alarm of the evidence is over when only a thousandth of it is left


def evidence_rule(threshold: float) -> Rule:
    """The rule that the evidence itself gives.

    Args:
        threshold: log10 of the evidence from which there is an alarm.
    """
    return Rule("evidence", "", -math.inf, threshold, 1, 0, quiet=threshold - _QUIET)


@dataclass(frozen=True)
class Alarm:
    """A rule that fired.

    Attributes:
        rule: The rule, as text.
        batch: Number of the batch at which it fired, counted from 0 over the whole run.
        first: Number of the first batch of the window that it looked at.
        value: The rule's figure there.
        evidence: log10 of the evidence there, or ``None`` where none is taken.
        shares: Each label's share of that window.
        target: Each label's target.
        shards: Of that window's samples on this rank, how many came from the shards that gave the most.
    """

    rule: str
    batch: int
    first: int
    value: float
    evidence: float | None
    shares: dict[str, float]
    target: dict[str, float]
    shards: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def deviations(self) -> dict[str, float]:
        """Share less target of each label, the furthest off first."""
        off = {label: share - self.target[label] for label, share in self.shares.items()}
        return dict(sorted(off.items(), key=lambda item: -abs(item[1])))

    def to_dict(self) -> dict[str, Any]:
        """The event as plain types, as it is posted to a webhook."""
        return {**asdict(self), "deviations": self.deviations, "text": str(self)}

    def __str__(self) -> str:
        off = self.deviations
        worst = list(off)[:_LABELS_SHOWN]
        named = ", ".join(
            f"{label} {self.shares[label]:.1%} (target {self.target[label]:.1%}, {off[label]:+.1%})"
            for label in worst
        )
        more = f" and {len(off) - len(worst)} more labels" if len(off) > len(worst) else ""
        shards = f"; most from {', '.join(list(self.shards)[:_LABELS_SHOWN])}" if self.shards else ""
        return f"{self.rule}: {self.value:.4g} in batches {self.first} to {self.batch}: {named}{more}{shards}"


@dataclass(frozen=True)
class Look:
    """What the rules make of a few batches.

    Attributes:
        alarms: Those that fired, in the order of their batches.
        streaks: Of each rule, batches in a row that speak for a change of ``active``.
        active: Of each rule, whether its alarm is on.
    """

    alarms: tuple[Alarm, ...]
    streaks: tuple[int, ...]
    active: tuple[bool, ...]


class Alarms:
    """The rules of a run and what they remember.

    A rule fires once when its condition has held for ``patience`` consecutive batches after its grace,
    and can fire again only after the condition has been absent for as many. As with a mixture,
    :meth:`look` computes and :meth:`commit` records.

    Args:
        rules: The rules.
        names: The labels' names.
        target: Their target shares, float64 (labels,).
        window: Batches in the window; the grace of a rule that sets none.

    Attributes:
        fired: Alarms so far in the run, over resumptions.
    """

    def __init__(
        self, rules: Sequence[Rule], names: Sequence[str], target: npt.NDArray[np.float64], window: int
    ) -> None:
        self._rules = tuple(rules)
        self._names = tuple(names)
        self._target = target
        self._window = window
        self._streaks = (0,) * len(self._rules)
        self._active = (False,) * len(self._rules)
        self.fired = 0

    def look(self, first_batch: int, fold: Fold, evidence: npt.NDArray[np.float64] | None = None) -> Look:
        """Look at the batches of ``fold``, without recording them.

        Args:
            first_batch: Number of its first batch, counted from 0 over the whole run.
            fold: The batches.
            evidence: log10 of the evidence after each of them, float64 (batches,), where it is taken.
        """
        alarms: list[Alarm] = []
        memory: list[tuple[int, bool]] = []
        for rule, streak, active in zip(self._rules, self._streaks, self._active, strict=True):
            grace = self._window if rule.grace is None else rule.grace
            for row, value in enumerate(self._figure(rule, fold, evidence).tolist()):
                outside = not rule.below <= value <= rule.above
                over = active and rule.quiet is not None
                holds = fold.before + row >= grace and (value > rule.quiet if over else outside)
                streak = streak + 1 if holds != active else 0
                if streak >= rule.patience:
                    active, streak = holds, 0
                    if holds:
                        seen = None if evidence is None else float(evidence[row])
                        alarms.append(self._alarm(rule, first_batch, row, fold, value, seen))
            memory.append((streak, active))
        alarms.sort(key=lambda alarm: alarm.batch)
        return Look(tuple(alarms), tuple(m[0] for m in memory), tuple(m[1] for m in memory))

    def commit(self, look: Look) -> None:
        """Record what :meth:`look` made of the batches."""
        self._streaks, self._active = look.streaks, look.active
        self.fired += len(look.alarms)

    def _figure(
        self, rule: Rule, fold: Fold, evidence: npt.NDArray[np.float64] | None
    ) -> npt.NDArray[np.float64]:
        """The rule's figure at each batch, float64 (batches,)."""
        if rule.figure == "evidence" and evidence is not None:
            return evidence
        if rule.figure == "deviation":
            return deviation(fold.window, self._target)
        if rule.figure == "dispersion":
            return fold.dispersion
        return fold.window[:, self._names.index(rule.label)] / np.maximum(1, fold.window.sum(axis=1))

    def _alarm(
        self, rule: Rule, first_batch: int, row: int, fold: Fold, value: float, evidence: float | None
    ) -> Alarm:
        counts = fold.window[row]
        shares = (counts / max(1, int(counts.sum()))).tolist()
        return Alarm(
            str(rule),
            first_batch + row,
            first_batch + row - int(fold.lengths[row]) + 1,
            float(value),
            evidence,
            dict(zip(self._names, shares, strict=True)),
            dict(zip(self._names, self._target.tolist(), strict=True)),
        )

    def state_dict(self) -> dict[str, Any]:
        """What the rules remember, as plain types; rules are known by their text."""
        memory = zip(self._rules, self._streaks, self._active, strict=True)
        return {"fired": self.fired, "rules": {str(rule): [streak, on] for rule, streak, on in memory}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what rules of the same text remembered; new rules start afresh."""
        memory = [state["rules"].get(str(rule), (0, False)) for rule in self._rules]
        self._streaks = tuple(int(streak) for streak, _ in memory)
        self._active = tuple(bool(active) for _, active in memory)
        self.fired = int(state["fired"])
