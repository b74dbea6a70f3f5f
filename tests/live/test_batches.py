"""What the user sees of a batch is the same with us and without us, whatever its type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from composer.core import Callback, DataSpec, State
from composer.loggers import Logger
from streaming import StreamingDataLoader
from torch.utils.data import DataLoader

from tests.live import data
from tests.live.data import Custom, streaming_dataset, write_mds
from tests.live.helpers import Tiny, Witness, by_id, fit, ids_to_rows, rows

BATCH = 4


def split_custom(batch: Custom, size: int) -> list[Custom]:
    return [Custom(*parts) for parts in zip(batch.id.split(size), batch.x.split(size), strict=True)]


def spec(folder: str, collate: Callable[[Any], Any]) -> Any:
    """The training data; a batch of the user's own type needs a DataSpec, with or without us."""
    custom = collate is data.as_custom  # which StreamingDataLoader cannot count
    loader_class = DataLoader if custom else StreamingDataLoader
    dataset = streaming_dataset(folder, BATCH)
    loader = loader_class(dataset, batch_size=BATCH, collate_fn=collate, num_workers=2)
    if custom:
        return DataSpec(loader, split_batch=split_custom, get_num_samples_in_batch=len)
    return loader


def flat(batch: Any) -> list[Any]:
    """Everything that can be told of a batch: its type, and each part's key, type and content."""
    if isinstance(batch, torch.Tensor):
        parts: Any = {"": batch}
    elif isinstance(batch, (tuple, list)):
        parts = dict(enumerate(batch))
    else:
        parts = dict(batch) if hasattr(batch, "keys") else vars(batch)
    return [type(batch), *((key, type(part), part.dtype, part.tolist()) for key, part in parts.items())]


class Looks(Callback):
    """Describes ``state.batch`` at each of these events."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def after_dataloader(self, state: State, logger: Logger) -> None:
        self.seen.append(flat(state.batch))

    batch_start = before_forward = after_dataloader


class Describes(Tiny):
    """Describes what it is fed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def forward(self, batch: Any) -> torch.Tensor:
        self.seen.append(flat(batch))
        return super().forward(batch)


TYPES = ["dict", "encoding", "tuple", "list", "tensor", "custom"]


@pytest.mark.parametrize("name", TYPES)
def test_batches_are_the_very_same(tmp_path: Path, name: str) -> None:
    """Types, keys, their order and contents, in ``state.batch`` and in the model."""
    collate = getattr(data, f"as_{name}")
    folder = write_mds(tmp_path, 14)
    seen: list[Any] = []
    for monitors in ([], [by_id(14)]):
        looks, model, witness = Looks(), Describes(), Witness()
        run = fit(
            spec(folder, collate), looks, witness, *monitors, model=model, device_train_microbatch_size=2
        )
        seen.append((looks.seen, model.seen, int(run.state.timestamp.sample)))
        for monitor in monitors:
            np.testing.assert_array_equal(rows(monitor), ids_to_rows(witness.batches, 14))
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == 4 + 4 + 7


def test_the_collate_function_keeps_its_attributes(tmp_path: Path) -> None:
    """What code asks of ``dataloader.collate_fn`` while training is answered by the user's own."""

    class Collator:
        pad = 7

        def __call__(self, samples: list[Any]) -> Any:
            return data.as_dict(samples)

    asked: list[int] = []

    class Asks(Callback):
        def batch_start(self, state: State, logger: Logger) -> None:
            asked.append(state.dataloader.collate_fn.pad)  # type: ignore[union-attr]

    collator = Collator()
    dataset = streaming_dataset(write_mds(tmp_path, 8), BATCH)
    loader = StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=collator)
    fit(loader, Asks(), by_id(8))
    assert asked == [7, 7]
    assert loader.collate_fn is collator
    assert "__getitem__" not in vars(dataset)
    assert "_get_iterator" not in vars(loader)


def test_streaming_counts_its_samples_as_without_us(tmp_path: Path) -> None:
    """What ``StreamingDataLoader`` saves for resuming is unchanged at every batch."""

    class Saves(Callback):
        def __init__(self) -> None:
            self.saved: list[Any] = []

        def batch_end(self, state: State, logger: Logger) -> None:
            self.saved.append(state.dataloader.state_dict())  # type: ignore[union-attr]

    folder = write_mds(tmp_path, 14)
    saved: list[Any] = []
    for monitors in ([], [by_id(14)]):
        saves = Saves()
        fit(spec(folder, data.as_dict), saves, *monitors)
        saved.append(saves.saved)
    assert saved[0] == saved[1]
    assert [state["sample_in_epoch"] for state in saved[0]] == [4, 8, 12, 14]
