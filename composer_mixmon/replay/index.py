"""Read index.json: which shards a stream has and how many samples each holds. No shard is ever opened."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from composer_mixmon.errors import DatasetError

__all__ = ["INDEX_NAME", "StreamIndex", "parse_index", "read_index"]

INDEX_NAME = "index.json"

# Formats that streaming 0.13.0 reads; all describe a shard's data file under "raw_data".
_FORMATS = ("mds", "json", "csv", "tsv", "xsv")


@dataclass(frozen=True)
class StreamIndex:
    """What a stream's index.json says.

    Attributes:
        shards: File name of each shard's data.
        samples: Samples of each shard.
        bytes: Uncompressed bytes of each shard, metadata files included.
        sha256: Of the file, in hexadecimal: says whether a later index is the same.
    """

    shards: tuple[str, ...]
    samples: tuple[int, ...]
    bytes: tuple[int, ...]
    sha256: str


def read_index(folder: str | Path) -> StreamIndex:
    """Read a local stream's index.json.

    Args:
        folder: The folder that holds it, split included.

    Raises:
        DatasetError: It is missing, unreadable, truncated or not what streaming 0.13.0 writes.
    """
    path = Path(folder) / INDEX_NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DatasetError(f"{path}: there is no such file; give a folder with an {INDEX_NAME}") from None
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: cannot be read: {error}") from None
    return parse_index(content, str(path))


def parse_index(content: bytes, name: str) -> StreamIndex:
    """Read an index.json from its bytes.

    Args:
        content: The file's.
        name: What to call it in messages: its path or URL.

    Raises:
        DatasetError: As for :func:`read_index`.
    """
    try:
        index: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DatasetError(
            f"{name}: is empty, truncated or not JSON ({_brief(error)}); copy it anew"
        ) from None
    shards = _field(index, "shards", list, name)
    version = index.get("version")
    if version != 2:
        raise DatasetError(f"{name}: has version {version!r}; streaming 0.13.0 reads version 2")
    if not shards:
        raise DatasetError(f"{name}: lists no shards; was the dataset written to the end?")
    rows = [_shard(shard, f"{name}, shard {number}") for number, shard in enumerate(shards)]
    names, samples, sizes = zip(*rows, strict=True)
    if not any(samples):
        raise DatasetError(f"{name}: its shards hold no samples; was the dataset written to the end?")
    return StreamIndex(names, samples, sizes, hashlib.sha256(content).hexdigest())


def _shard(shard: Any, where: str) -> tuple[str, int, int]:
    """Read name, samples and bytes of one shard."""
    kind = _field(shard, "format", str, where)
    if kind not in _FORMATS:
        raise DatasetError(f"{where}: has format {kind!r}; streaming 0.13.0 reads {', '.join(_FORMATS)}")
    samples = _count(shard, "samples", where)
    data = _field(shard, "raw_data", dict, where)
    size = _count(data, "bytes", where)
    if shard.get("raw_meta") is not None:
        size += _count(_field(shard, "raw_meta", dict, where), "bytes", where)
    return _field(data, "basename", str, where), samples, size


def _field(record: Any, key: str, kind: type, where: str) -> Any:
    value: Any = cast(Mapping[str, Any], record).get(key) if isinstance(record, dict) else None
    if not isinstance(value, kind):
        wanted = {list: "a list", dict: "a mapping", str: "a text", int: "a whole number"}[kind]
        raise DatasetError(
            f"{where}: {key!r} must be {wanted}, as streaming writes it; it is {_brief(value)}"
        )
    return value


def _count(record: Any, key: str, where: str) -> int:
    value = _field(record, key, int, where)
    if isinstance(value, bool) or not 0 <= value < 2**63:
        raise DatasetError(f"{where}: {key!r} is {_brief(value)}; it must be a count")
    return value


def _brief(value: object) -> str:
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
