"""What ``mixmon check`` finds out from a training YAML and its index files."""

from __future__ import annotations

import inspect
import os.path
from dataclasses import dataclass

import numpy as np

from composer_mixmon.config import MonitorConfig
from composer_mixmon.errors import ConfigError
from composer_mixmon.fetch import fetch_index
from composer_mixmon.replay.sampling import choose_per_stream, label_shares, parse_epoch_size
from composer_mixmon.resolve import check_rules, resolve_labels, resolve_target
from composer_mixmon.shards import ShardTable, stream_names
from composer_mixmon.statistics import deviation
from composer_mixmon.train_yaml import read_train_yaml

__all__ = ["Checked", "CheckedLabel", "check_yaml"]

_ARGUMENTS = tuple(inspect.signature(MonitorConfig.read).parameters)
_DEFAULT_SEED = 9176  # StreamingDataset's shuffle_seed: it decides who gets the samples left over


@dataclass(frozen=True)
class CheckedLabel:
    """One label of a dataset: its samples, its own share of an epoch, and its target in each phase."""

    label: str
    samples: int
    own: float
    targets: tuple[float, ...]


@dataclass(frozen=True)
class Checked:
    """What a training YAML gives.

    Attributes:
        labels: The labels.
        phases: When each phase of the target begins.
        streams: Streams of the dataset.
        shards: Shards of the dataset.
        samples: Samples of the dataset.
        epoch_size: Samples of an epoch after proportion, repeat, choose and epoch_size.
        deviations: Total variation distance of the dataset's own shares from each phase's target.
    """

    labels: tuple[CheckedLabel, ...]
    phases: tuple[str, ...]
    streams: int
    shards: int
    samples: int
    epoch_size: int
    deviations: tuple[float, ...]


def check_yaml(path: str) -> Checked:
    """Build labels and target of a training YAML from its index files, as the callback will.

    Raises:
        MixmonError: Whatever is wrong with the YAML, the index files or the monitor's settings.
    """
    training = read_train_yaml(path)
    for key in training.mixmon:
        if key not in _ARGUMENTS:
            mend = f"is unknown: choose of {', '.join(_ARGUMENTS)}"
            raise ConfigError(f"callbacks.mixmon.{key}", training.mixmon[key], mend)
    config = MonitorConfig.read(**training.mixmon)
    indices = [fetch_index(stream) for stream in training.streams]
    places = [os.path.join(s.remote or s.local or "", s.split or "") for s in training.streams]
    shards = ShardTable.build(
        [name for index in indices for name in index.shards],
        [samples for index in indices for samples in index.samples],
        np.repeat(np.arange(len(indices)), [len(index.shards) for index in indices]),
        stream_names(places),
    )
    sizes = np.array([sum(index.samples) for index in indices], np.int64)
    choose = choose_per_stream(
        [stream.weight for stream in training.streams],
        sizes,
        parse_epoch_size(training.dataset.get("epoch_size")),
        int(training.dataset.get("shuffle_seed") or _DEFAULT_SEED),
    )
    label_map = resolve_labels(config.labels, shards)
    within = label_map.counts_within(np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]))
    own = label_shares(choose, within)
    targets = np.array([resolve_target(phase.shares, label_map.names, own) for phase in config.target])
    check_rules(config.alarm.rules, label_map.names)
    rows = zip(label_map.names, within.sum(axis=0).tolist(), own.tolist(), targets.T.tolist(), strict=True)
    return Checked(
        tuple(CheckedLabel(name, samples, share, tuple(target)) for name, samples, share, target in rows),
        tuple(phase.start for phase in config.target),
        len(indices),
        len(shards),
        shards.total,
        int(choose.sum()),
        tuple(deviation(own, targets).tolist()),
    )
