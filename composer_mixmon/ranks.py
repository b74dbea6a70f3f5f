"""Adding counts up over the ranks, so that a fault on one of them hangs none."""

# Torch, Composer and streaming are typed only in part: what comes out of them is unknown to pyright.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from composer.core import State
from composer.utils import dist

from composer_mixmon.errors import MixmonError

__all__ = ["RankFailedError", "Ranks", "agree"]


class RankFailedError(RuntimeError):
    """Monitoring failed on this rank or on another: every rank learns of it in the same all-reduce."""


class Ranks:
    """All ranks of a run.

    Args:
        state: The run, for its device.

    Attributes:
        failed: Set it when monitoring has failed on this rank. The rank then still meets the next
            all-reduce, which tells the others.
    """

    def __init__(self, state: State) -> None:
        self._device = state.device
        self.failed = False

    def add_up(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Add an array of the same shape on every rank up, in one all-reduce.

        Args:
            counts: This rank's, int64 of any shape.

        Raises:
            RankFailedError: Monitoring has failed on some rank; raised on every rank.
        """
        flat = np.append(counts.ravel(), np.int64(self.failed))
        if dist.get_world_size() > 1:
            tensor = self._device.tensor_to_device(torch.from_numpy(flat))
            dist.all_reduce(tensor)
            flat = tensor.cpu().numpy()
        if flat[-1]:
            raise RankFailedError("monitoring failed on one of the ranks")
        return flat[:-1].reshape(counts.shape)


def agree(state: State, error: Exception | None) -> Exception | None:
    """Deal with an error on one rank on all of them; called on every rank.

    Args:
        state: The run, for its device.
        error: What went wrong on this rank, if anything.

    Returns:
        ``error``, or what stands for another rank's: a :class:`MixmonError` if any rank has one.
    """
    here = 0 if error is None else 2 if isinstance(error, MixmonError) else 1
    flag = state.device.tensor_to_device(torch.tensor([here]))
    dist.all_reduce(flag, reduce_operation="MAX")
    worst = int(flag.item())
    if worst == here:
        return error
    elsewhere = MixmonError if worst == 2 else RankFailedError
    return elsewhere("monitoring could not start on another rank: see its message")
