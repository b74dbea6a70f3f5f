"""Reads one segment of a ledger: all that is whole, and what is wrong with the rest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_mixmon.errors import ConfigError
from composer_mixmon.ledger.blocks import Block, read_block
from composer_mixmon.ledger.fields import UnreadableError, typed, whole
from composer_mixmon.ledger.header import Header, read_target
from composer_mixmon.ledger.lines import lines

__all__ = ["Segment", "read_segment"]


@dataclass(frozen=True)
class Segment:
    """A segment as it is stored.

    Attributes:
        path: Its file.
        header: Its first line.
        blocks: Its batches, ascending.
        targets: First batch and shares of each part with a target of its own, the first part's left out.
        alarms: The alarms raised.
        remarks: What is wrong with it.
    """

    path: Path
    header: Header
    blocks: tuple[Block, ...]
    targets: tuple[tuple[int, tuple[float, ...]], ...]
    alarms: tuple[dict[str, Any], ...]
    remarks: tuple[str, ...]


def read_segment(path: Path) -> Segment:
    """Read a segment, which may be growing.

    Raises:
        ConfigError: It cannot be read, or has no whole first line.
    """
    try:
        with path.open("rb") as file:
            records = lines(file)
            header = _header(next(records, None), path)
            reader = _Reader(header)
            for record in records:
                reader.take(record)
    except OSError as error:
        raise ConfigError("RUN", str(path), f"cannot be read: {error.strerror}") from error
    return reader.segment(path)


def _header(record: dict[str, Any] | None, path: Path) -> Header:
    if record is None:
        raise ConfigError("RUN", str(path), "is no segment of a ledger, or its first line is not whole")
    try:
        return Header.read(record)
    except UnreadableError as error:
        raise ConfigError("RUN", str(path), f"cannot be read as a segment of a ledger: {error}") from error


class _Reader:
    """What has been read of a segment so far."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._blocks: list[Block] = []
        self._targets: list[tuple[int, tuple[float, ...]]] = []
        self._alarms: list[dict[str, Any]] = []
        self._stop = header.batch
        self._damaged = 0
        self._cut_off = False  # the last line, which may be being written now
        self._problems: list[str] = []

    def take(self, record: dict[str, Any] | None) -> None:
        """Read one line."""
        self._cut_off = record is None
        if record is None:
            self._damaged += 1
            return
        try:
            self._read(record)
        except UnreadableError as error:
            self._problems.append(str(error))

    def _read(self, record: dict[str, Any]) -> None:
        labels = len(self._header.labels)
        if "alarm" in record:
            alarm: dict[str, Any] = typed(record, "alarm", dict)
            whole(alarm, "batch")
            self._alarms.append(alarm)
        elif "target" in record:
            self._targets.append((whole(record, "from"), read_target(record, labels)))
        else:
            block = read_block(record, labels)
            if block.first < self._stop:
                raise UnreadableError(f"batch {block.first} comes twice or out of order")
            self._blocks.append(block)
            self._stop = block.stop

    def segment(self, path: Path) -> Segment:
        """All that could be read."""
        remarks: list[str] = []
        if self._cut_off:
            remarks.append(f"{path.name}: its last record is cut off and was left out")
        if self._damaged > self._cut_off:
            remarks.append(f"{path.name}: {self._damaged - self._cut_off} damaged records were left out")
        if self._problems:
            remarks.append(
                f"{path.name}: {len(self._problems)} records were left out, the first because: "
                f"{self._problems[0]}"
            )
        return Segment(
            path,
            self._header,
            tuple(self._blocks),
            tuple(self._targets),
            tuple(self._alarms),
            tuple(remarks),
        )
