"""What is worked out about a batch in the DataLoader's worker, where it costs the training nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from composer_mixmon.columns import ColumnLabels
from composer_mixmon.integrity.spots import Spots
from composer_mixmon.labels import LabelMap
from composer_mixmon.order_hash import order_hash, set_hash
from composer_mixmon.tokens import tokens_of

__all__ = ["Annotation", "Annotator"]

Ints = npt.NDArray[np.int64]


class Annotation(NamedTuple):
    """What is known of a rank batch; a named tuple, so that pinning memory lets it through.

    Attributes:
        ids: Sample ids, int64 (samples,).
        labels: Their labels, int64 (samples,).
        counts: Samples of each label, int64 (labels,).
        tokens: Their tokens, int64 (labels,), or ``None`` if the batch does not tell.
        order: The rank batch's part of the order hash, a signed 64-bit number.
        digest: Hash of the ids, whatever their order, a signed 64-bit number.
        spots: Numbers of the spots among the ids, int64 (found,).
    """

    ids: Ints
    labels: Ints
    counts: Ints
    tokens: Ints | None
    order: int
    digest: int
    spots: Ints


class Annotator:
    """Annotates the batches of one rank. Pickled to the workers, so it holds plain data only.

    Args:
        labels: The labels of the dataset's samples.
        first_position: Place of the rank batch's first sample in the global batch.

    Attributes:
        column: The column whose values the labels are; ``None``: they follow from the sample ids.
    """

    def __init__(self, labels: LabelMap | ColumnLabels, first_position: int = 0) -> None:
        self.column = labels.column if isinstance(labels, ColumnLabels) else None
        self._labels = labels
        self._spots = Spots(labels.total)
        self._first_position = first_position

    def __call__(self, ids: Ints, batch: Any, values: Sequence[Any] = ()) -> Annotation:
        """Annotate a batch.

        Args:
            ids: The sample ids, int64 (samples,).
            batch: What the collate function made of the samples.
            values: The samples' values of :attr:`column`, if there is one.

        Raises:
            DatasetError: An id is not in the dataset, or no sample has the column.
        """
        return self.count(ids, self.labels_of(ids, values), tokens_of(batch, len(ids)))

    def labels_of(self, ids: Ints, values: Sequence[Any] = ()) -> Ints:
        """Label of each sample, int64 (samples,); arguments and errors are those of a call."""
        found = self._labels(ids) if isinstance(self._labels, LabelMap) else self._labels(values)
        return found.astype(np.int64, copy=False)

    def count(self, ids: Ints, labels: Ints, told: Ints | None) -> Annotation:
        """Annotate samples whose labels are known.

        Args:
            ids: The sample ids, int64 (samples,).
            labels: Their labels, int64 (samples,).
            told: Their tokens, int64 (samples,), or ``None``.
        """
        label_count = len(self._labels)
        counts = np.bincount(labels, minlength=label_count)
        tokens = None if told is None else np.bincount(labels, told, label_count).astype(np.int64)
        order, digest = order_hash(ids, self._first_position), set_hash(ids)
        return Annotation(ids, labels, counts, tokens, order, digest, self._spots.pick(ids))
