"""Hash of a global batch's sample ids and their places, which the ranks can add up.

It is the sum of ``mix64(id + (position + 1) · 0x9E3779B97F4A7C15)`` over the batch's samples, modulo 2**64.
``position`` is a sample's place in the global batch: rank × rank batch size + place in the rank batch, where
ranks that get the same samples count as one. ``mix64`` is SplitMix64's finaliser (Steele, Lea and Flood,
"Fast splittable pseudorandom number generators", OOPSLA 2014, with Stafford's variant 13 of the constants).

The step between positions is 2**64 / golden ratio, whose multiples modulo 2**64 lie far apart: no two pairs
with ids below 2**38 and positions below 2**24 are the same number before mixing. Two orders that differ have
the same hash with a chance of about 2**-64. Positions are mixed from 1 on, for ``mix64(0)`` is 0: a hash of 0
means that there is no sample. Two's complement wraps around as the sum needs it, so an all-reduce of int64
will do; signed or not, the bits are the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["order_hash", "order_hashes", "place_hashes", "set_hash"]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFT = (np.uint64(30), np.uint64(27), np.uint64(31))


def order_hash(ids: npt.NDArray[np.int64], first_position: int = 0) -> int:
    """A rank's part of a batch's order hash.

    Args:
        ids: The rank batch's sample ids, int64 (samples,).
        first_position: Place of the first of them in the global batch.

    Returns:
        A signed 64-bit number. The sum over the ranks, modulo 2**64, is the batch's hash.
    """
    return int(_mixed(ids, first_position).sum().view(np.int64))


def set_hash(ids: npt.NDArray[np.int64]) -> int:
    """A hash of ids and how often each comes, whatever their order: a signed 64-bit number.

    Args:
        ids: Sample ids, int64 (samples,).
    """
    return int(place_hashes(ids, np.zeros(1, np.int64)).sum().view(np.int64))


def order_hashes(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """The order hashes of whole batches, such as :meth:`Replay.ids` gives them.

    Args:
        ids: Sample ids, int64 (batches, global batch); −1 for padding, which is left out.

    Returns:
        uint64 (batches,).
    """
    return np.where(ids >= 0, _mixed(ids, 0), np.uint64(0)).sum(axis=1, dtype=np.uint64)


def place_hashes(ids: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """What samples at their places add to the order hash: uint64, of the shape of both together.

    Args:
        ids: Sample ids.
        positions: Place of each in its global batch.
    """
    z = ids.astype(np.uint64) + (positions + 1).astype(np.uint64) * _STEP
    shifted = np.empty_like(z)
    for shift, multiply in zip(_SHIFT, (*_MULTIPLY, None), strict=True):
        z ^= np.right_shift(z, shift, out=shifted)
        if multiply is not None:
            z *= multiply
    return z


def _mixed(ids: npt.NDArray[np.int64], first_position: int) -> npt.NDArray[np.uint64]:
    """``mix64`` of ids and positions, which run along the last axis."""
    positions = np.arange(first_position, first_position + ids.shape[-1], dtype=np.int64)
    return place_hashes(ids, positions)
