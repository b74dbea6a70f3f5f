"""A packer of our own with the interface of ModernBERT's, and a queue that fills in a thread of its own."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import torch
from composer.core import Callback, DataSpec, State
from composer.loggers import Logger
from composer.models import ComposerModel
from streaming import MDSWriter
from streaming.base.format import reader_from_json
from torch.utils.data import DataLoader, Dataset

FIRST_ID = 1000  # a sequence is its sample's id, from here on, and then smaller numbers


def sequence(index: int, longest: int = 13) -> list[int]:
    """Tokens of a sample: some are empty."""
    length = np.random.default_rng(index).integers(0, longest)
    return [FIRST_ID + index, *range(1, length)] if length else []


class Texts(Dataset[Any]):
    """Samples of different lengths. ``cached`` ones are the same object at every access."""

    def __init__(self, samples: int, cached: bool = False) -> None:
        self._made = [{"input_ids": sequence(i)} for i in range(samples)] if cached else None
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Any:
        return self._made[index] if self._made else {"input_ids": np.array(sequence(index), np.int64)}


class ShardedTexts(Dataset[Any]):
    """The same from MDS shards that it opens itself, as ModernBERT's NoStreamingDataset does."""

    def __init__(self, folder: Path) -> None:
        index = json.loads((folder / "index.json").read_text())
        self.shards = [reader_from_json(str(folder), None, shard) for shard in index["shards"]]
        for shard in self.shards:
            shard.validate(True)
        self._ends = np.cumsum([shard.samples for shard in self.shards])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Any:
        shard = int(np.searchsorted(self._ends, index, side="right"))
        return self.shards[shard][index - int(self._ends[shard]) + self.shards[shard].samples]


def write_texts(folder: Path, samples: int) -> None:
    with MDSWriter(out=str(folder), columns={"input_ids": "ndarray:int64"}, size_limit=1 << 10) as writer:
        for index in range(samples):
            writer.write({"input_ids": np.array(sequence(index) or [FIRST_ID + index], np.int64)})


class Packer:
    """Puts sequences into the first row that has room; what fits nowhere waits for the next batch."""

    def __init__(self, source: DataLoader[Any], rows: int = 3, width: int = 32, room: int = 24) -> None:
        self.src_iterable = source
        self.buffer: deque[Any] = deque()
        self._rows, self._width, self._room = rows, width, room

    def __iter__(self) -> Iterator[Any]:
        self.buffer.clear()
        self._source = iter(self.src_iterable)
        return self._generate_batches()

    def _fill(self) -> bool:
        before = len(self.buffer)
        while self._room - len(self.buffer) > 0:
            try:
                samples = next(self._source)
            except StopIteration:
                break
            self.buffer.extend(self._kept(s["input_ids"]) for s in samples if len(s["input_ids"]))
        return len(self.buffer) > before

    def _kept(self, tokens: Any) -> Any:
        return tokens

    def _generate_batches(self) -> Iterator[Any]:
        while (batch := self._create_batch()) is not None:
            yield batch

    def _create_batch(self) -> Any:
        rows: list[list[Any]] = [[] for _ in range(self._rows)]
        room = [self._width] * self._rows
        left: list[Any] = []
        while (self.buffer or self._fill()) and len(left) < self._room:
            tokens = self.buffer.popleft()
            row = next((row for row, space in enumerate(room) if space >= len(tokens)), None)
            if row is None:
                left.append(tokens)
            else:
                rows[row].append(tokens)
                room[row] -= len(tokens)
        self.buffer.extendleft(left)
        return self._batch(rows) if all(rows) else None

    def _batch(self, rows: list[list[Any]]) -> Any:
        ids = np.zeros((self._rows, self._width), np.int64)
        bounds: list[torch.Tensor] = []
        for place, row in enumerate(rows):
            tokens = np.concatenate(row)
            ids[place, : len(tokens)] = tokens
            ends = np.cumsum([0, *map(len, row)])
            bounds.append(torch.tensor(ends if ends[-1] == self._width else [*ends, self._width]))
        return {
            "input_ids": torch.from_numpy(ids),
            "labels": torch.from_numpy(ids),
            "cu_seqlens": bounds,
            "max_seqlen": [int(b.diff().max()) for b in bounds],
            "attention_mask": torch.from_numpy((ids > 0).astype(np.int64)),
        }


class Ahead:
    """What ``iterable`` yields, some batches ahead in a thread."""

    def __init__(self, iterable: Any, size: int = 4) -> None:
        self.iterable = iterable
        self._size = size

    def __iter__(self) -> Iterator[Any]:
        queue: Queue[Any] = Queue(self._size)
        source = iter(self.iterable)

        def fill() -> None:
            for batch in source:
                queue.put(batch)
            queue.put(None)

        threading.Thread(target=fill, daemon=True).start()
        return iter(queue.get, None)


def held(batch: Any) -> list[list[int]]:
    """The brute force: the sequences that a packed batch itself shows, each with its sample id in front."""
    found: list[list[int]] = []
    for row, bounds in zip(batch["input_ids"].tolist(), batch["cu_seqlens"], strict=True):
        for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            if row[begin] >= FIRST_ID:
                found.append([row[begin] - FIRST_ID, end - begin])
    return found


class PackedWitness(Callback):
    """Sample id and length of each sequence of each batch that was trained on."""

    def __init__(self) -> None:
        self.batches: list[list[list[int]]] = []
        self._fetched: list[list[int]] = []

    def after_dataloader(self, state: State, logger: Logger) -> None:
        self._fetched = held(state.batch)

    def batch_end(self, state: State, logger: Logger) -> None:
        self.batches.append(self._fetched)


class PackedModel(ComposerModel):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, batch: Any) -> torch.Tensor:
        return self.weight * batch["input_ids"].double().mean() * 1e-6

    def loss(self, outputs: torch.Tensor, batch: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        return (outputs - 1) ** 2


def split_rows(batch: Any, size: Any) -> list[Any]:
    """Each row as a microbatch, with one row of bounds."""
    del size
    rows = range(len(batch["input_ids"]))
    return [{key: value[i] for key, value in batch.items()} for i in rows]


def pieces_in(batch: Any) -> int:
    """Sequences and pieces of padding of a batch, or of a microbatch, whose bounds are one tensor."""
    bounds = batch["cu_seqlens"]
    rows = [bounds] if isinstance(bounds, torch.Tensor) else bounds
    return sum(len(row) - 1 for row in rows)


def packed_spec(loader: Any) -> DataSpec:
    return DataSpec(
        loader,
        get_num_samples_in_batch=pieces_in,
        get_num_tokens_in_batch=lambda batch: int(batch["attention_mask"].sum()),
        split_batch=split_rows,
    )
