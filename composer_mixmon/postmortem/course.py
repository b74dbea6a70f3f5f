"""What a mixture did: the books, the rules and the evidence of a live run, kept over a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from composer_mixmon.alarms import Alarm
from composer_mixmon.audit.along import Along, look_along, worst_windows
from composer_mixmon.config import AlarmConfig, parse_alarm
from composer_mixmon.evidence import batching_effects
from composer_mixmon.expect import expectations
from composer_mixmon.monitor import Expectation
from composer_mixmon.postmortem.findings import Drift, MixtureFindings, WorstWindow
from composer_mixmon.postmortem.rows import Blocks, shares_of
from composer_mixmon.postmortem.seesaw import Swing, find_drift, find_swing
from composer_mixmon.run_record import RunRecord, Target
from composer_mixmon.sources.settings import global_batch
from composer_mixmon.statistics import chi_square_per_degree, deviation

__all__ = ["Course", "follow"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_WINDOW = 100  # batches: the monitor's default
_AT_ONCE = 1 << 16  # rows whose chi² is computed at a time
_ALARMS = 20


@dataclass(frozen=True)
class Course:
    """What a mixture did.

    Attributes:
        along: Figures of every block; it counts blocks, not batches.
        swing: How it swings, in blocks, or ``None``.
        shares: Each label's share of each block: float64 (blocks, labels).
        spread: chi² per degree of freedom of each row of the record: float64 (rows,).
        findings: The same for the reader, but for what only a replay knows.
    """

    along: Along
    swing: Swing | None
    shares: Floats
    spread: Floats
    findings: MixtureFindings


def follow(record: RunRecord, blocks: Blocks) -> Course:
    """Follow a mixture through a run.

    Args:
        record: The run; its counts must be known.
        blocks: Its rows, put together.
    """
    assert record.counts is not None
    assert blocks.counts is not None
    known = bool(record.targets)
    targets = record.targets or (Target(0, _ratio(record.counts)),)
    alarm = _alarm_of(record.settings)
    tolerance = alarm.tolerance or 0.0
    window = max(1, round((record.settings.get("window") or _WINDOW) / blocks.span))
    finding, meant_to_come = _expect(record, targets, alarm, blocks.span)
    starts = [int(np.searchsorted(blocks.first, target.first)) for target in targets]
    phases = list(zip(starts, meant_to_come, strict=True))
    along = look_along([blocks.counts], 0, len(blocks), phases, record.names, window, ())
    meant = _targets_of(targets, blocks.first)
    shares, samples = shares_of(blocks.counts), blocks.counts.sum(axis=1)
    swing = find_swing(shares, samples, meant)
    spread = _spread(record, targets)
    findings = MixtureFindings(
        target=_named(record.names, targets[-1].shares),
        target_known=known,
        ratio=_named(record.names, _ratio(record.counts)),
        deviation=float(deviation(record.counts.sum(axis=0), samples @ meant / max(1, int(samples.sum())))),
        dispersion=float(spread[record.counts.sum(axis=1) > 0].mean()) if samples.any() else 1.0,
        row=int(np.median(record.span)),
        window=round(window * blocks.span),
        tolerance=tolerance,
        unmet=finding,
        worst=tuple(_worst(along, blocks, record.names)),
        alarms=tuple(_in_batches(alarm, blocks) for alarm in along.alarms[:_ALARMS]),
        alarms_recorded=len(record.alarms),
        see_saw=None,
        drift=tuple(
            Drift(record.names[k], a, b) for k, a, b in find_drift(shares, samples, meant, tolerance)
        ),
    )
    return Course(along, swing, shares, spread, findings)


def _expect(
    record: RunRecord, targets: tuple[Target, ...], alarm: AlarmConfig, span: float
) -> tuple[str | None, list[Expectation]]:
    """What was meant to come; a block of several batches is one look, so that the promise is one of fewer."""
    settings = record.settings
    own = np.array(settings.get("own_shares") or (), np.float64)
    if tuple(settings.get("labels") or ()) != record.names or own.shape != targets[0].shares.shape:
        own = targets[0].shares
    alarm = replace(alarm, false_alarm_every=max(1, round(alarm.false_alarm_every / span)))
    batch, device = global_batch(settings), _mapping(settings.get("dataset")).get("batch_size")
    method = str(_mapping(settings.get("dataset")).get("batching_method"))
    unit, rounding = batching_effects(method, device, batch) if batch and device else (1, 0.0)
    return expectations(alarm, record.names, own, [t.shares for t in targets], unit, rounding)


def _alarm_of(settings: Mapping[str, Any]) -> AlarmConfig:
    """The alarm as the run's config tells it, but for its rules and actions; by default the monitor's."""
    told = _mapping(settings.get("alarm"))
    known = {name: told[name] for name in ("tolerance", "false_alarm_every") if told.get(name) is not None}
    return parse_alarm(known)


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _ratio(counts: Ints) -> Floats:
    run = counts.sum(axis=0)
    total = int(run.sum())
    return run / total if total else np.full(len(run), 1 / max(1, len(run)))


def _named(names: tuple[str, ...], shares: Floats) -> dict[str, float]:
    return dict(zip(names, shares.tolist(), strict=True))


def _targets_of(targets: tuple[Target, ...], first: Ints) -> Floats:
    """Each row's target: float64 (rows, labels)."""
    begins = np.array([target.first for target in targets])
    phase = np.maximum(np.searchsorted(begins, first, side="right") - 1, 0)
    return np.stack([target.shares for target in targets])[phase]


def _spread(record: RunRecord, targets: tuple[Target, ...]) -> Floats:
    assert record.counts is not None
    spread = np.ones(len(record.first))
    begins = [0, *(int(np.searchsorted(record.first, t.first)) for t in targets[1:]), len(record.first)]
    for target, begin, end in zip(targets, begins[:-1], begins[1:], strict=True):
        for start in range(begin, end, _AT_ONCE):
            here = slice(start, min(start + _AT_ONCE, end))
            spread[here] = chi_square_per_degree(record.counts[here], target.shares)
    return spread


def _worst(along: Along, blocks: Blocks, names: tuple[str, ...]) -> list[WorstWindow]:
    assert blocks.counts is not None
    found: list[WorstWindow] = []
    for window in worst_windows(along):
        counts = blocks.counts[window.first : window.last + 1].sum(axis=0)
        first, last = int(blocks.first[window.first]), int(blocks.stop[window.last]) - 1
        shares = _named(names, counts / max(1, int(counts.sum())))
        found.append(WorstWindow(first, last, window.deviation, window.noise_floor, shares))
    return found


def _in_batches(alarm: Alarm, blocks: Blocks) -> Alarm:
    first, last = int(blocks.first[max(alarm.first, 0)]), int(blocks.stop[alarm.batch]) - 1
    return replace(alarm, first=first, batch=last)
