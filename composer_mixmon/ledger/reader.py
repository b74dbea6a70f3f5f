"""Joins the segments of a run: what was trained on last, whatever was interrupted and done again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from composer_mixmon.errors import ConfigError
from composer_mixmon.ledger.blocks import Table
from composer_mixmon.ledger.fields import END
from composer_mixmon.ledger.header import Header
from composer_mixmon.ledger.places import segment_paths
from composer_mixmon.ledger.segment import Segment, read_segment
from composer_mixmon.run_record import Resumption, RunRecord, Target

__all__ = ["Ledger", "Part", "read_ledger"]

_CLOCKS_S = 1.0  # how far two machines' clocks may be apart


@dataclass(frozen=True)
class Part:
    """What is left of a segment after later ones.

    Attributes:
        path: The segment's file.
        header: What it says of itself.
        stop: Number of the first batch that is a later segment's.
    """

    path: Path
    header: Header
    stop: int


@dataclass(frozen=True)
class Ledger:
    """The ledger of a run.

    Attributes:
        record: The run.
        parts: Where it was recorded and under which settings, in the order of the batches.
    """

    record: RunRecord
    parts: tuple[Part, ...]

    def part_of(self, batch: int) -> Part:
        """The part that recorded a batch, or would have."""
        return [part for part in self.parts if part.header.batch <= batch][-1]


@dataclass
class _Kept:
    """A segment and how much of it still counts."""

    segment: Segment
    stop: int
    resumption: Resumption | None = None

    @property
    def batches(self) -> int:
        blocks = self.segment.blocks
        return sum(max(min(block.stop, self.stop) - block.first, 0) for block in blocks)

    def cut(self, batch: int) -> int:
        """Let a later segment begin at ``batch``; returns how many batches that discards."""
        before, self.stop = self.batches, min(self.stop, batch)
        return before - self.batches


@dataclass
class _Joined:
    """The segments joined so far."""

    kept: list[_Kept] = field(default_factory=list[_Kept])
    remarks: list[str] = field(default_factory=list[str])

    def add(self, segment: Segment) -> None:
        """Let a later segment go on where it begins."""
        header = segment.header
        discarded = 0
        for older in self.kept:
            discarded += older.cut(header.batch)
            if older.segment.blocks and older.segment.blocks[-1].time > header.started + _CLOCKS_S:
                self.remarks.append(
                    f"{older.segment.path.name} was still written to after {segment.path.name} had begun: "
                    "two processes have been training the same run"
                )
        gone = [older for older in self.kept if older.segment.header.batch >= header.batch]
        discarded += sum(older.resumption.discarded for older in gone if older.resumption)
        self.kept = [older for older in self.kept if older not in gone]
        resumed = header.resumed or any(older.resumption for older in gone)
        resumption = Resumption(header.batch, header.epoch, header.first_sample, discarded)
        self.kept.append(_Kept(segment, END, resumption if resumed else None))


def read_ledger(run: str) -> Ledger:
    """Read a run's ledger, which may be growing.

    Args:
        run: A segment, the folder of a run, the folder of the ledgers, or the ``save_folder`` around it.

    Raises:
        ConfigError: There is no ledger, there are several, or nothing of it can be read.
    """
    segments, remarks = _read(segment_paths(run))
    joined = _Joined(remarks=remarks)
    for segment in segments:
        joined.add(segment)
    first = joined.kept[0].segment.header.batch
    if first:
        joined.remarks.append(f"the batches before {first} are not in this ledger")
    names = tuple(dict.fromkeys(name for kept in joined.kept for name in kept.segment.header.labels))
    if any(kept.segment.header.labels != names for kept in joined.kept):
        joined.remarks.append("the labels changed during the run: where one was not counted, it has 0")
    table = _table(joined, names)
    return Ledger(_record(joined, names, table), _parts(joined))


def _read(paths: Sequence[Path]) -> tuple[list[Segment], list[str]]:
    """The segments of one run, in the order in which they began, and what is wrong with them."""
    segments: list[Segment] = []
    errors: list[ConfigError] = []
    for path in paths:
        try:
            segments.append(read_segment(path))
        except ConfigError as error:
            errors.append(error)
    if not segments:
        raise errors[0]
    segments.sort(key=lambda segment: (segment.header.started, segment.path.name))
    remarks = [f"{Path(str(error.value)).name} was left out: it {error.mend}" for error in errors]
    for segment in segments:
        remarks += segment.remarks
    mine = [segment for segment in segments if segment.header.run == segments[0].header.run]
    remarks += [
        f"{segment.path.name} was left out: it is of another run, {segment.header.run}"
        for segment in segments
        if segment not in mine
    ]
    begun = [segment for segment in mine if segment.blocks]
    remarks += [f"{segment.path.name} holds no batch" for segment in mine if not segment.blocks]
    return begun or mine, remarks


def _places(segment: Segment, names: tuple[str, ...]) -> list[int]:
    return [names.index(label) for label in segment.header.labels]


def _table(joined: _Joined, names: tuple[str, ...]) -> Table:
    known = [bool(block.layout.tokens) for kept in joined.kept for block in kept.segment.blocks]
    table = Table.empty(sum(kept.batches for kept in joined.kept), len(names), bool(known) and all(known))
    if any(known) and not all(known):
        joined.remarks.append("tokens are left out, for not all batches tell theirs")
    row = 0
    for kept in joined.kept:
        row = table.fill(kept.segment.blocks, kept.stop, _places(kept.segment, names), row)
    return table


def _record(joined: _Joined, names: tuple[str, ...], table: Table) -> RunRecord:
    batches = len(table.first)
    return RunRecord(
        source="ledger",
        names=names,
        first=table.first,
        span=np.ones(batches, np.int64),
        counts=table.counts,
        loss=table.loss,
        tokens=table.tokens,
        order=table.order,
        epoch=table.epoch,
        time=table.time,
        targets=tuple(_targets(joined, names)),
        resumptions=tuple(kept.resumption for kept in joined.kept if kept.resumption),
        alarms=tuple(_alarms(joined)),
        settings=joined.kept[-1].segment.header.settings,
        remarks=tuple(joined.remarks),
    )


def _targets(joined: _Joined, names: tuple[str, ...]) -> list[Target]:
    """The targets; one that goes on over a new segment comes once."""
    found: list[Target] = []
    for kept in joined.kept:
        header = kept.segment.header
        for first, shares in ((header.batch, header.target), *kept.segment.targets):
            target = np.zeros(len(names))
            target[_places(kept.segment, names)] = shares
            if first < kept.stop and not (found and np.array_equal(found[-1].shares, target)):
                found.append(Target(first, target))
    return found


def _alarms(joined: _Joined) -> list[dict[str, Any]]:
    alarms = [alarm for kept in joined.kept for alarm in kept.segment.alarms if alarm["batch"] < kept.stop]
    return sorted(alarms, key=lambda alarm: alarm["batch"])


def _parts(joined: _Joined) -> tuple[Part, ...]:
    return tuple(Part(kept.segment.path, kept.segment.header, kept.stop) for kept in joined.kept)
