"""Label files: which label each shard has, written by hand or by a program.

A short file maps the shards' names to labels; shards that it leaves out count as unlabelled::

    shards: {ja/shard.00000.mds: ja, en/shard.00000.mds: en}

A complete file lists every shard in the dataset's order with its size, so that the file of another
dataset, or of an older version of this one, is refused::

    shards:
      - [ja/shard.00000.mds, 256, ja]
      - [en/shard.00000.mds, 256, en]

Both may be written as JSON, too.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, cast

import numpy as np
import yaml

from composer_mixmon.config import label_name
from composer_mixmon.errors import ConfigError, DatasetError
from composer_mixmon.labels import LabelMap, with_unlabelled
from composer_mixmon.shards import ShardTable

__all__ = ["label_by_file"]

_SHAPE = "a label file is {shards: {name: label}} or {shards: [[name, samples, label], …]}"
_DIFFERENCES_SHOWN = 3


def label_by_file(shards: ShardTable, path: str) -> LabelMap:
    """Label each shard as a label file says.

    Args:
        shards: The dataset's shards.
        path: A JSON or YAML file.

    Raises:
        ConfigError: The file cannot be read or has another shape.
        DatasetError: It describes another dataset.
    """
    content = _read(path)
    entries = cast("Any", content).get("shards") if isinstance(content, dict) else None
    if isinstance(entries, dict) and entries:
        label_of = _short(shards, path, cast("dict[Any, Any]", entries))
    elif isinstance(entries, list) and entries:
        label_of = _complete(shards, path, cast("list[Any]", entries))
    else:
        raise ConfigError("labels.file", path, _SHAPE)
    names = list(dict.fromkeys(label_of.values()))
    index = {name: i for i, name in enumerate(names)}
    label = [index[label_of[name]] if name in label_of else -1 for name in shards.names]
    return with_unlabelled(shards, names, np.array(label, np.int64))


def _read(path: str) -> Any:
    try:
        with open(path, encoding="utf-8-sig") as file:
            return yaml.load(file, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except OSError as error:
        raise ConfigError("labels.file", path, f"cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        where = " ".join(str(error).split())
        raise ConfigError(
            "labels.file", path, f"is neither JSON nor YAML ({where:.200}): {_SHAPE}"
        ) from error


def _short(shards: ShardTable, path: str, entries: dict[Any, Any]) -> dict[str, str]:
    known = set(shards.names)
    unknown = [name for name in entries if name not in known]
    if unknown:
        listed = ", ".join(map(repr, unknown[:_DIFFERENCES_SHOWN]))
        raise DatasetError(
            f"labels.file: {path!r} is of another dataset: it names {len(unknown)} shards that this one "
            f"does not have ({listed}); this one's first is {shards.names[0]!r}"
        )
    return {str(name): label_name(f"labels.file.{name}", label) for name, label in entries.items()}


def _complete(shards: ShardTable, path: str, entries: list[Any]) -> dict[str, str]:
    for entry in entries:
        if not isinstance(entry, list) or len(cast("list[Any]", entry)) != 3:
            raise ConfigError("labels.file", path, f"has the entry {entry!r:.100}: {_SHAPE}")
    ours = zip(shards.names, shards.samples.tolist(), strict=True)
    theirs = [(entry[0], entry[1]) for entry in entries]
    differences = [
        f"shard {i} is {_shard(this)} here and {_shard(that)} in the file"
        for i, (this, that) in enumerate(zip_longest(ours, theirs))
        if this != that
    ]
    if differences:
        shown = "; ".join(differences[:_DIFFERENCES_SHOWN])
        raise DatasetError(
            f"labels.file: {path!r} is of another dataset, {len(differences)} shards differ: {shown}"
        )
    return {str(entry[0]): label_name(f"labels.file.{entry[0]}", entry[2]) for entry in entries}


def _shard(entry: tuple[str, int] | None) -> str:
    return "missing" if entry is None else f"{entry[0]!r} of {entry[1]} samples"
