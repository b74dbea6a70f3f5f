"""How often the alarm is wrong, and how soon it is right.

    python scripts/bench_alarm.py [--json] [--quick]

Everything is seeded; no training, no GPU. Prints

- ``healthy_runs``: false alarms of simulated healthy runs, looked at after every batch, beside what the
  promise of 1,000,000 batches to a false alarm allows on average;
- ``healthy_epochs``: alarms on orders of StreamingDataset's own ``generate_work``: 4 batching methods × 6
  shuffles × 1, 8 or 64 canonical nodes × two shard sizes, at the default tolerance of 0.05. Labels are
  scattered in every shard, which is healthy under any shuffle, or lie in blocks of shards, which is healthy
  where no window of 64 batches is further off than the tolerance;
- ``delays``: batches from the start of a bias, after 200 healthy batches, to the alarm at tolerance 0: median
  and 95th percentile. ``evidence, as promised`` is what users get; the others are compared at equal false
  alarms, each at the level that one in ``calibration``'s 1,000,000 healthy batches crosses: ``evidence``, and
  thresholds on the deviation and on chi-square of the last 1, 10 or 100 batches.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import click
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import track
from streaming import StreamingDataset
from streaming.base.batching import generate_work
from streaming.base.world import World

from composer_mixmon.evidence import Evidence, EvidenceSettings, batching_effects
from composer_mixmon.statistics import chi_square_per_degree, deviation

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Shares = Callable[[int], Floats]

FALSE_ALARM_EVERY = 1_000_000
TOLERANCE = 0.05
METHODS = ("random", "stratified", "per_stream", "device_per_stream")
SHUFFLES = ("py1e", "py1br", "py1s", "py2s", "naive", "off")
NODES = (1, 8, 64)
SHARD_SIZES = (512, 4096)
LAYOUTS = ("scattered", "blocks")
RANKS, DEVICE_BATCH = 4, 64
BATCH = RANKS * DEVICE_BATCH
# Two streams; the first is drawn more often than it is large, the second less.
STREAM_SAMPLES, STREAM_SHARES = 65_536, (0.6, 0.4)
SHUFFLE_BLOCK = 8_192  # a sixteenth of the epoch, as the default block is of 4 million samples
HEALTHY_BEFORE = 200
TRUE_WINDOW = 64


def healthy_runs(target: list[float], batch: int, runs: int, batches: int, seed: int) -> dict[str, Any]:
    """Simulated runs of independent draws from the target, at tolerance 0: the hardest null."""
    rng, chosen = np.random.default_rng(seed), EvidenceSettings(np.array(target), 0.0, FALSE_ALARM_EVERY)
    evidence, alarmed = Evidence(chosen, runs), np.zeros(runs, bool)
    for _ in range(batches):
        alarmed |= evidence.update(rng.multinomial(batch, target, runs)[None])[0] >= chosen.threshold
    head_start = sum(chosen.scales) / len(chosen.scales) - 1
    allowed = runs * (batches + head_start) / 10**chosen.threshold
    return {
        "labels": len(target), "batch": batch, "runs": runs, "batches": batches,
        "false_alarms": int(alarmed.sum()), "allowed": round(allowed, 2),
    }  # fmt: skip


def fake_dataset(method: str, shuffle: str, nodes: int, shard_size: int, seed: int) -> Any:
    """Stand-in for a StreamingDataset: what ``generate_work`` reads of one, without files."""
    shards = STREAM_SAMPLES // shard_size
    epoch = 2 * STREAM_SAMPLES
    streams = [SimpleNamespace(proportion=share, choose=int(share * epoch)) for share in STREAM_SHARES]
    dataset = SimpleNamespace(
        batch_size=DEVICE_BATCH, num_canonical_nodes=nodes, initial_physical_nodes=1,
        partition_algo="relaxed", shuffle=shuffle != "off", shuffle_algo=shuffle, shuffle_seed=seed,
        shuffle_block_size=SHUFFLE_BLOCK,
        epoch_seed_change=True, sampling_method="balanced", sampling_granularity=1, batching_method=method,
        streams=streams, num_streams=2, epoch_size=sum(s.choose for s in streams),
        shard_offset_per_stream=np.array([0, shards]), shards_per_stream=np.array([shards, shards]),
        samples_per_shard=np.full(2 * shards, shard_size),
        sample_offset_per_shard=np.arange(2 * shards) * shard_size,
    )  # fmt: skip
    as_streaming = cast(StreamingDataset, dataset)
    dataset.resample_streams = lambda *args: StreamingDataset.resample_streams(as_streaming, *args)
    return dataset


def labels_of(layout: str, seed: int) -> Counts:
    """Label of each sample, two in each stream: scattered in every shard, or the one behind the other."""
    half = np.repeat([0, 1], STREAM_SAMPLES // 2)
    if layout == "scattered":
        half = np.random.default_rng(seed).permutation(half)
    return np.concatenate([half, half + 2])


def epoch_counts(dataset: Any, labels: Counts) -> Counts:
    """Counts of each global batch of an epoch as streaming orders it, (batches, 4)."""
    world = World(1, RANKS, 2, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work = generate_work(dataset.batching_method, dataset, world, 0, 0)
    # (nodes, ranks, workers, batches per worker, device batch): batch b of a rank comes from worker b mod 2.
    batches = work.transpose(3, 2, 0, 1, 4).reshape(-1, BATCH)
    batches = batches[(batches >= 0).all(1)]
    return np.stack([(labels[batches] == label).sum(1) for label in range(4)], axis=-1)


def judged(method: str, rows: Counts) -> tuple[Counts, EvidenceSettings]:
    """The counts and the settings that a run with this batching method is watched with.

    ``random`` does not mix streams unless the shuffle does, so there the labels are the halves over both.
    """
    target = np.repeat(STREAM_SHARES, 2) / 2
    if method == "random":
        rows, target = rows[:, :2] + rows[:, 2:], np.array([0.5, 0.5])
    unit, rounding = batching_effects(method, DEVICE_BATCH, BATCH)
    return rows, EvidenceSettings(target, TOLERANCE, FALSE_ALARM_EVERY, unit=unit, rounding=rounding)


def truly_healthy(rows: Counts) -> bool:
    """Whether the halves, over both streams, stay within the tolerance in every window."""
    sums = np.cumsum(np.vstack([np.zeros(4, np.int64), rows]), axis=0)
    windows = sums[TRUE_WINDOW:] - sums[:-TRUE_WINDOW]
    return bool(deviation(windows[:, :2] + windows[:, 2:], [0.5, 0.5]).max() <= TOLERANCE)


def watch_epoch(
    method: str, shuffle: str, nodes: int, shard_size: int, layout: str, seed: int
) -> tuple[bool, bool]:
    """Whether an epoch is truly healthy, and whether the evidence alarms."""
    rows = epoch_counts(fake_dataset(method, shuffle, nodes, shard_size, seed), labels_of(layout, seed))
    counts, chosen = judged(method, rows)
    alarmed = bool(Evidence(chosen).update(counts).max() >= chosen.threshold)
    return layout == "scattered" or truly_healthy(rows), alarmed


def healthy_epochs(seeds: int) -> dict[str, Any]:
    """Alarms on real orders, by layout, and the settings under which a healthy epoch alarmed."""
    logging.getLogger("streaming").setLevel(logging.ERROR)  # it tells of every incomplete batch dropped
    cases = list(itertools.product(METHODS, SHUFFLES, NODES, SHARD_SIZES, LAYOUTS))
    tally = {layout: {"healthy": 0, "false_alarms": 0, "unhealthy": 0, "found": 0} for layout in LAYOUTS}
    wrong: list[list[Any]] = []
    for case, seed in shown(list(itertools.product(cases, range(seeds))), "healthy epochs"):
        if case[-1] == "blocks" and seed >= max(1, seeds // 4):
            continue
        healthy, alarmed = watch_epoch(*case, seed=seed)
        tally[case[-1]]["healthy" if healthy else "unhealthy"] += 1
        if alarmed:
            tally[case[-1]]["false_alarms" if healthy else "found"] += 1
        if alarmed and healthy:
            wrong.append([*case, seed])
    return {**tally, "batches_an_epoch": 2 * STREAM_SAMPLES // BATCH, "false_alarms_on": wrong}


def modulo_shares(samples: int) -> Floats:
    """Shares of ten equal parts of ``random32 % samples``: the first draws of torch 2.5.1's randperm."""
    edges = np.arange(11) * samples // 10
    whole, rest = divmod(2**32, samples)
    return (np.diff(edges) * whole + np.diff(np.minimum(edges, rest))) / 2**32


def biases() -> dict[str, tuple[Floats, Shares]]:
    """Each bias: the target, and the shares t batches after it sets in."""
    two, ten = np.array([0.5, 0.5]), np.full(10, 0.1)
    missing = np.append(np.full(9, 1 / 9), 0.0)

    def swing(t: int) -> Floats:
        return two + 0.05 * math.sin(2 * math.pi * t / 640) * np.array([1, -1])

    def steady(shares: Floats) -> Shares:
        return lambda _: shares

    return {
        **{f"share {s}": (two, steady(np.array([s, 1 - s]))) for s in (0.52, 0.55, 0.6)},
        "see-saw of 0.05 over 640 batches": (two, swing),
        "one stream of ten missing": (ten, steady(missing)),
        **{
            f"randperm, {n:.0e} samples": (ten, steady(modulo_shares(n)))
            for n in (3 * 10**8, 5 * 10**8, 10**9)
        },
    }


def figures(rows: Counts, target: Floats) -> Iterator[tuple[str, Floats]]:
    """Each detector's figure after each batch, (batches, runs); nothing before its window is full."""
    yield "evidence", Evidence(EvidenceSettings(target, 0.0), rows.shape[1]).update(rows)
    sums = np.concatenate([np.zeros_like(rows[:1]), rows.cumsum(0)])
    for window, (name, figure) in itertools.product(
        (1, 10, 100), (("threshold", deviation), ("chi_square", chi_square_per_degree))
    ):
        values = np.full(rows.shape[:2], -np.inf)
        values[window - 1 :] = figure(sums[window:] - sums[:-window], target)
        yield f"{name} over {window}", values


def calibrate(target: Floats, batch: int, batches: int, seed: int) -> tuple[dict[str, float], int]:
    """Level of each detector that one healthy run in 1,000,000 batches crosses, from several times as many.

    Runs of 1,000 batches are drawn; the level is the one that batches/1,000,000 of their maxima exceed.

    Returns:
        The levels, and how many of the runs the evidence alarms in at the promised level.
    """
    rng, maxima = np.random.default_rng(seed), dict[str, list[Floats]]()
    for _ in range(batches // 100_000):
        for name, values in figures(rng.multinomial(batch, target, (1000, 100)), target):
            maxima.setdefault(name, []).append(values.max(0))
    crossed = max(1, batches // FALSE_ALARM_EVERY)
    promised = EvidenceSettings(target, 0.0, FALSE_ALARM_EVERY).threshold
    levels = {name: float(np.sort(np.concatenate(m))[-crossed - 1]) for name, m in maxima.items()}
    return levels, int(np.sum(np.concatenate(maxima["evidence"]) >= promised))


def delays(target: Floats, shares: Shares, batch: int, levels: dict[str, float], runs: int) -> dict[str, Any]:
    """Batches to the alarm of each detector; runs that alarm before the bias sets in are left out."""
    rng, limit = np.random.default_rng(batch), 1000
    before = rng.multinomial(batch, target, (HEALTHY_BEFORE, runs))
    after = np.stack([rng.multinomial(batch, shares(t), runs) for t in range(limit)])
    promised = EvidenceSettings(target, 0.0, FALSE_ALARM_EVERY).threshold
    found: dict[str, Counts] = {}
    for name, values in figures(np.concatenate([before, after]), target):
        if name == "evidence":
            found["evidence, as promised"] = first_crossing(values >= promised)
        found[name] = first_crossing(values > levels[name])
    started = Evidence(EvidenceSettings(target, 0.0), runs).update(after) >= promised
    found["evidence, as promised, bias from the start"] = HEALTHY_BEFORE + first_crossing(started)
    return {name: summary(at - HEALTHY_BEFORE, limit) for name, at in found.items()}


def first_crossing(over: npt.NDArray[np.bool_]) -> Counts:
    """Batch, counted from 1, of each run's first crossing (batches, runs); beyond the last where none."""
    return np.where(over.any(0), over.argmax(0) + 1, len(over) + HEALTHY_BEFORE + 1)


def summary(delay: Counts, limit: int) -> dict[str, Any]:
    """Median and 95th percentile of the delays; null stands for "not within the limit"."""
    late = np.quantile(delay[delay > 0], [0.5, 0.95], method="higher").tolist()
    return dict(zip(("median", "p95"), [int(d) if d <= limit else None for d in late], strict=True))


def all_delays(runs: int, calibration: int) -> dict[str, Any]:
    """Levels at equal false alarms, and delays of every bias, at 256 and 2,000 samples a batch."""
    levels: dict[tuple[int, int], dict[str, float]] = {}
    results: dict[str, Any] = {"calibration": [], "delays": {}}
    for (name, (target, shares)), batch in shown(
        list(itertools.product(biases().items(), (256, 2000))), "delays"
    ):
        key = (len(target), batch)
        if key not in levels:
            levels[key], alarms = calibrate(target, batch, calibration, seed=11)
            told = {"labels": key[0], "batch": batch, "batches": calibration, "evidence_false_alarms": alarms}
            results["calibration"].append({**told, "levels": levels[key]})
        results["delays"][f"{name}, {batch} a batch"] = delays(target, shares, batch, levels[key], runs)
    return results


def shown(items: list[Any], description: str) -> Any:
    return track(items, description, console=Console(stderr=True))


def table(results: dict[str, Any]) -> str:
    lines = [f"healthy runs    {run}" for run in results["healthy_runs"]]
    lines += [f"calibration     {level}" for level in results["calibration"]]
    lines += [f"healthy epochs  {layout}: {results['healthy_epochs'][layout]}" for layout in LAYOUTS]
    for bias, detectors in results["delays"].items():
        lines += [f"{bias}:"] + [f"    {name:44} {d['median']} ({d['p95']})" for name, d in detectors.items()]
    return "\n".join(lines)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--quick", is_flag=True, help="A tenth of everything, for a first look.")
def main(as_json: bool, quick: bool) -> None:
    """Measure the alarm's false alarms and delays."""
    few = 10 if quick else 1
    targets = [([0.5, 0.5], 256), ([0.7, 0.2, 0.1], 256), ([0.1] * 10, 2000)]
    runs = [
        healthy_runs(target, batch, 10_000 // few, 100, seed)
        for seed, (target, batch) in enumerate(shown(targets, "healthy runs"))
    ]
    results = {
        "healthy_runs": runs,
        "healthy_epochs": healthy_epochs(1 if quick else 7),
        **all_delays(200 // few, 4_000_000 // few),
    }
    print(json.dumps(results) if as_json else table(results))


if __name__ == "__main__":
    main()
