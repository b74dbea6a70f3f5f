"""StreamingDataset's shuffles, over any payload and piece by piece.

Each function draws exactly what its namesake in ``streaming.base.shuffle`` draws (numpy's
``Generator.shuffle`` takes the same draws whatever it shuffles) but carries labels or ids instead of big
ids, and yields the order in pieces. A piece is valid until the next is asked for: its memory is used again.
A caller that has what it needs stops asking, and the rest is never computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from composer_mixmon.errors import ConfigError
from composer_mixmon.replay import py1br, py1e
from composer_mixmon.replay.ahead import ahead
from composer_mixmon.replay.draws import draws_for
from composer_mixmon.replay.sampling import Ints
from composer_mixmon.replay.spans import (
    NodeSpans,
    Pieces,
    Reader,
    ShuffleSeed,
    anything,
    cut_at_nodes,
    drain,
    draws_of,
    epoch_spans,
    node_edges,
    shuffle_of_unit,
    shuffled_spans,
)
from composer_mixmon.replay.units import Payload

__all__ = ["check_shuffle", "identity", "shuffled"]

_CHUNK = 1 << 16


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
) -> Pieces:
    """Yield the order of ``payload`` under a shuffle algorithm.

    Args:
        algo: One of :data:`~composer_mixmon.replay.settings.SHUFFLE_ALGOS`.
        payload: What to carry.
        seed: Seeds and sizes.
        ties: Receives the places at which py1e's sort met equal positions with different values: there the
            order depends on the CPU and numpy's build.
        wanted: int64, positions whose values matter; others may hold anything. None for all.
    """
    needed = _needed_of_nodes(wanted, payload.units.samples, seed.nodes)
    if algo == "naive":
        yield from _naive(payload, seed)
    elif algo == "py1e":
        yield from py1e.pieces(payload, seed, needed, ties)
    else:
        flow = ((values,) for values in _ALGOS[algo](payload, seed, needed))
        for (values,) in ahead(flow, sum(needed)):
            yield values


def identity(payload: Payload) -> Pieces:
    """Yield ``payload`` in its own order: shuffling is off."""
    sizes = payload.units.sizes
    order = np.arange(len(sizes))
    reader = Reader(payload, NodeSpans(order, np.zeros_like(order), sizes))
    yield from drain(reader, payload.units.samples, payload.dtype)


def _needed_of_nodes(wanted: Ints | None, samples: int, nodes: int) -> list[int]:
    """How far into each canonical node the wanted positions reach."""
    edges = node_edges(samples, nodes)
    if wanted is None:
        return np.diff(edges).tolist()
    node = np.searchsorted(edges, wanted, side="right") - 1
    needed = np.zeros(nodes, np.int64)
    np.maximum.at(needed, node, wanted - edges[node] + 1)
    return needed.tolist()


def _naive(payload: Payload, seed: ShuffleSeed) -> Pieces:
    """One permutation of everything."""
    values = np.empty(payload.units.samples, payload.dtype)
    start = 0
    for piece in identity(payload):
        values[start : start + len(piece)] = piece
        start += len(piece)
    draws_for(seed.epoch, len(values)).shuffle(values)
    for start in range(0, len(values), _CHUNK):
        yield values[start : start + _CHUNK]


def _py1s(payload: Payload, seed: ShuffleSeed, needed: list[int]) -> Pieces:
    """Samples are shuffled within their span."""
    nodes, draws = epoch_spans(payload, seed)
    for spans, need in zip(nodes, needed, strict=True):
        done = 0
        for values in shuffled_spans(payload, spans, draws, need):
            yield values
            done += len(values)
        yield anything(spans.samples - done, payload.dtype)


def _py2s(payload: Payload, seed: ShuffleSeed, needed: list[int]) -> Pieces:
    """Shards are shuffled inside for the run, cut into nodes, and both are shuffled again for the epoch."""
    sizes = payload.units.sizes
    fixed, draws = draws_of(payload, seed.run, seed), draws_of(payload, seed.epoch, seed)
    order = np.arange(len(sizes))
    fixed.shuffle(order)
    whole = NodeSpans(order, np.zeros_like(order), sizes[order])
    shards = shuffled_spans(payload, whole, fixed, whole.samples)
    rest: NDArray[Any] = np.empty(0, payload.dtype)
    for spans in cut_at_nodes(order, sizes, seed.nodes):
        parts: list[NDArray[Any]] = []
        for size in spans.size.tolist():
            rest = rest if len(rest) else next(shards)
            # Kept small: a node's worth of parts is held until their order is drawn.
            parts.append(rest[:size].astype(payload.dtype))
            rest = rest[size:]
        places = np.arange(len(parts))
        draws.shuffle(places)
        for place in places.tolist():
            values = np.array(parts[place], draws.best_dtype(payload.dtype))
            parts[place] = values[:0]
            shuffle_of_unit(payload, int(spans.unit[place]), values, draws)
            yield values


_ALGOS: dict[str, Callable[[Payload, ShuffleSeed, list[int]], Pieces]] = {
    "py1br": py1br.pieces,
    "py1s": _py1s,
    "py2s": _py2s,
}
