"""The order of shards that py1e, py1br, py1s and py2s share, before samples are shuffled.

A span is a contiguous part of one unit. Spans are laid out in the run's fixed shard order, cut at the
canonical nodes' edges, and then put in the epoch's order within each node.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from composer_mixmon.replay.sampling import Ints
from composer_mixmon.replay.units import Payload

__all__ = ["NodeSpans", "Reader", "cut_at_nodes", "node_edges"]


def node_edges(samples: int, nodes: int) -> Ints:
    """First sample of each canonical node and, last, the number of samples: int64 (nodes + 1,)."""
    return np.array([samples * node // nodes for node in range(nodes + 1)], np.int64)


@dataclass(frozen=True)
class NodeSpans:
    """The spans of one canonical node.

    Attributes:
        unit: int64 (n,). The unit of each span.
        begin: int64 (n,). Its first sample within the unit.
        size: int64 (n,). Its samples.
    """

    unit: Ints
    begin: Ints
    size: Ints

    @property
    def samples(self) -> int:
        """Samples of the node."""
        return int(self.size.sum())

    def shuffled(self, rng: np.random.Generator) -> NodeSpans:
        """Return the spans in another order. Shuffling numbers draws what shuffling the list does."""
        order = np.arange(len(self.unit))
        rng.shuffle(order)
        return NodeSpans(self.unit[order], self.begin[order], self.size[order])


def cut_at_nodes(unit_order: Ints, sizes: Ints, nodes: int) -> list[NodeSpans]:
    """Lay units out in an order and cut them at canonical nodes (streaming's ``divide_spans``).

    Args:
        unit_order: int64 (U,). Units in the run's fixed order.
        sizes: int64 (U,). Samples of each unit, in their own order.
        nodes: Canonical nodes.
    """
    ends = np.cumsum(sizes[unit_order])
    edges = node_edges(int(ends[-1]) if len(ends) else 0, nodes)
    cuts = np.union1d(ends, edges)
    cuts = cuts[cuts > 0]
    starts = np.concatenate([np.zeros(1, np.int64), cuts[:-1]])[: len(cuts)]
    place = np.searchsorted(ends, starts, side="right")
    unit = unit_order[place]
    begin = starts - (ends[place] - sizes[unit])
    stops = np.searchsorted(cuts, edges, side="right").tolist()
    return [NodeSpans(unit[a:b], begin[a:b], cuts[a:b] - starts[a:b]) for a, b in pairwise(stops)]


class Reader:
    """Reads a payload span by span, any number of samples at a time."""

    def __init__(self, payload: Payload, spans: NodeSpans) -> None:
        self._payload = payload
        self._spans = list(zip(spans.unit.tolist(), spans.begin.tolist(), spans.size.tolist(), strict=True))
        self._next = 0
        self._within = 0

    def into(self, out: Ints) -> None:
        """Fill ``out`` with the next values."""
        done = 0
        while done < len(out):
            unit, begin, size = self._spans[self._next]
            take = min(size - self._within, len(out) - done)
            self._payload.fill(unit, begin + self._within, out[done : done + take])
            done += take
            self._within += take
            if self._within == size:
                self._next, self._within = self._next + 1, 0
