"""Composer times as batches of an order."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from composer_mixmon.errors import ConfigError

__all__ = ["Duration", "first_batch", "read_duration"]

_TIME = re.compile(r"(\d[\d_]*(?:\.\d+)?)\s*([a-z]+)")


@dataclass(frozen=True)
class Duration:
    """A Composer time: an amount of ``ba``, ``ep``, ``sp``, ``tok``, ``dur`` or another unit."""

    amount: Fraction
    unit: str

    def of(self, whole: Duration | None) -> Duration | None:
        """The time in batches, epochs or samples, or ``None``; ``dur`` is a part of ``whole``."""
        time = self
        if not self.amount:
            return Duration(self.amount, "ba")
        if self.unit == "dur" and whole is not None:
            time = Duration(self.amount * whole.amount, whole.unit)
        return time if time.unit in ("ba", "ep", "sp") else None


def read_duration(value: Any) -> Duration | None:
    """Read a time such as ``4800ba`` or ``0.5dur``; a plain number counts epochs.

    Raises:
        ConfigError: It is no time.
    """
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return Duration(Fraction(value), "ep")
    found = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    if not found:
        raise ConfigError("max_duration", value, 'give a Composer time, such as "4800ba" or "1ep"')
    return Duration(Fraction(found[1].replace("_", "")), found[2])


def first_batch(time: Duration, epoch_batches: int, global_batch: int) -> int:
    """Number of the first batch, counted over the whole run from 0, at which a time has come.

    Args:
        time: In ``ba``, ``ep`` or ``sp``.
        epoch_batches: Batches of each epoch.
        global_batch: Samples of each batch.
    """
    if time.unit == "sp":
        return math.ceil(time.amount / global_batch)
    return math.ceil(time.amount) * (epoch_batches if time.unit == "ep" else 1)
