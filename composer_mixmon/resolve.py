"""Settings that need the dataset: labels, target and rules, for a live run and for ``mixmon check`` alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from composer_mixmon.config import Column, Phase, Rule
from composer_mixmon.errors import ConfigError
from composer_mixmon.label_file import label_by_file
from composer_mixmon.labels import UNLABELLED, LabelMap, label_by_groups, label_by_position, label_by_stream
from composer_mixmon.shards import ShardTable

__all__ = ["cannot_meet", "check_rules", "labels_in_targets", "resolve_labels", "resolve_target"]

_BUILD = (
    "build a label file with `mixmon labels build DATASET --column {0} --out labels.json` and write "
    "labels: {{column: {0}, file: labels.json}}"
)


def resolve_labels(spec: tuple[str, Any], shards: ShardTable) -> LabelMap:
    """Build the label map of :func:`composer_mixmon.config.parse_labels`' result for a dataset.

    Raises:
        ConfigError: A pattern matches nothing, groups overlap, a label file cannot be read, or only the
            samples themselves tell their labels.
        DatasetError: The label file is of another dataset.
    """
    kind, argument = spec
    if kind == "shards":
        return label_by_groups(shards, argument)
    if kind == "position":
        return label_by_position(shards, argument)
    if kind == "file":
        return label_by_file(shards, argument)
    if kind == "column":
        return _label_by_built_file(shards, argument)
    return label_by_stream(shards)


def _label_by_built_file(shards: ShardTable, column: Column) -> LabelMap:
    if column.file is None:
        mend = f"no index file tells what a column holds: {_BUILD.format(column.name)}"
        raise ConfigError("labels.column", column.name, mend)
    return label_by_file(shards, column.file, column.name)


def labels_in_targets(column: Column, phases: Sequence[Phase]) -> tuple[str, ...]:
    """The labels that a column may hold, if no file tells them: those that have a target.

    Args:
        column: The column.
        phases: The target.

    Raises:
        ConfigError: A target is the dataset's own shares, which nobody knows.
    """
    names: dict[str, None] = {}
    for phase in phases:
        if phase.shares is None:
            mend = (
                f"the dataset's own shares of the column {column.name!r} are not known: give the target's "
                f"shares, such as {{ja: 0.5, en: 0.5}}, or {_BUILD.format(column.name)}"
            )
            raise ConfigError("target", "auto", mend)
        names.update(dict.fromkeys(phase.shares))
    return tuple(names)


def resolve_target(
    shares: dict[str, float] | None, names: Sequence[str], own: npt.NDArray[np.float64] | None
) -> npt.NDArray[np.float64]:
    """Each label's target share: the user's, or the dataset's own.

    Args:
        shares: The user's shares by label, or ``None``.
        names: The labels' names.
        own: The dataset's own shares, float64 (labels,); ``None`` where nobody knows them, nor asks for them.

    Returns:
        Shares that sum to 1, float64 (labels,).

    Raises:
        ConfigError: The user's target names a label that no sample has.
    """
    if shares is None:
        assert own is not None  # labels_in_targets sees to it
        return own
    unknown = [label for label in shares if label not in names]
    if unknown:
        mend = f"the dataset has no such label: it has {_listed(names)}"
        raise ConfigError(f"target.{unknown[0]}", shares[unknown[0]], mend)
    target = np.array([shares.get(name, 0.0) for name in names])
    return target / target.sum()


def cannot_meet(
    target: npt.NDArray[np.float64], names: Sequence[str], own: npt.NDArray[np.float64], tolerance: float
) -> str | None:
    """Say which label of a target a dataset is bound to miss by more than the tolerance, if any.

    Args:
        target: The target, float64 (labels,).
        names: The labels' names.
        own: The dataset's own shares, float64 (labels,).
        tolerance: The bias of a share that is not worth a word.
    """
    worst = int(np.argmax(np.abs(own - target)))
    if abs(own[worst] - target[worst]) <= tolerance:
        return None
    return (
        f"the dataset cannot meet the target: after proportion, repeat and choose {own[worst]:.1%} of its "
        f"samples are {names[worst]}, the target is {target[worst]:.1%}; change the streams' weights or it. "
        "Evidence is taken against the dataset's own shares"
    )


def check_rules(rules: Sequence[Rule], names: Sequence[str]) -> None:
    """Check that every label a rule watches exists.

    Raises:
        ConfigError: One does not.
    """
    for i, rule in enumerate(rules):
        if rule.figure == "ratio" and rule.label not in names:
            mend = f"the dataset has no such label: it has {_listed(names)}"
            raise ConfigError(f"alarm.rules[{i}].ratio", rule.label, mend)


def _listed(names: Sequence[str]) -> str:
    shown = [name for name in names if name != UNLABELLED or len(names) == 1]
    return ", ".join(shown[:10]) + (f" and {len(shown) - 10} more" if len(shown) > 10 else "")
