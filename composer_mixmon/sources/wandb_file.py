"""Reads ``.wandb`` files: LevelDB's log format around wandb's own protobuf records.

Format: https://github.com/google/leveldb/blob/main/doc/log_format.md, with wandb's seven-byte header and
CRC-32 instead of CRC-32C. What a killed run left behind is read to the last whole record; damage in the
middle costs the rest of its 32 KiB block. The protobuf classes come with wandb, which is imported here alone.
"""

# wandb's generated classes have no types.
# pyright: reportAttributeAccessIssue=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from composer_mixmon.errors import ConfigError, MixmonError

__all__ = ["Damage", "config_items", "history_step", "items", "wandb_records"]

_BLOCK = 32 * 1024
_FILE_HEADER = struct.Struct("<4sHB")  # magic, number, version
_MAGIC = b":W&B"
_CHUNK_HEADER = struct.Struct("<IHB")  # crc32, length, kind
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_CRC_OF_KIND = {kind: zlib.crc32(bytes([kind])) for kind in (_FULL, _FIRST, _MIDDLE, _LAST)}


class Damage:
    """What could not be read of a file.

    Attributes:
        torn: Whether the file ends within a record.
        blocks: Blocks of which a part could not be read.
    """

    def __init__(self) -> None:
        self.torn = False
        self.blocks = 0


def wandb_records(path: Path, damage: Damage) -> Iterator[Any]:
    """Read the records of a ``.wandb`` file, one after the other.

    Args:
        path: The file.
        damage: Where what cannot be read is noted.

    Yields:
        Messages of the type ``wandb.proto.wandb_internal_pb2.Record``.

    Raises:
        ConfigError: It is no such file, or cannot be opened.
        MixmonError: wandb is not installed.
    """
    try:
        from wandb.proto import wandb_internal_pb2 as pb
    except ImportError as error:
        raise MixmonError('W&B\'s files are read with wandb: run pip install "wandb<0.29"') from error
    from google.protobuf.message import DecodeError

    try:
        with path.open("rb") as file:
            if file.read(_FILE_HEADER.size)[:4] != _MAGIC:
                raise ConfigError("RUN", str(path), "is no W&B file, or W&B had written nothing to it yet")
            for payload in _payloads(file, damage):
                record = pb.Record()
                try:
                    record.ParseFromString(payload)
                except DecodeError:
                    damage.blocks += 1
                    continue
                yield record
    except OSError as error:
        raise ConfigError("RUN", str(path), f"cannot be read: {error.strerror or error}") from error


def _payloads(file: IO[bytes], damage: Damage) -> Iterator[bytes]:
    """The payload of each whole record; the file stands behind its header."""
    parts: list[bytes] | None = None  # of the record in hand, None where its beginning is missing
    for chunks in _blocks(file, damage):
        for chunk in chunks:
            if chunk is None:
                parts = None
                continue
            kind, content = chunk
            if kind in (_FULL, _FIRST):
                parts = []
            if parts is not None:
                parts.append(content)
                if kind in (_FULL, _LAST):
                    yield b"".join(parts)
                    parts = None
    damage.torn |= parts is not None


def _blocks(file: IO[bytes], damage: Damage) -> Iterator[Iterable[tuple[int, bytes] | None]]:
    at = _FILE_HEADER.size
    while block := file.read(_BLOCK - at):
        yield _chunks(block, at + len(block) == _BLOCK, damage)
        at = 0


def _chunks(block: bytes, whole: bool, damage: Damage) -> Iterator[tuple[int, bytes] | None]:
    """Kind and content of each chunk of a block; ``None`` where the rest of it is damaged."""
    at = 0
    while at + _CHUNK_HEADER.size <= len(block):
        crc, length, kind = _CHUNK_HEADER.unpack_from(block, at)
        at += _CHUNK_HEADER.size
        content = block[at : at + length]
        at += length
        if len(content) < length and not whole:
            break
        if kind not in _CRC_OF_KIND or zlib.crc32(content, _CRC_OF_KIND[kind]) != crc:
            damage.blocks += 1
            yield None
            return
        yield kind, content
    if not whole and at != len(block):
        damage.torn = True
        yield None


def items(listed: Any) -> dict[str, Any]:
    """Keys and values of a record's items; what is no JSON is left out."""
    found: dict[str, Any] = {}
    for item in listed:
        try:
            found[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        except (ValueError, RecursionError):
            continue
    return found


def config_items(record: Any) -> dict[str, Any]:
    """What a record says of the run's config."""
    kind = record.WhichOneof("record_type")
    if kind == "config":
        return items(record.config.update)
    return items(record.run.config.update) if kind == "run" else {}


def history_step(row: Any) -> int | None:
    """The step of a history record: in its head, or else among its items."""
    if row.HasField("step"):
        return int(row.step.num)
    step = items(row.item).get("_step")
    return step if isinstance(step, int) else None
