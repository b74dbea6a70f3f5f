"""What is known of a batch, as a row of int64 that is added up over the ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Closed", "Rows"]

Ints = npt.NDArray[np.int64]


class Rows:
    """Batches, one row each. The sum of the ranks' rows is the row of the global batch.

    Args:
        labels: How many labels there are.
        table: The rows, int64 (batches, ``width(labels)``).

    Attributes:
        counts: Samples of each label, int64 (batches, labels).
        tokens: Tokens of each label, int64 (batches, labels); see ``told``.
    """

    def __init__(self, labels: int, table: Ints) -> None:
        self.table = table
        self.counts = table[:, :labels]
        self.tokens = table[:, labels : 2 * labels]
        self._untold = table[:, 2 * labels]
        self._order = table[:, 2 * labels + 1]

    @staticmethod
    def width(labels: int) -> int:
        """Numbers in a row."""
        return 2 * labels + 2

    @classmethod
    def empty(cls, batches: int, labels: int) -> Rows:
        """So many rows of zeros."""
        return cls(labels, np.zeros((batches, cls.width(labels)), np.int64))

    @property
    def told(self) -> npt.NDArray[np.bool_]:
        """Whether a batch's tokens are known, of all its samples: bool (batches,)."""
        return self._untold == 0

    @property
    def order(self) -> npt.NDArray[np.uint64]:
        """Each batch's order hash, uint64 (batches,)."""
        return self._order.view(np.uint64)

    def put(self, row: int, counts: Ints, tokens: Ints | None, order: int) -> None:
        """Fill one row.

        Args:
            row: Which.
            counts: Samples of each label, int64 (labels,).
            tokens: Their tokens, int64 (labels,), or ``None`` if they are not known.
            order: The rank batch's part of the order hash, a signed 64-bit number.
        """
        self.counts[row] = counts
        self.tokens[row] = 0 if tokens is None else tokens
        self._untold[row] = tokens is None
        self._order[row] = order

    def __len__(self) -> int:
        return len(self.table)


@dataclass(frozen=True)
class Closed:
    """Batches that all ranks have trained on, added up over them: what a ledger keeps.

    Attributes:
        rows: The batches' rows.
        batch: Their numbers, counted from 0 over the run: int64 (batches,).
        epoch: Their epochs: int64 (batches,).
        loss: Their losses, NaN where unknown: float64 (batches,).
    """

    rows: Rows
    batch: Ints
    epoch: Ints
    loss: npt.NDArray[np.float64]
