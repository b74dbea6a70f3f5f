"""A replay that tells of its progress, and of shards instead of labels."""

# Two steps of the shuffles are needed apart from the rest.
# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from composer_mixmon.replay import LabelRanges, Replay, Settings, World
from composer_mixmon.replay.shuffles import _blocks, _epoch_spans
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

    def shards_by_node(self, batches: slice) -> Ints:
        """The shard of every sample of a range of batches: int64 (nodes, samples), −1 for padding.

        Shards are carried through the shuffle as labels: that takes a fraction of the memory of sample ids.

        Args:
            batches: As for :meth:`ids`.
        """
        sizes = self.settings.shard_sizes()
        by_shard = LabelRanges.of_shards(sizes, np.arange(len(sizes)), len(sizes))
        payloads = [LabelPayload(units, by_shard) for units in self._units]
        values = self._values(range(self.batches)[batches], payloads, [])
        by_rank = values.reshape(len(values), self._parallel_ranks, self.settings.batch_size)
        ranks = np.repeat(by_rank, self.world.ranks // self._parallel_ranks, axis=1)
        by_node = ranks.reshape(len(ranks), self.world.nodes, -1)
        return by_node.transpose(1, 0, 2).reshape(self.world.nodes, -1)

    def blocks(self) -> Ints:
        """The shuffle block of each stream: int64 (streams,)."""
        groups = [self._seed(group).block for group in range(len(self._units))]
        return np.resize(np.array(groups, np.int64), self.settings.streams)

    def unshuffled_end(self) -> Ints:
        """Samples at the end of each canonical node that py1br's blocks leave out: int64 (nodes,).

        All streams that are shuffled apart are added up. Draws what the shuffle draws, on nothing.
        """
        ends = np.zeros(self.settings.num_canonical_nodes, np.int64)
        for group, units in enumerate(self._units):
            seed = self._seed(group)
            nodes, rng = _epoch_spans(IdPayload(units), seed)
            low, high = int(0.75 * seed.block), int(1.25 * seed.block)
            staggers = rng.integers(0, low, (seed.nodes,)).tolist()
            for node, (spans, stagger) in enumerate(zip(nodes, staggers, strict=True)):
                blocks = _blocks(rng, spans.samples, stagger, low, high)
                ends[node] += spans.samples - blocks[-1][1] if blocks else 0
                for begin, end in blocks if node + 1 < len(nodes) else ():
                    rng.shuffle(np.empty(end - begin, np.int64))
        return ends
