"""A fixed part of a dataset's samples whose every appearance is counted, whatever the dataset's size.

Every ``stride``-th sample id is a *spot*; at most 1,024 of them. If r samples, spread evenly over the
dataset's N, come once too often, the chance that none of them is a spot is C(N − s, r) / C(N, r) ≈
(1 − s/N)**r for s spots: with 1,024 spots, 0.45 % of the dataset are found with a chance of 99 %. Of r
neighbouring ids, at least ⌊r / stride⌋ are spots.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["MOST_SPOTS", "PACKED", "Spots", "allowed", "pack", "unpack"]

Ints = npt.NDArray[np.int64]

MOST_SPOTS = 1024
PACKED = MOST_SPOTS // 4  # four counts of 16 bits travel in one int64
_LARGEST = (1 << 16) - 1


class Spots:
    """The spots of a dataset. Pickled to the workers, so it holds plain data only.

    Args:
        samples: Samples of the dataset, before any up- or down-sampling.

    Attributes:
        stride: Sample ids from one spot to the next; one spot stands for so many samples.
        ids: Their sample ids.
    """

    def __init__(self, samples: int) -> None:
        self.stride = max(1, -(-samples // MOST_SPOTS))
        self.ids = range(self.stride // 2, samples, self.stride)

    def pick(self, ids: Ints) -> Ints:
        """Numbers of the spots among sample ids, as often as they come: int64 (found,)."""
        place, rest = np.divmod(ids - self.ids.start, self.stride)
        return place[rest == 0]

    def __len__(self) -> int:
        return len(self.ids)


def allowed(spots: Spots, samples: Ints, choose: Ints) -> tuple[Ints, Ints]:
    """How often each spot comes in an epoch, at least and at most.

    A stream of n samples that gives c to an epoch gives each of them ⌊c/n⌋ or ⌈c/n⌉ times: streaming's
    ``get_sampling`` deals out whole repeats of the stream, then a part of each shard without replacement.

    Args:
        spots: The spots.
        samples: int64 (streams,). Samples of each stream.
        choose: int64 (streams,). How many it gives to an epoch.
    """
    stream = np.searchsorted(np.cumsum(samples), np.asarray(spots.ids), side="right")
    size = np.maximum(samples, 1)
    return (choose // size)[stream], (-(-choose // size))[stream]


def pack(counts: Ints, ranks: int) -> Ints | None:
    """Pack counts so that the sum over the ranks is the sum of the counts, packed: int64 (256,).

    Args:
        counts: int64 (spots,).
        ranks: How many ranks add up.

    Returns:
        ``None`` if a count is so large that the sum might not fit 16 bits.
    """
    if counts.max(initial=0) > _LARGEST // ranks:
        return None
    wide = np.zeros(MOST_SPOTS, np.uint16)
    wide[: len(counts)] = counts
    return wide.view(np.int64)


def unpack(packed: Ints, spots: int) -> Ints:
    """Counts of so many spots out of a sum of packed ones: int64 (spots,)."""
    return np.ascontiguousarray(packed).view(np.uint16)[:spots].astype(np.int64)
