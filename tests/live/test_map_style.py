"""Map-style datasets: any object with ``__getitem__`` and ``__len__``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from composer.loggers import InMemoryLogger
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Sampler, Subset, TensorDataset

from composer_mixmon import MixMon
from tests.live.data import Augmented, Delegating, Fetched, Keyed, Listed
from tests.live.helpers import OFF, Witness, by_id, fit, ids_to_rows, metrics, rows

SAMPLES, BATCH = 22, 5

DATASETS: dict[str, Any] = {
    "listed": Listed(SAMPLES),
    "fetched": Fetched(SAMPLES),
    "delegating": Delegating(Fetched(SAMPLES)),
    "augmented": Augmented(SAMPLES),
    "tensors": TensorDataset(torch.arange(SAMPLES), torch.rand(SAMPLES, 2)),
    "subset": Subset(Listed(SAMPLES), range(SAMPLES)),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", DATASETS)
def test_counts_equal_the_ids_fed(name: str, workers: int) -> None:
    """Over two shuffled epochs, whether samples come one by one or in batches."""
    loader: Any = DataLoader(DATASETS[name], batch_size=BATCH, shuffle=True, num_workers=workers)
    witness, monitor = Witness(), by_id(SAMPLES)
    run = fit(loader, witness, monitor, duration="2ep")
    np.testing.assert_array_equal(rows(monitor), ids_to_rows(witness.batches, SAMPLES))
    assert rows(monitor).sum() == int(run.state.timestamp.sample) == 2 * SAMPLES
    assert "__getitems__" not in vars(DATASETS[name])


def test_the_wrapped_dataset_still_fetches_the_batch() -> None:
    """A wrapper's ``__getitems__``, handed through from inside, is used as without us."""
    fetched: list[list[int]] = []

    class Counts(Fetched):
        def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
            fetched.append(list(indices))
            return super().__getitems__(indices)

    fit(DataLoader(Delegating(Counts(10)), batch_size=BATCH), by_id(10))
    assert fetched == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_distributed_sampler() -> None:
    """Composer sets the sampler's epoch; what it repeats to fill up the last batch is counted."""
    dataset = Listed(SAMPLES)
    sampler: Any = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True, seed=5)
    witness, monitor = Witness(), by_id(SAMPLES)
    fit(DataLoader(dataset, batch_size=BATCH, sampler=sampler), witness, monitor, duration="2ep")
    fed = ids_to_rows(witness.batches, SAMPLES)
    np.testing.assert_array_equal(rows(monitor), fed)
    assert not np.array_equal(fed[:5], fed[5:])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [3, 7])
def test_a_resumed_run_goes_on(tmp_path: Path, at: int, workers: int) -> None:
    """Composer fetches what was trained on once more, epochs and batches, and skips it: it counts once."""

    def loader() -> DataLoader[Any]:
        dataset: Any = Listed(SAMPLES)
        sampler: Any = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True, seed=5)
        return DataLoader(dataset, batch_size=BATCH, sampler=sampler, num_workers=workers)

    whole, rest, monitor = Witness(), Witness(), by_id(SAMPLES)
    saving = {"save_folder": str(tmp_path), "save_filename": "ba{batch}.pt", "save_interval": f"{at}ba"}
    fit(loader(), whole, duration="2ep")
    fit(loader(), by_id(SAMPLES), duration=f"{at}ba", **saving)
    fit(loader(), rest, monitor, duration="2ep", load_path=str(tmp_path / f"ba{at}.pt"))
    assert rest.batches == whole.batches[at:]
    np.testing.assert_array_equal(rows(monitor), ids_to_rows(whole.batches, SAMPLES))


def test_repeats_are_counted_as_often_as_they_come() -> None:
    """Sampling with replacement counts a sample once each time."""
    dataset = Listed(SAMPLES)
    sampler = RandomSampler(dataset, replacement=True, num_samples=40)  # type: ignore[arg-type]
    witness, monitor = Witness(), by_id(SAMPLES)
    fit(DataLoader(dataset, batch_size=BATCH, sampler=sampler), witness, monitor)
    np.testing.assert_array_equal(rows(monitor), ids_to_rows(witness.batches, SAMPLES))
    assert rows(monitor).sum(axis=0).max() > 1


def test_positions_show_a_biased_sampler() -> None:
    """A sampler that prefers the first half is seen as such, without any labels."""

    class Biased(Sampler[int]):
        def __iter__(self) -> Any:
            return iter([i % 20 if i % 4 == 0 else i % 10 for i in range(40)])

        def __len__(self) -> int:
            return 40

    memory, witness = InMemoryLogger(), Witness()
    monitor = MixMon(labels={"position": 2}, log_interval="8ba")
    run = fit(DataLoader(Listed(20), batch_size=5, sampler=Biased()), witness, monitor, loggers=[memory])
    first_half = np.mean([i < 10 for batch in witness.batches for i in batch])
    assert first_half > 0.8
    assert metrics(run)["mixmon/run/ratio/part0"][-1] == (7, first_half)
    assert metrics(run)["mixmon/run/deviation"][-1] == (7, pytest.approx(first_half - 0.5, abs=1e-15))


def test_keys_that_are_no_numbers_turn_monitoring_off(caplog: pytest.LogCaptureFixture) -> None:
    """Training goes on over a dataset whose samples have names instead of ids."""
    loader: Any = DataLoader(Keyed(8), batch_size=4, sampler=[f"k{i}" for i in range(8)])
    witness = Witness()
    fit(loader, witness, by_id(8))
    assert witness.batches == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert sum(OFF in r.message for r in caplog.records) == 1
