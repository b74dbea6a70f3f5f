"""The py1e shuffle, a window at a time.

Within a canonical node every sample gets a position: its place plus a uniform shift of at most half a block,
and the samples are sorted by it. Shifts are bounded, so all positions below a moving threshold are final, and
windows of a few blocks are sorted instead of the whole node.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from composer_mixmon.replay.ahead import Arrays
from composer_mixmon.replay.sampling import Floats, Ints

__all__ = ["merge", "place", "sort_by_position"]

# Elements sorted at a time: large against the share that waits for the next window (about a block).
_WINDOW = 1 << 20


def place(rng: np.random.Generator, offset: int, samples: int, block: int, out: Floats) -> None:
    """Draw the positions of a span.

    No shift leaves the node, and where the block drawn is smaller than the span, nothing is shifted.

    Args:
        rng: The epoch's generator.
        offset: Place of the span's first sample in the node.
        samples: Samples of the node.
        block: ``shuffle_block_size``.
        out: Receives the positions, float64 of the span's size.
    """
    spread = int(rng.integers(int(0.75 * block), int(1.25 * block)))
    cutoff = max((spread - len(out)) / 2, 0)
    low, high = max(-cutoff, -offset), min(cutoff, samples - offset - len(out))
    np.add(np.arange(offset, offset + len(out)), rng.uniform(low, high, len(out)), out=out)


def merge(
    flow: Iterator[Arrays],
    node_sizes: list[int],
    needed: list[int],
    block: int,
    bits: int,
    ties: list[int],
) -> Iterator[Ints]:
    """Sort each node's values by position.

    Args:
        flow: Pieces of positions (float64, each node's from 0) and values (int64), node after node.
        node_sizes: Samples of each node.
        needed: How many of them, from the node's first, must be in order.
        block: ``shuffle_block_size``.
        bits: Bits that hold any value.
        ties: Receives places in the order where equal positions hold different values.

    Yields:
        The values in order, in pieces; each is overwritten when the next is asked for.
    """
    reach = int(1.25 * block) / 2
    window = max(_WINDOW, 4 * block)
    capacity = min(window + int(2 * reach) + 1, max(node_sizes))
    positions, values = np.empty(capacity), np.empty(capacity, np.int64)
    feed = _Feed(flow)
    start = 0
    for samples, wanted in zip(node_sizes, needed, strict=True):
        taken = count = 0
        while taken < samples:
            more = min(samples - taken, capacity - count)
            feed.into(positions[count : count + more], values[count : count + more])
            taken += more
            count += more
            final = count
            if taken - count >= wanted:  # the rest only keeps the draws in step
                yield values[:final]
                start, count = start + final, 0
                continue
            if taken < samples:
                final = _move_final(positions[:count], values[:count], taken - reach, int(2 * reach) + 1)
            equal = sort_by_position(positions[:final], values[:final], bits)
            ties.extend((equal + start).tolist())
            yield values[:final]
            start += final
            count -= final
            positions[:count] = positions[final : final + count]
            values[:count] = values[final : final + count]


class _Feed:
    """Reads a flow any number of elements at a time."""

    def __init__(self, flow: Iterator[Arrays]) -> None:
        self._flow = flow
        self._pieces: Arrays = ()
        self._done = 0

    def into(self, positions: Floats, values: Ints) -> None:
        filled = 0
        while filled < len(values):
            if not self._pieces or self._done == len(self._pieces[0]):
                self._pieces, self._done = next(self._flow), 0
            take = min(len(values) - filled, len(self._pieces[0]) - self._done)
            for out, piece in zip((positions, values), self._pieces, strict=True):
                out[filled : filled + take] = piece[self._done : self._done + take]
            filled, self._done = filled + take, self._done + take


def _move_final(positions: Floats, values: Ints, threshold: float, mixed: int) -> int:
    """Move elements that later ones cannot precede to the front; how many they are.

    Args:
        positions: Of all elements held.
        values: Theirs.
        threshold: No later position is below it.
        mixed: Only among so many at the end may some be above it.
    """
    settled = max(0, len(positions) - mixed)
    final = positions[settled:] < threshold
    order = np.concatenate([np.flatnonzero(final), np.flatnonzero(~final)])
    positions[settled:] = positions[settled:][order]
    values[settled:] = values[settled:][order]
    return settled + int(np.count_nonzero(final))


def sort_by_position(positions: Floats, values: Ints, bits: int) -> Ints:
    """Sort values by position, in place and without temporary arrays of their size.

    Non-negative doubles order like their bit patterns, so position and value fit one integer wherever the
    patterns spread over less than 62 − ``bits`` bits, and sorting integers costs half of sorting indices.
    Positions too far below the largest are sorted by index and enter as their ranks.

    Args:
        positions: float64 (n,), none negative; overwritten.
        values: int64 (n,) in [0, 2**bits); sorted.
        bits: 1 to 63.

    Returns:
        Places whose position equals the next one's while the value differs.
    """
    room = 1 << max(62 - bits, 0)
    if room < 1 << 40 or not len(positions):  # hardly any pattern would fit
        return _sort_by_index(positions, values)
    packed = positions.view(np.int64)
    cut = int(packed.max()) - room // 2
    few = np.flatnonzero(packed < cut)
    few_positions, few_values = positions[few], values[few]
    packed -= cut - len(few)
    packed[few[np.argsort(few_positions)]] = np.arange(len(few))
    packed <<= bits
    packed |= values
    packed.sort()
    np.bitwise_and(packed, (1 << bits) - 1, out=values)
    packed >>= bits
    same = np.flatnonzero(packed[1:] == packed[:-1])
    ties = _sort_by_index(few_positions, few_values)
    return np.concatenate([ties, same[values[same] != values[same + 1]]])


def _sort_by_index(positions: Floats, values: Ints) -> Ints:
    order = np.argsort(positions)
    positions, values[:] = positions[order], values[order]
    same = np.flatnonzero(positions[1:] == positions[:-1])
    return same[values[same] != values[same + 1]]
