"""A replay that tells of its progress, and of shards instead of labels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from composer_mixmon.replay import LabelRanges, Replay, Settings, World
from composer_mixmon.replay.py1br import unshuffled_ends
from composer_mixmon.replay.schedule import Schedule
from composer_mixmon.replay.units import IdPayload, LabelPayload, Payload

__all__ = ["Advance", "WatchedReplay"]

Ints = npt.NDArray[np.int64]
Advance = Callable[[int], object]
"""Is told how many more samples of the order have been computed."""


class WatchedReplay(Replay):
    """An epoch's order, watched.

    Args:
        settings: As for :class:`~composer_mixmon.replay.Replay`.
        world: As there.
        epoch: As there.
        advance: Told of the progress.
    """

    def __init__(
        self, settings: Settings, world: World, epoch: int = 0, advance: Advance | None = None
    ) -> None:
        super().__init__(settings, world, epoch)
        self._advance = advance

    def _pieces(
        self, group: int, payload: Payload, ties: list[int], wanted: Ints | None = None
    ) -> Iterator[Ints]:
        for piece in super()._pieces(group, payload, ties, wanted):
            yield piece
            if self._advance:
                self._advance(len(piece))

    def only(self, batches: Iterable[int]) -> WatchedReplay:
        """The same order with some of its batches only, so that one pass over it finds them all.

        Args:
            batches: Counted from the first.
        """
        rows, whole = np.fromiter(batches, np.int64), self._schedule
        found = copy.copy(self)
        found._schedule = Schedule(whole.lanes, whole.lane[rows], whole.unit[rows], whole.widths)
        return found

    def by_node(self, labels: LabelRanges) -> Ints:
        """The label of every sample: int64 (batches, nodes, samples), −1 for padding.

        Labels are carried through the shuffle: that takes a fraction of the memory of sample ids.

        Args:
            labels: The label of every underlying sample, of any number of labels.
        """
        payloads = [LabelPayload(units, labels) for units in self._units]
        values = self._values(range(self.batches), payloads, [])
        by_rank = values.reshape(len(values), self._parallel_ranks, self.settings.batch_size)
        ranks = np.repeat(by_rank, self.world.ranks // self._parallel_ranks, axis=1)
        return ranks.reshape(len(ranks), self.world.nodes, -1)

    def blocks(self) -> Ints:
        """The shuffle block of each stream: int64 (streams,)."""
        groups = [self._seed(group).block for group in range(len(self._units))]
        return np.resize(np.array(groups, np.int64), self.settings.streams)

    def unshuffled_end(self) -> Ints:
        """Samples at the end of each canonical node that py1br's blocks leave out: int64 (nodes,).

        All streams that are shuffled apart are added up.
        """
        groups = [unshuffled_ends(IdPayload(units), self._seed(g)) for g, units in enumerate(self._units)]
        return np.sum(groups, axis=0)
