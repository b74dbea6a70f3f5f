"""The py1e shuffle of one canonical node, a window at a time.

Every sample gets a position: its place plus a uniform shift of at most half a block, and the samples are
sorted by it. Shifts are bounded, so all positions below a moving threshold are final, and windows of a few
blocks are sorted instead of the whole node.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from composer_mixmon.replay.sampling import Floats, Ints

__all__ = ["py1e_node", "sort_by_position"]

# Elements sorted at a time: large against the share that waits for the next window (about a block).
_WINDOW = 1 << 20


def py1e_node(
    values: NDArray[np.integer],
    span_sizes: list[int],
    rng: np.random.Generator,
    block: int,
    bits: int,
    ties: list[int],
) -> Iterator[tuple[int, Ints]]:
    """Yield a node's values in py1e's order, in pieces.

    Args:
        values: integers (n,). The node's values, already shuffled within their spans.
        span_sizes: Sizes of the spans, adding up to n.
        rng: The epoch's generator, after those shuffles.
        block: ``shuffle_block_size``.
        bits: Bits that hold any value.
        ties: Receives places where equal positions hold different values.
    """
    reach = int(1.25 * block) / 2
    window = max(_WINDOW, 4 * block)
    parts: list[Floats] = []
    waiting, waiting_values = np.empty(0), np.empty(0, np.int64)
    offset = taken = done = 0
    for size in span_sizes:
        parts.append(_positions(rng, offset, size, len(values), block))
        offset += size
        if offset - taken < window and offset < len(values):
            continue
        positions = np.concatenate([waiting, *parts])
        held = np.concatenate([waiting_values, values[taken:offset].astype(np.int64)])
        taken = offset
        parts.clear()
        if offset < len(values):
            final = positions < offset - reach
            waiting, waiting_values = positions[~final], held[~final]
            positions, held = positions[final], held[final]
        piece, equal = sort_by_position(positions, held, bits)
        ties.extend((equal + done).tolist())
        yield done, piece
        done += len(piece)


def _positions(rng: np.random.Generator, offset: int, size: int, samples: int, block: int) -> Floats:
    """Shift a span's places; no shift leaves the node, and a block below the span's size shifts nothing."""
    spread = int(rng.integers(int(0.75 * block), int(1.25 * block)))
    cutoff = max((spread - size) / 2, 0)
    low, high = max(-cutoff, -offset), min(cutoff, samples - offset - size)
    return np.arange(offset, offset + size, dtype=np.float64) + rng.uniform(low, high, size)


def sort_by_position(positions: Floats, values: Ints, bits: int) -> tuple[Ints, Ints]:
    """Sort values by position.

    Non-negative doubles order like their bit patterns, so position and value fit one integer wherever the
    patterns spread over less than 63 − ``bits`` bits, and sorting integers costs half of sorting indices.
    Smaller positions, far from the largest, are sorted by index.

    Args:
        positions: float64 (n,), none negative.
        values: int64 (n,) in [0, 2**bits).
        bits: 1 to 63.

    Returns:
        The values sorted, int64 (n,), and the places in them whose position equals the next one's while the
        value differs.
    """
    keys = positions.view(np.int64)
    room = 1 << max(62 - bits, 0)
    cut = int(keys.max(initial=0)) - room + 1
    if room < 1 << 40:  # hardly anything would fit
        return _by_index(positions, values)
    low = keys < cut
    few, few_ties = _by_index(positions[low], values[low])
    high = ~low
    packed = keys[high] - cut if cut > 0 else keys[high]
    packed <<= bits
    packed |= values[high]
    packed.sort()
    sorted_values = packed & ((1 << bits) - 1)
    packed >>= bits
    same = np.flatnonzero(packed[1:] == packed[:-1])
    same = same[sorted_values[same] != sorted_values[same + 1]] + len(few)
    return np.concatenate([few, sorted_values]), np.concatenate([few_ties, same])


def _by_index(positions: Floats, values: Ints) -> tuple[Ints, Ints]:
    order = np.argsort(positions)
    positions, values = positions[order], values[order]
    same = np.flatnonzero(positions[1:] == positions[:-1])
    return values, same[values[same] != values[same + 1]]
