"""From a training YAML and a world to the order that will be fed: settings, range of batches, labels."""

# The ranges of a LabelMap have no public name.
# pyright: reportPrivateUsage=false
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from composer_mixmon.audit.times import Duration, first_batch, read_duration
from composer_mixmon.audit.watched import Advance, WatchedReplay
from composer_mixmon.config import MonitorConfig
from composer_mixmon.errors import ConfigError
from composer_mixmon.evidence import batching_effects
from composer_mixmon.expect import expectations
from composer_mixmon.monitor import Expectation
from composer_mixmon.prepare import Prepared, prepare
from composer_mixmon.replay import LabelRanges, Settings, World
from composer_mixmon.replay.world import check_whole
from composer_mixmon.shards import ShardTable
from composer_mixmon.train_yaml import TrainYaml, read_train_yaml

__all__ = ["Options", "Plan", "make_plan"]

_ORDER = (
    "shuffle",
    "shuffle_algo",
    "shuffle_seed",
    "num_canonical_nodes",
    "partition_algo",
    "epoch_size",
)
_MORE = (
    "shuffle_block_size",
    "sampling_method",
    "sampling_granularity",
    "batching_method",
    "replication",
)
# ModernBERT's build_streaming_dataset fills in defaults of its own, and reads none of _MORE.
_MODERNBERT_MODELS = ("flex_bert", "hf_bert", "mosaic_bert")
_MODERNBERT_DEFAULTS = {"num_canonical_nodes": 128, "shuffle_algo": "py1s", "partition_algo": "orig"}
_RANGE = re.compile(r"(\d*):(\d*)")


@dataclass(frozen=True)
class Options:
    """What the command line says beside the YAML.

    Attributes:
        nodes: Physical nodes.
        ranks: GPUs of each.
        workers: DataLoader workers of each rank; ``None``: the YAML's.
        epoch: From 0.
        batches: Range of batches as ``A:B``, half-open; ``None``: all that the training sees of the epoch.
        labels: Labels instead of the YAML's, as the YAML would hold them.
    """

    nodes: int = 1
    ranks: int = 1
    workers: int | None = None
    epoch: int = 0
    batches: str | None = None
    labels: Any = None


@dataclass(frozen=True)
class Plan:
    """What an audit works on.

    Attributes:
        path: The YAML.
        prepared: Its dataset, labels and targets.
        settings: The order's effective settings.
        world: The processes.
        epoch: From 0.
        epoch_batches: Global batches of the epoch.
        global_batch: Samples of each, replicated ones counted once.
        chosen: Those that are audited.
        labels: The label of every sample.
        modernbert: Whether the YAML is ModernBERT's, whose code has defaults of its own.
        finding: What is wrong with the target, or ``None``.
        phases: For each part of the run that the audited batches reach, its first batch (counted from the
            epoch's first; it may lie before it) and what is meant to come.
    """

    path: str
    prepared: Prepared
    settings: Settings
    world: World
    epoch: int
    epoch_batches: int
    global_batch: int
    chosen: range
    labels: LabelRanges
    modernbert: bool
    finding: str | None
    phases: tuple[tuple[int, Expectation], ...]

    @property
    def config(self) -> MonitorConfig:
        """The monitor's settings."""
        return self.prepared.config

    @property
    def names(self) -> tuple[str, ...]:
        """The labels' names."""
        return self.prepared.label_map.names

    @property
    def shards(self) -> ShardTable:
        """The dataset's shards."""
        return self.prepared.shards

    def target_at(self, batch: int) -> npt.NDArray[np.float64]:
        """Each label's target at a batch of the epoch, float64 (labels,)."""
        return [meant.target for start, meant in self.phases if start <= max(batch, 0)][-1]

    def replay(self, settings: Settings | None = None, advance: Advance | None = None) -> WatchedReplay:
        """Replay the epoch, as configured or under other settings.

        Args:
            settings: Other settings.
            advance: Told of the progress.
        """
        return WatchedReplay(settings or self.settings, self.world, self.epoch, advance)


def make_plan(path: str, options: Options) -> Plan:
    """Read a training YAML and its index files, and work out what is to be audited.

    Raises:
        MixmonError: Whatever is wrong with the YAML, the index files or the options.
    """
    training = read_train_yaml(path)
    if training.dataset.get("streaming") is False:
        mend = (
            "this data is not read by StreamingDataset, so there is no order to replay: "
            "`mixmon sampler` shows how its sampler mixes"
        )
        raise ConfigError("dataset.streaming", False, mend)
    workers = (training.loader.get("num_workers") or 0) if options.workers is None else options.workers
    world = World(options.nodes, options.ranks, workers)
    modernbert = training.run.get("model.name") in _MODERNBERT_MODELS
    prepared = prepare(training, options.labels)
    settings = _settings(prepared, world, modernbert)
    replay = WatchedReplay(settings, world, options.epoch)
    duration = read_duration(training.run.get("max_duration"))
    end = _end(duration, replay, options.epoch)
    unit, rounding = batching_effects(settings.batching_method, settings.batch_size, replay.global_batch)
    alarm, names = prepared.config.alarm, prepared.label_map.names
    finding, meant = expectations(alarm, names, prepared.own, list(prepared.targets), unit, rounding)
    starts = _phase_starts(prepared, duration, replay, options.epoch)
    return Plan(
        path=path,
        prepared=prepared,
        settings=settings,
        world=world,
        epoch=options.epoch,
        epoch_batches=replay.batches,
        global_batch=replay.global_batch,
        chosen=_chosen(options.batches, replay.batches, end),
        labels=_label_ranges(prepared),
        modernbert=modernbert,
        finding=finding,
        phases=tuple(zip(starts, meant, strict=True)),
    )


def _settings(prepared: Prepared, world: World, modernbert: bool) -> Settings:
    training = prepared.training
    defaults: dict[str, Any] = _MODERNBERT_DEFAULTS if modernbert else {}
    read = _ORDER if modernbert else _ORDER + _MORE
    given = {name: training.dataset[name] for name in read if training.dataset.get(name) is not None}
    block = given.get("shuffle_block_size")
    if isinstance(block, float) and block.is_integer():  # 5e6, as llm-foundry takes it
        given["shuffle_block_size"] = int(block)
    replication = given.get("replication", 1)
    check_whole("replication", replication, 1)
    return Settings.resolve(
        world,
        [index.samples for index in prepared.indices],
        [stream.weight for stream in training.streams],
        batch_size=_device_batch(training, world.ranks, replication),
        drop_last=training.loader.get("drop_last") or False,
        **{**defaults, **given},
    )


def _device_batch(training: TrainYaml, ranks: int, replication: int) -> int:
    """Samples of a rank's batch, from whichever setting says so."""
    total = training.run.get("global_train_batch_size")
    if total is not None:
        if not isinstance(total, int) or isinstance(total, bool) or total < 1:
            raise ConfigError("global_train_batch_size", total, "write a whole number of at least 1")
        if total * replication % ranks:
            mend = f"must be divisible by the {ranks} ranks: give --nodes and --ranks (of each node)"
            raise ConfigError("global_train_batch_size", total, mend)
        return total * replication // ranks
    places: tuple[tuple[Mapping[str, Any], str], ...] = (
        (training.run, "device_train_batch_size"),
        (training.loader, "batch_size"),
        (training.dataset, "batch_size"),
    )
    for values, key in places:
        if values.get(key) is not None:
            return values[key]
    raise ConfigError(
        "global_train_batch_size", None, "write it at the top of the YAML, or device_train_batch_size"
    )


def _end(duration: Duration | None, replay: WatchedReplay, epoch: int) -> int:
    """How many batches of the epoch the training sees."""
    if duration is None or duration.unit not in ("ba", "ep", "sp"):
        return replay.batches
    total = first_batch(duration, replay.batches, replay.global_batch)
    left = total - epoch * replay.batches
    if left <= 0:
        mend = f"the training ends before, after {total} batches of {replay.batches} an epoch (max_duration)"
        raise ConfigError("--epoch", epoch, mend)
    return min(left, replay.batches)


def _chosen(text: str | None, batches: int, end: int) -> range:
    if not batches:
        raise ConfigError("global_train_batch_size", None, "the epoch does not fill one batch: lower it")
    if text is None:
        return range(end)
    found = _RANGE.fullmatch(text.strip())
    if not found:
        raise ConfigError("--batches", text, "write the first batch and the one after the last, as 0:100")
    first, stop = int(found[1] or 0), int(found[2] or batches)
    if not first < stop <= batches:
        raise ConfigError(
            "--batches", text, f"the epoch has {batches} batches: write a range within 0:{batches}"
        )
    return range(first, stop)


def _label_ranges(prepared: Prepared) -> LabelRanges:
    label_map = prepared.label_map
    return LabelRanges(label_map._ends, label_map._labels.astype(np.int64), len(label_map))


def _phase_starts(
    prepared: Prepared, duration: Duration | None, replay: WatchedReplay, epoch: int
) -> list[int]:
    """First batch of each phase, counted from the epoch's first."""
    before = epoch * replay.batches
    starts: list[int] = []
    for number, phase in enumerate(prepared.config.target):
        start = read_duration(phase.start)
        assert start is not None
        place = start.of(duration)
        if place is None:
            mend = "cannot be placed in the epoch: give it in ba, ep or sp, or max_duration in one of these"
            raise ConfigError(f"target[{number}].from", phase.start, mend)
        starts.append(first_batch(place, replay.batches, replay.global_batch) - before)
    return starts
