"""The order of shards that py1e, py1br, py1s and py2s share, before samples are shuffled.

A span is a contiguous part of one unit. Spans are laid out in the run's fixed shard order, cut at the
canonical nodes' edges, and then put in the epoch's order within each node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from composer_mixmon.replay.draws import Draws, draws_for
from composer_mixmon.replay.sampling import Ints
from composer_mixmon.replay.units import Payload

__all__ = [
    "NodeSpans",
    "Pieces",
    "Reader",
    "ShuffleSeed",
    "anything",
    "cut_at_nodes",
    "drain",
    "draws_of",
    "epoch_spans",
    "node_edges",
    "shuffle_of_unit",
    "shuffled_spans",
]

Pieces = Iterator[NDArray[Any]]

_CHUNK = 1 << 16


def node_edges(samples: int, nodes: int) -> Ints:
    """First sample of each canonical node and, last, the number of samples: int64 (nodes + 1,)."""
    return np.array([samples * node // nodes for node in range(nodes + 1)], np.int64)


@dataclass(frozen=True)
class ShuffleSeed:
    """What a shuffle depends on besides its samples.

    Attributes:
        nodes: Canonical nodes.
        run: Seed that stays for the run, ``shuffle_seed``.
        number: The epoch, from 0.
        block: Samples that are shuffled together.
    """

    nodes: int
    run: int
    number: int
    block: int

    @property
    def epoch(self) -> int:
        """Seed of the epoch."""
        return self.run + self.number


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

    def shuffled(self, draws: Draws) -> NodeSpans:
        """Return the spans in another order. Shuffling numbers draws what shuffling the list does."""
        order = np.arange(len(self.unit))
        draws.shuffle(order)
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

    def into(self, out: NDArray[Any]) -> None:
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


def epoch_spans(payload: Payload, seed: ShuffleSeed) -> tuple[list[NodeSpans], Draws]:
    """Order the spans for the epoch; the draws go on to shuffle the samples."""
    order = np.arange(len(payload.units.sizes))
    np.random.default_rng(seed.run).shuffle(order)
    draws = draws_of(payload, seed.epoch, seed)
    nodes = cut_at_nodes(order, payload.units.sizes, seed.nodes)
    return [spans.shuffled(draws) for spans in nodes], draws


def draws_of(payload: Payload, number: int, seed: ShuffleSeed) -> Draws:
    """Return the draws of seed ``number``."""
    return draws_for(number, payload.units.samples, seed.block)


def shuffled_spans(payload: Payload, spans: NodeSpans, draws: Draws, need: int) -> Pieces:
    """Yield each span's values, shuffled, up to the span that holds the last of ``need`` samples."""
    done = 0
    for unit, begin, size in zip(spans.unit.tolist(), spans.begin.tolist(), spans.size.tolist(), strict=True):
        if done < need:
            values = np.empty(size, draws.best_dtype(payload.dtype))
            payload.fill(unit, begin, values)
            shuffle_of_unit(payload, unit, values, draws)
            yield values
        else:
            draws.skip_shuffle(size)
        done += size


def shuffle_of_unit(payload: Payload, unit: int, values: NDArray[Any], draws: Draws) -> None:
    """Shuffle values of one unit; equal ones only need the draws."""
    if payload.equal(unit):
        draws.skip_shuffle(len(values))
    else:
        draws.shuffle(values)


def drain(reader: Reader, samples: int, dtype: np.dtype[Any]) -> Pieces:
    """Read ``samples`` values on, a chunk at a time."""
    for done in range(0, samples, _CHUNK):
        values = np.empty(min(_CHUNK, samples - done), dtype)
        reader.into(values)
        yield values


def anything(size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return values that nobody asks for: (size,), in no memory."""
    return np.broadcast_to(np.zeros((), dtype), size)
