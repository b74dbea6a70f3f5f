"""From a training YAML to shards, labels, own shares and targets: for check and audit alike."""

from __future__ import annotations

import inspect
import os.path
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from composer_mixmon.config import MonitorConfig, parse_labels, parse_target
from composer_mixmon.errors import ConfigError
from composer_mixmon.fetch import fetch_index
from composer_mixmon.labels import LabelMap
from composer_mixmon.replay.index import StreamIndex
from composer_mixmon.replay.sampling import choose_per_stream, label_shares, parse_epoch_size
from composer_mixmon.replay.world import check_whole
from composer_mixmon.resolve import check_rules, resolve_labels, resolve_target
from composer_mixmon.shards import ShardTable, stream_names
from composer_mixmon.train_yaml import StreamSource, TrainYaml

__all__ = ["Prepared", "prepare", "table_of"]

_ARGUMENTS = tuple(inspect.signature(MonitorConfig.read).parameters)
_DEFAULT_SEED = 9176  # StreamingDataset's shuffle_seed: it decides who gets the samples left over


@dataclass(frozen=True)
class Prepared:
    """What a training YAML and its index files give.

    Attributes:
        training: The YAML.
        config: The monitor's settings.
        indices: Each stream's index.json.
        shards: The dataset's shards.
        label_map: The labels of its samples.
        choose: Samples of each stream in an epoch, int64 (streams,).
        label_counts: Samples of each label in each stream, int64 (streams, labels).
        own: The dataset's own shares of an epoch, float64 (labels,).
        targets: Each phase's target, float64 (phases, labels).
    """

    training: TrainYaml
    config: MonitorConfig
    indices: tuple[StreamIndex, ...]
    shards: ShardTable
    label_map: LabelMap
    choose: npt.NDArray[np.int64]
    label_counts: npt.NDArray[np.int64]
    own: npt.NDArray[np.float64]
    targets: npt.NDArray[np.float64]


def prepare(training: TrainYaml, labels: Any = None) -> Prepared:
    """Build labels and targets of a training YAML's dataset from its index files, as the callback will.

    Args:
        training: The YAML.
        labels: Labels instead of the YAML's; target and ratio rules, which name the YAML's, are left out.

    Raises:
        MixmonError: Whatever is wrong with the index files or the monitor's settings.
    """
    config = _monitor_config(training.mixmon)
    if labels is not None:
        config = _relabelled(config, labels)
    indices = tuple(fetch_index(stream) for stream in training.streams)
    shards = table_of(training.streams, indices)
    sizes = np.array([sum(index.samples) for index in indices], np.int64)
    choose = choose_per_stream(
        [stream.weight for stream in training.streams],
        sizes,
        _epoch_size(training.dataset.get("epoch_size")),
        _seed(training.dataset.get("shuffle_seed")),
    )
    label_map = resolve_labels(config.labels, shards)
    label_counts = label_map.counts_within(np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]))
    own = label_shares(choose, label_counts)
    targets = np.array([resolve_target(phase.shares, label_map.names, own) for phase in config.target])
    check_rules(config.alarm.rules, label_map.names)
    return Prepared(training, config, indices, shards, label_map, choose, label_counts, own, targets)


def table_of(streams: Sequence[StreamSource], indices: Sequence[StreamIndex]) -> ShardTable:
    """The shards of a dataset, named as those of a live one.

    Args:
        streams: Its streams.
        indices: Each stream's index.json.

    Raises:
        DatasetError: A shard is listed twice.
    """
    places = [os.path.join(s.remote or s.local or "", s.split or "") for s in streams]
    return ShardTable.build(
        [name for index in indices for name in index.shards],
        [samples for index in indices for samples in index.samples],
        np.repeat(np.arange(len(indices)), [len(index.shards) for index in indices]),
        stream_names(places),
    )


def _epoch_size(value: Any) -> int | None:
    try:
        return parse_epoch_size(value)
    except (TypeError, OverflowError) as error:  # a list, say, or .inf
        raise ConfigError(
            "epoch_size", value, 'write a number of samples, such as 100000 or "100k"'
        ) from error


def _seed(value: Any) -> int:
    seed = _DEFAULT_SEED if value is None else value
    check_whole("shuffle_seed", seed, 0)
    return seed


def _monitor_config(mixmon: dict[str, Any]) -> MonitorConfig:
    for key in mixmon:
        if key not in _ARGUMENTS:
            mend = f"is unknown: choose of {', '.join(_ARGUMENTS)}"
            raise ConfigError(f"callbacks.mixmon.{key}", mixmon[key], mend)
    return MonitorConfig.read(**mixmon)


def _relabelled(config: MonitorConfig, labels: Any) -> MonitorConfig:
    rules = tuple(rule for rule in config.alarm.rules if rule.figure != "ratio")
    alarm = replace(config.alarm, rules=rules)
    return replace(config, labels=parse_labels(labels), target=parse_target("auto"), alarm=alarm)
