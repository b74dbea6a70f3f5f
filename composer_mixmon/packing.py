"""Counts and names as short plain text, for checkpoints, which Composer loads as plain types, and files."""

from __future__ import annotations

import base64
import lzma
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["pack_counts", "pack_names", "unpack_counts", "unpack_names"]

# With the dictionary of LZMA's own preset 9, packing a few bytes would take 674 MiB.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 1 << 20}]
_MEMORY = 1 << 26
_LARGEST = 1 << 28  # bytes unpacked


def pack_counts(counts: npt.NDArray[np.int64] | npt.NDArray[np.uint64], level: int | None = None) -> str:
    """Pack counts (rows, labels) as text: smallest unsigned type, column by column, compressed.

    Columns compress better than rows: a label's count hardly changes from batch to batch.

    Args:
        counts: The counts.
        level: Of zlib, with base64, for what is large and has to be fast; ``None``: LZMA and base85, a
            fifth smaller.
    """
    width = np.min_scalar_type(int(counts.max(initial=0))).newbyteorder("<")
    raw = np.ascontiguousarray(counts.T).astype(width).tobytes()
    text = _squeeze(raw) if level is None else base64.b64encode(zlib.compress(raw, level)).decode("ascii")
    return f"{width.str}{'' if level is None else 'z'}:{text}"


def unpack_counts(text: str, labels: int) -> npt.NDArray[np.int64]:
    """Unpack what :func:`pack_counts` packed, as int64 (rows, labels).

    Raises:
        ValueError: The text is damaged or its size does not fit the number of labels.
    """
    kind, _, body = text.partition(":")
    width = kind.removesuffix("z")
    if width not in ("|u1", "<u2", "<u4", "<u8"):
        raise ValueError(f"counts of an unknown type {kind!r}")
    try:
        raw = _expand(body) if kind == width else zlib.decompress(base64.b64decode(body, validate=True))
    except (zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"damaged counts: {error}") from error
    flat = np.frombuffer(raw, np.dtype(width))
    return np.ascontiguousarray(flat.reshape(labels, -1).T.astype(np.int64))


def pack_names(names: Sequence[str]) -> str:
    """Pack names, none of which has a line feed in it."""
    return _squeeze("\n".join(names).encode())


def unpack_names(text: str) -> tuple[str, ...]:
    """Unpack what :func:`pack_names` packed.

    Raises:
        ValueError: The text is damaged.
    """
    try:
        return tuple(_expand(text).decode().split("\n"))
    except lzma.LZMAError as error:
        raise ValueError(f"damaged names: {error}") from error


def _squeeze(raw: bytes) -> str:
    return base64.b85encode(lzma.compress(raw, filters=_FILTERS)).decode("ascii")


def _expand(text: str) -> bytes:
    reader = lzma.LZMADecompressor(memlimit=_MEMORY)
    raw = reader.decompress(base64.b85decode(text), _LARGEST)
    if not reader.eof:
        raise ValueError("packed text is cut, or holds more than any books do")
    return raw
