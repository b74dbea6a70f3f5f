"""Datasets whose samples tell their source, for DataLoader workers: no Composer needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from streaming import MDSWriter, Stream, StreamingDataset

from tests.live.data import as_dict

SAMPLES = 50
BARE = 20  # further samples, in a stream that has no such column
SOURCES = ("ja", "en", "ja", "web", "", "en", "ja")


def source_of(sample: int) -> str:
    """What the sample of this id has as its source: neighbours differ, so that no shard has one label."""
    return SOURCES[sample % 7] if sample < SAMPLES else ""


def write_sources(folder: Path) -> Path:
    """Two streams of shards of a few samples: ``told`` with a source, ``bare`` without."""
    columns = {"id": "int64", "source": "str", "text": "str", "raw": "bytes"}
    for name, ids in (("told", range(SAMPLES)), ("bare", range(SAMPLES, SAMPLES + BARE))):
        kept = {key: kind for key, kind in columns.items() if name == "told" or key != "source"}
        with MDSWriter(out=str(folder / name), columns=kept, size_limit=600) as writer:
            for i in ids:
                sample = {"id": np.int64(i), "source": source_of(i), "text": "a b c"[: i % 6], "raw": b"\0"}
                writer.write({key: sample[key] for key in kept})
    return folder


def dataset(cls: type[StreamingDataset], folder: Path, streams: str = "told bare", **settings: Any) -> Any:
    listed = [Stream(local=str(folder / name)) for name in streams.split()]
    settings = {
        "batch_size": 6,
        "shuffle": True,
        "shuffle_block_size": 24,
        "num_canonical_nodes": 1,
    } | settings
    return cls(streams=listed, **settings)


def features(sample: dict[str, Any]) -> dict[str, Any]:
    i = int(sample["id"])
    return {"id": i, "x": np.array([i % 7, i % 3], np.float32)}


class Dropping(StreamingDataset):
    """Makes something else of its samples, without their source, as tokenising datasets do."""

    def __getitem__(self, at: Any) -> Any:
        sample = super().__getitem__(at)
        sample.pop("source", None)
        return features(sample)


class Tokenising(StreamingDataset):
    """ModernBERT's StreamingTextDataset in small: a BatchEncoding of tokens and mask."""

    def _tokenize(self, sample: dict[str, Any]) -> dict[str, Any]:
        tokens = [ord(letter) for letter in sample["text"]]
        padding = [0] * (8 - len(tokens))
        return {"input_ids": tokens + padding, "attention_mask": [1] * len(tokens) + padding}

    def __getitem__(self, idx: int) -> Any:
        from transformers import BatchEncoding  # takes seconds, which the other datasets do not need

        sample = super().__getitem__(idx)
        return BatchEncoding(data=features(sample) | self._tokenize(sample), n_sequences=1)


class Mixing(StreamingDataset):
    """Reads other samples for each: one before and, by way of itself, one after."""

    def __getitem__(self, at: Any) -> Any:
        if "mixed" in vars(self):
            return super().__getitem__(at)
        self.mixed = True
        before = super().__getitem__((at + 5) % SAMPLES)
        sample = super().__getitem__(at)
        after = self.__getitem__((at + 1) % SAMPLES)
        del self.mixed
        made = features(sample)
        made["x"] = made["x"] + features(before)["x"] + features(after)["x"]
        return made


class Rows:
    """A map-style dataset of plain dicts."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return features({"id": index}) | {"source": source_of(index)}


class Fetching(Rows):
    """The same, which fetches a batch at once, as Hugging Face's datasets do."""

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]


def without_source(samples: list[Any]) -> Any:
    """A collate function that leaves the source out."""
    return as_dict([{key: sample[key] for key in sample if key != "source"} for sample in samples])
