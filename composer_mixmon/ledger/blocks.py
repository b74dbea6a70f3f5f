"""Consecutive batches as one record of a ledger, and the records of a run as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from composer_mixmon.ledger.columns import decode, encode, size_of, smallest, unpack
from composer_mixmon.ledger.fields import UnreadableError, as_whole, number, typed, whole
from composer_mixmon.rows import Closed

__all__ = ["Block", "Layout", "Table", "blocks_of", "read_block"]

Ints = npt.NDArray[np.int64]

_LONGEST = 1 << 16  # batches of a block
_AT_ONCE = 4096  # blocks that are unpacked together


class Layout(NamedTuple):
    """How the numbers of a block are stored.

    Attributes:
        batches: How many batches.
        counts: Type of the counts.
        tokens: Type of the tokens; empty where they are not known.
        loss: Type of the losses.
    """

    batches: int
    counts: str
    tokens: str
    loss: str

    def columns(self, labels: int) -> list[tuple[str, str, int]]:
        """Name, type and numbers of each column, in the order in which they are stored."""
        rows = self.batches * labels
        tokens = [("tokens", self.tokens, rows)] if self.tokens else []
        return [
            ("counts", self.counts, rows),
            *tokens,
            ("loss", self.loss, self.batches),
            ("order", "u8", self.batches),
        ]


class Block(NamedTuple):
    """Consecutive batches as they are stored.

    Attributes:
        first: Number of the first of them.
        layout: How they are stored.
        raw: The columns.
        epoch: Their epoch, or one for each.
        time: Seconds since 1970 when they were written.
    """

    first: int
    layout: Layout
    raw: bytes
    epoch: int | list[int]
    time: float

    @property
    def stop(self) -> int:
        """Number of the batch behind the last of them."""
        return self.first + self.layout.batches


def blocks_of(closed: Closed, time: float) -> list[dict[str, Any]]:
    """Records of what an interval has closed: one, unless batches are missing in between.

    Args:
        closed: At least one batch.
        time: Seconds since 1970.
    """
    edges = [0, *(np.flatnonzero(np.diff(closed.batch) != 1) + 1).tolist(), len(closed.batch)]
    return [_record(closed, slice(a, b), time) for a, b in pairwise(edges)]


def _record(closed: Closed, part: slice, time: float) -> dict[str, Any]:
    rows, loss, epochs = closed.rows, closed.loss[part], closed.epoch[part].tolist()
    counts, order = rows.counts[part], rows.order[part]
    known = bool(rows.told[part].all())
    tokens = [rows.tokens[part]] if known else []
    columns = [(smallest(values), values) for values in (counts, *tokens, loss)]
    kinds = [kind for kind, _ in columns]
    return {
        "batch": int(closed.batch[part][0]),
        "n": len(epochs),
        "epoch": epochs[0] if len(set(epochs)) == 1 else epochs,
        "time": round(time, 3),
        "as": kinds if known else [kinds[0], "", kinds[1]],
        "data": encode([*columns, ("u8", order)]),
    }


def read_block(record: dict[str, Any], labels: int) -> Block:
    """Check what :func:`blocks_of` wrote.

    Args:
        record: The record.
        labels: How many labels the segment counts.

    Raises:
        UnreadableError: It is something else.
    """
    first, batches = whole(record, "batch"), whole(record, "n", 1)
    kinds = [str(kind) for kind in typed(record, "as", list)]
    if batches > _LONGEST or len(kinds) != 3:
        raise UnreadableError(f"a block of {batches} batches with columns {kinds}")
    layout = Layout(batches, *kinds)
    raw = decode(typed(record, "data", str), _size(layout, labels))
    return Block(first, layout, raw, _epoch(record.get("epoch"), batches), number("time", record.get("time")))


@lru_cache
def _size(layout: Layout, labels: int) -> int:
    """Bytes of a block."""
    return sum(size_of(kind) * numbers for _, kind, numbers in layout.columns(labels))


def _epoch(value: Any, batches: int) -> int | list[int]:
    if not isinstance(value, list):
        return as_whole("epoch", value, -1)
    epochs = [as_whole("epoch", epoch, -1) for epoch in cast("list[Any]", value)]
    if len(epochs) != batches:
        raise UnreadableError(f"{len(epochs)} epochs of {batches} batches")
    return epochs


@dataclass(frozen=True)
class Table:
    """Batches, one a row; the fields are those of :class:`~composer_mixmon.run_record.RunRecord`.

    Attributes:
        first: int64 (batches,).
        counts: int64 (batches, labels).
        tokens: int64 (batches, labels), −1 where not known.
        loss: float64 (batches,).
        order: uint64 (batches,).
        epoch: int64 (batches,).
        time: float64 (batches,).
    """

    first: Ints
    counts: Ints
    tokens: Ints | None
    loss: npt.NDArray[np.float64]
    order: npt.NDArray[np.uint64]
    epoch: Ints
    time: npt.NDArray[np.float64]

    @classmethod
    def empty(cls, batches: int, labels: int, tokens: bool) -> Table:
        """Room for so many batches."""
        return cls(
            np.zeros(batches, np.int64),
            np.zeros((batches, labels), np.int64),
            np.zeros((batches, labels), np.int64) if tokens else None,
            np.zeros(batches),
            np.zeros(batches, np.uint64),
            np.zeros(batches, np.int64),
            np.zeros(batches),
        )

    def fill(self, blocks: Sequence[Block], stop: int, places: Sequence[int], row: int) -> int:
        """Put the batches of a segment in.

        Args:
            blocks: Its blocks, ascending.
            stop: Number of the first batch that is left out.
            places: The column of each of the segment's labels.
            row: Where they begin.

        Returns:
            Where they end.
        """
        kept = [block for block in blocks if block.first < stop]
        starts = row + np.cumsum([0, *(block.layout.batches for block in kept)])
        end = int(starts[-1]) - (max(kept[-1].stop - stop, 0) if kept else 0)
        columns = np.array(places, np.int64)
        of_layout: dict[Layout, list[int]] = {}
        for index, block in enumerate(kept):
            of_layout.setdefault(block.layout, []).append(index)
        for layout, indices in of_layout.items():
            for begin in range(0, len(indices), _AT_ONCE):
                some = indices[begin : begin + _AT_ONCE]
                self._put(layout, [kept[index] for index in some], starts[some], end, columns)
        return end

    def _put(self, layout: Layout, blocks: Sequence[Block], starts: Ints, end: int, places: Ints) -> None:
        """Put blocks of one layout in, where each starts; rows from ``end`` on are left out."""
        within = np.arange(layout.batches)
        rows = (starts[:, None] + within).ravel()
        keep = rows < end
        rows = rows[keep]
        raw = np.frombuffer(b"".join(block.raw for block in blocks), np.uint8).reshape(len(blocks), -1)
        if not layout.tokens and self.tokens is not None:
            self.tokens[rows] = -1
        at = 0
        for name, kind, numbers in layout.columns(len(places)):
            size = size_of(kind) * numbers
            values = unpack(kind, raw[:, at : at + size]).reshape(len(keep), -1)[keep]
            at += size
            column = getattr(self, name)
            if column is not None and column.ndim == 2:
                column[np.ix_(rows, places)] = values
            elif column is not None:
                column[rows] = values[:, 0]
        firsts = np.array([block.first for block in blocks])
        self.first[rows] = (firsts[:, None] + within).ravel()[keep]
        epochs = [
            e if isinstance(e, list) else [e] * layout.batches for e in (block.epoch for block in blocks)
        ]
        self.epoch[rows] = np.array(epochs).ravel()[keep]
        self.time[rows] = np.repeat([block.time for block in blocks], layout.batches)[keep]
