"""Columns of numbers packed as text, and many such texts unpacked at once.

A column is stored in the smallest type that holds it, all first bytes before all second bytes: the upper
bytes hardly change and compress to nothing. The columns of a record follow each other; the whole is
compressed by zlib where that makes it shorter, and written in base64.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from composer_mixmon.ledger.fields import UnreadableError

__all__ = ["Array", "decode", "encode", "size_of", "smallest", "unpack"]

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

_ZLIB = "z"
_PLAIN = "-"
_LEVEL = 6


def smallest(values: Array) -> str:
    """The smallest type that holds them: ``u1`` to ``u8`` for whole numbers from 0, else ``f4`` or ``f8``."""
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):
            exact = np.array_equal(values.astype(np.float32), values, equal_nan=True)
        return "f4" if exact else "f8"
    return np.min_scalar_type(int(values.max(initial=0))).str[1:]


def size_of(kind: str) -> int:
    """Bytes of a number.

    Raises:
        UnreadableError: No such type.
    """
    if kind not in ("u1", "u2", "u4", "u8", "f4", "f8"):
        raise UnreadableError(f"numbers of an unknown type {kind!r}")
    return int(kind[1])


def encode(columns: Sequence[tuple[str, Array]]) -> str:
    """Pack columns, each of a type and of any shape, as text."""
    raw = b"".join(_planes(kind, values) for kind, values in columns)
    packed = zlib.compress(raw, _LEVEL)
    mark, shorter = (_ZLIB, packed) if len(packed) < len(raw) else (_PLAIN, raw)
    return mark + base64.b64encode(shorter).decode("ascii")


def decode(text: str, size: int) -> bytes:
    """The bytes of :func:`encode`'s text.

    Args:
        text: The text.
        size: How many bytes they must be.

    Raises:
        UnreadableError: They are not, or the text is damaged.
    """
    try:
        raw = base64.b64decode(text[1:], validate=True)
        if text[:1] == _ZLIB:
            raw = zlib.decompressobj().decompress(raw, size + 1)
    except (zlib.error, ValueError) as error:
        raise UnreadableError(f"damaged columns: {error}") from error
    if len(raw) != size:
        raise UnreadableError(f"columns of {len(raw)} bytes instead of {size}")
    return raw


def unpack(kind: str, planes: Bytes) -> Array:
    """Numbers out of the bytes of one column.

    Args:
        kind: Their type.
        planes: The column's bytes in each of several records, uint8 (records, bytes).

    Returns:
        (records, numbers).
    """
    size = size_of(kind)
    apart = planes.reshape(len(planes), size, -1)
    return np.ascontiguousarray(apart.transpose(0, 2, 1)).view(f"<{kind}")[..., 0]


def _planes(kind: str, values: Array) -> bytes:
    flat = np.ascontiguousarray(values, f"<{kind}").reshape(-1, 1)
    return flat.view(np.uint8).T.tobytes()
