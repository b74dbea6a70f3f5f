"""A run as a user would start it, in a process of its own: real Trainer, MDS, workers and WandBLogger.

    python train.py FOLDER with|without [BATCHES [WINDOW]]

Writes two language folders merged to one dataset, trains 24 batches in the shards' order and, last,
prints what an in-memory logger got beside W&B, as JSON. With BATCHES, the run ends there with a checkpoint,
and goes on from one that is there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from composer import Trainer
from composer.callbacks import LRMonitor, SpeedMonitor
from composer.loggers import InMemoryLogger, WandBLogger
from composer.models import ComposerModel
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import merge_index

from composer_mixmon import MixMon


class Mean(ComposerModel):
    """One weight that learns the mean of the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return batch["x"].float() - self.weight

    def loss(self, outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return outputs.square().mean()


def write(folder: str) -> None:
    for group in ("en", "ja"):
        with MDSWriter(out=f"{folder}/{group}", columns={"x": "int"}, size_limit=400) as out:
            for i in range(96):
                out.write({"x": i % 2})
    merge_index(folder)


def main(folder: str, monitor: str, batches: str = "24", window: str = "8") -> None:
    if not Path(folder, "data").exists():
        write(f"{folder}/data")
    dataset = StreamingDataset(local=f"{folder}/data", batch_size=8)
    mixmon = MixMon(
        labels={"shards": {"ja": "ja/*", "en": "en/*"}},
        window=f"{window}ba",
        log_interval="4ba",
        alarm={
            "false_alarm_every": 10**300,  # evidence is logged, and the plain rule alone alarms
            "rules": [{"deviation": 0.3, "for": "2ba"}],
            "action": ["log", "wandb"],
        },
    )
    memory = InMemoryLogger()
    checkpoint = Path(folder, "checkpoints", "latest-rank0.pt")
    model = Mean()
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        train_dataloader=StreamingDataLoader(dataset, batch_size=8, num_workers=1),
        max_duration=f"{batches}ba",
        # Others log at BATCH_END under the next step already; what comes after them at the last one is lost.
        callbacks=[SpeedMonitor(window_size=2), LRMonitor(), *([mixmon] if monitor == "with" else [])],
        loggers=[WandBLogger(project="p", init_kwargs={"dir": folder, "resume": "allow"}), memory],
        run_name="r",
        save_folder=f"{folder}/checkpoints",
        save_interval="100ba",  # at the end, that is
        load_path=str(checkpoint) if checkpoint.exists() else None,
        seed=1,  # without one, Composer changes its config with every resumption, and wandb raises
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()
    rows = {key: [[int(t.batch), float(v)] for t, v in data] for key, data in memory.data.items()}
    print(json.dumps(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
