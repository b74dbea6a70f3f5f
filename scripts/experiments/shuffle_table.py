"""How well streaming's shuffles mix a dataset written language by language: the published table, replayed.

    python scripts/experiments/shuffle_table.py [--own]

0.1B samples in 10,000 shards of 10,000, the first half Japanese, the second English; batches of 2,000,
seed 1, epoch 1, one canonical node. The figure is the mean over batches of |share of Japanese − 50 %|: over
the first 100 batches, as published, and over the epoch's first, middle and last tenth. With ``--own``,
streaming's own shuffle functions are run too, for their time and the same figure.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from numpy.typing import NDArray

from composer_mixmon.replay.order import Replay
from composer_mixmon.replay.settings import Settings
from composer_mixmon.replay.units import LabelRanges
from composer_mixmon.replay.world import World

SHARDS, SHARD, BATCH, SEED, EPOCH = 10_000, 10_000, 2_000, 1, 1
PUBLISHED = {
    ("py1e", 262_144): 9.4005,
    ("py1e", 5_000_000): 2.9550,
    ("py1br", 262_144): 4.9005,
    ("py1br", 5_000_000): 1.1225,
    ("naive", 262_144): 0.9970,
}
DEFAULT_BLOCK = 4_000_000  # what StreamingDataset takes at one canonical node


def deviation_percent(counts: NDArray[np.int64]) -> float:
    """Mean over batches of |share − 50 %|."""
    return float(np.abs(counts[:, 0] / counts.sum(1) - 0.5).mean() * 100)


def replayed(algo: str, block: int) -> tuple[NDArray[np.int64], float, float]:
    """Counts of the epoch, and seconds for the first 100 batches and for all."""
    settings = Settings.resolve(
        World(),
        [[SHARD] * SHARDS],
        batch_size=BATCH,
        shuffle=True,
        shuffle_algo=algo,
        shuffle_seed=SEED,
        shuffle_block_size=block,
    )
    labels = LabelRanges.of_shards(np.full(SHARDS, SHARD), np.arange(SHARDS) * 2 // SHARDS, 2)
    start = time.perf_counter()
    Replay(settings, World(), EPOCH).counts(labels, slice(100))
    first = time.perf_counter() - start
    counts = Replay(settings, World(), EPOCH).counts(labels).counts
    return counts, first, time.perf_counter() - start - first


def streamings_own(algo: str, block: int) -> tuple[float, float]:
    """Deviation of the first 100 batches by streaming's function, and its seconds."""
    from streaming.base.shuffle import get_shuffle

    start = time.perf_counter()
    ids = get_shuffle(algo, np.full(SHARDS, SHARD), 1, SEED, EPOCH, block)[: 100 * BATCH]
    seconds = time.perf_counter() - start
    japanese = (ids < SHARDS * SHARD // 2).reshape(100, BATCH).sum(1)
    return deviation_percent(np.stack([japanese, BATCH - japanese], axis=1)), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--own", action="store_true", help="run streaming's own functions too")
    own = parser.parse_args().own
    print(
        "| shuffle | block | published | first 100 | first tenth | middle tenth | last tenth | seconds |",
        end="",
    )
    print(" streaming's | its seconds |" if own else "")
    print("|---" * (10 if own else 8) + "|")
    for algo, block in [*PUBLISHED, ("py1e", DEFAULT_BLOCK), ("py1br", DEFAULT_BLOCK)]:
        counts, first, whole = replayed(algo, block)
        tenth = len(counts) // 10
        parts = [counts[:100], counts[:tenth], counts[tenth * 9 // 2 :][:tenth], counts[-tenth:]]
        cells = [algo, f"{block:,}", f"{PUBLISHED[algo, block]:.4f}" if (algo, block) in PUBLISHED else ""]
        cells += [f"{deviation_percent(part):.4f}" for part in parts]
        cells.append(f"{first:.1f} / {whole:.1f}")
        if own:
            deviation, seconds = streamings_own(algo, block)
            cells += [f"{deviation:.4f}", f"{seconds:.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
