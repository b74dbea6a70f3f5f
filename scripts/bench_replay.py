"""Measure the replay against streaming's own functions, each measurement in a process of its own.

    python scripts/bench_replay.py [--json FILE] [--only NAME …]

The dataset: shards of 10,000 samples, the first half labelled 0, the second 1; 4 nodes of 8 ranks with 4
workers, 16 samples a rank, 8 canonical nodes unless said otherwise, the default block. Memory is the peak
beyond what the imports take. Before the clock starts, a small replay imports numba, where there is one, and
loads the compiled loops: "start" is the time of that. ``--numpy`` measures without numba.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from composer_mixmon.replay.order import Replay
from composer_mixmon.replay.settings import Settings
from composer_mixmon.replay.units import LabelRanges
from composer_mixmon.replay.world import World

SHARD = 10_000
WARM_UP = 10_000_000
WORLD = World(nodes=4, ranks_per_node=8, workers_per_rank=4)

Measured = dict[str, Any]


def make(algo: str, samples: int, canonical: int) -> tuple[Settings, LabelRanges]:
    shards = [SHARD] * (samples // SHARD)
    settings = Settings.resolve(
        WORLD, [shards], batch_size=16, num_canonical_nodes=canonical, shuffle=True, shuffle_algo=algo
    )
    halves = np.arange(len(shards)) * 2 // len(shards)
    return settings, LabelRanges.of_shards(np.array(shards), halves, 2)


def ours(algo: str, samples: int, canonical: int, batches: int | None) -> Measured:
    small, small_labels = make(algo, WARM_UP, 8)
    with Meter() as start:
        Replay(small, WORLD).counts(small_labels)
    settings, labels = make(algo, samples, canonical)
    with Meter() as meter:
        counted = Replay(settings, WORLD).counts(labels, slice(batches))
    counts = {"counts": digest(counted.counts), "ties": counted.ties}
    return meter.measured | counts | {"start": start.measured["seconds"]}


def generate_work(algo: str, samples: int, canonical: int, batches: int | None) -> Measured:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.replay.upstream import upstream_work  # the stand-in that the tests use too

    settings, _ = make(algo, samples, canonical)
    label_of_sample = (np.arange(samples) * 2 // samples).astype(np.uint8)
    with Meter() as meter:
        work = upstream_work(settings, WORLD, 0, 0)
        ids = work.transpose(3, 2, 0, 1, 4).reshape(-1, WORLD.ranks * settings.batch_size)[:batches]
        label = np.where(ids >= 0, label_of_sample[ids], 2)
        counts = np.stack([(label == k).sum(1) for k in range(2)], axis=1)
    return meter.measured | {"counts": digest(counts[counts.any(1)])}


def shuffle_function(algo: str, samples: int, canonical: int, batches: int | None) -> Measured:
    from streaming.base.shuffle import get_shuffle

    settings, _ = make(algo, samples, canonical)
    sizes = settings.shard_sizes()
    with Meter() as meter:
        get_shuffle(algo, sizes, canonical, settings.shuffle_seed, 0, settings.shuffle_block_size)
    return meter.measured


class Meter:
    """Seconds, seconds of all CPUs, and growth of the peak of resident memory in MiB."""

    def __enter__(self) -> Meter:
        self._memory = peak_mib()
        self._start, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.measured: Measured = {
            "seconds": round(time.perf_counter() - self._start, 3),
            "cpu_seconds": round(time.process_time() - self._cpu, 3),
            "mib": round(peak_mib() - self._memory, 1),
        }


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def digest(counts: NDArray[np.int64]) -> str:
    return hashlib.sha256(np.ascontiguousarray(counts, np.int64).tobytes()).hexdigest()[:16]


RUNNERS = {"ours": ours, "generate_work": generate_work, "shuffle_function": shuffle_function}


def in_child(
    runner: str, algo: str, samples: int, canonical: int = 8, batches: int | None = None
) -> Measured:
    request = json.dumps([runner, algo, samples, canonical, batches])
    done = subprocess.run(
        [sys.executable, __file__, "--child", request], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{request}: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout.splitlines()[-1])


def against(runner: str, algo: str, samples: int) -> Measured:
    mine, theirs = in_child("ours", algo, samples), in_child(runner, algo, samples)
    ratios = {
        "faster": round(theirs["seconds"] / mine["seconds"], 2),
        "faster_cpu": round(theirs["cpu_seconds"] / mine["cpu_seconds"], 2),
        "memory": round(mine["mib"] / max(theirs["mib"], 0.1), 4),
    }
    equal = {"equal": mine["counts"] == theirs["counts"]} if "counts" in theirs else {}
    return {"ours": mine, runner: theirs, **ratios, **equal}


def benchmarks() -> dict[str, Any]:
    """Name every measurement; nothing runs until it is called."""
    found: dict[str, Any] = {}
    for algo in ("py1e", "py1br", "naive"):
        found[f"30M {algo} / generate_work"] = lambda a=algo: against("generate_work", a, 30_000_000)
        found[f"100M {algo} / shuffle function"] = lambda a=algo: against("shuffle_function", a, 100_000_000)
        for power in (7, 8, 9):
            found[f"1e{power} {algo}"] = lambda a=algo, n=10**power: in_child("ours", a, n)
    for algo in ("py1e", "py1br", "py1s"):
        for canonical in (1, 8):
            found[f"1e9 {algo}, first 100 batches, {canonical} canonical nodes"] = (
                lambda a=algo, c=canonical: in_child("ours", a, 10**9, c, 100)
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write all figures there too")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="those whose name contains one of these")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        runner, *request = json.loads(options.child)
        print(json.dumps(RUNNERS[runner](*request)))
        return
    results: dict[str, Any] = {"machine": platform.processor(), "numpy": np.__version__}
    for name, measure in benchmarks().items():
        if options.only and not any(word in name for word in options.only):
            continue
        results[name] = measure()
        print(f"{name}: {json.dumps(results[name])}", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
