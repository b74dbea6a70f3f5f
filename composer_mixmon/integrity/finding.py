"""An integrity finding as an alarm event, for the same actions."""

from __future__ import annotations

from dataclasses import dataclass

from composer_mixmon.alarms import Alarm

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding(Alarm):
    """What the sample ids themselves tell.

    Attributes:
        text: What was found, in a sentence.
    """

    text: str = ""

    @classmethod
    def of(cls, kind: str, batch: int, value: float, text: str) -> Finding:
        """A finding of one of the kinds that have a metric.

        Args:
            kind: ``repeats``, ``gaps``, ``rank overlap``, ``plan mismatch`` or ``same order``.
            batch: Number of the batch at which it came to light, counted from 0 over the whole run.
            value: The metric's value there.
            text: What was found.
        """
        return cls(f"integrity: {kind}", batch, batch, value, None, {}, {}, text=text)

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"
