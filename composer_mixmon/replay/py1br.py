"""The py1br shuffle: blocks of random size, staggered from node to node.

The stagger moves every block but not the running end, so the second block begins inside the first, and a
node's last samples, up to the stagger, are in no block at all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from composer_mixmon.replay.draws import Draws
from composer_mixmon.replay.sampling import Ints
from composer_mixmon.replay.spans import NodeSpans, Pieces, Reader, ShuffleSeed, anything, drain, epoch_spans
from composer_mixmon.replay.units import Payload

__all__ = ["pieces", "unshuffled_ends"]


def pieces(payload: Payload, seed: ShuffleSeed, needed: list[int]) -> Pieces:
    """Yield the order.

    Args:
        payload: What to carry.
        seed: Seeds and sizes.
        needed: How many samples of each canonical node, from its first, must be in order.
    """
    nodes, draws = epoch_spans(payload, seed)
    dtype = draws.best_dtype(payload.dtype)
    for (spans, blocks), need in zip(_nodes_blocks(nodes, draws, seed), needed, strict=True):
        reader = Reader(payload, spans)
        held = np.empty(max((end - begin for begin, end in blocks), default=0), dtype)
        held_from = held_to = 0
        for begin, end in blocks:
            if begin >= need:
                draws.skip_shuffle(end - begin)
                continue
            settled = begin - held_from
            if settled:
                yield held[:settled]
            # What the block shares with the last one moves to the front, the rest is read behind it.
            kept = held_to - begin
            held[:kept] = held[settled : settled + kept]
            reader.into(held[kept : end - begin])
            draws.shuffle(held[: end - begin])
            held_from, held_to = begin, end
        yield held[: held_to - held_from]
        if held_to < need:
            yield from drain(reader, spans.samples - held_to, dtype)
        else:
            yield anything(spans.samples - held_to, dtype)


def unshuffled_ends(payload: Payload, seed: ShuffleSeed) -> Ints:
    """How many samples at the end of each canonical node py1br leaves in their order: int64 (nodes,)."""
    nodes, draws = epoch_spans(payload, seed)
    ends: list[int] = []
    for spans, blocks in _nodes_blocks(nodes, draws, seed):
        ends.append(spans.samples - blocks[-1][1] if blocks else 0)
        for begin, end in blocks:
            draws.skip_shuffle(end - begin)
    return np.array(ends, np.int64)


def _nodes_blocks(
    nodes: list[NodeSpans], draws: Draws, seed: ShuffleSeed
) -> Iterator[tuple[NodeSpans, list[tuple[int, int]]]]:
    """Draw py1br's blocks node by node; a node's are to be shuffled before the next node's are drawn."""
    low, high = int(0.75 * seed.block), int(1.25 * seed.block)
    staggers = [draws.integers(0, low) for _ in nodes]
    for spans, stagger in zip(nodes, staggers, strict=True):
        blocks: list[tuple[int, int]] = []
        running = 0
        while running < spans.samples:
            size = draws.integers(low, high)
            begin, end = max(running - stagger, 0), min(running + size - stagger, spans.samples)
            blocks.append((begin, end))
            running += end - begin
        yield spans, blocks
