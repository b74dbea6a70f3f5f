"""From a training YAML, or a run's config, and index files to the order of a run."""

# The ranges of a LabelMap have no public name.
# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from composer_mixmon.audit.plan import Options, Plan, make_plan
from composer_mixmon.audit.times import first_batch, read_duration
from composer_mixmon.errors import ConfigError
from composer_mixmon.fetch import fetch_index
from composer_mixmon.labels import LabelMap, label_by_stream
from composer_mixmon.replay import LabelRanges, Settings, World
from composer_mixmon.run_record import Resumption, RunRecord, Target
from composer_mixmon.shards import ShardTable
from composer_mixmon.sources.checkpoint import Checkpoint
from composer_mixmon.sources.given import Given
from composer_mixmon.sources.legs import lay_out
from composer_mixmon.sources.order import Advance, RunOrder
from composer_mixmon.sources.settings import (
    check_indices,
    differences,
    logged_world,
    order_settings,
    stream_sources,
)

_MOST = 100_000_000  # batches: steps beyond are samples or tokens, or damaged

__all__ = ["book_remarks", "read_order", "with_replay"]


def read_order(record: RunRecord, given: Given) -> RunOrder:
    """Compute what a run was fed from its settings.

    Args:
        record: The run: its settings, its length and where it was resumed.
        given: Training YAML, checkpoints, processes and labels.

    Raises:
        MixmonError: Settings, index files or labels are missing or wrong, or the YAML is not the run's.
    """
    plan = None if given.config is None else _plan(record, given.config, given)
    if record.settings.get("dataset"):
        settings, world, shards = _logged(record, plan)
    elif plan is not None:
        settings, world, shards = plan.settings, plan.world, plan.shards
    else:
        mend = "no settings were logged: give the YAML that the run was started with"
        raise ConfigError("--config", None, mend)
    label_map = plan.prepared.label_map if plan else _stream_labels(record, shards)
    batches = _length(record, plan)
    legs = lay_out(settings, world, batches, record.resumptions, given.resumed_from)
    ranges = None
    if label_map is not None:
        ranges = LabelRanges(label_map._ends, label_map._labels.astype(np.int64), len(label_map))
    targets = record.targets
    if plan is not None and not targets:
        targets = tuple(Target(max(first, 0), meant.target) for first, meant in plan.phases)
    return RunOrder(legs, label_map.names if label_map else (), ranges, shards, targets)


def with_replay(record: RunRecord, order: RunOrder, advance: Advance | None = None) -> RunRecord:
    """A record of which only the loss is known, with the counts of a replay: one row for each batch.

    Args:
        record: The loss.
        order: What the run was fed; its labels must be known.
        advance: Told of the progress.
    """
    assert order.labels is not None
    rows = np.arange(order.batches)
    loss, time = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    known = record.first < len(rows)
    loss[record.first[known]] = record.loss[known]
    if len(record.time):
        time[record.first[known]] = record.time[known]
    source = f"{record.source}, mixture by replay" if len(record.first) else "replay"
    return replace(
        record,
        source=source,
        names=order.names,
        first=rows,
        span=np.ones_like(rows),
        counts=order.counts(order.labels, advance),
        loss=loss,
        epoch=order.epochs,
        time=time,
        targets=order.targets,
        resumptions=_resumptions(record, order),
    )


def book_remarks(record: RunRecord, checkpoints: Sequence[Checkpoint]) -> RunRecord:
    """The record, with a remark on each checkpoint whose books count something else.

    Args:
        record: The run.
        checkpoints: With mixmon's own books, or without.
    """
    if record.counts is None:
        return record
    run = np.cumsum(record.counts, axis=0)
    remarks: list[str] = []
    for saved in checkpoints:
        row = int(np.searchsorted(run.sum(axis=1), sum(saved.run)))
        if not saved.run or saved.labels != record.names or row == len(run):
            continue
        if run[row].sum() == sum(saved.run) and run[row].tolist() != list(saved.run):
            remarks.append(
                f"of the first {sum(saved.run)} samples, the books in {saved.path} count {list(saved.run)} "
                f"of {', '.join(record.names)}, this record {run[row].tolist()}: it is not what was fed"
            )
    return replace(record, remarks=(*record.remarks, *remarks))


def _resumptions(record: RunRecord, order: RunOrder) -> tuple[Resumption, ...]:
    """Those of the record, or else those that the checkpoints told of."""
    if record.resumptions:
        return record.resumptions
    return tuple(
        Resumption(leg.batch, leg.epoch, leg.first_sample) for leg in order.legs[1:] if leg.first_sample
    )


def _plan(record: RunRecord, config: str, given: Given) -> Plan:
    world = logged_world(record.settings)
    nodes, ranks, workers = (given.nodes, given.ranks, given.workers)
    if world is not None:
        for name, value, logged in (
            ("--nodes", nodes, world.nodes),
            ("--ranks", ranks, world.ranks_per_node),
        ):
            if value not in (None, logged):
                raise ConfigError(name, value, f"the run's config says {logged}: leave it out")
        nodes, ranks = world.nodes, world.ranks_per_node
        workers = world.workers_per_rank if workers is None else workers
    plan = make_plan(
        config,
        Options(1 if nodes is None else nodes, 1 if ranks is None else ranks, workers, labels=given.labels),
    )
    names = plan.names
    if given.labels is None and record.names and set(record.names) != set(names):
        mend = f"the YAML's labels are {', '.join(names[:5])}: give the YAML that the run was started with"
        raise ConfigError("labels", f"{', '.join(record.names[:5])} logged", mend)
    return plan


def _logged(record: RunRecord, plan: Plan | None) -> tuple[Settings, World, ShardTable]:
    """What was logged, which must be what the YAML says."""
    world = logged_world(record.settings)
    if world is None:
        mend = "was logged, which is no StreamingDataset: there is no order to compute"
        raise ConfigError("mixmon.dataset", record.settings["dataset"].get("class"), mend)
    if plan is not None:
        indices, where = plan.prepared.indices, plan.path
    else:
        indices = tuple(fetch_index(source) for source in stream_sources(record.settings))
        where = "the place that was logged"
    check_indices(record.settings, indices, where)
    settings = order_settings(record.settings, indices)
    if plan is not None:
        differ = differences(settings, plan.settings)
        if differ:
            mend = f"differs from what was logged: {differ}; give the YAML that the run was started with"
            raise ConfigError("--config", plan.path, mend)
        return settings, world, plan.shards
    streams = record.settings["dataset"]["streams"]
    shards = ShardTable.build(
        [name for index in indices for name in index.shards],
        settings.samples_per_shard,
        np.repeat(np.arange(len(indices)), settings.shards_per_stream),
        [stream["name"] for stream in streams],
    )
    return settings, world, shards


def _stream_labels(record: RunRecord, shards: ShardTable) -> LabelMap | None:
    """Labels by stream, where it is these that were logged."""
    return label_by_stream(shards) if tuple(record.settings.get("labels", ())) == shards.streams else None


def _length(record: RunRecord, plan: Plan | None) -> int:
    """Batches of the run: those recorded, or those that the YAML has it train on."""
    if len(record.first):
        batches = int((record.first + record.span).max())
        if batches > _MOST:
            raise ConfigError("RUN", batches, "batches are more than any run has: its steps must be batches")
        return batches
    if plan is None:
        return 0
    duration = read_duration(plan.prepared.training.run.get("max_duration"))
    if duration is None or duration.unit not in ("ba", "ep", "sp"):
        return plan.epoch_batches
    return first_batch(duration, plan.epoch_batches, plan.global_batch)
