"""What DataLoader workers import: datasets and collate functions that need no Composer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from torch.utils.data import default_collate

SHARD = 8  # samples in a full shard


def write_mds(folder: Path, samples: int, first_id: int = 0) -> str:
    """Write samples that carry their own id, in shards of 8."""
    columns = {"id": "int64", "x": "ndarray:float32:2"}
    sample_bytes = 8 + 4 * 2  # as MDS stores it, beside an offset of 4 bytes
    probe = {"id": np.int64(0), "x": np.zeros(2, np.float32)}
    with MDSWriter(out=str(folder), columns=columns) as writer:
        header = 4 + 4 + len(writer.config_data)  # number of samples, first offset, the columns' JSON
        writer.size_limit = header + SHARD * (sample_bytes + 4)
        for i in range(first_id, first_id + samples):
            writer.write(probe | {"id": np.int64(i), "x": np.array([i % 7, i % 3], np.float32)})
    return str(folder)


def streaming_dataset(folder: str | Path, batch_size: int, **settings: Any) -> StreamingDataset:
    return StreamingDataset(local=str(folder), batch_size=batch_size, **{"shuffle": False} | settings)


def two_streams(tmp_path: Path, batch_size: int, **settings: Any) -> StreamingDataset:
    """Streams ``a`` (40 samples, ids 0 to 39) and ``b`` (24 samples, ids 40 to 63)."""
    weights: tuple[dict[str, float], dict[str, float]] = settings.pop("weights", ({}, {}))
    for name, samples, first in (("a", 40, 0), ("b", 24, 40)):
        if not (tmp_path / name).exists():
            write_mds(tmp_path / name, samples, first)
    streams = [Stream(local=str(tmp_path / n), **w) for n, w in zip("ab", weights, strict=True)]
    return StreamingDataset(streams=streams, batch_size=batch_size, **{"shuffle": False} | settings)


class Listed:
    """The plainest map-style dataset there is."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index, "x": np.array([index % 7, index % 3], np.float32)}


class Fetched(Listed):
    """A map-style dataset that fetches a whole batch at once."""

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [super(Fetched, self).__getitem__(index) for index in indices]


class Delegating:
    """A wrapper that hands everything it lacks on to the dataset inside, ``__getitems__`` included."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class Augmented(Listed):
    """Mixes another sample into each: an item that reads items."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        other = super().__getitem__((index + 1) % self.samples)
        return super().__getitem__(index) | {"other": other["x"]}


class AugmentedStreaming(StreamingDataset):
    """The same over MDS."""

    def __getitem__(self, at: Any) -> Any:
        sample = super().__getitem__(at)
        if "mixed" in vars(self):
            return sample
        self.mixed = True
        other = self.__getitem__((at + 1) % self.num_samples)  # which finds the one on the instance
        del self.mixed
        return sample | {"other": other["x"]}


class Keyed(Listed):
    """A map-style dataset whose keys are no numbers."""

    def __getitem__(self, index: Any) -> dict[str, Any]:
        return super().__getitem__(int(index[1:]))


class Packed(StreamingDataset):
    """Yields two samples as one, as packing datasets do."""

    def __iter__(self) -> Iterator[Any]:
        samples = super().__iter__()
        for one, two in zip(samples, samples, strict=False):
            yield {"id": one["id"], "x": one["x"] + two["x"]}


class Stream2(torch.utils.data.IterableDataset[Any]):
    """An iterable dataset that is no StreamingDataset: its samples have no ids."""

    def __iter__(self) -> Iterator[Any]:
        return iter([Listed(8)[i] for i in range(8)])


@dataclass
class Custom:
    """A batch of a type of the user's own."""

    id: torch.Tensor
    x: torch.Tensor

    def __len__(self) -> int:
        return len(self.id)


def as_dict(samples: list[Any]) -> Any:
    copied = [{key: np.array(value) for key, value in sample.items()} for sample in samples]
    return default_collate(copied)


def as_encoding(samples: list[Any]) -> Any:
    from transformers import BatchEncoding

    return BatchEncoding(as_dict(samples))


def as_tuple(samples: list[Any]) -> Any:
    batch = as_dict(samples)
    return batch["id"], batch["x"]


def as_list(samples: list[Any]) -> Any:
    return list(as_tuple(samples))


def as_tensor(samples: list[Any]) -> Any:
    batch = as_dict(samples)
    return torch.cat([batch["id"][:, None].float(), batch["x"]], dim=1)


def as_custom(samples: list[Any]) -> Any:
    return Custom(*as_tuple(samples))


def mds_loader(dataset: StreamingDataset, **settings: Any) -> StreamingDataLoader:
    """Batches of the dataset's own size, as dicts."""
    return StreamingDataLoader(dataset, batch_size=dataset.batch_size, collate_fn=as_dict, **settings)


def ids_of(batch: Any) -> list[int]:
    """The ids that a batch of any of these types carries."""
    if isinstance(batch, torch.Tensor):
        ids = batch[:, 0]
    elif isinstance(batch, Custom):
        ids = batch.id
    elif isinstance(batch, (tuple, list)):
        ids = batch[0]
    else:
        ids = batch["id"]
    return [int(i) for i in ids]
