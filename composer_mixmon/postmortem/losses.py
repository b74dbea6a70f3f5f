"""What a loss did, and what the mixture has to do with it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from composer_mixmon.postmortem.course import Course
from composer_mixmon.postmortem.effect import Relation, coherence_at, relate
from composer_mixmon.postmortem.findings import LossFindings, Onset
from composer_mixmon.postmortem.onset import Left, find_onset, find_spikes
from composer_mixmon.postmortem.rows import Blocks
from composer_mixmon.run_record import RunRecord

__all__ = ["Losses", "look_at_loss"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Losses:
    """What a loss did.

    Attributes:
        used: The blocks whose loss was used: int64 (used,).
        trend: Its trend there: float64 (used,).
        findings: The same for the reader.
    """

    used: Ints
    trend: Floats
    findings: LossFindings


def look_at_loss(record: RunRecord, blocks: Blocks, course: Course | None) -> Losses | None:
    """Look at a loss up to where it left its course for good.

    Args:
        record: The run.
        blocks: Its rows, put together.
        course: What the mixture did, if it is known.

    Returns:
        ``None`` where no loss is known.
    """
    if not np.isfinite(record.loss).any():
        return None
    left_course = find_onset(record.loss)
    stop = int(record.first[left_course.row]) if left_course else int(blocks.stop[-1])
    known = np.isfinite(blocks.loss) & (blocks.stop <= stop)
    if course is not None:
        assert blocks.counts is not None
        known &= blocks.counts.sum(axis=1) > 0
    used = np.flatnonzero(known)
    relation = _relate(record, blocks, course, used)
    coherence = None
    if course and course.swing and relation.explained is not None:
        swing = course.swing
        coherence = coherence_at(swing.period, relation.left, course.shares[used, swing.label])
        if coherence is not None:
            coherence = replace(coherence, period=coherence.period * blocks.span)
    findings = LossFindings(
        rows=len(used) * blocks.rows,
        last=stop - 1,
        trend_share=relation.trend_share,
        explained=relation.explained,
        p=relation.p,
        lag=None if relation.lag is None else round(relation.lag * blocks.span),
        coherence=coherence,
        effects=relation.effects,
        onset=_onset(left_course, record, blocks, course) if left_course else None,
        spikes=tuple(int(blocks.first[used[row]]) for row in find_spikes(blocks.loss[used] - relation.trend)),
    )
    return Losses(used, relation.trend, findings)


def _relate(record: RunRecord, blocks: Blocks, course: Course | None, used: Ints) -> Relation:
    if not len(used):
        return Relation(np.zeros(0), np.zeros(0), 0.0)
    if course is None:
        return relate(blocks.loss[used], np.zeros((len(used), 0)), ())
    swing = (course.swing.period, course.swing.stay) if course.swing else (0.0, 0.0)
    return relate(blocks.loss[used], course.shares[used], record.names, *swing)


def _onset(left: Left, record: RunRecord, blocks: Blocks, course: Course | None) -> Onset:
    batch = int(record.first[left.row])
    deviation = usual = None
    if course is not None:
        along = course.along
        place = int(np.searchsorted(blocks.first, batch, side="right")) - 1
        around = min(
            place + (along.window + 1) // 2, len(along) - 1
        )  # the window with the batch in its middle
        before = along.excess[: place + 1]
        before = before[np.isfinite(before)]
        if len(before):
            deviation = float(along.deviation[around])
            usual = float((before < along.excess[around]).mean())
    low = left.before if np.isfinite(left.before) else 0.0
    return Onset(batch, left.kind, low, left.after, deviation, usual)
