"""Real runs over two small streams, interrupted and resumed, and their training YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from composer.core import Callback
from omegaconf import OmegaConf

from tests.live.data import mds_loader, two_streams
from tests.live.helpers import Witness, fit

SAMPLES, STREAM_A = 64, 40
ORDER: dict[str, Any] = {
    "shuffle": True,
    "shuffle_seed": 5,
    "shuffle_block_size": 16,
    "num_canonical_nodes": 2,
}


def train(folder: Path, until: str, *callbacks: Callback, batch: int = 6, **settings: Any) -> list[list[int]]:
    """Train, and return the ids of each batch; ``until`` is a Composer time."""
    witness = Witness()
    loader = mds_loader(two_streams(folder, batch, **ORDER))
    fit(loader, witness, *callbacks, duration=until, **settings)
    return witness.batches


def saving(folder: Path, interval: str) -> dict[str, Any]:
    return {
        "save_folder": str(folder / "saved"),
        "save_filename": "ba{batch}.pt",
        "save_interval": interval,
        "save_num_checkpoints_to_keep": -1,
        "save_overwrite": True,
    }


def write_yaml(folder: Path, batch: int = 6, **changes: Any) -> str:
    """The YAML of such a run; ``changes`` are settings of the dataset."""
    streams = [{"local": str(folder / name)} for name in "ab"]
    config = {
        "train_loader": {"dataset": {"streams": streams, **ORDER, **changes}, "drop_last": False},
        "global_train_batch_size": batch,
        "max_duration": "2ep",
    }
    path = folder / "train.yaml"
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    return str(path)


def by_stream(batches: list[list[int]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Samples of each stream in each batch."""
    return np.array([[sum(i < STREAM_A for i in ids), sum(i >= STREAM_A for i in ids)] for ids in batches])
