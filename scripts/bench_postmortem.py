"""What a post-mortem costs: a million batches of 20 labels that swing, and a loss that follows.

    python scripts/bench_postmortem.py [--batches N] [--labels K] [--json FILE]

The ledger is written at the default interval by the ledger's own writer, tokens included. The command runs in
processes of its own, with ``--json`` alone and with ``--html``; memory is the peak of the process.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from bench_ledger import interval, moved, write

from composer_mixmon.rows import Closed

SPAN = 10  # batches of an interval: the default
STAY = 500  # batches for which the mixture stays as it is
PULL = 0.5  # of the first label's share on the loss


def swinging(batches: int, shares: np.ndarray) -> Iterator[Closed]:
    """Intervals of a mixture that turns at random, and of a loss that falls and follows it."""
    rng = np.random.default_rng(0)
    tilted = shares * np.linspace(2.0, 0.5, len(shares))
    tilted /= tilted.sum()
    here = shares
    for first in range(0, batches, SPAN):
        if first % STAY == 0:
            here = (shares, tilted)[int(rng.integers(2))]
        made = moved(interval(rng, 0, SPAN, here, True), first)
        share = made.rows.counts[:, 0] / made.rows.counts.sum(axis=1)
        yield Closed(
            made.rows, made.batch, made.epoch, made.loss + 6 * (made.batch + 20.0) ** -0.3 + PULL * share
        )


def run(*args: str | Path) -> dict[str, Any]:
    """Run ``mixmon postmortem`` in a process of its own."""
    command = [Path(sys.executable).with_name("mixmon"), "postmortem", *args]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode == 2:
        sys.exit(done.stderr)
    verdict = json.loads(done.stdout)["verdict"]["kind"] if "--json" in args else ""
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "seconds": round(wall, 2),
        "cpu_seconds": round(seconds, 2),
        "mib": round(after.ru_maxrss / 1024),  # the largest child so far: the lighter one runs first
        "verdict": verdict,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=1_000_000)
    parser.add_argument("--labels", type=int, default=20)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, page = Path(folder) / "segment-1.jsonl", Path(folder) / "report.html"
        shares = np.random.default_rng(1).dirichlet(np.full(args.labels, 2.0))
        write(path, shares, swinging(args.batches, shares))
        found = {"json": run(path, "--json"), "json and html": run(path, "--json", "--html", page)}
        found["html"] = {"bytes": page.stat().st_size}
    for name, figures in found.items():
        print(f"{name}: {json.dumps(figures)}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
