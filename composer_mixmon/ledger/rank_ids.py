"""The sample ids of one rank, batch by batch, in a file beside a segment.

Lines as in a segment, a first one and one for each interval::

    {"crc":…,"ids":1,"run":…,"rank":0,"first_position":0}
    {"crc":…,"batch":0,"n":10,"sizes":[4,…],"as":"u2","data":"z…"}

``data`` holds the ids of all batches of the interval as differences from one to the next, zigzag-coded, so
that ids in order take no room.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from composer_mixmon.ledger.columns import decode, encode, size_of, smallest, unpack
from composer_mixmon.ledger.fields import END, UnreadableError, as_whole, typed, whole
from composer_mixmon.ledger.lines import lines
from composer_mixmon.ledger.places import ids_name
from composer_mixmon.ledger.writer import Appender

__all__ = ["IdsWriter", "RankIds", "read_rank_ids"]

Ints = npt.NDArray[np.int64]
FORMAT = 1
_MOST_IDS = 1 << 31  # of an interval


class RankIds(NamedTuple):
    """What one rank was fed in one batch.

    Attributes:
        rank: The rank.
        first_position: Place of its first sample in the global batch, as for the order hash.
        ids: The sample ids, int64 (samples,).
    """

    rank: int
    first_position: int
    ids: Ints


class IdsWriter:
    """Writes the ids of a rank.

    Args:
        path: The file, which must not exist yet.
        run: Which run.
        rank: The rank.
        first_position: Place of its first sample in the global batch.

    Raises:
        OSError: The file exists, or cannot be written.
    """

    def __init__(self, path: Path, run: str, rank: int, first_position: int) -> None:
        first = {"ids": FORMAT, "run": run, "rank": rank, "first_position": first_position}
        self._lines = Appender(path, first)
        self._waiting: dict[int, Ints] = {}

    @property
    def path(self) -> Path:
        """The file."""
        return self._lines.path

    def put(self, batch: int, ids: Ints) -> None:
        """Hold the ids of a batch that has been fetched."""
        self._waiting[batch] = ids

    def write(self, last: int) -> None:
        """Add what waits up to a batch that has been trained on.

        Raises:
            OSError: The disk is full, or gone.
        """
        ready = sorted(batch for batch in self._waiting if batch <= last)
        if ready:
            parts = np.split(np.array(ready), np.flatnonzero(np.diff(ready) != 1) + 1)
            self._lines.add([self._record(part.tolist()) for part in parts])

    def _record(self, batches: list[int]) -> dict[str, Any]:
        """What waits of consecutive batches."""
        ids = [self._waiting.pop(batch) for batch in batches]
        steps = np.diff(np.concatenate(ids), prepend=0)
        coded = (steps << 1) ^ (steps >> 63)
        kind = smallest(coded)
        sizes = [len(one) for one in ids]
        return {
            "batch": batches[0],
            "n": len(ids),
            "sizes": sizes,
            "as": kind,
            "data": encode([(kind, coded)]),
        }

    def close(self) -> None:
        """Let go of the file; twice does no harm."""
        self._lines.close()


def read_rank_ids(segment: Path, run: str, batch: int) -> list[RankIds]:
    """What each rank was fed in a batch; ranks whose file is not here are missing.

    Args:
        segment: The segment's file.
        run: Which run.
        batch: The batch.
    """
    found = (_find(path, run, batch) for path in segment.parent.glob(ids_name(segment.name, "*")))
    return sorted((one for one in found if one is not None), key=lambda one: one.rank)


def _find(path: Path, run: str, batch: int) -> RankIds | None:
    """The batch in one rank's file, if it is there and whole."""
    try:
        with path.open("rb") as file:
            records = lines(file)
            header = next(records, None)
            if header is None or header.get("ids") != FORMAT or header.get("run") != run:
                return None
            rank, position = whole(header, "rank"), whole(header, "first_position")
            for record in records:
                if record and whole(record, "batch") <= batch < whole(record, "batch") + whole(record, "n"):
                    return RankIds(rank, position, _ids(record, batch))
    except (OSError, UnreadableError):
        return None
    return None


def _ids(record: dict[str, Any], batch: int) -> Ints:
    sizes = [as_whole("sizes", size) for size in cast("list[Any]", typed(record, "sizes", list))]
    kind, total = typed(record, "as", str), sum(sizes)
    at = batch - whole(record, "batch")
    if at >= len(sizes) or total > _MOST_IDS:
        raise UnreadableError(f"{len(sizes)} batches of {total} ids")
    raw = np.frombuffer(decode(typed(record, "data", str), total * size_of(kind)), np.uint8)
    coded = unpack(kind, raw[None])[0].astype(np.int64)
    ids = np.cumsum((coded >> 1) ^ -(coded & 1))
    begin = sum(sizes[:at])
    found = ids[begin : begin + sizes[at]]
    if len(found) and not 0 <= int(found.min()) <= int(found.max()) < END:
        raise UnreadableError("ids below 0")
    return found
