"""What a shuffle draws: by numpy's default generator, or by compiled loops that equal it bit by bit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from composer_mixmon.replay import fast, permute
from composer_mixmon.replay.sampling import Floats, Ints

__all__ = ["CompiledDraws", "Draws", "NumpyDraws", "draws_for"]


def draws_for(seed: int, samples: int, block: int = 0) -> Draws:
    """Return the draws of ``np.random.default_rng(seed)``, by the means that suit so many samples."""
    kernels = fast.kernels(samples, block)
    return NumpyDraws(seed) if kernels is None else CompiledDraws(seed, kernels)


class Draws(ABC):
    """The draws of ``np.random.default_rng(seed)`` that StreamingDataset's shuffles ask for.

    Shuffles whose result nobody needs are only noted, and drawn when a later draw depends on them.
    """

    def __init__(self) -> None:
        self._skipped: list[int] = []

    @abstractmethod
    def best_dtype(self, payload: np.dtype[Any]) -> np.dtype[Any]:
        """Type in which values of type ``payload`` are shuffled fastest."""

    def shuffle(self, values: NDArray[Any]) -> None:
        """Shuffle (n,) values in place, as ``Generator.shuffle``."""
        self._catch_up()
        self._shuffle(values)

    def skip_shuffle(self, size: int) -> None:
        """Draw what shuffling ``size`` values draws."""
        self._skipped.append(size)

    def integers(self, low: int, high: int) -> int:
        """Draw one whole number, as ``Generator.integers``."""
        self._catch_up()
        return self._integers(low, high)

    def add_uniform(self, low: float, high: float, out: Floats) -> None:
        """Add one draw of ``Generator.uniform`` to each element of ``out``."""
        self._catch_up()
        self._add_uniform(low, high, out)

    def skip_places(self, sizes: Ints, low: int, high: int) -> None:
        """For each size, draw one of :meth:`integers` and pass over so many of :meth:`add_uniform`."""
        self._catch_up()
        self._skip_places(sizes, low, high)

    def _catch_up(self) -> None:
        if self._skipped:
            sizes, self._skipped = self._skipped, []
            self._skip_shuffles(np.array(sizes, np.int64))

    @abstractmethod
    def _shuffle(self, values: NDArray[Any]) -> None: ...

    @abstractmethod
    def _skip_shuffles(self, sizes: Ints) -> None: ...

    @abstractmethod
    def _integers(self, low: int, high: int) -> int: ...

    @abstractmethod
    def _add_uniform(self, low: float, high: float, out: Floats) -> None: ...

    @abstractmethod
    def _skip_places(self, sizes: Ints, low: int, high: int) -> None: ...


class NumpyDraws(Draws):
    """Draws by numpy.

    Args:
        seed: Of its default generator, PCG64.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._bits = np.random.PCG64(seed)
        self._rng = np.random.Generator(self._bits)

    def best_dtype(self, payload: np.dtype[Any]) -> np.dtype[Any]:
        """Numpy shuffles 8 bytes faster than fewer."""
        return np.dtype(np.int64)

    def _shuffle(self, values: NDArray[Any]) -> None:
        permute.shuffle(values, self._bits)

    def _skip_shuffles(self, sizes: Ints) -> None:
        spare = np.empty(sizes.max(), np.int64)
        for size in sizes.tolist():
            self._rng.shuffle(spare[:size])

    def _integers(self, low: int, high: int) -> int:
        return int(self._rng.integers(low, high))

    def _add_uniform(self, low: float, high: float, out: Floats) -> None:
        out += self._rng.uniform(low, high, len(out))

    def _skip_places(self, sizes: Ints, low: int, high: int) -> None:
        for size in sizes.tolist():
            self._rng.integers(low, high)
            before = self._bits.state
            self._bits.advance(size)  # drops the half of a draw that is kept for later
            before["state"] = self._bits.state["state"]
            self._bits.state = before


class CompiledDraws(Draws):
    """Draws by :mod:`composer_mixmon.replay.kernels`.

    Args:
        seed: Of numpy's default generator, PCG64.
        kernels: That module.
    """

    def __init__(self, seed: int, kernels: ModuleType) -> None:
        super().__init__()
        self._kernels = kernels
        bits: Any = np.random.PCG64(seed).state
        halves = [half for name in ("state", "inc") for half in divmod(bits["state"][name], 1 << 64)]
        self._state = np.array([*halves, bits["has_uint32"], bits["uinteger"]], np.uint64)

    def best_dtype(self, payload: np.dtype[Any]) -> np.dtype[Any]:
        """The smaller the type, the more values fit the cache."""
        return payload

    def _shuffle(self, values: NDArray[Any]) -> None:
        self._kernels.shuffle(self._state, values)

    def _skip_shuffles(self, sizes: Ints) -> None:
        self._kernels.skip_shuffles(self._state, sizes)

    def _integers(self, low: int, high: int) -> int:
        return self._kernels.integers(self._state, low, high)

    def _add_uniform(self, low: float, high: float, out: Floats) -> None:
        self._kernels.uniform(self._state, float(low), float(high), out)

    def _skip_places(self, sizes: Ints, low: int, high: int) -> None:
        self._kernels.skip_places(self._state, sizes, low, high)
