"""Made-up runs: records whose order, mixture and loss are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from composer_mixmon.order_hash import order_hashes
from composer_mixmon.replay import Settings, World
from composer_mixmon.run_record import Resumption, RunRecord, Target
from composer_mixmon.shards import ShardTable
from composer_mixmon.sources.legs import lay_out
from composer_mixmon.sources.order import RunOrder

WORLD = World(1, 2, 2)
BATCH = 16  # over both ranks
SHARDS = [40] * 10
NAMES = ("ja", "en")

Ints = npt.NDArray[np.int64]


def settings_of(**changes: Any) -> Settings:
    plain = {"batch_size": BATCH // 2, "shuffle": True, "num_canonical_nodes": 2, "shuffle_block_size": 64}
    return Settings.resolve(WORLD, [SHARDS], **{**plain, **changes})


def order_of(batches: int, resumptions: Sequence[Resumption] = (), **changes: Any) -> RunOrder:
    """What settings say that a run was fed."""
    names = [f"shard.{number:05}.mds" for number in range(len(SHARDS))]
    shards = ShardTable.build(names, SHARDS, np.zeros(len(SHARDS)), ["stream"])
    return RunOrder(lay_out(settings_of(**changes), WORLD, batches, resumptions), (), None, shards)


def ids_of(order: RunOrder) -> Ints:
    """Sample ids of each batch, int64 (batches, global batch)."""
    return np.concatenate([leg.replay().ids(slice(leg.batches)) for leg in order.legs])


def record_of(ids: Ints, epochs: Ints | None = None, **changes: Any) -> RunRecord:
    """The record of a run that was fed these ids; the first half of the dataset is ja."""
    rows = np.arange(len(ids))
    known = ids >= 0
    ja = ((ids < sum(SHARDS) // 2) & known).sum(axis=1)
    plain = RunRecord(
        "ledger",
        NAMES,
        rows,
        np.ones_like(rows),
        np.stack([ja, known.sum(axis=1) - ja], axis=1),
        np.full(len(rows), 3.0),
        order=order_hashes(ids),
        epoch=np.zeros_like(rows) if epochs is None else epochs,
        targets=(Target(0, np.array([0.5, 0.5])),),
        settings={"dataset": {"shuffle": True}},
    )
    return replace(plain, **changes)
