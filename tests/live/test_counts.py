"""The ids that are counted are the ids that the model is fed, batch by batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.live.data import streaming_dataset, two_streams, write_mds
from tests.live.helpers import Tiny, Witness, by_id, fit, ids_to_rows, planned, rows
from streaming import StreamingDataLoader
from torch.utils.data import DataLoader

from composer_mixmon import MixMon

BATCH = 6

WORKERS: dict[str, dict[str, Any]] = {
    "none": {"num_workers": 0},
    "none-pinned": {"num_workers": 0, "pin_memory": True},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "fork-persistent": {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
    "spawn-persistent": {"num_workers": 2, "multiprocessing_context": "spawn", "persistent_workers": True},
    "forkserver": {"num_workers": 2, "multiprocessing_context": "forkserver", "pin_memory": True},
}


@pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)
@pytest.mark.parametrize("loader_class", [StreamingDataLoader, DataLoader])
def test_counts_equal_the_ids_fed_and_those_planned(
    tmp_path: Path, workers: dict[str, Any], loader_class: type[DataLoader[Any]]
) -> None:
    """Over two epochs of a shuffled dataset, however the workers are started."""
    settings = {"shuffle": True, "num_canonical_nodes": 2, "shuffle_block_size": 24}
    dataset = streaming_dataset(write_mds(tmp_path, 50), BATCH, **settings)
    loader = loader_class(dataset, batch_size=BATCH, **workers)
    witness, monitor = Witness(), by_id(50)
    run = fit(loader, witness, monitor, duration="2ep")
    counted = rows(monitor)
    np.testing.assert_array_equal(counted, ids_to_rows(witness.batches, 50))
    assert counted.sum() == int(run.state.timestamp.sample)
    fresh = streaming_dataset(tmp_path, BATCH, **settings)
    plan = [ids for epoch in (0, 1) for ids in planned(fresh, epoch, workers["num_workers"])]
    np.testing.assert_array_equal(counted, ids_to_rows(plan, 50))
    assert plan[:9] != plan[9:]
