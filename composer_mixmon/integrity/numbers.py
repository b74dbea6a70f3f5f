"""The numbers of an interval that ranks add up for the integrity checks, in one vector of fixed length."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from composer_mixmon.integrity.spots import PACKED

__all__ = ["SHOWN", "Detail", "Numbers", "wrap"]

Ints = npt.NDArray[np.int64]

SHOWN = 4  # ids of a batch that a message shows
_BITS = 62  # ranks to a word: the sum of distinct bits stays positive

# Summed over the ranks. Those from "started" on are rank 0's alone, so that every rank reads the same.
_SUMS = ("samples", "uncounted", "excess", "void", "mismatches", "fingerprint")
_RANK_0 = ("hashed", "started", "epoch", "first", "start", "total", "dropped", "setup")
_PLACE = {name: i for i, name in enumerate((*_SUMS, *_RANK_0))}
_DETAIL = 4 + 2 * SHOWN
_TABLE = len(_PLACE) + _DETAIL
_RANKS = _TABLE + PACKED


class Detail:
    """The first mismatch of a rank.

    Attributes:
        rank: The rank.
        batch: The batch, counted from 0 over the run.
        expected: The first ids that the plan has there; none if another rank's plan is another.
        seen: The first ids that came.
    """

    def __init__(self, rank: int, batch: int, expected: list[int], seen: list[int]) -> None:
        self.rank = rank
        self.batch = batch
        self.expected = expected[:SHOWN]
        self.seen = seen[:SHOWN]

    def pack(self) -> Ints:
        """As numbers: int64 (12,)."""
        values = np.zeros(_DETAIL, np.int64)
        values[:4] = self.rank, self.batch, len(self.expected), len(self.seen)
        values[4 : 4 + len(self.expected)] = self.expected
        values[4 + SHOWN : 4 + SHOWN + len(self.seen)] = self.seen
        return values

    def __str__(self) -> str:
        where = f"rank {self.rank} in batch {self.batch}"
        if not self.seen:
            return f"the data of {where} does not follow from the settings, epoch and place of rank 0's"
        planned = f"{_shown(self.expected)} were planned" if self.expected else "nothing was planned"
        return f"{where} was fed the samples {_shown(self.seen)} where {planned}"

    @classmethod
    def unpack(cls, values: Ints) -> Detail:
        """Read what :meth:`pack` returned."""
        rank, batch, expected, seen = values[:4].tolist()
        ids: list[int] = values[4:].tolist()
        return cls(rank, batch, ids[:expected], ids[SHOWN : SHOWN + seen])


class Numbers:
    """One vector.

    Args:
        ranks: How many ranks there are.
        values: The numbers; zeros if left out.

    Attributes:
        values: int64 (282 + ranks + ranks / 62,).
    """

    def __init__(self, ranks: int, values: Ints | None = None) -> None:
        self._ranks = ranks
        size = _RANKS + ranks + -(-ranks // _BITS)
        self.values = np.zeros(size, np.int64) if values is None else values

    @property
    def table(self) -> Ints:
        """Packed counts of the spots: int64 (256,)."""
        return self.values[_TABLE:_RANKS]

    @property
    def digests(self) -> Ints:
        """Each rank's digest of its ids, whatever their order: int64 (ranks,)."""
        return self.values[_RANKS : _RANKS + self._ranks]

    def __getitem__(self, name: str) -> int:
        return int(self.values[_PLACE[name]])

    def __setitem__(self, name: str, value: int) -> None:
        self.values[_PLACE[name]] = wrap(value)

    def suspect(self, detail: Detail) -> None:
        """Name this rank as one that was fed other samples than planned."""
        self.values[_RANKS + self._ranks + detail.rank // _BITS] = 1 << detail.rank % _BITS
        self.values[len(_PLACE) : _TABLE] = detail.pack()

    @property
    def suspects(self) -> list[int]:
        """Ranks that were fed other samples than planned, in a sum over the ranks."""
        words: list[int] = self.values[_RANKS + self._ranks :].tolist()
        return [_BITS * i + bit for i, word in enumerate(words) for bit in range(_BITS) if word >> bit & 1]

    @property
    def detail(self) -> Detail | None:
        """The first mismatch, in a sum over the ranks; ``None`` unless exactly one rank has one."""
        return Detail.unpack(self.values[len(_PLACE) : _TABLE]) if len(self.suspects) == 1 else None


def _shown(ids: list[int]) -> str:
    return f"{', '.join(map(str, ids))}, …"


def wrap(value: int) -> int:
    """The signed 64-bit number with the same lowest bits."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
