"""Evaluation is not training: its samples are never counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from composer.core import Evaluator
from composer.loggers import InMemoryLogger
from streaming import StreamingDataLoader
from torch.utils.data import DataLoader

from tests.live.data import Listed, as_dict, streaming_dataset, write_mds
from tests.live.helpers import Witness, by_id, fit, ids_to_rows, metrics, rows, trainer

BATCH, SAMPLES = 4, 22


def listed(dataset: Any, workers: int) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=BATCH, num_workers=workers)


def evaluator(loader: Any) -> Evaluator:
    return Evaluator(label="eval", dataloader=loader, metric_names=[])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shared", ["nothing", "dataset", "loader"])
def test_evaluating_at_every_batch(shared: str, workers: int) -> None:
    """Over a loader of its own, over the training dataset, over the very training loader."""
    dataset = Listed(SAMPLES)
    train = listed(dataset, workers)
    evals = {"nothing": listed(Listed(9), 0), "dataset": listed(dataset, 0), "loader": train}
    witness, monitor, memory = Witness(), by_id(SAMPLES), InMemoryLogger()
    settings = {"eval_dataloader": evaluator(evals[shared]), "eval_interval": "1ba", "loggers": [memory]}
    run = fit(train, witness, monitor, duration="2ep", **settings)
    assert int(run.state.eval_timestamp.batch) > 0
    assert len(witness.batches) == 12
    np.testing.assert_array_equal(rows(monitor), ids_to_rows(witness.batches, SAMPLES))
    assert [batch for batch, _ in metrics(run)["mixmon/run/deviation"]] == [3, 7, 11]


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluating_another_mds_dataset(tmp_path: Path, workers: int) -> None:
    """Two StreamingDatasets share a process."""
    train, evals = (streaming_dataset(write_mds(tmp_path / n, SAMPLES), BATCH) for n in ("train", "eval"))
    loader = StreamingDataLoader(train, batch_size=BATCH, collate_fn=as_dict, num_workers=workers)
    other = StreamingDataLoader(evals, batch_size=BATCH, collate_fn=as_dict)
    witness, monitor = Witness(), by_id(SAMPLES)
    fit(loader, witness, monitor, eval_dataloader=evaluator(other), eval_interval="1ba")
    np.testing.assert_array_equal(rows(monitor), ids_to_rows(witness.batches, SAMPLES))
    assert len(witness.batches) == 6


def test_the_same_mds_dataset_in_both_loaders(tmp_path: Path) -> None:
    """As streaming allows it, evaluating between two epochs."""
    dataset = streaming_dataset(write_mds(tmp_path, SAMPLES), BATCH)
    loaders = [StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=as_dict) for _ in range(2)]
    witness, monitor = Witness(), by_id(SAMPLES)
    fit(
        loaders[0],
        witness,
        monitor,
        duration="2ep",
        eval_dataloader=evaluator(loaders[1]),
        eval_interval="1ep",
    )
    np.testing.assert_array_equal(rows(monitor), ids_to_rows(witness.batches, SAMPLES))
    assert len(witness.batches) == 12


def test_trainer_eval_before_and_after_fit() -> None:
    """``Trainer.eval`` over the training loader leaves the books alone."""
    loader = listed(Listed(SAMPLES), 0)
    witness, monitor = Witness(), by_id(SAMPLES)
    run = trainer(loader, witness, monitor, eval_dataloader=evaluator(loader), eval_interval=0)
    run.eval()
    run.fit()
    run.eval()
    run.close()
    np.testing.assert_array_equal(rows(monitor), ids_to_rows(witness.batches, SAMPLES))
