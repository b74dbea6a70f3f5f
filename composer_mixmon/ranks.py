"""Adding counts up over the ranks, so that a fault on one of them hangs none."""

# Torch, Composer and streaming are typed only in part: what comes out of them is unknown to pyright.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from composer.core import State
from composer.utils import dist

__all__ = ["RankFailedError", "Ranks", "any_rank"]


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


def any_rank(state: State, here: bool) -> bool:
    """Whether something holds on any rank; called on all of them."""
    flag = state.device.tensor_to_device(torch.tensor([int(here)]))
    dist.all_reduce(flag, reduce_operation="MAX")
    return bool(flag.item())
