"""Reads a run's ``.wandb`` file back: LevelDB's log format around wandb's own protobuf records.

Format: https://github.com/google/leveldb/blob/main/doc/log_format.md, with wandb's seven-byte header.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2 as pb

_BLOCK = 32 * 1024
_FILE_HEADER = struct.Struct("<4sHB")  # magic, number, version
_CHUNK_HEADER = struct.Struct("<IHB")  # crc32, length, kind
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


@dataclass
class RunFile:
    """What a run recorded: history rows and alerts in order, config and summary as they ended."""

    history: list[dict[str, Any]] = field(default_factory=list)
    alerts: list[tuple[str, str]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)


def read_run(folder: Path) -> RunFile:
    """Read the one ``.wandb`` file somewhere under ``folder``."""
    (path,) = folder.rglob("*.wandb")
    run = RunFile()
    for payload in _records(path.read_bytes()):
        record = pb.Record()
        record.ParseFromString(payload)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            run.history.append(_items(record.history.item))
        elif kind == "config":
            run.config |= _items(record.config.update)
        elif kind == "summary":
            run.summary |= _items(record.summary.update)
        elif kind == "alert":
            run.alerts.append((record.alert.title, record.alert.text))
    return run


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(data: bytes) -> Iterator[bytes]:
    assert data[:4] == b":W&B"
    at, parts = _FILE_HEADER.size, []
    while at + _CHUNK_HEADER.size <= len(data):
        room = _BLOCK - at % _BLOCK
        if room < _CHUNK_HEADER.size:  # the rest of a block that no header fits into
            at += room
            continue
        crc, length, kind = _CHUNK_HEADER.unpack_from(data, at)
        at += _CHUNK_HEADER.size
        chunk = data[at : at + length]
        at += length
        assert zlib.crc32(chunk, zlib.crc32(bytes([kind]))) == crc
        parts = [chunk] if kind in (_FULL, _FIRST) else [*parts, chunk]
        if kind in (_FULL, _LAST):
            yield b"".join(parts)
