"""Puts the parts of a monitor together for the DataLoader of a live run."""

# Torch, Composer and streaming are typed only in part: what comes out of them is unknown to pyright.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from composer.core import State
from streaming import StreamingDataset
from torch.utils.data import RandomSampler
from torch.utils.data.distributed import DistributedSampler

from composer_mixmon.columns import ColumnLabels
from composer_mixmon.config import MonitorConfig, Phase
from composer_mixmon.dataset import check_column, draw_settings, own_shares, run_settings, shard_table
from composer_mixmon.expect import expectations
from composer_mixmon.label_file import label_by_file
from composer_mixmon.labels import LabelMap
from composer_mixmon.monitor import Monitor
from composer_mixmon.replay.samplers import biased_sampler
from composer_mixmon.resolve import check_rules, labels_in_targets, resolve_labels, resolve_target
from composer_mixmon.shards import ShardTable

__all__ = ["Assembly", "assemble", "current_phase", "run_config"]


@dataclass(frozen=True)
class Assembly:
    """The parts of a monitor.

    Attributes:
        shards: The dataset's shards.
        labels: The labels of its samples.
        own: The dataset's own shares, float64 (labels,); ``None`` where nobody knows them.
        monitor: The books, empty.
        remarks: What the user should know before the first batch.
    """

    shards: ShardTable
    labels: LabelMap | ColumnLabels
    own: npt.NDArray[np.float64] | None
    monitor: Monitor
    remarks: tuple[str, ...]


def assemble(config: MonitorConfig, loader: Any) -> Assembly:
    """Put a monitor together.

    Args:
        config: The settings.
        loader: A DataLoader over a ``StreamingDataset`` or a map-style dataset.

    Raises:
        MixmonError: The settings do not fit the dataset.
    """
    dataset, alarm = loader.dataset, config.alarm
    shards = shard_table(dataset)
    labels, own, remark = _labels(config, dataset, shards)
    names = labels.names
    targets = [resolve_target(phase.shares, names, own) for phase in config.target]
    check_rules(alarm.rules, names)
    known = targets[0] if own is None else own
    finding, phases = expectations(alarm, names, known, targets, **draw_settings(loader))
    monitor = Monitor(names, phases, config.window, config.interval, alarm.rules)
    remarks = [text for text in (remark, finding) if text]
    if len(names) == 1:
        remarks.append(
            f"all samples have one label, {names[0]}: group the shards, or use labels: {{position: 10}}"
        )
    bias = biased_sampler(len(dataset), torch.__version__) if _draws_randperm(loader) else None
    remarks += [bias] if bias else []
    return Assembly(shards, labels, own, monitor, tuple(remarks))


def _labels(
    config: MonitorConfig, dataset: Any, shards: ShardTable
) -> tuple[LabelMap | ColumnLabels, npt.NDArray[np.float64] | None, str | None]:
    """The labels, the dataset's own shares of them where they are known, and a remark."""
    kind, column = config.labels
    if kind != "column":
        label_map = resolve_labels(config.labels, shards)
        return label_map, own_shares(dataset, label_map), None
    remark = check_column(dataset, column.name)
    if column.file is None:
        names, own = labels_in_targets(column, config.target), None
    else:
        label_map = label_by_file(shards, column.file, column.name, in_order=False)
        names, own = label_map.names, own_shares(dataset, label_map)
    everywhere = not isinstance(dataset, StreamingDataset)
    return ColumnLabels(column.name, names, shards.total, everywhere), own, remark


def _draws_randperm(loader: Any) -> bool:
    """Whether the order of a map-style dataset is torch.randperm's."""
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if isinstance(sampler, DistributedSampler):
        return sampler.shuffle
    return isinstance(sampler, RandomSampler) and not sampler.replacement


def current_phase(phases: Sequence[Phase], state: State) -> int:
    """Index of the phase that the batch in hand belongs to; the same on every rank."""
    if len(phases) == 1:
        return 0
    elapsed = state.get_elapsed_duration()
    begun = [
        (elapsed is not None and elapsed >= phase.start)
        if phase.start.endswith("dur")
        else state.timestamp >= phase.start
        for phase in phases
    ]
    return max((index for index, has_begun in enumerate(begun) if has_begun), default=0)


def run_config(config: MonitorConfig, parts: Assembly, loader: Any) -> dict[str, Any]:
    """What goes to the run's config: our settings, and all that the order of samples depends on."""
    alarm = config.alarm
    phases = zip(config.target, parts.monitor.targets, strict=True)
    return run_settings(loader) | {
        "labels": list(parts.labels.names),
        "own_shares": None if parts.own is None else parts.own.tolist(),
        "target": [{"from": phase.start, "shares": target.tolist()} for phase, target in phases],
        "window": config.window,
        "log_interval": config.interval,
        "loss_every": config.loss,
        "alarm": {
            "tolerance": alarm.tolerance,
            "false_alarm_every": alarm.false_alarm_every,
            "rules": list(map(str, alarm.rules)),
            "action": list(map(str, alarm.actions)),
        },
    }
