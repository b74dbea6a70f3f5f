"""Lines that say themselves whether they are whole.

Each is a JSON object whose first key is the CRC-32 of the bytes behind that key, newline left out::

    {"crc":"1b851995","batch":0,…}
     └── 18 bytes ──┘└─ the CRC's ┘

so that a line which a kill or a full disk has torn is known for what it is, and ``grep`` and ``jq`` read
all others.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

__all__ = ["frame", "lines"]

_LONGEST = 1 << 26  # bytes of a line; a segment's header with 100,000 streams has half of that
_PREFIX = len('{"crc":"00000000",')


def frame(record: dict[str, Any]) -> bytes:
    """Write a record as a line.

    Args:
        record: At least one key. What JSON does not know, such as a path among the settings, becomes text.
    """
    body = json.dumps(record, separators=(",", ":"), default=str).encode("ascii")[1:]
    return b'{"crc":"%08x",%s\n' % (zlib.crc32(body), body)


def lines(file: BinaryIO) -> Iterator[dict[str, Any] | None]:
    """The records of a file, up to where it ends now; ``None`` for each line that is not whole."""
    while line := file.readline(_LONGEST):
        yield _record(line)


def _record(line: bytes) -> dict[str, Any] | None:
    body = line[_PREFIX:-1]
    if not line.endswith(b"}\n") or line[:_PREFIX] != b'{"crc":"%08x",' % zlib.crc32(body):
        return None
    try:
        record: Any = json.loads(b"{" + body)
    except (ValueError, RecursionError):  # somebody else's line, with a CRC of its own making
        return None
    return record
