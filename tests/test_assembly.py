"""What is said before the first batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from composer_mixmon.assembly import assemble
from composer_mixmon.config import MonitorConfig


class Huge(Dataset[int]):
    """A billion samples that nobody reads."""

    def __len__(self) -> int:
        return 1_000_000_000

    def __getitem__(self, index: int) -> int:
        raise NotImplementedError


DATA = Huge()
SHUFFLED = [
    {"shuffle": True},
    {"sampler": RandomSampler(DATA)},
    {"sampler": DistributedSampler(DATA, 2, 0)},
    {"batch_sampler": BatchSampler(RandomSampler(DATA), 8, False)},
]
ORDERED = [
    {},
    {"sampler": SequentialSampler(DATA)},
    {"sampler": DistributedSampler(DATA, 2, 0, shuffle=False)},
    {"sampler": RandomSampler(DATA, replacement=True)},
]


def remarks(options: dict[str, Any]) -> str:
    config = MonitorConfig.read({"position": 4})
    return " ".join(assemble(config, DataLoader(DATA, **options)).remarks)


@pytest.mark.parametrize("options", SHUFFLED)
def test_a_biased_sampler_is_told_of(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A billion samples ordered by the randperm of torch 2.5 are worth a remark, by that of 2.6 not."""
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu124")
    assert "torch 2.5.1+cu124 shuffles 1,000,000,000 samples unevenly" in remarks(options)
    monkeypatch.setattr(torch, "__version__", "2.6.0+cu124")
    assert "unevenly" not in remarks(options)


@pytest.mark.parametrize("options", ORDERED)
def test_other_orders_are_not(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Other orders do not depend on randperm."""
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    assert "unevenly" not in remarks(options)
