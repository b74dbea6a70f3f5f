"""Which sample ids a batch held: from the ledger's own record of them, or by replay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from composer_mixmon.errors import ConfigError
from composer_mixmon.ledger import Ledger, Part, read_ledger
from composer_mixmon.ledger.rank_ids import RankIds, read_rank_ids
from composer_mixmon.order_hash import order_hash
from composer_mixmon.replay import Replay
from composer_mixmon.run_record import RunRecord
from composer_mixmon.sources.given import Given
from composer_mixmon.sources.order import RunOrder
from composer_mixmon.sources.replayed import read_order
from composer_mixmon.train_yaml import read_train_yaml

__all__ = ["Fed", "fed"]

Ints = npt.NDArray[np.int64]
_LATE = 4  # epochs that the dataset may be behind Composer: one for each resumption where an epoch ended


@dataclass(frozen=True)
class Fed:
    """A batch as the ranks were fed it.

    Attributes:
        batch: Its number.
        epoch: Composer's epoch, −1 where not known.
        source: ``"rank_ids"`` where the ids were recorded, or ``"replay"``.
        proven: Whether the ledger's order hash is that of these ids; ``None`` where there is none.
        ranks: What each rank was fed, in turn; ranks that get the same samples each have an entry.
        order: The dataset's shards and labels.
        streams: Each stream as the run's config or the YAML tells it: ``remote``, ``local``, ``split``.
    """

    batch: int
    epoch: int
    source: str
    proven: bool | None
    ranks: tuple[RankIds, ...]
    order: RunOrder
    streams: tuple[dict[str, Any], ...]


def fed(run: str, batch: int, given: Given) -> Fed:
    """Find out what a batch of a run held.

    Args:
        run: A ledger, or a training YAML.
        batch: Its number, counted from 0 over the run.
        given: What the command line says beside it.

    Raises:
        MixmonError: There is no such batch, or its settings or index files are missing or wrong.
    """
    if batch < 0:
        raise ConfigError("--batch", batch, "write a whole number of at least 0")
    if Path(run).suffix in (".yaml", ".yml"):
        return _planned(batch, replace(given, config=run))
    return _recorded(read_ledger(run), batch, given)


def _planned(batch: int, given: Given) -> Fed:
    """A batch of a run that has left nothing but its YAML."""
    order = read_order(_bare({}, batch + 1), given)
    leg = next((leg for leg in order.legs if leg.batch <= batch < leg.batch + leg.batches), None)
    if leg is None:
        raise ConfigError("--batch", batch, f"the run has {order.batches} batches")
    ranks = _ranks(leg.replay(), batch - leg.batch)
    assert given.config is not None
    streams = tuple(vars(stream) for stream in read_train_yaml(given.config).streams)
    return Fed(batch, leg.epoch, "replay", None, ranks, order, streams)


def _recorded(ledger: Ledger, batch: int, given: Given) -> Fed:
    record = ledger.record
    row = int(np.searchsorted(record.first, batch))
    if row == len(record.first) or record.first[row] != batch or record.order is None:
        known = f"{record.first[0]} to {record.first[-1]}" if len(record.first) else "none"
        raise ConfigError("--batch", batch, f"is not in the ledger, which has {known}")
    part = ledger.part_of(batch)
    order = read_order(_bare(part.header.settings, 1), given)
    streams = tuple(part.header.settings.get("dataset", {}).get("streams") or ())
    epoch, wanted = int(record.epoch[row]), int(record.order[row])
    kept = tuple(read_rank_ids(part.path, part.header.run, batch))
    if kept and hash_of(kept) == wanted:
        return Fed(batch, epoch, "rank_ids", True, kept, order, streams)
    tried = [_ranks(replay, at) for replay, at in _candidates(record, part, batch, order)]
    if not tried:
        raise ConfigError("--batch", batch, "the settings of the run have no such batch in its epoch")
    ranks = next((ranks for ranks in tried if hash_of(ranks) == wanted), tried[0])
    return Fed(batch, epoch, "replay", hash_of(ranks) == wanted, ranks, order, streams)


def _bare(settings: dict[str, Any], batches: int) -> RunRecord:
    """A run of which only the settings are known, and how many batches it has."""
    first, span = np.zeros(1, np.int64), np.full(1, batches, np.int64)  # one row will do
    return RunRecord("", (), first, span, None, np.zeros(1), settings=settings)


def _candidates(record: RunRecord, part: Part, batch: int, order: RunOrder) -> Iterator[tuple[Replay, int]]:
    """Replays that may hold the batch, the likeliest first, and its place in each.

    A run that is resumed where an epoch ended may be fed that epoch once more (see ``sources.legs``).
    """
    header, leg = part.header, order.legs[0]
    epoch = int(record.epoch[np.searchsorted(record.first, batch)])
    mine = (record.first >= header.batch) & (record.first < part.stop) & (record.epoch == epoch)
    first_sample = max(header.first_sample, 0) if epoch == header.epoch else 0
    for order_epoch in range(epoch, max(-1, epoch - _LATE), -1):
        for skipped in dict.fromkeys((first_sample, 0)):
            replay = Replay(leg.settings, leg.world, order_epoch, skipped)
            at = batch - int(record.first[mine][0])
            if at < replay.batches:
                yield replay, at


def _ranks(replay: Replay, at: int) -> tuple[RankIds, ...]:
    ids = replay.rank_ids(slice(at, at + 1))[0]
    copies = replay.settings.replication or 1
    return tuple(RankIds(rank, rank // copies * ids.shape[1], row[row >= 0]) for rank, row in enumerate(ids))


def hash_of(ranks: tuple[RankIds, ...]) -> int:
    """The order hash of a batch; ranks that get the same samples count once."""
    twins = {rank.first_position: rank.ids for rank in ranks}
    return sum(order_hash(ids, first) for first, ids in twins.items()) % (1 << 64)
