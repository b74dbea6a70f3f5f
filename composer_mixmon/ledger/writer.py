"""Appends to a segment of a ledger, a whole interval at a time or not at all."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from composer_mixmon.ledger.blocks import blocks_of
from composer_mixmon.ledger.header import Header
from composer_mixmon.ledger.lines import frame
from composer_mixmon.rows import Closed

__all__ = ["Appender", "Writer"]


class Appender:
    """A new file of framed lines, to which each call adds in one write.

    What the system has taken is not lost with the process; it is not forced to the disk, for that may take
    longer than a training step.

    Args:
        path: The file, which must not exist yet.
        first: The first line.

    Raises:
        OSError: It exists, or cannot be written.
    """

    def __init__(self, path: Path, first: dict[str, Any]) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        try:
            self.add([first])
        except OSError:
            self.close()
            raise

    def add(self, records: Sequence[dict[str, Any]]) -> None:
        """Add lines.

        Raises:
            OSError: They were not taken, or in part only; then nothing may be added any more.
        """
        content = b"".join(map(frame, records))
        if os.write(self._file, content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def close(self) -> None:
        """Let go of the file; twice does no harm."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


class Writer:
    """Writes one segment.

    Args:
        path: Its file, which must not exist yet.
        header: Its first line.

    Raises:
        OSError: The file exists, or cannot be written.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self._lines = Appender(path, header.to_dict())
        self._target = header.target

    @property
    def path(self) -> Path:
        """The file."""
        return self._lines.path

    def write(
        self, closed: Sequence[Closed], target: Sequence[float], alarms: Sequence[dict[str, Any]]
    ) -> None:
        """Add what an interval has closed.

        Args:
            closed: Its batches.
            target: Each label's target share in these batches.
            alarms: The alarms raised at their end, as ``Alarm.to_dict`` gives them.

        Raises:
            OSError: The disk is full, or gone.
        """
        now = time.time()
        records = [record for part in closed for record in blocks_of(part, now)]
        if records and tuple(target) != self._target:
            self._target = tuple(target)
            records.insert(0, {"from": records[0]["batch"], "target": list(target)})
        records += [{"alarm": alarm} for alarm in alarms]
        if records:
            self._lines.add(records)

    def close(self) -> None:
        """Let go of the file; twice does no harm."""
        self._lines.close()
