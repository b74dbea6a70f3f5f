"""The shards that an index.json lists; the shards themselves are never opened."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from composer_mixmon.errors import DatasetError
from composer_mixmon.replay.sampling import Ints

__all__ = ["Index", "read_index"]

_VERSION = 2
_FORMATS = ("mds", "json", "csv", "tsv", "xsv")


@dataclass(frozen=True)
class Index:
    """One stream's shards.

    Attributes:
        names: The shards' file names, such as ``shard.00000.mds``.
        samples: Samples in each shard, int64 (shards,).
        bytes: Size of each shard as it lies in the local cache, uncompressed, int64 (shards,).
        sha256: Hash of the file's bytes.
    """

    names: tuple[str, ...]
    samples: Ints
    bytes: Ints
    sha256: str


def read_index(path: str) -> Index:
    """Read an index.json, of MDS or of one of streaming's text formats.

    Args:
        path: The file.

    Raises:
        DatasetError: It is missing, cut off, of another format or version, or lists nonsense.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except OSError as error:
        raise DatasetError(f"index file {path!r} cannot be read: {error.strerror}") from error
    try:
        content: Any = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"index file {path!r} is cut off or no JSON ({error}): write the dataset again") from error
    shards = _shards(path, content)
    entries = [_entry(path, number, shard) for number, shard in enumerate(shards)]
    names, samples, sizes = zip(*entries, strict=True) if entries else ((), (), ())
    if not sum(samples):
        raise DatasetError(f"index file {path!r} lists no samples")
    return Index(
        tuple(names), np.array(samples, np.int64), np.array(sizes, np.int64), hashlib.sha256(raw).hexdigest()
    )


def _shards(path: str, content: Any) -> list[Any]:
    version = cast("dict[str, Any]", content).get("version") if isinstance(content, dict) else None
    if version != _VERSION:
        raise DatasetError(
            f"index file {path!r} has version {version!r}: streaming writes {_VERSION}; is it an index.json of "
            "a dataset?"
        )
    shards = content.get("shards")
    if not isinstance(shards, list):
        raise DatasetError(f"index file {path!r} has no list of shards")
    return cast("list[Any]", shards)


def _entry(path: str, number: int, shard: Any) -> tuple[str, int, int]:
    """Name, samples and bytes of one shard."""
    try:
        name, samples, size = shard["raw_data"]["basename"], shard["samples"], shard["raw_data"]["bytes"]
        kind = shard["format"]
    except (KeyError, TypeError) as error:
        raise DatasetError(f"index file {path!r}: shard {number} lacks {error}") from error
    if kind not in _FORMATS:
        raise DatasetError(f"index file {path!r}: shard {number} has the unknown format {kind!r}")
    if not isinstance(name, str) or not _is_count(samples) or not _is_count(size):
        raise DatasetError(
            f"index file {path!r}: shard {number} has the name {name!r}, {samples!r} samples and {size!r} bytes"
        )
    return name, samples, size


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53
