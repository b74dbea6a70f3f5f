"""Whether the loops over every sample are compiled: with numba (the ``fast`` extra), where it pays."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

__all__ = ["kernels"]

# numba takes about a second to import and the compiled loops another to load: numpy is done by then.
_WORTH = 1 << 23
_LARGEST = 1 << 32  # the compiled stream draws 32 bits at a time


def kernels(samples: int, block: int = 0) -> ModuleType | None:
    """Return :mod:`composer_mixmon.replay.kernels` where it is to be used, otherwise None.

    Results are the same either way.

    Args:
        samples: Samples that are shuffled or counted.
        block: ``shuffle_block_size``.
    """
    return _compiled() if _WORTH <= samples <= _LARGEST and block <= _LARGEST else None


@cache
def _compiled() -> ModuleType | None:
    try:
        return import_module("composer_mixmon.replay.kernels")
    except ImportError:  # no numba, or none for this numpy
        return None
