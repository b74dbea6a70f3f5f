"""What loggers wrote, key by key: the common form of W&B's, CSV and TensorBoard's data."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LOSS", "RATIO", "TIME", "Logged", "Part", "Series", "is_wanted", "number"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LOSS = "loss/train/total"
"""Composer's key of the loss of a batch, logged at that batch's number counted from 0."""
RATIO = "mixmon/run/ratio/"
"""What precedes a label in the key of its share of the run so far."""
TIME = "_timestamp"
"""The key of seconds since 1970, as W&B calls it."""
_WANTED = (LOSS, TIME, "time/epoch", "time/sample", "time/sample_in_epoch", "mixmon/alarms")


def is_wanted(key: str) -> bool:
    """Whether a record of a run can be made from a key's values."""
    return key in _WANTED or key.startswith(RATIO)


def number(text: str) -> float | None:
    """Read a number as JSON, W&B and spreadsheets write it, such as ``1.5`` and ``"NaN"``; else ``None``."""
    try:
        return float(text.strip('" '))
    except ValueError:
        return None


@dataclass(frozen=True)
class Series:
    """A key's values.

    Attributes:
        steps: Ascending, int64 (n,).
        values: float64 (n,).
    """

    steps: Ints
    values: Floats

    def at(self, steps: Ints) -> Floats:
        """The value at each step, NaN where there is none: float64 (len(steps),)."""
        found = np.full(len(steps), np.nan)
        if len(self.steps):
            place = np.minimum(np.searchsorted(self.steps, steps), len(self.steps) - 1)
            hit = self.steps[place] == steps
            found[hit] = self.values[place[hit]]
        return found

    def until(self, steps: Ints) -> Floats:
        """The last value at or before each step, NaN where there is none."""
        if not len(self.steps):
            return np.full(len(steps), np.nan)
        place = np.searchsorted(self.steps, steps, side="right") - 1
        return np.where(place >= 0, self.values[place], np.nan)


EMPTY = Series(np.zeros(0, np.int64), np.zeros(0))


class Part:
    """What one process logged, from its start to its end or to where it was killed."""

    def __init__(self) -> None:
        self._written: dict[str, tuple[array[int], array[float]]] = {}

    def put(self, key: str, step: int, value: float) -> None:
        """Add a value."""
        if key not in self._written:
            self._written[key] = array("q"), array("d")
        steps, values = self._written[key]
        steps.append(step)
        values.append(value)

    @property
    def keys(self) -> tuple[str, ...]:
        """What was logged, in the order in which each key came first."""
        return tuple(self._written)

    def series(self, key: str) -> Series:
        """A key's values; where steps go back, the later values count."""
        if key not in self._written:
            return EMPTY
        steps, values = self._written[key]
        return _ascending(np.array(steps, np.int64), np.array(values, np.float64))


@dataclass(frozen=True)
class Logged:
    """What is known of a run from its loggers.

    Attributes:
        source: Where from, in words.
        columns: Each key's values.
        starts: Where training went on from a checkpoint: the step, and how many steps were done again.
        config: The run's config, as far as it is known.
        precision: Of the values, relative to them: half a unit in the last place.
        remarks: What is missing or damaged.
    """

    source: str
    columns: Mapping[str, Series]
    starts: tuple[tuple[int, int], ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    precision: float = 2.0**-53
    remarks: tuple[str, ...] = ()

    @classmethod
    def join(cls, source: str, parts: Sequence[Part], **more: Any) -> Logged:
        """Join what several processes logged, one after the other: what was trained on last counts.

        Args:
            source: As above.
            parts: In the order of their starts.
            **more: The other fields.
        """
        kept: list[dict[str, Series]] = []
        starts: list[tuple[int, int]] = []
        reached = -1
        for part in parts:
            columns = {key: part.series(key) for key in part.keys}
            begun = columns.get(LOSS, EMPTY).steps
            if not len(begun):  # what a logger wrote when training had ended
                kept.append(columns)
                continue
            first = int(begun[0])
            kept = [{key: _before(series, first) for key, series in earlier.items()} for earlier in kept]
            if reached >= 0 or first > 0:
                starts.append((first, max(0, reached + 1 - first)))
            kept.append(columns)
            reached = int(begun[-1])
        return cls(source, _concatenated(kept), tuple(starts), **more)

    def column(self, key: str) -> Series:
        """A key's values, perhaps none."""
        return self.columns.get(key, EMPTY)

    def without_mixture(self) -> Logged:
        """The same as if no mixture had been logged."""
        return replace(self, columns={k: v for k, v in self.columns.items() if not k.startswith(RATIO)})


def _before(series: Series, step: int) -> Series:
    end = int(np.searchsorted(series.steps, step))
    return Series(series.steps[:end], series.values[:end])


def _concatenated(parts: Sequence[Mapping[str, Series]]) -> dict[str, Series]:
    keys = dict.fromkeys(key for part in parts for key in part)
    joined: dict[str, Series] = {}
    for key in keys:
        pieces = [part[key] for part in parts if key in part]
        steps = np.concatenate([piece.steps for piece in pieces])
        joined[key] = _ascending(steps, np.concatenate([piece.values for piece in pieces]))
    return joined


def _ascending(steps: Ints, values: Floats) -> Series:
    """Values in the order in which they were written; where steps go back, the later ones count."""
    ahead = np.minimum.accumulate(steps[::-1])[::-1]
    kept = np.append(steps[:-1] < ahead[1:], True)
    return Series(steps[kept], values[kept])
