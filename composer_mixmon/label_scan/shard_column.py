"""One column of one shard, read without decoding the others: numpy only, nothing unpacked to disk.

An MDS shard holds the number of samples n, n + 1 offsets (all uint32) and the samples. Each sample begins
with the sizes of its columns that have no fixed one (uint32), and the columns follow
(``streaming.base.format.mds``). So the places of all values of a column follow from sizes alone, and equal
values are found as equal bytes: only distinct ones are decoded. The other formats hold a line a sample, and
number of samples and offsets in a file of their own.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from composer_mixmon.columns import label_of, value_in
from composer_mixmon.errors import ConfigError, DatasetError, MixmonError
from composer_mixmon.labels import UNLABELLED

__all__ = ["MOST_VALUES", "Part", "Shard", "read_column"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

MOST_VALUES = 10_000
_LONGEST = 4 * 200  # bytes of UTF-8 that may be a label; longer values are not looked at
_AT_A_TIME = 1 << 16  # samples: at most 50 MB of values


@dataclass(frozen=True)
class Part:
    """A file of a shard.

    Attributes:
        path: Where it is.
        compression: How it is compressed, such as ``zstd:7``; empty: it is not.
        size: Bytes that it has uncompressed.
    """

    path: str
    compression: str
    size: int


@dataclass(frozen=True)
class Shard:
    """A shard to be read; pickled to other processes, so it holds plain data only.

    Attributes:
        number: Its place in the dataset.
        name: Its name.
        samples: Samples in it.
        info: What index.json says of it.
        encoding: How it encodes the column; ``None``: it has no such column.
        files: The file with the samples and, where that is another, the one with their offsets.
    """

    number: int
    name: str
    samples: int
    info: Mapping[str, Any]
    encoding: str | None
    files: tuple[Part, ...]


def read_column(shard: Shard, column: str) -> tuple[list[str], Ints]:
    """Read the labels of a shard's samples.

    Args:
        shard: The shard.
        column: The column whose values they are.

    Returns:
        Labels, ``unlabelled`` for values that are none; and the index into them of each sample, int64
        (samples,).

    Raises:
        ConfigError: There are too many values.
        DatasetError: A file is missing or damaged.
    """
    if shard.encoding is None or not shard.samples:
        return [UNLABELLED], np.zeros(shard.samples, np.int64)
    read = _read_mds if shard.info["format"] == "mds" else _read_lines
    try:
        values, inverse = read(shard, column)
    except MixmonError:
        raise
    except Exception as error:  # whatever damaged bytes make of a decoder
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise DatasetError(f"the shard {shard.name!r} cannot be read: {reason:.200}") from None
    index: dict[str, int] = {}
    labels = [index.setdefault(label_of(value) or UNLABELLED, len(index)) for value in values]
    return list(index), np.array(labels, np.int64)[inverse]


class _Values:
    """Distinct values by the order in which they came."""

    def __init__(self, shard: Shard, column: str) -> None:
        self._column = column
        self._mend = (
            f"has more than {MOST_VALUES:,} values in the shard {shard.name!r}: labels are few; is it the "
            "right column?"
        )
        self.index: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        """Number a value."""
        found = self.index.setdefault(value, len(self.index))
        if found >= MOST_VALUES:
            raise ConfigError("--column", self._column, self._mend)
        return found


def _read_mds(shard: Shard, column: str) -> tuple[list[Any], Ints]:
    (data,) = map(_content, shard.files)
    offsets = _offsets(shard, data, len(data))
    names, sizes = shard.info["column_names"], shard.info["column_sizes"]
    values = _Values(shard, column)
    inverse = np.empty(shard.samples, np.int64)
    for first in range(0, shard.samples, _AT_A_TIME):
        bounds = offsets[first : first + _AT_A_TIME + 1]
        starts, widths = _places(data, bounds, sizes, names.index(column))
        part = inverse[first : first + len(starts)]
        for width in np.unique(widths).tolist():
            of_width = np.flatnonzero(widths == width)
            if not 0 < width <= _LONGEST:
                part[of_width] = values.number(b"" if not width else None)
                continue
            rows = sliding_window_view(data, width)[starts[of_width]]
            # Trailing zero bytes do not count for S, but all of these have the same number of bytes.
            _, where, which = np.unique(rows.view(f"S{width}")[:, 0], return_index=True, return_inverse=True)
            numbers = [values.number(rows[at].tobytes()) for at in where]
            part[of_width] = np.array(numbers, np.int64)[which]
    decode = _DECODERS.get(shard.encoding or "") or _number(shard.encoding or "")
    return [None if value is None else decode(value) for value in values.index], inverse


def _places(data: Bytes, bounds: Ints, sizes: list[int | None], column: int) -> tuple[Ints, Ints]:
    """First byte and bytes of a column's values in neighbouring samples, int64 (samples,) each."""
    begin, end = bounds[:-1], bounds[1:]
    head = 4 * sum(not size for size in sizes)
    heads = sliding_window_view(data, head)[begin] if head else np.zeros((len(begin), 0), np.uint8)
    told = iter(heads.view("<u4").astype(np.int64).T)
    widths = [np.full(len(begin), size, np.int64) if size else next(told) for size in sizes]
    at = np.cumsum([begin + head, *widths], axis=0)
    if not np.array_equal(at[-1], end):
        raise ValueError("the columns of a sample do not fill it")
    return at[column], widths[column]


def _read_lines(shard: Shard, column: str) -> tuple[list[Any], Ints]:
    data, meta = map(_content, shard.files)
    offsets = _offsets(shard, meta, len(data))
    values = _Values(shard, column)
    texts = (data[begin:end].tobytes().decode() for begin, end in pairwise(offsets.tolist()))
    found = (_json_values if shard.info["format"] == "json" else _cell_values)(shard, column, texts)
    inverse = np.fromiter((values.number(value) for value in found), np.int64, shard.samples)
    return list(values.index), inverse


def _json_values(shard: Shard, column: str, texts: Iterator[str]) -> Iterator[Any]:
    return (label_of(value_in(json.loads(text), column)) for text in texts)


def _cell_values(shard: Shard, column: str, texts: Iterator[str]) -> Iterator[Any]:
    separator: str = {"csv": ",", "tsv": "\t"}.get(shard.info["format"]) or shard.info["separator"]
    newline, place = len(shard.info["newline"]), int(shard.info["column_names"].index(column))
    decode: Callable[[str], Any] = int if shard.encoding == "int" else str
    return (decode(text[:-newline].split(separator)[place]) for text in texts)


def _offsets(shard: Shard, meta: Bytes, size: int) -> Ints:
    """Where each sample begins and the last one ends, int64 (samples + 1,)."""
    samples = int(meta[:4].view("<u4")[0])
    offsets = meta[4 : 4 * (samples + 2)].view("<u4").astype(np.int64)
    if samples != shard.samples or len(offsets) != samples + 1:
        raise ValueError(f"it has {samples} samples, not {shard.samples} as index.json says")
    if (np.diff(offsets) < 0).any() or offsets[-1] != size:
        raise ValueError("its samples do not fill it")
    return offsets


def _content(part: Part) -> Bytes:
    """The bytes of a file, mapped or unpacked in memory."""
    content: Bytes
    if part.compression:
        unpack: Any = importlib.import_module(_UNPACKERS[part.compression.partition(":")[0]])
        content = np.frombuffer(unpack.decompress(Path(part.path).read_bytes()), np.uint8)
    else:
        content = np.memmap(part.path, np.uint8, "r")
    if len(content) != part.size:
        raise ValueError(f"it has {len(content):,} bytes, not {part.size:,} as index.json says")
    return content


# streaming.base.compression, which takes seconds to import, calls the same.
_UNPACKERS = {"br": "brotli", "bz2": "bz2", "gz": "gzip", "snappy": "snappy", "zstd": "zstd"}


def _number(encoding: str) -> Callable[[bytes], Any]:
    kind = np.dtype("int64" if encoding == "int" else encoding).newbyteorder("<")
    return lambda value: np.frombuffer(value, kind)[0]


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "str": bytes.decode,
    "str_int": int,
    "json": json.loads,
}
