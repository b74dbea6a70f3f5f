"""Made-up runs, and how they are written and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from composer_mixmon.ledger import Header, Writer
from composer_mixmon.rows import Closed, Rows

LABELS = ("ja", "en", "<script>")
SETTINGS = {"dataset": {"shuffle_seed": 9176}, "world": {"nodes": 1}}


def header(**other: Any) -> Header:
    plain: dict[str, Any] = {
        "run": "run-1",
        "name": "a run",
        "started": 1000.0,
        "batch": 0,
        "epoch": 0,
        "first_sample": 0,
        "resumed": False,
        "labels": LABELS,
        "target": (0.5, 0.25, 0.25),
        "settings": SETTINGS,
    }
    return Header(**plain | other)


def closed(
    first: int, batches: int, seed: int = 0, labels: int = len(LABELS), told: bool = True, epoch: Any = 0
) -> Closed:
    """Batches as an interval closes them; a batch has the same numbers whatever interval it comes in."""
    numbers = np.arange(first, first + batches)
    rngs = [np.random.default_rng([seed, batch]) for batch in numbers.tolist()]
    rows = Rows.empty(batches, labels)
    for row, rng in enumerate(rngs):
        counts = rng.multinomial(300, np.full(labels, 1 / labels))
        order = int(rng.integers(-(1 << 63), 1 << 63))
        rows.put(row, counts, counts * 1000 + 7 if told else None, order)
    loss = np.array([rng.random(dtype=np.float32) for rng in rngs], np.float64)
    return Closed(rows, numbers, np.broadcast_to(epoch, batches).astype(np.int64), loss)


def write(folder: Path, head: Header, *intervals: Closed, at: int = 1, alarms: Any = ()) -> Path:
    """Write a segment."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = Writer(folder / f"segment-{at}.jsonl", head)
    for interval in intervals:
        writer.write([interval], head.target, alarms)
    writer.close()
    return writer.path


def same(record: Any, parts: list[Closed]) -> None:
    """What was read are exactly these batches."""
    for name in ("counts", "tokens", "order"):
        expected = np.concatenate([getattr(part.rows, name) for part in parts])
        np.testing.assert_array_equal(getattr(record, name), expected, name, strict=True)
    np.testing.assert_array_equal(record.first, np.concatenate([part.batch for part in parts]), strict=True)
    np.testing.assert_array_equal(record.loss, np.concatenate([part.loss for part in parts]), strict=True)
    np.testing.assert_array_equal(record.epoch, np.concatenate([part.epoch for part in parts]), strict=True)
    assert (record.span == 1).all()
    assert len(record.time) == len(record.span) == len(record.first)
