"""StreamingDataset's shuffles, over any payload and piece by piece.

Each function draws exactly what its namesake in ``streaming.base.shuffle`` draws (numpy's
``Generator.shuffle`` takes the same draws whatever it shuffles) but carries labels or ids instead of big
ids, and yields the order in pieces. A piece is valid until the next is asked for: its memory is used again.
A caller that has what it needs stops asking, and the rest is never computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from composer_mixmon.errors import ConfigError
from composer_mixmon.replay import py1e
from composer_mixmon.replay.ahead import Arrays, ahead
from composer_mixmon.replay.permute import shuffle
from composer_mixmon.replay.sampling import Ints
from composer_mixmon.replay.spans import NodeSpans, Reader, cut_at_nodes, node_edges
from composer_mixmon.replay.units import Payload

__all__ = ["ShuffleSeed", "check_shuffle", "identity", "shuffled"]

_CHUNK = 1 << 16


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


def check_shuffle(algo: str, samples: int, seed: ShuffleSeed) -> None:
    """Refuse what the algorithm cannot shuffle.

    Raises:
        ConfigError: A block too small for the algorithm, or py1e with fewer samples than canonical nodes.
    """
    least = {"py1e": 1, "py1br": 2}.get(algo, 0)
    if seed.block < least:
        mend = f"{algo} needs a block of at least {least} samples in every stream's part of it"
        raise ConfigError("shuffle_block_size", seed.block, mend)
    if algo == "py1e" and samples < seed.nodes:
        mend = f"py1e needs at least as many samples in every stream, and one has {samples}: lower it"
        raise ConfigError("num_canonical_nodes", seed.nodes, mend)


def shuffled(
    algo: str, payload: Payload, seed: ShuffleSeed, ties: list[int], wanted: Ints | None = None
) -> Iterator[Ints]:
    """Yield the order of ``payload`` under a shuffle algorithm.

    Args:
        algo: One of :data:`~composer_mixmon.replay.settings.SHUFFLE_ALGOS`.
        payload: What to carry.
        seed: Seeds and sizes.
        ties: Receives the places at which py1e's sort met equal positions with different values: there the
            order depends on the CPU and numpy's build.
        wanted: int64, positions whose values matter; others may come in any order. None for all.
    """
    samples = payload.units.samples
    if algo == "naive":
        yield from _naive(payload, seed)
    elif algo == "py1e":
        nodes, rng = _epoch_spans(payload, seed)
        flow = ahead(_py1e(payload, nodes, rng, seed), (np.float64, np.int64), samples)
        sizes = [spans.samples for spans in nodes]
        needed = sizes if wanted is None else _needed_of_nodes(wanted, samples, seed.nodes)
        yield from py1e.merge(flow, sizes, needed, seed.block, payload.bits, ties)
    else:
        flow = ((values,) for values in _ALGOS[algo](payload, seed))
        for (values,) in ahead(flow, (np.int64,), samples):
            yield values


def identity(payload: Payload) -> Iterator[Ints]:
    """Yield ``payload`` in its own order: shuffling is off."""
    sizes = payload.units.sizes
    order = np.arange(len(sizes))
    yield from _drain(Reader(payload, NodeSpans(order, np.zeros_like(order), sizes)), payload.units.samples)


def _needed_of_nodes(wanted: Ints, samples: int, nodes: int) -> list[int]:
    """How far into each canonical node the wanted positions reach."""
    edges = node_edges(samples, nodes)
    node = np.searchsorted(edges, wanted, side="right") - 1
    needed = np.zeros(nodes, np.int64)
    np.maximum.at(needed, node, wanted - edges[node] + 1)
    return needed.tolist()


def _naive(payload: Payload, seed: ShuffleSeed) -> Iterator[Ints]:
    """One permutation of everything."""
    values = np.empty(payload.units.samples, payload.dtype)
    start = 0
    for piece in identity(payload):
        values[start : start + len(piece)] = piece
        start += len(piece)
    shuffle(values, seed.epoch)
    for start in range(0, len(values), _CHUNK):
        yield values[start : start + _CHUNK].astype(np.int64)


def _py1s(payload: Payload, seed: ShuffleSeed) -> Iterator[Ints]:
    """Samples are shuffled within their span."""
    nodes, rng = _epoch_spans(payload, seed)
    for spans in nodes:
        yield from _shuffled_spans(payload, spans, rng)


def _py2s(payload: Payload, seed: ShuffleSeed) -> Iterator[Ints]:
    """Shards are shuffled inside for the run, cut into nodes, and both are shuffled again for the epoch."""
    sizes = payload.units.sizes
    fixed, rng = np.random.default_rng(seed.run), np.random.default_rng(seed.epoch)
    order = np.arange(len(sizes))
    fixed.shuffle(order)
    whole = NodeSpans(order, np.zeros_like(order), sizes[order])
    shards = _shuffled_spans(payload, whole, fixed)
    rest = np.empty(0, np.int64)
    for spans in cut_at_nodes(order, sizes, seed.nodes):
        parts: list[NDArray[Any]] = []
        for size in spans.size.tolist():
            rest = rest if len(rest) else next(shards)
            # Kept small: a node's worth of parts is held until their order is drawn.
            parts.append(rest[:size].astype(payload.dtype))
            rest = rest[size:]
        places = np.arange(len(parts))
        rng.shuffle(places)
        for place in places.tolist():
            values = np.array(parts[place], np.int64)
            parts[place] = values[:0]
            rng.shuffle(values)
            yield values


def _py1br(payload: Payload, seed: ShuffleSeed) -> Iterator[Ints]:
    """Blocks of random size are shuffled, staggered from node to node.

    The stagger moves every block but not the running end, so the second block begins inside the first, and
    a node's last samples, up to the stagger, are in no block at all.
    """
    nodes, rng = _epoch_spans(payload, seed)
    low, high = int(0.75 * seed.block), int(1.25 * seed.block)
    staggers = rng.integers(0, low, (seed.nodes,)).tolist()
    for spans, stagger in zip(nodes, staggers, strict=True):
        samples = spans.samples
        reader = Reader(payload, spans)
        held = np.empty(min(high, samples), np.int64)
        held_from = held_to = 0
        for begin, end in _blocks(rng, samples, stagger, low, high):
            settled = begin - held_from
            if settled:
                yield held[:settled]
            # What the block shares with the last one moves to the front, the rest is read behind it.
            kept = held_to - begin
            held[:kept] = held[settled : settled + kept]
            reader.into(held[kept : end - begin])
            rng.shuffle(held[: end - begin])
            held_from, held_to = begin, end
        yield held[: held_to - held_from]
        yield from _drain(reader, samples - held_to)


def _blocks(
    rng: np.random.Generator, samples: int, stagger: int, low: int, high: int
) -> list[tuple[int, int]]:
    """Draw a node's blocks; all of them are drawn before any is shuffled."""
    blocks: list[tuple[int, int]] = []
    running = 0
    while running < samples:
        size = int(rng.integers(low, high))
        begin, end = max(running - stagger, 0), min(running + size - stagger, samples)
        blocks.append((begin, end))
        running += end - begin
    return blocks


def _py1e(
    payload: Payload, nodes: list[NodeSpans], rng: np.random.Generator, seed: ShuffleSeed
) -> Iterator[Arrays]:
    """Yield positions and values for :func:`composer_mixmon.replay.py1e.merge`, span by span.

    All spans of a node are shuffled before the first position is drawn, so the node's values are held.
    """
    for spans in nodes:
        held = np.empty(spans.samples, payload.dtype)
        done = 0
        for values in _shuffled_spans(payload, spans, rng):
            held[done : done + len(values)] = values
            done += len(values)
        offset = 0
        for size in spans.size.tolist():
            positions = np.empty(size)
            py1e.place(rng, offset, len(held), seed.block, positions)
            yield positions, held[offset : offset + size]
            offset += size


def _epoch_spans(payload: Payload, seed: ShuffleSeed) -> tuple[list[NodeSpans], np.random.Generator]:
    """Order the spans for the epoch; the generator goes on to shuffle the samples."""
    order = np.arange(len(payload.units.sizes))
    np.random.default_rng(seed.run).shuffle(order)
    rng = np.random.default_rng(seed.epoch)
    nodes = cut_at_nodes(order, payload.units.sizes, seed.nodes)
    return [spans.shuffled(rng) for spans in nodes], rng


def _shuffled_spans(payload: Payload, spans: NodeSpans, rng: np.random.Generator) -> Iterator[Ints]:
    """Yield each span's values, shuffled: int64 whatever the payload, numpy's fastest to shuffle."""
    for unit, begin, size in zip(spans.unit.tolist(), spans.begin.tolist(), spans.size.tolist(), strict=True):
        values = np.empty(size, np.int64)
        payload.fill(unit, begin, values)
        rng.shuffle(values)
        yield values


def _drain(reader: Reader, samples: int) -> Iterator[Ints]:
    """Read ``samples`` values on, a chunk at a time."""
    for done in range(0, samples, _CHUNK):
        values = np.empty(min(_CHUNK, samples - done), np.int64)
        reader.into(values)
        yield values


_ALGOS: dict[str, Callable[[Payload, ShuffleSeed], Iterator[Ints]]] = {
    "py1br": _py1br,
    "py1s": _py1s,
    "py2s": _py2s,
}
