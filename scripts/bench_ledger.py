"""What a ledger costs: bytes a batch, time to write an interval, time and memory to read it.

Counts are multinomial draws of a global batch over labels of unequal shares, tokens follow them, losses are
float32 and order hashes random, as in a run.

Usage: ``python scripts/bench_ledger.py [BATCHES [LABELS [INTERVAL]]]``; without arguments, several of them.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from composer_mixmon.ledger import Header, Writer, read_ledger
from composer_mixmon.rows import Closed, Rows

GLOBAL_BATCH = 2048
TOKENS = 800  # of a sample, on average


def interval(rng: np.random.Generator, first: int, batches: int, shares: np.ndarray, tokens: bool) -> Closed:
    """Made-up batches."""
    rows = Rows.empty(batches, len(shares))
    for row, counts in enumerate(rng.multinomial(GLOBAL_BATCH, shares, batches)):
        told = rng.normal(counts * TOKENS, 300 * np.sqrt(counts)).clip(0).astype(np.int64) if tokens else None
        rows.put(row, counts, told, int(rng.integers(-(1 << 63), 1 << 63)))
    loss = rng.normal(2.0, 0.05, batches).astype(np.float32).astype(np.float64)
    return Closed(rows, np.arange(first, first + batches), np.zeros(batches, np.int64), loss)


def moved(made: Closed, first: int) -> Closed:
    """The same batches at another place of the run."""
    return Closed(made.rows, np.arange(first, first + len(made.batch)), made.epoch, made.loss)


def write(path: Path, shares: np.ndarray, intervals: Iterable[Closed]) -> list[float]:
    """Write a ledger; returns the seconds that each interval took."""
    names = tuple(f"label {number}" for number in range(len(shares)))
    head = Header("run", "run", 0.0, 0, 0, 0, False, names, tuple(shares.tolist()), {})
    writer, took = Writer(path, head), []
    for closed in intervals:
        began = time.perf_counter()
        writer.write([closed], head.target, [])
        took.append(time.perf_counter() - began)
    writer.close()
    return took


def measure(batches: int, labels: int, span: int, tokens: bool = True) -> None:
    """Write and read one ledger."""
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(labels, 2.0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "segment-1.jsonl"
        some = [interval(rng, 0, span, shares, tokens) for _ in range(200)]
        took = write(path, shares, (moved(some[n % 200], n * span) for n in range(batches // span)))
        size = path.stat().st_size
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        record = read_ledger(str(path)).record
        read = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(record.first) == batches // span * span
    p50, p99 = np.quantile(took, [0.5, 0.99]) * 1e6
    print(
        f"{batches:>9,} batches, {labels:>2} labels, {span:>3} an interval, tokens {tokens:d}: "
        f"{size / batches:6.1f} bytes a batch; "
        f"write p50 {p50:5.0f} us, p99 {p99:5.0f} us an interval; "
        f"read in {read:5.2f} s, {before / 1024:5.0f} -> {after / 1024:5.0f} MiB",
        flush=True,
    )


if __name__ == "__main__":
    if sys.argv[1:]:
        batches, labels, span, tokens = map(int, sys.argv[1:])
        measure(batches, labels, span, bool(tokens))
        sys.exit()
    for tokens in (False, True):
        for labels in (2, 10, 20):
            for span in (1, 10, 100):
                measure(20_000, labels, span, tokens)
