"""Real Trainers around a tiny model, and two ways to know what it was fed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from composer import Trainer
from composer.core import Callback, State
from composer.loggers import InMemoryLogger, Logger
from composer.models import ComposerModel
from streaming import StreamingDataset
from streaming.base.batching import generate_work
from streaming.base.world import World

from composer_mixmon import MixMon
from composer_mixmon.packing import unpack_counts, unpack_names
from composer_mixmon.rows import Rows
from tests.live.data import ids_of

Counts = npt.NDArray[np.int64]
OFF = "mixmon is off"


class Tiny(ComposerModel):
    """Three weights. Remembers what it was fed, forward by forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)
        with torch.no_grad():
            self.linear.weight.fill_(0.1)
            self.linear.bias.fill_(0.0)
        self.fed: list[list[int]] = []

    def forward(self, batch: Any) -> torch.Tensor:
        if self.training:
            self.fed.append(ids_of(batch))
        if isinstance(batch, torch.Tensor):
            x = batch[:, 1:]
        elif isinstance(batch, (tuple, list)):
            x = batch[1]
        else:
            x = batch.x if not hasattr(batch, "keys") else batch["x"]
        return self.linear(x)

    def loss(self, outputs: torch.Tensor, batch: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        return (outputs - 1).square().mean()

    def eval_forward(self, batch: Any, outputs: Any = None) -> torch.Tensor:
        return self(batch)

    @property
    def weights(self) -> list[float]:
        return torch.cat([p.detach().flatten() for p in self.parameters()]).tolist()


class Twice(torch.optim.SGD):
    """Looks at the loss, goes a step, and looks once more."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for _ in range(2):
            with torch.enable_grad():
                loss = closure()
            super().step()
        return loss


class Witness(Callback):
    """The brute force: reads the ids that the batches themselves carry, once each has been trained on."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.samples: list[int] = []
        self._fetched: list[int] = []

    def after_dataloader(self, state: State, logger: Logger) -> None:
        self._fetched = ids_of(state.batch)

    def batch_end(self, state: State, logger: Logger) -> None:
        self.batches.append(self._fetched)
        self.samples.append(int(state.timestamp.sample))


def trainer(loader: Any, *callbacks: Callback, duration: str = "1ep", **settings: Any) -> Trainer:
    """A Trainer on the CPU that prints nothing; ``settings`` go to it."""
    model = settings.pop("model", None) or Tiny()
    return Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        train_dataloader=loader,
        max_duration=duration,
        callbacks=list(callbacks),
        device="cpu",
        progress_bar=False,
        seed=3,
        **settings,
    )


def fit(loader: Any, *callbacks: Callback, **settings: Any) -> Trainer:
    """Train and close."""
    run = trainer(loader, *callbacks, **settings)
    run.fit()
    run.close()
    return run


def by_id(samples: int, **settings: Any) -> MixMon:
    """A MixMon for which every sample is a label of its own: its counts tell the ids."""
    return MixMon(**{"labels": {"position": samples}, "window": "1000ba", "log_interval": "4ba"} | settings)


def labels_of(monitor: MixMon) -> tuple[str, ...]:
    """The labels in the saved books."""
    return unpack_names(monitor.state_dict()["labels"])


def books_in(path: Path) -> dict[str, Any]:
    """The books of a checkpoint, without the name that its run's ledger has by chance."""
    saved = dict(torch.load(path, weights_only=False)["state"]["callbacks"])["MixMon"]
    assert saved.pop("ledger")
    return saved


def rows(monitor: MixMon) -> Counts:
    """The counts of each batch of the run so far, int64 (batches, labels), out of the saved books."""
    books = monitor.state_dict()
    labels = len(unpack_names(books["labels"]))
    parts = [unpack_counts(books["mixture"]["recent"], labels), pending(books)]
    counts = np.concatenate(parts)
    run = np.array(books["mixture"]["run"]) + parts[1].sum(axis=0)
    np.testing.assert_array_equal(counts.sum(axis=0), run)
    return counts


def pending(books: dict[str, Any]) -> Counts:
    """Counts of the batches in saved books that no interval holds yet, int64 (batches, labels)."""
    labels = len(unpack_names(books["labels"]))
    return Rows(labels, unpack_counts(books["pending"], Rows.width(labels))).counts


def ids_to_rows(batches: list[list[int]], labels: int) -> Counts:
    """Count ids, one row a batch."""
    return np.array([np.bincount(ids, minlength=labels) for ids in batches])


def planned(dataset: StreamingDataset, epoch: int, workers: int, drop_last: bool = False) -> list[list[int]]:
    """The batches of one rank of one as streaming itself apportions them."""
    world = World(num_nodes=1, ranks_per_node=1, workers_per_rank=max(1, workers), worker=0)
    dataset._resume(world, epoch)  # fills in the canonical nodes and the block size
    work = generate_work(dataset.batching_method, dataset, world, epoch, 0)[0, 0]
    size = dataset.batch_size
    of_worker: list[list[list[int]]] = []
    for ids in work.reshape(len(work), -1):
        served = ids[ids >= 0].tolist()
        batches = [served[i : i + size] for i in range(0, len(served), size)]
        of_worker.append([b for b in batches if len(b) == size or not drop_last])
    most = max(map(len, of_worker))
    return [batches[i] for i in range(most) for batches in of_worker if i < len(batches)]


def metrics(run: Trainer, prefix: str = "mixmon/") -> dict[str, list[tuple[int, float]]]:
    """What an InMemoryLogger of the run holds: (batch, value) by key."""
    (memory,) = (d for d in run.logger.destinations if isinstance(d, InMemoryLogger))
    return {
        key: [(int(stamp.batch), float(value)) for stamp, value in seen]
        for key, seen in memory.data.items()
        if key.startswith(prefix)
    }
