"""What a scan has read so far, kept beside its output so that an interrupted one goes on where it was.

The first line says of what: column and index files. Each further line is ``[number, entry]`` of a shard, the
entry as the label file will have it, in the order in which the shards were read.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from composer_mixmon.errors import ConfigError

__all__ = ["Kept"]

_FORMAT = 1


class Kept:
    """The file beside the output; held open, and locked, as a context.

    Args:
        out: The output.
        column: The column that is read.
        sha256: Of the dataset's index files.

    Attributes:
        entries: Entries found there, by the shard's number.

    Raises:
        ConfigError: It is of another scan, or another process writes it.
    """

    def __init__(self, out: Path, column: str, sha256: str) -> None:
        self._out = out
        self._path = out.with_name(out.name + ".partial")
        self._head = {"scan": _FORMAT, "column": column, "index_sha256": sha256}
        self._places: dict[int, int] = {}  # first byte of each shard's line
        self._file: BinaryIO = open(self._path, "a+b")  # noqa: SIM115  # closed on exit
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.entries = self._read()
        except BlockingIOError:
            self._file.close()
            raise ConfigError("--out", str(out), "another process is building it") from None
        except ConfigError:
            self._file.close()
            raise

    def __enter__(self) -> Kept:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, number: int, entry: list[Any]) -> None:
        """Keep the entry of a shard."""
        self._places[number] = self._file.seek(0, os.SEEK_END)
        self._file.write(_line([number, entry]))
        self._file.flush()

    def finish(self, column: str, shards: int) -> None:
        """Write the output, whole or not at all, and remove what was kept.

        Args:
            column: The column.
            shards: Shards of the dataset, all of which are kept.
        """
        draft = self._out.with_name(self._out.name + ".draft")
        with open(draft, "w", encoding="utf-8") as file:
            file.write(f'{{"column": {json.dumps(column, ensure_ascii=False)}, "shards": [\n')
            for number in range(shards):
                self._file.seek(self._places[number])
                _, entry = json.loads(self._file.readline())
                comma = "," if number + 1 < shards else ""
                file.write(f"{json.dumps(entry, ensure_ascii=False)}{comma}\n")
            file.write("]}\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self._out)
        self.discard()

    def discard(self) -> None:
        """Remove what was kept."""
        self._path.unlink()

    def _read(self) -> dict[int, list[Any]]:
        self._file.seek(0)
        head = self._file.readline()
        if not head.endswith(b"\n"):  # new, or interrupted at once
            self._file.truncate(0)
            self._file.write(_line(self._head))
            self._file.flush()
            return {}
        if head != _line(self._head):
            mend = f"{str(self._path)!r} is of another column or dataset: remove it, or name another file"
            raise ConfigError("--out", str(self._out), mend)
        entries: dict[int, list[Any]] = {}
        while True:
            place = self._file.tell()
            line = self._file.readline()
            if not line.endswith(b"\n"):  # nothing, or what was being written when the scan was killed
                self._file.truncate(place)
                return entries
            number, entry = json.loads(line)
            entries[number], self._places[number] = entry, place


def _line(record: Any) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"
