"""Values of a record, read with the suspicion that a file from elsewhere deserves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["END", "UnreadableError", "as_whole", "number", "typed", "whole"]

Record = Mapping[str, Any]

END = 1 << 62
"""More than any number of batches or epochs, and far from where int64 ends."""


class UnreadableError(ValueError):
    """A record is not what a ledger's writer writes."""


def typed(record: Record, key: str, kind: type) -> Any:
    """A value of one type.

    Raises:
        UnreadableError: It is missing, or of another type.
    """
    value = record.get(key)
    if not isinstance(value, kind):
        raise UnreadableError(f"{key} is {str(value)[:80]!r}")
    return value


def whole(record: Record, key: str, least: int = 0) -> int:
    """A whole number from ``least`` to :data:`END`.

    Raises:
        UnreadableError: It is none.
    """
    return as_whole(key, record.get(key), least)


def as_whole(key: str, value: object, least: int = 0) -> int:
    """The same of a value that a list of the name ``key`` holds."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < END:
        raise UnreadableError(f"{key} is {str(value)[:80]!r}, no whole number of at least {least}")
    return value


def number(key: str, value: object) -> float:
    """A finite number.

    Raises:
        UnreadableError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UnreadableError(f"{key} is {str(value)[:80]!r}, no number")
    return float(value)
