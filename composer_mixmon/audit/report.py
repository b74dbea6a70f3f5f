"""The audit of a training YAML, put together."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from composer_mixmon.audit.along import Along, Part, Window, look_along, parts, worst_windows
from composer_mixmon.audit.plan import Options, Plan, make_plan
from composer_mixmon.audit.sweep import Sweep, sweep
from composer_mixmon.audit.traps import Trap, find_traps
from composer_mixmon.audit.watched import Advance, WatchedReplay
from composer_mixmon.replay import LabelRanges, Settings

__all__ = ["Audit", "Stage", "audit_yaml", "quiet"]

Stage = Callable[[str, int], AbstractContextManager[Advance]]
"""Opens a stage of the work, of so many samples (or settings); what it gives is told of the progress."""

Ints = npt.NDArray[np.int64]

_FORMAT = 1
_CELLS = 1 << 27  # counts held at a time: 1 GiB. A larger epoch is replayed piece by piece, each a whole pass
_SHARDS_SHOWN = 5
_ALARMS_LISTED = 100


@contextmanager
def quiet(what: str, total: int) -> Generator[Advance]:
    """A stage that nobody watches."""
    del what, total
    yield lambda done: None


@dataclass(frozen=True)
class WorstWindow:
    """A window far from its target.

    Attributes:
        window: Which, and how far.
        shares: Each label's share of it, float64 (labels,).
        shards: The shards that gave most of its samples, and how many they gave.
        distinct_shards: Shards that gave any.
    """

    window: Window
    shares: npt.NDArray[np.float64]
    shards: dict[str, int]
    distinct_shards: int


@dataclass(frozen=True)
class Audit:
    """What an audit finds.

    Attributes:
        plan: What was audited.
        along: Figures of every batch.
        parts: Of start, middle and end.
        worst: The worst windows.
        traps: Known traps that apply.
        ties: Places in the order that depend on the CPU and numpy's build, see
            :class:`~composer_mixmon.replay.Counted`.
        seconds: What computing the order took.
        sweep: Other settings, if asked for.
    """

    plan: Plan
    along: Along
    parts: list[Part]
    worst: list[WorstWindow]
    traps: list[Trap]
    ties: int
    seconds: float
    sweep: Sweep | None

    @property
    def biased(self) -> bool:
        """Whether the alarm would fire, or the target cannot be met within the tolerance."""
        return bool(self.along.alarms) or self.plan.finding is not None

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain types, for JSON; no number is NaN or infinite.

        Batches are numbered from 0 within the epoch; ranges are half-open except ``first`` and ``last`` of
        windows and alarms, which both lie within.
        """
        plan = self.plan
        return {
            "format": _FORMAT,
            "yaml": plan.path,
            "biased": self.biased,
            "finding": plan.finding,
            "epoch": plan.epoch,
            "epoch_batches": plan.epoch_batches,
            "batches": [plan.chosen.start, plan.chosen.stop],
            "global_batch": plan.global_batch,
            "world": asdict(plan.world),
            "settings": _settings(plan),
            "window": plan.config.window,
            "tolerance": plan.config.alarm.tolerance,
            "labels": _labels(plan),
            "parts": [asdict(part) for part in self.parts],
            "worst_windows": [_window(plan, worst) for worst in self.worst],
            "alarms": _alarms(self.along),
            "evidence": None if self.along.evidence is None else float(self.along.evidence.max()),
            "traps": [asdict(trap) for trap in self.traps],
            "ties": self.ties,
            "seconds": round(self.seconds, 3),
            "sweep": None if self.sweep is None else self.sweep.to_dict(),
        }


def audit_yaml(path: str, options: Options, with_sweep: bool = False, stage: Stage = quiet) -> Audit:
    """Compute what a training YAML will feed, and judge it.

    Args:
        path: The YAML.
        options: What else is known of the run.
        with_sweep: Whether to try other shuffles too.
        stage: Told of the progress.

    Raises:
        MixmonError: Whatever is wrong with the YAML, the index files or the options.
    """
    plan = make_plan(path, options)
    began = time.perf_counter()
    along, ties = look(plan, plan.settings, stage)
    seconds = time.perf_counter() - began
    worst = _explain(plan, worst_windows(along), stage)
    traps = find_traps(plan, plan.replay())
    swept = None
    if with_sweep:
        swept = sweep(plan, lambda settings: look(plan, settings, quiet), stage)
    return Audit(plan, along, parts(along), worst, traps, ties, seconds, swept)


def look(plan: Plan, settings: Settings, stage: Stage) -> tuple[Along, int]:
    """Figures of the chosen batches, and the ties of their order.

    Args:
        plan: What is audited.
        settings: The plan's, or others.
        stage: Told of the progress.
    """
    batches = plan.replay(settings).batches  # other settings may pad the epoch to another number
    to_the_end = plan.chosen.stop == plan.epoch_batches
    chosen = range(batches)[plan.chosen.start : None if to_the_end else plan.chosen.stop]
    step = max(1, _CELLS // plan.labels.count)
    pieces = [
        slice(begin, min(begin + step, chosen.stop)) for begin in range(chosen.start, chosen.stop, step)
    ]
    ties = 0

    def counts(replay: WatchedReplay) -> Iterator[npt.NDArray[np.int64]]:
        nonlocal ties
        for piece in pieces:
            counted = replay.counts(plan.labels, piece)
            ties += counted.ties
            yield counted.counts

    config = plan.config
    with stage("order", len(pieces) * settings.epoch_size) as advance:
        along = look_along(
            counts(plan.replay(settings, advance)),
            chosen.start,
            len(chosen),
            plan.phases,
            plan.names,
            config.window,
            config.alarm.rules,
        )
    return along, ties


def _explain(plan: Plan, windows: list[Window], stage: Stage) -> list[WorstWindow]:
    """Name the shards of windows and the shares they make, all in one pass over the order."""
    # A piece is a part of one shard with one label, so that both can be told from it.
    ends = np.union1d(np.cumsum(plan.settings.shard_sizes()), plan.labels.ends)
    ends = ends[ends > 0]
    pieces = LabelRanges(ends, np.arange(len(ends)), len(ends))
    label = plan.labels.of_ids(ends - 1)
    shard = np.searchsorted(plan.shards.offsets, ends - 1, side="right") - 1
    with stage("worst windows", plan.settings.epoch_size) as advance:
        batches = chain.from_iterable(range(window.first, window.last + 1) for window in windows)
        piece = plan.replay(advance=advance).only(batches).by_node(pieces)
    found: list[WorstWindow] = []
    for window, mine in zip(windows, np.split(piece, np.cumsum([len(w) for w in windows])[:-1]), strict=True):
        counts = np.bincount(mine[mine >= 0], minlength=len(ends)) // (plan.settings.replication or 1)
        found.append(
            _worst(
                plan, window, _sums(label, counts, len(plan.names)), _sums(shard, counts, len(plan.shards))
            )
        )
    return found


def _sums(of: Ints, counts: Ints, groups: int) -> Ints:
    total = np.zeros(groups, np.int64)
    np.add.at(total, of, counts)
    return total


def _worst(plan: Plan, window: Window, labels: Ints, shards: Ints) -> WorstWindow:
    most: list[int] = np.argsort(-shards, kind="stable")[:_SHARDS_SHOWN].tolist()
    return WorstWindow(
        window,
        labels / max(1, int(labels.sum())),
        {plan.shards.names[s]: int(shards[s]) for s in most if shards[s]},
        int(np.count_nonzero(shards)),
    )


def _settings(plan: Plan) -> dict[str, Any]:
    lists = ("format", "samples_per_shard", "shards_per_stream", "choose", "proportion")
    plain = {name: value for name, value in plan.settings.to_dict().items() if name not in lists}
    return plain | {
        "defaults": "ModernBERT" if plan.modernbert else "streaming",
        "streams": len(plan.shards.streams),
        "shards": len(plan.shards),
        "samples": plan.shards.total,
        "epoch_size": plan.settings.epoch_size,
    }


def _labels(plan: Plan) -> list[dict[str, Any]]:
    columns = zip(
        plan.names,
        plan.prepared.label_counts.sum(axis=0).tolist(),
        plan.prepared.own.tolist(),
        plan.prepared.targets.T.tolist(),
        strict=True,
    )
    return [
        {"label": name, "samples": samples, "own": own, "targets": targets}
        for name, samples, own, targets in columns
    ]


def _window(plan: Plan, worst: WorstWindow) -> dict[str, Any]:
    return asdict(worst.window) | {
        "shares": dict(zip(plan.names, worst.shares.tolist(), strict=True)),
        "shards": worst.shards,
        "distinct_shards": worst.distinct_shards,
    }


def _alarms(along: Along) -> dict[str, Any]:
    first = along.alarms[0].to_dict() if along.alarms else None
    return {
        "count": len(along.alarms),
        "batches": [alarm.batch for alarm in along.alarms[:_ALARMS_LISTED]],
        "first": first,
    }
