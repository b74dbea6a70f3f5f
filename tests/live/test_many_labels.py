"""A run of 10,000 labels: few metrics, full books, and a post-mortem that reads either."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from composer.loggers import WandBLogger
from omegaconf import OmegaConf
from wandb import finish

from composer_mixmon import MixMon
from composer_mixmon.sources import Given, read_run
from tests.live.data import mds_loader, streaming_dataset, write_mds
from tests.live.helpers import Witness, fit
from tests.live.test_logged import Calls

SAMPLES, LABELS, BATCH, INTERVAL = 10_400, 10_000, 400, 4
ORDER: dict[str, Any] = {"shuffle": True, "shuffle_seed": 5, "num_canonical_nodes": 1}
LABEL_OF_SAMPLE = np.searchsorted(SAMPLES * np.arange(1, LABELS + 1) // LABELS, np.arange(SAMPLES), "right")


@dataclass(frozen=True)
class Run:
    """An epoch of 26 batches.

    Attributes:
        folder: With the data, W&B's files and the ``save_folder``.
        calls: What was logged.
        counts: The brute force: samples of each label in each batch, int64 (26, 10,000).
    """

    folder: Path
    calls: list[dict[str, float]]
    counts: np.ndarray[Any, np.dtype[np.int64]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("many")
    loader = mds_loader(streaming_dataset(write_mds(folder / "data", SAMPLES), BATCH, **ORDER))
    witness, calls = Witness(), Calls()
    monitor = MixMon(labels={"position": LABELS}, log_interval=f"{INTERVAL}ba")
    wandb = WandBLogger(project="p", init_kwargs={"dir": str(folder), "mode": "offline"})
    fit(loader, witness, monitor, loggers=[calls, wandb], save_folder=str(folder / "saved"))
    finish()
    counts = [np.bincount(LABEL_OF_SAMPLE[ids], minlength=LABELS) for ids in witness.batches]
    return Run(folder, [metrics for _, metrics in calls.calls], np.array(counts))


def test_few_metrics(run: Run) -> None:
    """At most 200, whose shares add up to 1: those with the largest targets, and the others together."""
    assert len(run.calls) == 7
    large = [f"part{label:04d}" for label in np.flatnonzero(np.bincount(LABEL_OF_SAMPLE) == 2)[:60]]
    for metrics in run.calls:
        assert len(metrics) <= 200
        for scope in ("window", "run"):
            shares = {
                key.removeprefix(f"mixmon/{scope}/ratio/"): value
                for key, value in metrics.items()
                if key.startswith(f"mixmon/{scope}/ratio/")
            }
            assert list(shares) == [*large, "other"]
            assert sum(shares.values()) == pytest.approx(1, abs=1e-12)
    last = run.calls[-1]
    assert last["mixmon/run/ratio/part0049"] == run.counts.sum(axis=0)[49] / SAMPLES


def test_full_books(run: Run) -> None:
    """The ledger has every label of every batch."""
    record = read_run(str(run.folder / "saved"))
    assert record.names == tuple(f"part{label:04d}" for label in range(LABELS))
    assert record.counts is not None
    np.testing.assert_array_equal(record.counts, run.counts)


def test_read_from_what_was_logged(run: Run) -> None:
    """W&B's own files: the same shares as were logged, and a word on those that were not."""
    record = read_run(str(run.folder / "wandb"))
    own = np.flatnonzero(run.counts.sum(axis=0) == 2)[:60]
    grouped = np.hstack([run.counts[:, own], np.delete(run.counts, own, axis=1).sum(axis=1, keepdims=True)])
    assert record.names == (*(f"part{label:04d}" for label in own), "other")
    assert record.counts is not None
    np.testing.assert_array_equal(record.counts, np.add.reduceat(grouped, record.first))
    np.testing.assert_allclose(record.targets[0].shares, grouped.sum(axis=0) / SAMPLES)
    (remark,) = [text for text in record.remarks if "together" in text]
    assert remark.startswith("of 10000 labels, 60 were logged one by one and the rest together, as 'other'")


def test_told_apart_by_replay(run: Run) -> None:
    """With the YAML, every label of every batch again, where that adds up to what was logged."""
    config = {
        "train_loader": {"dataset": {"local": str(run.folder / "data"), **ORDER}},
        "global_train_batch_size": BATCH,
        "max_duration": "1ep",
        "callbacks": {"mixmon": {"labels": {"position": LABELS}}},
    }
    path = run.folder / "train.yaml"
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    record = read_run(str(run.folder / "wandb"), Given(str(path)))
    assert record.source == "W&B, mixture by replay"
    assert record.counts is not None
    np.testing.assert_array_equal(record.counts, run.counts)
    assert record.targets[0].shares.shape == (LABELS,)
