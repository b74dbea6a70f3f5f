"""How many tokens each sample of a collated batch has, whatever the collator made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

__all__ = ["tokens_of"]

Ints = npt.NDArray[np.int64]
_LENGTHS = ("lengths", "length")


def tokens_of(batch: Any, samples: int) -> Ints | None:
    """Tokens of each sample that are not padding.

    Taken from ``attention_mask`` (samples, positions), else ``cu_seqlens`` (samples + 1,), else ``lengths``
    or ``length`` (samples,), else the width of ``input_ids`` (samples, positions), which then has no padding
    that anybody could tell.

    Args:
        batch: The batch, of any type.
        samples: How many samples it holds.

    Returns:
        int64 (samples,), or ``None`` if the batch does not tell.
    """
    if not isinstance(batch, Mapping):
        return None
    named = cast("Mapping[str, Any]", batch)
    for tell in (_from_mask, _from_bounds, _from_lengths, _from_width):
        try:
            tokens = tell(named)
        except (TypeError, ValueError, RuntimeError):  # ragged, sparse, of a type numpy does not know
            continue
        if tokens is not None and tokens.shape == (samples,):
            return tokens.astype(np.int64, copy=False)
    return None


def _from_mask(batch: Mapping[str, Any]) -> Ints | None:
    mask = batch.get("attention_mask")
    if mask is None or np.ndim(mask) != 2:
        return None
    return np.count_nonzero(np.asarray(mask), axis=1)


def _from_bounds(batch: Mapping[str, Any]) -> Ints | None:
    bounds = batch.get("cu_seqlens")
    return None if bounds is None or np.ndim(bounds) != 1 else np.diff(np.asarray(bounds))


def _from_lengths(batch: Mapping[str, Any]) -> Ints | None:
    found = (batch[name] for name in _LENGTHS if name in batch)
    return next((np.asarray(lengths) for lengths in found), None)


def _from_width(batch: Mapping[str, Any]) -> Ints | None:
    ids: Any = batch.get("input_ids")
    shape = np.shape(ids)
    return np.full(shape[0], shape[1], np.int64) if len(shape) == 2 else None
