"""Trains on several ranks in several ways and writes down what each rank saw.

Usage: ``composer -n RANKS rank_script.py FOLDER SCENARIO…``, or, to import Composer only once for all ranks,
``python rank_script.py FOLDER SCENARIO…`` with RANKS and MASTER_PORT in the environment. The folder holds
``mds``, written before. Each rank writes ``FOLDER/rank<i>.json``: by scenario, what :func:`train` returns.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import torch
from composer.core import Callback
from composer.loggers import InMemoryLogger
from composer.utils import dist
from streaming import StreamingDataLoader
from torch.utils.data import DataLoader, DistributedSampler

from composer_mixmon import MixMon
from composer_mixmon.errors import MixmonError
from composer_mixmon.packing import unpack_names
from tests.live.data import as_dict, streaming_dataset
from tests.live.helpers import OFF, Witness, metrics, rows, trainer

BATCH = 4  # of a rank
SAMPLES = 96
FOLDER = Path(sys.argv[1])
COLLECTIVES = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "barrier"),
    *("broadcast", "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "reduce"),
    *("reduce_scatter", "scatter", "scatter_object_list", "send", "recv"),
)


class Warned(logging.Handler):
    """Keeps what mixmon says on this rank."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


WARNED = Warned()
logging.getLogger("composer_mixmon").addHandler(WARNED)


def loader(batch: int = BATCH, workers: int = 2, **settings: Any) -> StreamingDataLoader:
    dataset = streaming_dataset(FOLDER / "mds", batch, **settings)
    return StreamingDataLoader(dataset, batch_size=batch, num_workers=workers, collate_fn=as_dict)


def monitor(**settings: Any) -> MixMon:
    return MixMon(**{"labels": {"position": SAMPLES}, "window": "1000ba", "log_interval": "4ba"} | settings)


def train(
    mixmon: MixMon | None, data: Any = None, *callbacks: Callback, duration: str = "1ep", **settings: Any
) -> dict[str, Any]:
    """One run; ``error`` names what it raised."""
    WARNED.said.clear()
    witness, memory, error = Witness(), InMemoryLogger(), None
    monitors = [mixmon] if mixmon else []
    settings |= {"loggers": [memory], "dist_timeout": 60.0}
    run = trainer(data or loader(), witness, *monitors, *callbacks, duration=duration, **settings)
    began = time.monotonic()
    counting = {name: Mock(wraps=getattr(torch.distributed, name)) for name in COLLECTIVES}
    with patch.multiple(torch.distributed, **counting):
        try:
            run.fit()
        except MixmonError as caught:
            error = type(caught).__name__
    took = time.monotonic() - began
    calls = {name: counted.call_count for name, counted in counting.items()}
    run.close()
    books = mixmon.state_dict() if mixmon else None
    return {
        "fed": witness.batches,
        "sample": int(run.state.timestamp.sample),
        "batch": int(run.state.timestamp.batch),
        "error": error,
        "off": books == {},
        "warned": [text for text in WARNED.said if OFF in text],
        "counts": rows(mixmon).tolist()
        if mixmon and books and len(unpack_names(books["labels"])) == SAMPLES
        else None,
        "metrics": metrics(run),
        "all_reduces": calls.pop("all_reduce"),
        "other_collectives": calls,
        "seconds": took,
    }


class FailsAt:
    """Makes the monitor's taking of one batch fail on the last rank only."""

    def __init__(self, mixmon: MixMon, batch: int) -> None:
        self.mixmon = mixmon
        self.batch = batch

    def attach(self) -> MixMon:
        mixmon, original = self.mixmon, self.mixmon.after_dataloader

        def after_dataloader(state: Any, logger: Any) -> None:
            if int(state.timestamp.batch) == self.batch and is_last():
                mixmon._watch.tap.take()  # type: ignore[union-attr]  # so that the ids are gone
            original(state, logger)

        mixmon.after_dataloader = after_dataloader  # type: ignore[method-assign]
        return mixmon


class Few(DistributedSampler[Any]):
    """So many samples of a rank's own, whatever the other ranks have."""

    def __init__(self, dataset: Any, samples: int) -> None:
        super().__init__(dataset)
        self.samples = samples

    def __iter__(self) -> Any:
        first = dist.get_global_rank() * 6 * BATCH
        return iter(range(first, first + self.samples))

    def __len__(self) -> int:
        return self.samples


def is_last() -> bool:
    return dist.get_global_rank() == dist.get_world_size() - 1


SHUFFLED = {"shuffle": True, "num_canonical_nodes": 2, "shuffle_block_size": 24}
RULES = {"rules": [{"deviation": 0.4, "for": "2ba", "grace": 0}]}
HALVES = {"labels": {"position": 2}, "window": "2ba", "log_interval": "3ba"}


def plain() -> dict[str, Any]:
    return train(monitor(), loader(**SHUFFLED), duration="2ep")


def without() -> dict[str, Any]:
    return train(None, loader(**SHUFFLED), duration="2ep")


def map_style() -> dict[str, Any]:
    tensors = torch.utils.data.TensorDataset(torch.arange(SAMPLES), torch.rand(SAMPLES, 2))
    sampler: Any = DistributedSampler(tensors, shuffle=True)
    return train(monitor(), DataLoader(tensors, batch_size=BATCH, sampler=sampler, num_workers=2))


def uneven() -> dict[str, Any]:
    """The last rank has one batch less: the batches that the others have already fetched are dropped."""
    tensors = torch.utils.data.TensorDataset(torch.arange(SAMPLES), torch.rand(SAMPLES, 2))
    few: Any = Few(tensors, BATCH * (5 if is_last() else 6))
    return train(monitor(), DataLoader(tensors, batch_size=BATCH, sampler=few))


def replicated() -> dict[str, Any]:
    return train(monitor(), loader(replication=2))


def stop() -> dict[str, Any]:
    where = {"save_folder": str(FOLDER / "stop"), "save_filename": "ba{batch}.pt", "save_interval": "100ba"}
    return train(MixMon(**HALVES, alarm={**RULES, "action": ["log", "stop"]}), **where)


def raising() -> dict[str, Any]:
    return train(MixMon(**HALVES, alarm={**RULES, "action": "raise"}))


def fault() -> dict[str, Any]:
    return train(FailsAt(monitor(), 5).attach())


def fault_after_the_last_interval() -> dict[str, Any]:
    return train(FailsAt(monitor(), 9).attach(), duration="10ba")


def same_data() -> dict[str, Any]:
    """A DistributedSampler that believes to be alone: every rank gets all of the data, in one order."""
    tensors = torch.utils.data.TensorDataset(torch.arange(SAMPLES), torch.rand(SAMPLES, 2))
    sampler = DistributedSampler(tensors, num_replicas=1, rank=0)
    return train(monitor(), DataLoader(tensors, batch_size=BATCH, sampler=sampler))


def uneven_same_data() -> dict[str, Any]:
    """The same on all ranks, of which the last has one batch less: they end within an interval."""
    samples = BATCH * (5 if is_last() else 6)
    tensors = torch.utils.data.TensorDataset(torch.arange(samples), torch.rand(samples, 2))
    sampler = DistributedSampler(tensors, num_replicas=1, rank=0, shuffle=False)
    return train(monitor(labels={"position": 2}), DataLoader(tensors, batch_size=BATCH, sampler=sampler))


def other_seed() -> dict[str, Any]:
    """The last rank's copy of the settings says another seed than that of the data which it is given."""
    data = loader(**SHUFFLED)
    if is_last():
        data.dataset.shuffle_seed += 1
    heard: list[str] = []
    result = train(monitor(alarm={"tolerance": None, "action": lambda alarm: heard.append(str(alarm))}), data)
    return result | {"alarms": heard}


def mistake_on_one_rank() -> dict[str, Any]:
    """A setting that is wrong on the last rank only, such as a label file that its node lacks."""
    return train(monitor(target={"nowhere": 1.0}) if is_last() else monitor())


def saved() -> dict[str, Any]:
    where = {"save_folder": str(FOLDER / "saved"), "save_filename": "ba{batch}.pt", "save_interval": "2ba"}
    return train(monitor(), duration="6ba", save_num_checkpoints_to_keep=-1, **where)


def long_run(until: int, workers: int, **where: Any) -> dict[str, Any]:
    """Two epochs in global batches of 16 by any number of ranks, or a part of them."""
    where |= {"save_filename": "ba{batch}.pt", "save_interval": "100ba", "save_num_checkpoints_to_keep": -1}
    data = loader(16 // dist.get_world_size(), workers, **SHUFFLED)
    return train(monitor(), data, duration=f"{until}ba", **where)


def unbroken() -> dict[str, Any]:
    return long_run(12, 2, save_folder=str(FOLDER / "unbroken"))


def leg() -> dict[str, Any]:
    """A part of that run, which goes on where the one before it, of other ranks and workers, stopped."""
    begin, until, workers = {4: (0, 3, 2), 2: (3, 8, 0), 8: (8, 12, 1)}[dist.get_world_size()]
    folder = str(FOLDER / "legs")
    return long_run(until, workers, save_folder=folder, load_path=f"{folder}/ba{begin}.pt" if begin else None)


SCENARIOS: list[Callable[[], dict[str, Any]]] = [
    plain,
    without,
    map_style,
    uneven,
    replicated,
    stop,
    fault,
    fault_after_the_last_interval,
    raising,
    mistake_on_one_rank,
    saved,
    unbroken,
    leg,
    same_data,
    uneven_same_data,
    other_seed,
]


def fork(ranks: int) -> None:
    """Go on as so many processes, in the environment that the ``composer`` launcher would give them."""
    for rank in range(ranks):
        if os.fork() == 0:
            names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            os.environ |= {name: str(value) for name, value in names.items()}
            os.environ |= {"NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
            return
    sys.exit(max(os.waitstatus_to_exitcode(os.wait()[1]) != 0 for _ in range(ranks)))


if __name__ == "__main__":
    if "RANK" not in os.environ:
        fork(int(os.environ["RANKS"]))
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(150, exit=True)  # says where, should the ranks wait for each other
    dist.initialize_dist("cpu", timeout=60.0)
    results = {}
    for scenario in SCENARIOS:
        if scenario.__name__ in sys.argv[2:]:
            results[scenario.__name__] = scenario()
            print(scenario.__name__, "took", round(results[scenario.__name__]["seconds"], 1), flush=True)
    (FOLDER / f"rank{dist.get_global_rank()}.json").write_text(json.dumps(results))
