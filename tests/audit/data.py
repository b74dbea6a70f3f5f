"""Small datasets, their YAMLs, the command, and streaming's own order of them."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner, Result
from omegaconf import OmegaConf

from composer_mixmon.cli import main

JA_EN = {"shards": {"ja": "ja/*", "en": "en/*"}}


def write_index(folder: Path, shards: dict[str, int], size: int, bytes_each: int = 1000) -> str:
    """Write an index.json: for each label so many shards of ``size`` samples, label after label."""
    names = [f"{label}/shard.{i:05d}.mds" for label, count in shards.items() for i in range(count)]
    entries = [
        {"format": "mds", "samples": size, "raw_data": {"basename": name, "bytes": bytes_each, "hashes": {}}}
        for name in names
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))
    return str(folder)


def write_yaml(path: Path, dataset: dict[str, Any], batch: int | None = 64, **top: Any) -> str:
    """Write a training YAML; ``mixmon`` is what stands under callbacks, ``loader`` beside the dataset."""
    loader = {"dataset": dataset, "drop_last": True, **top.pop("loader", {})}
    config = {"train_loader": loader, **({} if batch is None else {"global_train_batch_size": batch})}
    if "mixmon" in top:
        config["callbacks"] = {"mixmon": top.pop("mixmon")}
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(config | top)))
    return str(path)


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(main, list(map(str, arguments)), env={"COLUMNS": "200"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def audited(*arguments: object) -> dict[str, Any]:
    """The JSON of an audit, which must have worked."""
    result = run("audit", *arguments, "--json")
    assert result.exit_code in (0, 1), result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout, parse_constant=lambda name: _refuse(name))


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} in JSON")


def fed(
    local: str, batch: int, nodes: int, ranks: int, workers: int, epoch: int, **settings: Any
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Ids of each global batch by streaming itself: a StreamingDataset and its ``generate_work``."""
    from streaming import StreamingDataset
    from streaming.base.batching import generate_work
    from streaming.base.world import World

    logging.getLogger("streaming").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = StreamingDataset(local=local, batch_size=batch // (nodes * ranks), **settings)
        world = World(nodes, ranks, max(1, workers), 0)
        dataset._resume(world, epoch)
        work = generate_work(dataset.batching_method, dataset, world, epoch, 0)
    batches = work.transpose(3, 2, 0, 1, 4).reshape(-1, batch)
    return batches[(batches >= 0).all(1)]
