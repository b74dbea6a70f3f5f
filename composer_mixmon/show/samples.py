"""The samples behind sample ids, read from local shards by streaming's own readers."""

# Streaming and transformers are typed only in part: what comes out of them is unknown to pyright.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from composer_mixmon.errors import ConfigError, DatasetError
from composer_mixmon.replay.index import INDEX_NAME, read_index
from composer_mixmon.shards import ShardTable

__all__ = ["Samples", "load_tokenizer", "text_of"]

Decode = Callable[[Any], str]
_TOKENS = ("input_ids", "tokens")
_TEXTS = ("text", "content")


class Samples:
    """Reads samples; nothing is downloaded, unpacked or unpickled.

    Args:
        shards: The dataset's shards.
        streams: Each stream's ``local``, ``remote`` and ``split``.
    """

    def __init__(self, shards: ShardTable, streams: Sequence[Mapping[str, Any]]) -> None:
        self._shards = shards
        self._streams = streams
        self._offsets = shards.offsets
        self._first_shard = np.searchsorted(shards.stream_of_shard, np.arange(len(shards.streams)))
        self._reader = lru_cache(maxsize=64)(self._open)

    def shard_of(self, sample: int) -> int:
        """Number of the shard that holds a sample."""
        return int(np.searchsorted(self._offsets, sample, side="right")) - 1

    def read(self, sample: int) -> dict[str, Any]:
        """Read a sample.

        Args:
            sample: Its id.

        Raises:
            DatasetError: Its shard is not on this machine, damaged, or has a column that is a pickle.
        """
        shard = self.shard_of(sample)
        reader = self._reader(shard)
        try:
            return dict(reader.get_item(sample - int(self._offsets[shard])))
        except Exception as error:  # whatever a damaged shard makes of a decoder
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise DatasetError(
                f"sample {sample} of {self._shards.names[shard]!r} is damaged: {reason}"
            ) from None

    def _open(self, shard: int) -> Any:
        from streaming.base.format import reader_from_json  # brings torch: seconds

        stream = int(self._shards.stream_of_shard[shard])
        folder, infos = self._index(stream)
        info = infos[shard - int(self._first_shard[stream])]
        name = self._shards.names[shard]
        try:
            reader: Any = reader_from_json(str(folder), None, info)
            reader.validate(allow_unsafe_types=False)
        except Exception as error:
            raise DatasetError(f"the shard {name!r} is not read: {' '.join(str(error).split())}") from None
        inside = os.path.realpath(folder)
        for raw, _ in reader.file_pairs:
            path = os.path.realpath(folder / raw.basename)
            if os.path.commonpath([path, inside]) != inside or not os.path.isfile(path):
                raise DatasetError(f"the shard {name!r} is not in {str(folder)!r}, uncompressed")
        return reader

    @lru_cache  # noqa: B019  # a handful of streams, for as long as the command runs
    def _index(self, stream: int) -> tuple[Path, Any]:
        """The folder of a stream that has its index.json here, and what that says of each shard."""
        given = self._streams[stream] if stream < len(self._streams) else {}
        for place in (given.get("local"), given.get("remote")):
            folder = Path(str(place or "").removeprefix("file://")) / (given.get("split") or "")
            if place and (folder / INDEX_NAME).is_file():
                read_index(folder)
                return folder, json.loads((folder / INDEX_NAME).read_bytes())["shards"]
        raise DatasetError(f"the stream {self._shards.streams[stream]!r} is not on this machine")


def load_tokenizer(name: str) -> Decode:
    """The function that turns token ids into text; no code of the tokenizer's own is run.

    Args:
        name: A folder, or a name on the Hugging Face Hub.

    Raises:
        ConfigError: There is no such tokenizer.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # whatever the Hub, the network and the files are made of
        reason = " ".join(str(error).split())[:200]
        raise ConfigError("--decode", name, f"is no tokenizer that can be loaded: {reason}") from None
    return tokenizer.decode


def text_of(sample: Mapping[str, Any], decode: Decode | None) -> str:
    """A sample as text: its text, or else its tokens decoded, or else its columns as they are.

    Args:
        sample: Its columns.
        decode: Turns token ids into text.
    """
    for name in _TOKENS if decode else ():
        if decode and name in sample:
            tokens = sample[name]
            ids = np.frombuffer(tokens, np.int64) if isinstance(tokens, bytes) else np.asarray(tokens)
            return decode(ids.astype(np.int64).ravel().tolist())
    for name in _TEXTS:
        if isinstance(sample.get(name), str):
            return sample[name]
    return ", ".join(f"{name}={_brief(value)}" for name, value in sample.items())


def _brief(value: Any) -> str:
    return (
        np.array2string(value, threshold=8, separator=",") if isinstance(value, np.ndarray) else repr(value)
    )
