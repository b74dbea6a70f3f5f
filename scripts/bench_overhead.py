"""What monitoring costs a training run.

    python scripts/bench_overhead.py [--json] [--quick]

Prints, measured side by side in this one run:

- ``p50_us``, ``p99_us``: time of ours on the main thread a batch, logging and evidence apart, in
  microseconds: 4,096 sample ids, a dataset of 1,000,000 shards, 1,000 labels, a window of 100 and an interval
  of 10 batches, with one alarm rule. The labels are looked up in the DataLoader's workers, as in a run.
- ``evidence_us``: what the evidence costs on top, a batch on average, by the number of labels.
- ``worker_p50_us``: time of ours in a worker for such a batch.
- ``startup_s``, ``startup_mb``: building the labels of that dataset, and the memory they take.
- ``throughput_ratio``: samples a second of a tiny ModernBERT's masked-LM training with monitoring over
  without; pairs of runs in alternating order, median of the pairs' ratios.
"""

from __future__ import annotations

import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import torch
from composer import Callback, Trainer
from composer.core import State
from composer.loggers import Logger
from composer.models import HuggingFaceModel
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from transformers import ModernBertConfig, ModernBertForMaskedLM

from composer_mixmon import MixMon
from composer_mixmon.evidence import Evidence, EvidenceSettings
from composer_mixmon.labels import label_by_groups
from composer_mixmon.shards import ShardTable

SHARDS, LABELS, IDS, SAMPLES_A_SHARD = 1_000_000, 1_000, 4_096, 2_000


def memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def big_dataset() -> ShardTable:
    """A million shards in a thousand groups of neighbours, as merging a thousand sources gives."""
    names = [f"{i * LABELS // SHARDS:04d}/shard.{i:07d}.mds" for i in range(SHARDS)]
    return ShardTable.build(names, np.full(SHARDS, SAMPLES_A_SHARD), np.zeros(SHARDS, np.int64), ["data"])


def bench_startup(shards: ShardTable) -> tuple[dict[str, float], Any]:
    groups = {f"label{i}": [f"{i * 1000}:{i * 1000 + 1000}"] for i in range(LABELS)}
    before, start = memory_mb(), time.perf_counter()
    label_map = label_by_groups(shards, groups)
    return {"startup_s": time.perf_counter() - start, "startup_mb": memory_mb() - before}, label_map


def bench_main_thread(shards: ShardTable, label_map: Any, batches: int) -> dict[str, float]:
    """Time MixMon's events as Composer runs them, with the logger's own time taken off."""
    from composer_mixmon.annotate import Annotator
    from composer_mixmon.callback import _Watch
    from composer_mixmon.monitor import Expectation, Monitor
    from composer_mixmon.ranks import Ranks
    from composer_mixmon.recent_shards import RecentShards

    alarm = {"rules": [{"deviation": 0.5}], "tolerance": None}
    mixmon = MixMon(window="100ba", log_interval="10ba", alarm=alarm)
    timestamp = SimpleNamespace(batch=0, epoch=0)
    state: Any = SimpleNamespace(device=None, timestamp=timestamp, total_loss_dict={"loss/train/total": 1.0})
    tap: Any = SimpleNamespace(latest=None, take=lambda: tap.latest, detach=lambda: None)
    expected = Expectation(np.full(LABELS, 1 / LABELS))
    monitor = Monitor(label_map.names, [expected], 100, 10, mixmon._config.alarm.rules)
    mixmon._watch = _Watch(tap, monitor, Ranks(state), RecentShards(shards, 110), None, 0, {})
    logging_s = [0.0]

    def timed(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start = time.perf_counter()
            result = original(*args)
            logging_s[0] += time.perf_counter() - start
            return result

        return call

    # Naming the figures is done for the logger alone and belongs to the logging.
    monitor._mixture.metrics = timed(monitor._mixture.metrics)
    logger: Any = SimpleNamespace(log_metrics=lambda metrics: None)
    rng = np.random.default_rng(0)
    annotate = Annotator(label_map)
    main, worker = [], []
    for batch in range(batches):
        ids = rng.integers(0, SHARDS * SAMPLES_A_SHARD, IDS)
        start = time.perf_counter()
        tap.latest = annotate(ids, None)
        worker.append(time.perf_counter() - start)
        timestamp.batch, logging_s[0] = batch, 0.0
        start = time.perf_counter()
        mixmon.after_dataloader(state, logger)
        timestamp.batch += 1
        mixmon.batch_end(state, logger)
        main.append(time.perf_counter() - start - logging_s[0])
    assert monitor.run.sum() == batches // 10 * 10 * IDS
    p50, p99 = np.percentile(main, [50, 99]) * 1e6
    return {"p50_us": p50, "p99_us": p99, "worker_p50_us": float(np.median(worker)) * 1e6}


def bench_evidence(labels: int, intervals: int = 50) -> float:
    """Microseconds a batch, at 4,096 samples a batch and 10 batches at a time."""
    target = np.full(labels, 1 / labels)
    evidence = Evidence(EvidenceSettings(target, 0.05))
    rows = np.random.default_rng(0).multinomial(IDS, target, (intervals, 10))
    times = []
    for interval in rows:
        start = time.perf_counter()
        evidence.update(interval)
        times.append(time.perf_counter() - start)
    return statistics.median(times) / 10 * 1e6


class Stopwatch(Callback):
    """Times the batches of a run after the first few, which set things up."""

    def __init__(self, skip: int) -> None:
        self.skip = skip
        self.start = self.end = 0.0

    def batch_end(self, state: State, logger: Logger) -> None:
        """Note the time."""
        self.end = time.perf_counter()
        if int(state.timestamp.batch) == self.skip:
            self.start = self.end


def write_tokens(folder: str, samples: int) -> None:
    rng = np.random.default_rng(0)
    with MDSWriter(out=folder, columns={"input_ids": "ndarray:int64"}, size_limit=1 << 16) as out:
        for _ in range(samples):
            out.write({"input_ids": rng.integers(5, 1000, 64)})


def train(folder: str, batches: int, monitor: bool) -> float:
    """Batches a second of one run."""
    torch.manual_seed(0)
    config = ModernBertConfig(
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        pad_token_id=0,
        attn_implementation="sdpa",
        reference_compile=False,
    )

    def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        ids = torch.tensor(np.stack([sample["input_ids"] for sample in samples]))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}

    clean_stale_shared_memory()
    dataset = StreamingDataset(local=folder, batch_size=16, shuffle=True)
    watch = Stopwatch(skip=10)
    mixmon = MixMon(labels={"position": 10}, alarm={"rules": [{"deviation": 0.5}]})
    model = HuggingFaceModel(ModernBertForMaskedLM(config))
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.AdamW(model.parameters()),
        train_dataloader=StreamingDataLoader(dataset, batch_size=16, num_workers=1, collate_fn=collate),
        max_duration=f"{batches}ba",
        callbacks=[watch, *([mixmon] if monitor else [])],
        progress_bar=False,
        device="cpu",
    )
    trainer.fit()
    trainer.close()
    return (batches - watch.skip) / (watch.end - watch.start)


def bench_throughput(pairs: int, batches: int) -> dict[str, Any]:
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(folder, batches * 16)
        train(folder, 20, monitor=True)
        for pair in range(pairs):
            order = [True, False] if pair % 2 else [False, True]
            speed = {monitor: train(folder, batches, monitor) for monitor in order}
            ratios.append(speed[True] / speed[False])
    return {"throughput_ratio": statistics.median(ratios), "throughput_ratios": ratios}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quick", is_flag=True, help="A tenth of the work, to see that it runs.")
def main(as_json: bool, quick: bool) -> None:
    """Measure what monitoring costs a training run."""
    shards = big_dataset()
    startup, label_map = bench_startup(shards)
    figures: dict[str, Any] = startup | bench_main_thread(shards, label_map, 500 if quick else 5000)
    figures["evidence_us"] = {labels: bench_evidence(labels) for labels in (2, 10, 100, 1000)}
    figures |= bench_throughput(*((1, 40) if quick else (9, 300)))
    if as_json:
        click.echo(json.dumps(figures))
        return
    for name, value in figures.items():
        click.echo(f"{name:18} {value}")


if __name__ == "__main__":
    main()
