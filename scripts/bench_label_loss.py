"""What the loss by label costs a training run.

    python scripts/bench_label_loss.py [--json] [--quick]

Prints, for masked-LM training of a tiny ModernBERT with dense and with sparse predictions, on the CPU:

- ``throughput_ratio``: batches a second with ``loss: {every: 50ba}`` over those with monitoring but without
  it; pairs of runs in alternating order, median of the pairs' ratios.
- ``chosen_ratio``: time of a chosen batch over that of a batch that is not, medians of one run in which every
  second batch is chosen.
- ``chosen_ms``: the difference of these medians, in milliseconds.

A model as small as this is the worst case: its step has hardly more to do than to make logits. So is a CPU.
"""

from __future__ import annotations

import json
import statistics
import time
from itertools import pairwise
from typing import Any

import click
import torch
from composer import Callback, Trainer
from composer.core import State
from composer.loggers import Logger
from composer.models import HuggingFaceModel
from torch.utils.data import DataLoader, TensorDataset
from transformers import ModernBertConfig, ModernBertForMaskedLM

from composer_mixmon import MixMon

BATCH, POSITIONS, CLASSES = 16, 64, 8192
SKIPPED = 10  # batches, which set things up


class Stopwatch(Callback):
    """Times each batch, from its start to the start of the next one."""

    def __init__(self) -> None:
        self.starts: list[float] = []

    def batch_start(self, state: State, logger: Logger) -> None:
        """Note the time."""
        self.starts.append(time.perf_counter())

    fit_end = batch_start

    @property
    def seconds(self) -> list[float]:
        """Of the batches that count; the first is even-numbered."""
        counted = self.starts[SKIPPED:]
        return [end - begin for begin, end in pairwise(counted)]


def collate(samples: list[tuple[torch.Tensor]]) -> dict[str, torch.Tensor]:
    ids = torch.stack([sample[0] for sample in samples])
    labels = torch.where(ids % 3 == 0, ids, -100)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def train(sparse: bool, batches: int, loss: Any) -> list[float]:
    """Seconds of each batch of one run."""
    torch.manual_seed(0)
    config = ModernBertConfig(
        vocab_size=CLASSES,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        pad_token_id=0,
        sparse_prediction=sparse,
        attn_implementation="sdpa",
        reference_compile=False,
    )
    model, watch = HuggingFaceModel(ModernBertForMaskedLM(config)), Stopwatch()
    texts = TensorDataset(torch.randint(5, CLASSES, (batches * BATCH, POSITIONS)))
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.AdamW(model.parameters()),
        train_dataloader=DataLoader(texts, BATCH, shuffle=True, collate_fn=collate),
        max_duration=f"{batches}ba",
        callbacks=[watch, MixMon(labels={"position": 10}, loss=loss, integrity=False)],
        progress_bar=False,
        device="cpu",
    )
    trainer.fit()
    trainer.close()
    return watch.seconds


def bench(sparse: bool, pairs: int, batches: int) -> dict[str, Any]:
    ratios: list[float] = []
    for pair in range(pairs):
        order = [True, False] if pair % 2 else [False, True]
        seconds = {loss: sum(train(sparse, batches, {"every": "50ba"} if loss else None)) for loss in order}
        ratios.append(seconds[False] / seconds[True])
    seconds = train(sparse, batches, {"every": "2ba"})
    chosen, other = statistics.median(seconds[::2]), statistics.median(seconds[1::2])
    return {
        "throughput_ratio": statistics.median(ratios),
        "throughput_ratios": ratios,
        "chosen_ratio": chosen / other,
        "chosen_ms": (chosen - other) * 1e3,
    }


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quick", is_flag=True, help="A tenth of the work, to see that it runs.")
def main(as_json: bool, quick: bool) -> None:
    """Measure what the loss by label costs a training run."""
    amount = (1, 40) if quick else (5, 110)
    figures = {name: bench(name == "sparse", *amount) for name in ("dense", "sparse")}
    if as_json:
        click.echo(json.dumps(figures))
        return
    for name, measured in figures.items():
        for figure, value in measured.items():
            click.echo(f"{name:7} {figure:18} {value}")


if __name__ == "__main__":
    main()
