"""A batch that is tried again with smaller microbatches counts once."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from streaming import StreamingDataLoader

from tests.live.data import as_dict, streaming_dataset, write_mds
from tests.live.helpers import Tiny, Witness, by_id, fit, ids_to_rows, rows

BATCH, SAMPLES = 8, 40


class RunsOut(Tiny):
    """Has memory for so many samples, and fails as CUDA does at the given forward of a batch."""

    def __init__(self, memory: int, forwards_before: int) -> None:
        super().__init__()
        self.memory = memory
        self.spare = forwards_before
        self.failures = 0

    def forward(self, batch: Any) -> torch.Tensor:
        if len(batch["id"]) > self.memory:
            if self.spare == 0:
                self.failures += 1
                raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")
            self.spare -= 1
        return super().forward(batch)


@pytest.mark.parametrize(("memory", "failures"), [(4, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("forwards_before", [0, 2])
def test_an_out_of_memory_retry_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int, failures: int, forwards_before: int
) -> None:
    """Once and several times, at the first batch and later. Composer is told that it may retry on a CPU."""
    monkeypatch.setattr(
        "composer.trainer.trainer._is_auto_microbatching", lambda size, device: size == "auto"
    )
    dataset = streaming_dataset(write_mds(tmp_path, SAMPLES), BATCH)
    loader = StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=as_dict)
    model, witness, monitor = RunsOut(memory, forwards_before), Witness(), by_id(SAMPLES)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        run = fit(loader, witness, monitor, model=model, device_train_microbatch_size="auto")
    assert model.failures == failures
    assert sum("Train microbatch size will be decreased" in str(w.message) for w in warned) == failures
    assert run.state.device_train_microbatch_size == memory
    assert len(model.fed) > SAMPLES // BATCH
    np.testing.assert_array_equal(rows(monitor), ids_to_rows(witness.batches, SAMPLES))
    assert rows(monitor).sum() == int(run.state.timestamp.sample) == SAMPLES
