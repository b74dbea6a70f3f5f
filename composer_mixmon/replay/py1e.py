"""The py1e shuffle of one canonical node, a window at a time.

Every sample gets a position: its place plus a uniform shift of at most half a block, and the samples are
sorted by it. Shifts are bounded, so all positions below a moving threshold are final, and windows of a few
blocks are sorted instead of the whole node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from composer_mixmon.replay.sampling import Floats, Ints

__all__ = ["py1e_node", "sort_by_position"]

# Elements sorted at a time: large against the share that waits for the next window (about a block).
_WINDOW = 1 << 20


def py1e_node(
    values: NDArray[Any],
    span_sizes: list[int],
    rng: np.random.Generator,
    block: int,
    bits: int,
    ties: list[int],
) -> Iterator[tuple[int, Ints]]:
    """Yield a node's values in py1e's order, in pieces; each is overwritten when the next is asked for.

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
    capacity = min(window + int(2 * reach), len(values)) + max(span_sizes, default=0)
    positions, held = np.empty(capacity), np.empty(capacity, np.int64)
    offset = count = done = 0
    for size in span_sizes:
        place(rng, offset, len(values), block, positions[count : count + size])
        held[count : count + size] = values[offset : offset + size]
        offset += size
        count += size
        if count < window and offset < len(values):
            continue
        last = offset == len(values)
        final = count if last else _move_final(positions[:count], held[:count], offset, reach)
        equal = sort_by_position(positions[:final], held[:final], bits)
        ties.extend((equal + done).tolist())
        yield done, held[:final]
        done += final
        count -= final
        positions[:count] = positions[final : final + count]
        held[:count] = held[final : final + count]


def _move_final(positions: Floats, values: Ints, offset: int, reach: float) -> int:
    """Move elements that later spans cannot precede to the front; how many they are.

    Later spans start at ``offset`` and reach back by at most ``reach``; all but the last two reaches of
    elements lie below that already.
    """
    mixed = max(0, len(positions) - int(2 * reach) - 1)
    final = positions[mixed:] < offset - reach
    order = np.concatenate([np.flatnonzero(final), np.flatnonzero(~final)])
    positions[mixed:] = positions[mixed:][order]
    values[mixed:] = values[mixed:][order]
    return mixed + int(np.count_nonzero(final))


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
