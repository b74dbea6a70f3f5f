"""The post-mortem of a run, put together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from composer_mixmon.audit import Options, audit_yaml
from composer_mixmon.errors import MixmonError
from composer_mixmon.postmortem.course import Course, follow
from composer_mixmon.postmortem.findings import Findings, MixtureFindings, SeeSaw, WorstWindow
from composer_mixmon.postmortem.kept import check_order
from composer_mixmon.postmortem.losses import look_at_loss
from composer_mixmon.postmortem.rows import Blocks, combine
from composer_mixmon.postmortem.seesaw import relations
from composer_mixmon.postmortem.series import make_series
from composer_mixmon.postmortem.verdict import advise, judge
from composer_mixmon.run_record import RunRecord
from composer_mixmon.sources import Given, RunOrder, ShardHeat, read_order, read_run

__all__ = ["Stage", "diagnose"]

Advance = Callable[[int], object]
Stage = Callable[[str, int | None], AbstractContextManager[Advance]]
"""Opens a stage of the work, of so many samples; what it gives is told of the progress."""

_UNASKED = 30_000_000  # samples that are replayed although nobody gave a YAML: a few seconds
_TRIED = 20_000_000  # samples of an epoch for which other settings are tried
_LOOKED_UP = 4_000_000  # samples of a window whose shards are looked up
_SHARDS = 5
_BROKEN = 1e30  # a loss beyond is as good as infinite


@dataclass(frozen=True)
class _Replayed:
    """What only a replay knows."""

    order: RunOrder | None = None
    hashes: npt.NDArray[np.uint64] | None = None
    heat: ShardHeat | None = None
    remarks: tuple[str, ...] = ()


def diagnose(run: str | None, given: Given, stage: Stage) -> Findings:
    """Find out whether the data are why a run's loss swings or diverges.

    Args:
        run: What is left of it, as for :func:`~composer_mixmon.sources.read_run`; ``None``: the YAML alone.
        given: What the command line says beside it.
        stage: Told of the progress.

    Raises:
        MixmonError: There is nothing that can be analysed.
    """
    with stage("reading", None) as advance:
        record = _sound(read_run(run, given, advance), given)
    replayed = _replay(record, given, stage)
    blocks = combine(record)
    course = follow(record, blocks) if record.counts is not None and len(blocks) else None
    losses = look_at_loss(record, blocks, course)
    order = check_order(record, replayed.order, replayed.hashes)
    mixture = _mixture(record, course, blocks, replayed.order) if course else None
    loss = losses.findings if losses else None
    verdict = judge(mixture, loss, order)
    name = run or str(given.config)
    advice, yaml = _advise(verdict.kind, given, record, replayed.order, stage)
    times = record.time[np.isfinite(record.time)] if len(record.time) else record.time
    return Findings(
        run=name,
        source=record.source,
        batches=int(blocks.stop[-1]) if len(blocks) else 0,
        rows=len(record.first),
        started=float(times[0]) if len(times) else None,
        ended=float(times[-1]) if len(times) else None,
        verdict=verdict,
        mixture=mixture,
        loss=loss,
        order=order,
        advice=(*advise(verdict, mixture, loss, order, name, bool(yaml)), *advice),
        yaml=yaml,
        settings=record.settings,
        remarks=(*record.remarks, *replayed.remarks),
        series=make_series(record, blocks, course, losses, replayed.heat),
    )


def _sound(record: RunRecord, given: Given) -> RunRecord:
    """The record with losses beyond all reason as broken ones, and remarks on what is missing or not used."""
    remarks = list(record.remarks)
    if len(record.first):
        missing = int(record.first[0] + (record.first[1:] - (record.first + record.span)[:-1]).sum())
        if missing > 0 and record.counts is not None:
            remarks.append(f"{missing:,} batches are missing from the record")
    if given.labels is not None and "replay" not in record.source:
        remarks.append("--labels is not used: the labels are those that were recorded")
    loss = np.where(np.abs(record.loss) > _BROKEN, np.inf, record.loss)
    return replace(record, loss=loss, remarks=tuple(remarks))


def _replay(record: RunRecord, given: Given, stage: Stage) -> _Replayed:
    """Compute the order, where the settings are known and it is worth the time."""
    if given.config is None and not record.settings.get("dataset"):
        return _Replayed()
    try:
        order = read_order(record, given)
    except MixmonError as error:
        return _Replayed(remarks=(f"the order could not be computed: {error}",))
    samples = sum(leg.batches * leg.replay().global_batch for leg in order.legs)
    if samples > _UNASKED and given.config is None:
        remark = (
            f"the order, of {samples:,} samples, was not computed: give --config TRAIN.yaml to have it proved"
        )
        return _Replayed(order, remarks=(remark,))
    hashes = None
    if record.order is not None:
        with stage("order hashes", samples) as advance:
            hashes = order.hashes(advance=advance)
    with stage("shards", None):
        heat = order.shard_heat()
    return _Replayed(order, hashes, heat)


def _mixture(record: RunRecord, course: Course, blocks: Blocks, order: RunOrder | None) -> MixtureFindings:
    """What the mixture did, with what only the order's settings tell."""
    findings = course.findings
    see_saw = None
    if course.swing is not None:
        swing, span = course.swing, blocks.span
        period, stay = swing.period * span, swing.stay * span
        lengths = {"one swing": period, "the time for which the mixture stays as it is": stay}
        see_saw = SeeSaw(
            label=record.names[swing.label],
            period=period,
            cycles=swing.cycles,
            stay=stay,
            amplitude=swing.amplitude,
            relations=relations(lengths, _known_lengths(order)) if order else (),
        )
    worst = tuple(replace(one, shards=_shards_of(one, record, order)) for one in findings.worst)
    return replace(findings, see_saw=see_saw, worst=worst)


def _known_lengths(order: RunOrder) -> dict[str, float]:
    """How many batches a shard, a shuffle block and an epoch last, at the run's end.

    Each canonical node reads its own shard, so that one lasts as many times longer as there are nodes.
    """
    leg = order.legs[-1]
    settings, batch = leg.settings, leg.replay().global_batch
    nodes = settings.num_canonical_nodes if settings.shuffle else 1
    lengths = {"shard": float(np.median(order.shards.samples)) * nodes / batch}
    if settings.shuffle and settings.shuffle_algo in ("py1e", "py1br"):
        block = min(settings.shuffle_block_size, -(-settings.epoch_size // nodes))
        lengths["shuffle block"] = block * nodes / batch
    return lengths | {"epoch": settings.epoch_size / batch}


def _shards_of(window: WorstWindow, record: RunRecord, order: RunOrder | None) -> dict[str, int]:
    """The shards that gave most of a window: by replay, or as an alarm named them."""
    if order is not None and order.shards.total <= _UNASKED:
        found = order.shards_of(window.first, window.last + 1, _LOOKED_UP)
        most = np.argsort(-found, kind="stable")[:_SHARDS].tolist()
        return {order.shards.names[shard]: int(found[shard]) for shard in most if found[shard]}
    for alarm in record.alarms:
        if alarm.get("first", -1) <= window.last and window.first <= alarm.get("batch", -1):
            shards: dict[str, int] = alarm.get("shards") or {}
            return dict(list(shards.items())[:_SHARDS])
    return {}


def _advise(
    kind: str, given: Given, record: RunRecord, order: RunOrder | None, stage: Stage
) -> tuple[list[str], str]:
    """What the audit of the YAML says: its traps and settings that mix better."""
    if kind != "data" or given.config is None or order is None:
        return [], ""
    leg = order.legs[-1]
    if leg.settings.epoch_size > _TRIED:
        return [], ""
    world = leg.world
    options = Options(world.nodes, world.ranks_per_node, world.workers_per_rank, labels=given.labels)
    found = audit_yaml(given.config, options, with_sweep=True, stage=stage)
    traps = [f"{trap.text}." for trap in found.traps]
    sweep = found.sweep
    if sweep is None or not sweep.healthy:
        return traps, ""
    return [*traps, "These settings mix the same data without an alarm (mixmon audit --sweep):"], sweep.yaml
