"""A run as it was recorded or replayed: what the post-mortem reads, wherever it comes from.

Ledgers, W&B's files, CSV exports and replays all become a :class:`RunRecord`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Resumption", "RunRecord", "Target"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Target:
    """The shares that a part of a run was meant to see.

    Attributes:
        first: Number of the part's first batch.
        shares: Each label's share, float64 (labels,).
    """

    first: int
    shares: Floats


@dataclass(frozen=True)
class Resumption:
    """A place where a run went on from a checkpoint.

    Attributes:
        batch: Number of the first batch after it.
        epoch: Epoch of that batch, from 0; −1 if not known.
        first_sample: Samples of the epoch that the DataLoader was told to leave out; −1 if not known.
        discarded: Batches that had been trained on before and were done again, for the checkpoint was older.
    """

    batch: int
    epoch: int = -1
    first_sample: int = -1
    discarded: int = 0


@dataclass(frozen=True)
class RunRecord:
    """What is known of a run, row by row. A row is a batch, or an interval where only those were logged.

    Where a run was resumed from an older checkpoint, only what was trained on last is here.

    Attributes:
        source: Where this comes from, in words: ``"ledger"``, ``"W&B"``, ``"replay"``, …
        names: The labels' names; none where only the loss is known.
        first: Number of each row's first batch, counted from 0 over the run, ascending: int64 (rows,).
        span: Batches in each row, at least 1: int64 (rows,). Rows do not overlap; between them may be gaps.
        counts: Samples of each label, over all ranks: int64 (rows, labels), or ``None``.
        loss: Mean training loss of the row's batches, NaN where unknown: float64 (rows,).
        tokens: Tokens of each label, over all ranks: int64 (rows, labels), or ``None``.
        order: Hash of the sample ids of each batch (see ``order_hash``), or ``None``: uint64 (rows,).
        epoch: Epoch of each row, −1 where unknown: int64 (rows,).
        time: Seconds since 1970 at the row's end, NaN where unknown: float64 (rows,).
        targets: What the run was meant to see, in the order of the batches; empty if unknown.
        resumptions: Where it was resumed, in the order of the batches.
        alarms: The alarms raised during the run, each as ``Alarm.to_dict`` gives it.
        settings: What ``run_config`` recorded: settings of the order and of the monitor; empty if unknown.
        remarks: What a reader should know of the record: parts that are missing or damaged, in sentences.
    """

    source: str
    names: tuple[str, ...]
    first: Ints
    span: Ints
    counts: Ints | None
    loss: Floats
    tokens: Ints | None = None
    order: npt.NDArray[np.uint64] | None = None
    epoch: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    time: Floats = field(default_factory=lambda: np.zeros(0))
    targets: tuple[Target, ...] = ()
    resumptions: tuple[Resumption, ...] = ()
    alarms: tuple[dict[str, Any], ...] = ()
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    remarks: tuple[str, ...] = ()
