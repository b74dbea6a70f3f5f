"""What is meant to come, and what evidence is taken against: for a live run and for the audit alike."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from composer_mixmon.config import AlarmConfig
from composer_mixmon.evidence import EvidenceSettings
from composer_mixmon.monitor import Expectation
from composer_mixmon.resolve import cannot_meet

__all__ = ["expectations"]

Floats = npt.NDArray[np.float64]


def expectations(
    alarm: AlarmConfig,
    names: Sequence[str],
    own: Floats,
    targets: Sequence[Floats],
    unit: float = 1,
    rounding: float = 0.0,
) -> tuple[str | None, list[Expectation]]:
    """What is meant to come in each phase of a run.

    A target that the dataset is bound to miss is a finding of its own, made once: evidence is then taken
    against what the dataset can do, or it would say the same again at every batch. A single label has every
    sample, so that nothing speaks for or against it.

    Args:
        alarm: The alarm's settings.
        names: The labels' names.
        own: The dataset's own shares, float64 (labels,).
        targets: Each phase's target, float64 (labels,).
        unit: As for :class:`~composer_mixmon.evidence.EvidenceSettings`.
        rounding: As there.

    Returns:
        What is wrong with the target, or ``None``; and an expectation for each phase.
    """
    if alarm.tolerance is None or len(names) == 1:
        return None, [Expectation(target) for target in targets]
    finding = cannot_meet(targets[0], names, own, alarm.tolerance) if len(targets) == 1 else None
    against = functools.partial(
        EvidenceSettings,
        tolerance=alarm.tolerance,
        false_alarm_every=alarm.false_alarm_every,
        unit=unit,
        rounding=rounding,
    )
    return finding, [Expectation(target, against(own if finding else target)) for target in targets]
