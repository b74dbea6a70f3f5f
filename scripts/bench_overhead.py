"""What monitoring costs a training run.

    python scripts/bench_overhead.py [--json] [--quick]

Prints, measured side by side in this one run:

- ``p50_us``, ``p99_us``, ``most_us``: microseconds of ours on the main thread a batch, the loggers' part
  apart, in a run with all that is on by itself (evidence, integrity, tokens, the ledger, an interval of 10
  batches), 4,096 sample ids a batch, 1,000,000 shards, 2e9 samples and 1,000 labels; ``within_p99_us``: the
  99th percentile of the batches that end no interval; ``interval_us``: the median of those that do, where
  the evidence of ten batches is worked out and the ledger is written.
- ``startup_s``, ``startup_mb``: the start of that run's monitoring, and the memory it takes.
- ``evidence_us``: what the evidence costs of it, a batch on average, by the number of labels.
- ``throughput_ratio``: samples a second of a tiny ModernBERT's masked-LM training with monitoring over
  without; pairs of runs in alternating order, median of the pairs' ratios.

StreamingDataset itself takes minutes to read a million shards.
"""

from __future__ import annotations

import gc
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import numpy as np
import torch
from composer import Callback, Trainer
from composer.core import Event, State
from composer.loggers import Logger
from composer.models import ComposerModel, HuggingFaceModel
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader
from transformers import ModernBertConfig, ModernBertForMaskedLM

from composer_mixmon import MixMon
from composer_mixmon.evidence import Evidence, EvidenceSettings
from composer_mixmon.replay import Replay, Settings, World

SHARDS, LABELS, IDS, SAMPLES_A_SHARD = 1_000_000, 1_000, 4_096, 2_000


def resident_mb() -> float:
    """Memory that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def write_index(folder: str) -> None:
    """Index of a million shards in a thousand groups of neighbours, as merging a thousand sources gives."""
    shard = {"column_encodings": ["int"], "column_names": ["id"], "column_sizes": [8], "compression": None}
    shard |= {"format": "mds", "hashes": [], "samples": SAMPLES_A_SHARD, "size_limit": 1 << 26, "version": 2}
    shard |= {"zip_data": None, "raw_data": {"basename": "NAME", "bytes": 1 << 20, "hashes": {}}}
    entry = json.dumps(shard)
    names = (f"{i * LABELS // SHARDS:04d}/shard.{i:07d}.mds" for i in range(SHARDS))
    with open(Path(folder, "index.json"), "w") as out:
        out.write('{"version": 2, "shards": [' + ", ".join(entry.replace("NAME", n) for n in names) + "]}")


class Unread(StreamingDataset):
    """Serves the ids in their order; the samples are made up, for no disk holds so many.

    Attributes:
        most: Batches that are served.
    """

    most: int

    def __getitem__(self, at: Any) -> Any:
        return at


def planned(dataset: Unread) -> Iterator[Any]:
    """The first batches of an epoch, in place of all of them: streaming would make a list of these first."""
    world = World(1, 1, 1)
    dataset._unique_worker_world = dataset._unique_rank_world.detect_workers()
    dataset._parallel_worker_world = dataset._parallel_rank_world.detect_workers()
    epoch, first = dataset._resume_incr_epoch()
    ids = Replay(Settings.of_dataset(dataset, world), world, epoch, first).rank_ids(slice(dataset.most))
    yield from map(dataset.__getitem__, ids.ravel().tolist())


class Timed(MixMon):
    """Notes how long each batch's events take on the main thread, the loggers' part taken off."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.seconds: list[float] = []
        self.start_up = {"startup_s": 0.0, "startup_mb": 0.0}
        self._spent = 0.0

    def fit_start(self, state: State, logger: Logger) -> None:
        """Attach."""
        gc.collect()
        before, start = resident_mb(), time.perf_counter()
        super().fit_start(state, logger)
        self.start_up["startup_s"] = time.perf_counter() - start
        self.start_up["startup_mb"] = resident_mb() - before

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        """Run an event."""
        start = time.perf_counter()
        super().run_event(event, state, logger)
        if event == Event.FIT_START:
            self._spent = 0.0
        elif event.value in vars(MixMon):  # the rest is Composer's dispatch alone
            self._spent += time.perf_counter() - start
        if event == Event.BATCH_END:
            self.seconds.append(self._spent)
            self._spent = 0.0

    def _tell(self, log_it: Callable[[], None]) -> None:
        start = time.perf_counter()
        super()._tell(log_it)
        self._spent -= time.perf_counter() - start


class Weight(ComposerModel):
    """As little as Composer can train."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, batch: Any) -> torch.Tensor:
        """The weight."""
        return self.weight

    def loss(self, outputs: torch.Tensor, batch: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The weight."""
        return outputs.sum()


def made_up(samples: list[Any]) -> dict[str, torch.Tensor]:
    """A batch as large as needed to be one."""
    return {"attention_mask": torch.ones(len(samples), 8, dtype=torch.long)}


def bench_main_thread(batches: int) -> dict[str, Any]:
    """A run with all that MixMon does by itself: evidence, integrity, tokens and the ledger."""
    with tempfile.TemporaryDirectory() as folder:
        write_index(folder)
        clean_stale_shared_memory()
        dataset = Unread(local=folder, batch_size=IDS, shuffle=True, shuffle_algo="py1br")
        dataset.most = batches
        groups = {f"label{i}": [f"{i * 1000}:{i * 1000 + 1000}"] for i in range(LABELS)}
        mixmon = Timed(labels={"shards": groups}, ledger=str(Path(folder, "ledger")))
        model = Weight()
        trainer = Trainer(
            model=model,
            optimizers=torch.optim.SGD(model.parameters(), lr=0.0),
            train_dataloader=DataLoader(dataset, batch_size=IDS, num_workers=1, collate_fn=made_up),
            max_duration=f"{batches}ba",
            callbacks=[mixmon],
            progress_bar=False,
            device="cpu",
        )
        trainer.fit()
        trainer.close()
    books = mixmon.state_dict()
    assert sum(books["mixture"]["run"]) == batches * IDS
    assert books["integrity"]["sums"]["plan_mismatch"] == 0
    seconds = np.array(mixmon.seconds)
    p50, p99, most = np.percentile(seconds, [50, 99, 100]) * 1e6
    ends = np.arange(len(seconds)) % 10 == 9
    figures = {"p50_us": p50, "p99_us": p99, "most_us": most}
    figures["within_p99_us"] = np.percentile(seconds[~ends], 99) * 1e6
    figures["interval_us"] = np.median(seconds[ends]) * 1e6
    return mixmon.start_up | {name: float(value) for name, value in figures.items()}


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
    with patch.object(StreamingDataset, "__iter__", planned):
        figures = bench_main_thread(500 if quick else 5000)
    figures["evidence_us"] = {labels: bench_evidence(labels) for labels in (2, 10, 100, 1000)}
    figures |= bench_throughput(*((1, 40) if quick else (9, 300)))
    if as_json:
        click.echo(json.dumps(figures))
        return
    for name, value in figures.items():
        click.echo(f"{name:18} {value}")


if __name__ == "__main__":
    main()
