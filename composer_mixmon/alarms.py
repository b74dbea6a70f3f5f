"""When to speak up: thresholds on the window's figures, with patience, grace and hysteresis.

Rules look at every batch, in order, whether they are told of one batch at a time or of a hundred.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from composer_mixmon.config import Rule
from composer_mixmon.mixture import Fold
from composer_mixmon.statistics import deviation

__all__ = ["Alarm", "Alarms", "Look"]

_LABELS_SHOWN = 3


@dataclass(frozen=True)
class Alarm:
    """A rule that fired.

    Attributes:
        rule: The rule, as text.
        batch: Number of the batch at which it fired, counted from 0 over the whole run.
        first: Number of the first batch of the window that it looked at.
        value: The rule's figure there.
        shares: Each label's share of that window.
        target: Each label's target.
    """

    rule: str
    batch: int
    first: int
    value: float
    shares: dict[str, float]
    target: dict[str, float]

    def __str__(self) -> str:
        off = {label: share - self.target[label] for label, share in self.shares.items()}
        worst = sorted(off, key=lambda label: -abs(off[label]))[:_LABELS_SHOWN]
        named = ", ".join(
            f"{label} {self.shares[label]:.1%} (target {self.target[label]:.1%}, {off[label]:+.1%})"
            for label in worst
        )
        more = f" and {len(off) - len(worst)} more labels" if len(off) > len(worst) else ""
        return f"{self.rule}: {self.value:.4g} in batches {self.first} to {self.batch}: {named}{more}"


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

    def look(self, first_batch: int, fold: Fold) -> Look:
        """Look at the batches of ``fold``, without recording them.

        Args:
            first_batch: Number of its first batch, counted from 0 over the whole run.
            fold: The batches.
        """
        alarms: list[Alarm] = []
        memory: list[tuple[int, bool]] = []
        for rule, streak, active in zip(self._rules, self._streaks, self._active, strict=True):
            values = self._figure(rule, fold)
            grace = self._window if rule.grace is None else rule.grace
            for row, value in enumerate(values.tolist()):
                holds = fold.before + row >= grace and not rule.below <= value <= rule.above
                streak = streak + 1 if holds != active else 0
                if streak >= rule.patience:
                    active, streak = holds, 0
                    if holds:
                        alarms.append(self._alarm(rule, first_batch + row, fold.window[row], value))
            memory.append((streak, active))
        alarms.sort(key=lambda alarm: alarm.batch)
        return Look(tuple(alarms), tuple(m[0] for m in memory), tuple(m[1] for m in memory))

    def commit(self, look: Look) -> None:
        """Record what :meth:`look` made of the batches."""
        self._streaks, self._active = look.streaks, look.active
        self.fired += len(look.alarms)

    def _figure(self, rule: Rule, fold: Fold) -> npt.NDArray[np.float64]:
        """The rule's figure at each batch, float64 (batches,)."""
        if rule.figure == "deviation":
            return deviation(fold.window, self._target)
        if rule.figure == "dispersion":
            return fold.dispersion
        return fold.window[:, self._names.index(rule.label)] / np.maximum(1, fold.window.sum(axis=1))

    def _alarm(self, rule: Rule, batch: int, counts: npt.NDArray[np.int64], value: float) -> Alarm:
        shares = (counts / max(1, int(counts.sum()))).tolist()
        first = max(0, batch - self._window + 1)
        target = dict(zip(self._names, self._target.tolist(), strict=True))
        return Alarm(
            str(rule), batch, first, float(value), dict(zip(self._names, shares, strict=True)), target
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
