"""What a segment of a ledger says of itself in its first line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from composer_mixmon.ledger.fields import UnreadableError, number, typed, whole

__all__ = ["FORMAT", "Header", "read_target"]

FORMAT = 1


@dataclass(frozen=True)
class Header:
    """The start of a segment: a process that began or went on with a run, or followed to other data.

    Attributes:
        run: Which run, the same for all of its segments.
        name: Composer's name of the run.
        started: Seconds since 1970.
        batch: Number of the segment's first batch, counted from 0 over the run.
        epoch: Its epoch, from 0.
        first_sample: Samples of that epoch that had been trained on (Composer's ``sample_in_epoch``).
        resumed: Whether the run went on from a checkpoint here.
        labels: The labels' names.
        target: Each label's target share.
        settings: What ``run_config`` tells: settings of the order and of the monitor.
    """

    run: str
    name: str
    started: float
    batch: int
    epoch: int
    first_sample: int
    resumed: bool
    labels: tuple[str, ...]
    target: tuple[float, ...]
    settings: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The first line, as plain types."""
        return {"ledger": FORMAT, **vars(self), "labels": list(self.labels), "target": list(self.target)}

    @classmethod
    def read(cls, record: dict[str, Any]) -> Header:
        """Read what :meth:`to_dict` wrote.

        Raises:
            UnreadableError: It is something else.
        """
        if "ledger" not in record:
            raise UnreadableError("no segment of a ledger begins like this")
        if record["ledger"] != FORMAT:
            raise UnreadableError(f"it has the format {record['ledger']!r}, this version reads {FORMAT}")
        labels = tuple(map(str, typed(record, "labels", list)))
        if not labels or len(set(labels)) != len(labels):
            raise UnreadableError("labels are missing or come twice")
        return cls(
            typed(record, "run", str),
            typed(record, "name", str),
            number("started", record.get("started")),
            whole(record, "batch"),
            whole(record, "epoch", -1),
            whole(record, "first_sample", -1),
            typed(record, "resumed", bool),
            labels,
            read_target(record, len(labels)),
            typed(record, "settings", dict),
        )


def read_target(record: dict[str, Any], labels: int) -> tuple[float, ...]:
    """The target shares of a record.

    Raises:
        UnreadableError: They are not as many as the labels, or no numbers.
    """
    shares = typed(record, "target", list)
    if len(shares) != labels:
        raise UnreadableError(f"{len(shares)} target shares for {labels} labels")
    return tuple(number("target", share) for share in shares)
