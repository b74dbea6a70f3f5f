"""What ``mixmon check`` finds out from a training YAML and its index files."""

from __future__ import annotations

from dataclasses import dataclass

from composer_mixmon.prepare import prepare
from composer_mixmon.statistics import deviation
from composer_mixmon.train_yaml import read_train_yaml

__all__ = ["Checked", "CheckedLabel", "check_yaml"]


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
    prepared = prepare(read_train_yaml(path))
    names, own, targets = prepared.label_map.names, prepared.own, prepared.targets
    samples = prepared.label_counts.sum(axis=0)
    rows = zip(names, samples.tolist(), own.tolist(), targets.T.tolist(), strict=True)
    return Checked(
        tuple(CheckedLabel(name, count, share, tuple(target)) for name, count, share, target in rows),
        tuple(phase.start for phase in prepared.config.target),
        len(prepared.indices),
        len(prepared.shards),
        prepared.shards.total,
        int(prepared.choose.sum()),
        tuple(float(deviation(own, target)) for target in targets),
    )
