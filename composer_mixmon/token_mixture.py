"""Token-weighted shares of the last batches."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from composer_mixmon.logged_labels import LoggedLabels
from composer_mixmon.packing import pack_counts, unpack_counts
from composer_mixmon.rows import Rows
from composer_mixmon.statistics import deviation

__all__ = ["TokenMixture"]

Ints = npt.NDArray[np.int64]


class TokenMixture:
    """Tokens by label in the last ``window`` batches, rounded up to whole intervals.

    Kept by interval, not by batch: tokens compress badly, and this is part of every checkpoint.

    Args:
        labels: How many labels there are.
        window: Batches in the window, at least 1.
    """

    def __init__(self, labels: int, window: int) -> None:
        self._labels = labels
        self._window = window
        self._sums: deque[tuple[int, Ints]] = deque()  # batches of an interval, and their tokens by label

    def fold(self, rows: Rows) -> deque[tuple[int, Ints]]:
        """The window as it is after these batches, without recording them; :meth:`commit` takes it."""
        sums = deque(self._sums)
        told = rows.told
        if told.any():
            sums.append((int(told.sum()), rows.tokens[told].sum(axis=0)))
        batches = sum(length for length, _ in sums)
        while sums and batches - sums[0][0] >= self._window:
            batches -= sums.popleft()[0]
        return sums

    def commit(self, sums: deque[tuple[int, Ints]]) -> None:
        """Record what :meth:`fold` returned."""
        self._sums = sums

    def clear(self) -> None:
        """Begin a new window."""
        self._sums = deque()

    @staticmethod
    def metrics(
        sums: deque[tuple[int, Ints]], target: npt.NDArray[np.float64], logged: LoggedLabels
    ) -> dict[str, float]:
        """Name the figures of a window as they are logged; none while no tokens are known.

        Args:
            sums: What :meth:`fold` returned.
            target: Each label's target, float64 (labels,).
            logged: What has figures of its own.
        """
        tokens = sum((part for _, part in sums), np.zeros(len(target), np.int64))
        if not tokens.any():
            return {}
        return {"mixmon/tokens/deviation": float(deviation(tokens, target))} | logged.ratios("tokens", tokens)

    def state_dict(self) -> dict[str, Any]:
        """The window as plain types."""
        sums = [part for _, part in self._sums]
        packed = np.array(sums, np.int64).reshape(-1, self._labels)
        return {"batches": [length for length, _ in self._sums], "tokens": pack_counts(packed)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the window of :meth:`state_dict`.

        Raises:
            ValueError: The state belongs to another number of labels or is damaged.
        """
        sums = unpack_counts(state["tokens"], self._labels)
        self._sums = deque(zip(map(int, state["batches"]), sums, strict=True))
