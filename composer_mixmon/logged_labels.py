"""Which labels have metrics of their own, where there are too many for a logger.

W&B's pages become slow at thousands of metrics and unusable at tens of thousands, and a run may well have a
label for each of 10,000 sites. So the labels with the largest targets are logged one by one, and the rest
together. Ledger, alarms and post-mortem know all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from composer_mixmon.labels import UNLABELLED
from composer_mixmon.metric_names import metric_names

__all__ = ["LoggedLabels", "choose_labels"]

# With the rest, three metrics of shares each and the dozen that there are once, below 200.
_MOST = 60
_REST = "other"

Number = TypeVar("Number", np.int64, np.float64)


@dataclass(frozen=True)
class LoggedLabels:
    """What is logged one by one: labels, and at the end the rest, if there is one.

    Attributes:
        labels: Those labels in the run's order; the rest under a name that is none of theirs.
        names: What they are called in metrics.
        total: How many labels the run has.
        chosen: Indices of those among the run's labels; ``None``: all of them.
    """

    labels: tuple[str, ...]
    names: tuple[str, ...]
    total: int
    chosen: npt.NDArray[np.int64] | None = None

    def sums(self, values: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """Values of what is logged from those of the labels.

        Args:
            values: One for each label of the run, (…, labels).

        Returns:
            (…, logged), of which the last is the sum over the rest, if there is one.
        """
        if self.chosen is None:
            return values
        rest = np.delete(values, self.chosen, axis=-1).sum(axis=-1, keepdims=True)
        return np.concatenate([values[..., self.chosen], rest], axis=-1)

    def ratios(self, scope: str, counts: npt.NDArray[np.int64]) -> dict[str, float]:
        """Name each one's share of the counts, 0 if there are none.

        Args:
            scope: ``"window"``, ``"run"`` or ``"tokens"``.
            counts: Of each label of the run, int64 (labels,).
        """
        shares = self.sums(counts) / max(1, int(counts.sum()))
        return dict(
            zip([f"mixmon/{scope}/ratio/{name}" for name in self.names], shares.tolist(), strict=True)
        )


def choose_labels(labels: tuple[str, ...], target: npt.NDArray[np.float64]) -> LoggedLabels:
    """Choose what is logged: all labels, or those with the largest targets and the rest together.

    Args:
        labels: The run's labels.
        target: Each one's share at the start of the run, float64 (labels,): what is logged must not change
            when the target does.
    """
    return _choose(labels, target.tobytes())


@lru_cache(maxsize=16)
def _choose(labels: tuple[str, ...], target: bytes) -> LoggedLabels:
    names = metric_names(labels)
    if len(labels) <= _MOST + 1:
        return LoggedLabels(labels, names, len(labels))
    shares = np.frombuffer(target).tolist()
    # What should have a label and has none is to be seen, however few samples it is.
    by_size = sorted(range(len(labels)), key=lambda i: (labels[i] != UNLABELLED, -shares[i], i))
    own = sorted(by_size[:_MOST])
    rest = _REST
    while any(_clash(rest, text.casefold()) for i in own for text in (labels[i], names[i])):
        rest += "_"
    return LoggedLabels(
        (*(labels[i] for i in own), rest),
        (*(names[i] for i in own), rest),
        len(labels),
        np.array(own, np.int64),
    )


def _clash(rest: str, name: str) -> bool:
    """Whether a logger would take the two for one, or one for a folder of the other."""
    return name == rest or name.startswith(f"{rest}/")
