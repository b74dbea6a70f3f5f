"""From what loggers wrote to a :class:`~composer_mixmon.run_record.RunRecord`.

mixmon logs each label's share of the run so far. That share times the samples so far is a whole number: the
label's count. So the counts between any two rows come out exactly, even if rows between them are lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from composer_mixmon.logged_labels import LoggedLabels
from composer_mixmon.run_record import Resumption, RunRecord
from composer_mixmon.sources.logged import LOSS, RATIO, TIME, Logged, Series
from composer_mixmon.sources.settings import global_batch, logged_labels, read_targets, replicas

__all__ = ["record_of"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# How far a share times the samples may be from a whole number, beside the share's rounding.
_EXACT = 0.01


@dataclass(frozen=True)
class _Mixture:
    """Counts of each label in the rows that end before ``stops``; ``None`` where they cannot be told."""

    names: tuple[str, ...]
    stops: Ints
    counts: Ints | None
    remarks: tuple[str, ...] = ()


def record_of(logged: Logged, samples: int | None = None) -> RunRecord:
    """Make a run's record.

    Args:
        logged: What its loggers wrote.
        samples: Samples of a global batch, where the run's config does not tell; ``None`` if not known.
    """
    settings = _mapping(logged.config.get("mixmon"))
    mixture = _mixture(logged, settings, global_batch(settings) or samples)
    loss = logged.column(LOSS)
    if mixture.counts is None:
        first, span, counts = loss.steps, np.ones_like(loss.steps), None
    else:
        first = np.append(0, mixture.stops[:-1])
        span, counts = mixture.stops - first, mixture.counts
    remarks = [*logged.remarks, *mixture.remarks]
    if counts is not None and len(loss.steps) and loss.steps[-1] >= first[-1] + span[-1]:
        beyond = int((loss.steps >= first[-1] + span[-1]).sum())
        remarks.append(
            f"the mixture was logged up to batch {first[-1] + span[-1] - 1}; {beyond} losses come later"
        )
    targets, remark = read_targets(settings, logged.config)
    labels = logged_labels(settings)
    if counts is not None and labels is not None and labels.labels == mixture.names:
        targets = tuple(replace(target, shares=labels.sums(target.shares)) for target in targets)
        remarks += _together(labels)
    alarms = logged.column("mixmon/alarms").values
    if len(alarms) and alarms[-1]:
        remarks.append(f"mixmon raised {alarms[-1]:.0f} alarms during the run")
    epoch = logged.column("time/epoch").until(first)
    return RunRecord(
        source=logged.source,
        names=mixture.names if counts is not None else (),
        first=first,
        span=span,
        counts=counts,
        loss=_means(loss, first, first + span),
        epoch=np.where(np.isnan(epoch), -1, epoch).astype(np.int64),
        time=logged.column(TIME).until(first + span - 1),
        targets=targets,
        resumptions=tuple(_resumption(logged, *start) for start in logged.starts),
        settings=dict(settings),
        remarks=(*remarks, *remark),
    )


def _mixture(logged: Logged, settings: Mapping[str, Any], samples: int | None) -> _Mixture:
    keys = {
        key.removeprefix(RATIO): series for key, series in logged.columns.items() if key.startswith(RATIO)
    }
    nothing = _Mixture((), np.zeros(0, np.int64), None)
    if not keys:
        return nothing
    told = logged_labels(settings)
    labels = {name: name for name in keys}
    if told is not None and set(told.names) == keys.keys():
        labels = dict(zip(told.names, told.labels, strict=True))
    names = tuple(labels.values())
    steps = _common([keys[name].steps for name in labels])
    if not len(steps):
        return nothing
    shares = np.stack([keys[name].at(steps) for name in labels], axis=1)
    stops = _stops(steps, logged.column(LOSS), settings.get("log_interval"))
    seen = _samples_before(stops, logged.column("time/sample"), samples, replicas(settings))
    if np.isnan(seen).any():
        remark = (
            "the mixture was logged, but not the samples of a batch, so it cannot be counted: give --config"
        )
        return _Mixture(names, stops, None, (remark,))
    return _count(names, stops, shares, seen, logged.precision)


def _together(labels: LoggedLabels) -> list[str]:
    """A remark, where labels were logged together."""
    own = len(labels.labels) - 1
    if labels.chosen is None:
        return []
    return [
        f"of {labels.total} labels, {own} were logged one by one and the rest together, as "
        f"{labels.labels[-1]!r}: --config, or the run's ledger, tells them apart"
    ]


def _count(names: tuple[str, ...], stops: Ints, shares: Floats, seen: Floats, precision: float) -> _Mixture:
    """Counts from each label's share of the run so far, float64 (rows, labels), and the samples so far."""
    totals = shares * seen[:, None]
    whole = np.rint(totals)
    counts = np.diff(whole, axis=0, prepend=0)
    rows = np.diff(stops, prepend=0) > 0
    off = float(np.abs(totals - whole).max())
    rounding = float(seen.max()) * precision
    if (counts < -rounding - _EXACT).any() or not np.isfinite(whole).all():
        remark = (
            "the logged shares do not fit the samples: mixmon's books were begun afresh, or rows are damaged"
        )
        return _Mixture(names, stops, None, (remark,))
    remarks: tuple[str, ...] = ()
    if off > _EXACT + min(rounding, 0.25):
        remarks = (
            f"the logged counts are approximate: within {max(off, rounding):.2g} samples of whole ones",
        )
    return _Mixture(names, stops[rows], np.maximum(counts, 0).astype(np.int64)[rows], remarks)


def _stops(steps: Ints, loss: Series, interval: Any) -> Ints:
    """The batch before which each row of figures ends.

    A row at step s holds batch s where that ends an interval. Where an interval is closed early, because the
    run or a part of it ends, it is logged at the step of the batch after it.
    """
    last = int(loss.steps[-1]) if len(loss.steps) else int(steps[-1])
    if not isinstance(interval, int) or interval < 1:
        interval = math.gcd(*(steps[steps <= last] + 1).tolist()) or 1
    return np.where(((steps + 1) % interval == 0) & (steps <= last), steps + 1, steps)


def _samples_before(stops: Ints, logged: Series, samples: int | None, copies: int) -> Floats:
    """Samples of the run before each batch, those that go to several ranks counted once; NaN if unknown.

    Composer logs them at every batch; from the last that is known on, whole batches are added.
    """
    place = np.searchsorted(logged.steps, stops, side="right") - 1
    known = place >= 0
    seen = np.where(known, logged.values[place] / copies if len(logged.steps) else 0.0, 0.0)
    missing = stops - (np.where(known, logged.steps[place], 0) if len(logged.steps) else 0)
    return seen + np.where(missing > 0, missing * (math.nan if samples is None else samples), 0.0)


def _common(steps: Sequence[Ints]) -> Ints:
    found = steps[0]
    for others in steps[1:]:
        if not np.array_equal(found, others):
            found = np.intersect1d(found, others)
    return found


def _means(loss: Series, first: Ints, stop: Ints) -> Floats:
    """Mean loss of each row, NaN where there is none: float64 (rows,)."""
    begin, end = np.searchsorted(loss.steps, first), np.searchsorted(loss.steps, stop)
    means = np.full(len(first), np.nan)
    some = np.flatnonzero(end > begin)
    if len(some):
        edges = np.stack([begin[some], end[some]], axis=1).ravel()
        with np.errstate(invalid="ignore"):  # infinite losses of both signs
            sums = np.add.reduceat(np.append(loss.values, 0.0), edges)[::2]
        means[some] = sums / (end - begin)[some]
    return means


def _resumption(logged: Logged, batch: int, discarded: int) -> Resumption:
    at = np.array([batch])
    epoch = logged.column("time/epoch").until(at)[0]
    sample = logged.column("time/sample_in_epoch").at(at)[0]
    known = not (math.isnan(epoch) or math.isnan(sample))
    return (
        Resumption(batch, int(epoch), int(sample), discarded)
        if known
        else Resumption(batch, discarded=discarded)
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
