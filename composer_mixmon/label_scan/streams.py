"""Where the shards lie that are to be read: of one folder, or of a training YAML's streams."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_mixmon.columns import find_column
from composer_mixmon.errors import DatasetError, MixmonError
from composer_mixmon.fetch import as_path, is_local
from composer_mixmon.label_scan.shard_column import Part, Shard
from composer_mixmon.prepare import table_of
from composer_mixmon.replay.index import INDEX_NAME, StreamIndex, read_index
from composer_mixmon.replay.sampling import StreamWeight
from composer_mixmon.shards import ShardTable
from composer_mixmon.train_yaml import StreamSource, read_train_yaml

__all__ = ["Scan", "plan_scan"]


@dataclass(frozen=True)
class Scan:
    """What is to be read.

    Attributes:
        table: The dataset's shards.
        shards: Them, with their files.
        sha256: Of all index files: says whether a later dataset is the same.
        lacking: The streams that have no such column.
    """

    table: ShardTable
    shards: tuple[Shard, ...]
    sha256: str
    lacking: tuple[str, ...]


@dataclass(frozen=True)
class _Stream:
    """A stream: the folders where its files may be, and its index.json."""

    source: StreamSource
    folders: tuple[str, ...]
    index: StreamIndex
    infos: list[dict[str, Any]]


def plan_scan(dataset: str, column: str) -> Scan:
    """Find the files of a dataset's shards; none is opened.

    Args:
        dataset: A folder with an index.json, or a training YAML.
        column: The column that is to be read.

    Raises:
        MixmonError: It is neither, has no such column or none of labels, or files are not on this machine.
    """
    streams = [_stream(source) for source in _sources(dataset)]
    table = table_of([s.source for s in streams], [s.index for s in streams])
    infos = [info for stream in streams for info in stream.infos]
    try:
        encodings = find_column(column, infos)
        parts = [_files(stream, info) for stream in streams for info in stream.infos]
    except MixmonError:
        raise
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        raise DatasetError(f"an {INDEX_NAME} is damaged ({error!r:.100}): copy it anew") from None
    _check_files(table, streams, parts)
    shards = tuple(
        Shard(i, name, samples, info, encoding, data)
        for i, (name, samples, info, encoding, data) in enumerate(
            zip(table.names, table.samples.tolist(), infos, encodings, parts, strict=True)
        )
    )
    lacking = sorted({int(s) for s, e in zip(table.stream_of_shard, encodings, strict=True) if e is None})
    sha256 = hashlib.sha256("".join(s.index.sha256 for s in streams).encode()).hexdigest()
    return Scan(table, shards, sha256, tuple(table.streams[i] for i in lacking))


def _sources(dataset: str) -> Sequence[StreamSource]:
    if os.path.isdir(dataset):
        return [StreamSource(None, dataset, None, StreamWeight())]
    if not is_local(dataset):
        raise DatasetError(f"{dataset!r} is not on this machine: copy or mount it, or run where it lies")
    return read_train_yaml(dataset).streams


def _stream(source: StreamSource) -> _Stream:
    below = (source.split,) if source.split else ()
    places = [place for place in (source.local, source.remote) if place and is_local(place)]
    folders = tuple(os.path.join(as_path(place), *below) for place in places)
    here = [folder for folder in folders if os.path.exists(os.path.join(folder, INDEX_NAME))]
    if not here and source.remote and not is_local(source.remote):
        raise DatasetError(
            f"{source.remote!r} is not on this machine: copy or mount it, or run where it lies"
        )
    folder = here[0] if here else folders[0]
    index = read_index(folder)
    infos = json.loads((Path(folder) / INDEX_NAME).read_bytes())["shards"]
    return _Stream(source, folders, index, infos)


def _files(stream: _Stream, info: Mapping[str, Any]) -> tuple[Part, ...]:
    """A shard's data and, but for MDS, its offsets; nothing where a file is missing."""
    kinds = ("data", "meta") if info["format"] != "mds" else ("data",)
    found = [_part(stream, info, kind) for kind in kinds]
    return tuple(part for part in found if part is not None) if all(found) else ()


def _part(stream: _Stream, info: Mapping[str, Any], kind: str) -> Part | None:
    """A file of a shard, uncompressed or compressed, in the first folder that has it."""
    raw, packed = info[f"raw_{kind}"], info.get(f"zip_{kind}")
    for folder in stream.folders:
        for file, compression in ((raw, ""), (packed, info.get("compression"))):
            if file:
                path = os.path.normpath(os.path.join(folder, file["basename"]))
                if path.startswith(os.path.join(os.path.normpath(folder), "")) and os.path.isfile(path):
                    return Part(path, compression or "", raw["bytes"])
    return None


def _check_files(table: ShardTable, streams: Sequence[_Stream], parts: Sequence[tuple[Part, ...]]) -> None:
    missing = [number for number, files in enumerate(parts) if not files]
    if missing:
        stream = streams[int(table.stream_of_shard[missing[0]])]
        where = " or ".join(map(repr, stream.folders))
        only = (
            f", only at {stream.source.remote!r}" if len(stream.folders) < _places_of(stream.source) else ""
        )
        raise DatasetError(
            f"{len(missing)} of {len(table)} shards are not on this machine{only} (the first, "
            f"{table.names[missing[0]]!r}, is not in {where}): copy or mount them, or run where they lie"
        )


def _places_of(source: StreamSource) -> int:
    return sum(place is not None for place in (source.local, source.remote))
