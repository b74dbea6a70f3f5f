"""What is worked out about a batch in the DataLoader's worker, where it costs the training nothing."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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
        counts: Samples of each label, int64 (labels,).
        tokens: Their tokens, int64 (labels,), or ``None`` if the batch does not tell.
        order: The rank batch's part of the order hash, a signed 64-bit number.
        digest: Hash of the ids, whatever their order, a signed 64-bit number.
        spots: Numbers of the spots among the ids, int64 (found,).
    """

    ids: Ints
    counts: Ints
    tokens: Ints | None
    order: int
    digest: int
    spots: Ints


class Annotator:
    """Annotates the batches of one rank. Pickled to the workers, so it holds plain data only.

    Args:
        label_map: The labels of the dataset's samples.
        first_position: Place of the rank batch's first sample in the global batch.
    """

    def __init__(self, label_map: LabelMap, first_position: int = 0) -> None:
        self._label_map = label_map
        self._spots = Spots(label_map.total)
        self._first_position = first_position

    def __call__(self, ids: Ints, batch: Any) -> Annotation:
        """Annotate a batch.

        Args:
            ids: The sample ids, int64 (samples,).
            batch: What the collate function made of the samples.

        Raises:
            DatasetError: An id is not in the dataset.
        """
        labels = self._label_map(ids)
        counts = np.bincount(labels, minlength=len(self._label_map))
        told = tokens_of(batch, len(ids))
        tokens = None if told is None else np.bincount(labels, told, len(self._label_map)).astype(np.int64)
        order, digest = order_hash(ids, self._first_position), set_hash(ids)
        return Annotation(ids, counts, tokens, order, digest, self._spots.pick(ids))
