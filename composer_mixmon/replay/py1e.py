"""The py1e shuffle, a window at a time.

Within a canonical node every sample gets a position: its place plus a uniform shift of at most half a block,
and the samples are sorted by it. Shifts are bounded, so all positions below a moving threshold are final, and
windows of a few blocks are sorted instead of the whole node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from composer_mixmon.replay import fast
from composer_mixmon.replay.ahead import Arrays, ahead
from composer_mixmon.replay.draws import Draws
from composer_mixmon.replay.sampling import Floats, Ints
from composer_mixmon.replay.spans import NodeSpans, Pieces, ShuffleSeed, anything, epoch_spans, shuffled_spans
from composer_mixmon.replay.units import Payload

__all__ = ["pieces", "place", "sort_by_position"]

# Elements sorted at a time: large against the share that waits for the next window (about a block).
_WINDOW = 1 << 20


def pieces(payload: Payload, seed: ShuffleSeed, needed: list[int], ties: list[int]) -> Pieces:
    """Yield the order; each piece is overwritten when the next is asked for.

    Args:
        payload: What to carry.
        seed: Seeds and sizes.
        needed: How many samples of each canonical node, from its first, must be in order.
        ties: Receives places in the order where equal positions hold different values.
    """
    nodes, draws = epoch_spans(payload, seed)
    parts = [_Part.of_node(spans, need, seed.block) for spans, need in zip(nodes, needed, strict=True)]
    flow = ahead(_draw(payload, nodes, parts, draws, seed.block), sum(needed))
    return _merge(_Feed(flow), parts, seed.block, draws.best_dtype(payload.dtype), payload.bits, ties)


@dataclass(frozen=True)
class _Part:
    """The part of a canonical node that has to be in order.

    Attributes:
        samples: Samples of the node.
        spans: How many of its spans, from the first, may hold one of the samples needed.
        drawn: Samples of these.
    """

    samples: int
    spans: int
    drawn: int

    @classmethod
    def of_node(cls, spans: NodeSpans, need: int, block: int) -> _Part:
        ends = np.cumsum(spans.size)
        # The sample of rank k lies at most one reach behind place k, and what may come before it one further.
        far = need + 2 * _reach(block)
        count = min(int(np.searchsorted(ends, far)) + 1, len(ends)) if need else 0
        return cls(spans.samples, count, int(ends[count - 1]) if count else 0)


def _spread(block: int) -> tuple[int, int]:
    """Between which sizes a span's block is drawn, the upper one excluded."""
    return int(0.75 * block), int(1.25 * block)


def _reach(block: int) -> float:
    """No sample is shifted further."""
    return _spread(block)[1] / 2


def _draw(
    payload: Payload, nodes: list[NodeSpans], parts: list[_Part], draws: Draws, block: int
) -> Iterator[Arrays]:
    """Yield positions (float64, each node's from 0) and values of the parts, span by span.

    All spans of a node are shuffled before the first position is drawn, so the node's values are held.
    """
    for spans, part in zip(nodes, parts, strict=True):
        held = np.empty(part.drawn, payload.dtype)
        done = 0
        for values in shuffled_spans(payload, spans, draws, part.drawn):
            held[done : done + len(values)] = values
            done += len(values)
        offset = 0
        for size in spans.size[: part.spans].tolist():
            positions = np.empty(size)
            place(draws, offset, part.samples, block, positions)
            yield positions, held[offset : offset + size]
            offset += size
        draws.skip_places(spans.size[part.spans :], *_spread(block))


def place(draws: Draws, offset: int, samples: int, block: int, out: Floats) -> None:
    """Draw the positions of a span.

    No shift leaves the node, and where the block drawn is smaller than the span, nothing is shifted.

    Args:
        draws: The epoch's.
        offset: Place of the span's first sample in the node.
        samples: Samples of the node.
        block: ``shuffle_block_size``.
        out: Receives the positions, float64 of the span's size.
    """
    cutoff = max((draws.integers(*_spread(block)) - len(out)) / 2, 0)
    low, high = max(-cutoff, -offset), min(cutoff, samples - offset - len(out))
    out[:] = np.arange(offset, offset + len(out))
    draws.add_uniform(low, high, out)


def _merge(
    feed: _Feed, parts: list[_Part], block: int, dtype: np.dtype[Any], bits: int, ties: list[int]
) -> Pieces:
    """Sort each node's values by position, a window at a time."""
    kernels = fast.kernels(sum(part.samples for part in parts), block)
    mixed = int(2 * _reach(block)) + 1
    capacity = min(max(_WINDOW, 4 * block) + mixed, max(part.drawn for part in parts))
    positions, values = np.empty(capacity), np.empty(capacity, dtype)
    start = 0
    for part in parts:
        end = start + part.samples
        taken = count = 0
        while taken < part.drawn:
            more = min(part.drawn - taken, capacity - count)
            feed.into(positions[count : count + more], values[count : count + more])
            taken, count = taken + more, count + more
            final = count
            if taken < part.samples:
                final = _move_final(positions[:count], values[:count], taken - _reach(block), mixed)
            equal = sort_by_position(positions[:final], values[:final], bits, kernels)
            ties.extend((equal + start).tolist())
            yield values[:final]
            start, count = start + final, count - final
            positions[:count] = positions[final : final + count]
            values[:count] = values[final : final + count]
        yield anything(end - start, dtype)
        start = end


class _Feed:
    """Reads a flow any number of elements at a time."""

    def __init__(self, flow: Iterator[Arrays]) -> None:
        self._flow = flow
        self._pieces: Arrays = ()
        self._done = 0

    def into(self, positions: Floats, values: NDArray[Any]) -> None:
        filled = 0
        while filled < len(values):
            if not self._pieces or self._done == len(self._pieces[0]):
                self._pieces, self._done = next(self._flow), 0
            take = min(len(values) - filled, len(self._pieces[0]) - self._done)
            for out, piece in zip((positions, values), self._pieces, strict=True):
                out[filled : filled + take] = piece[self._done : self._done + take]
            filled, self._done = filled + take, self._done + take


def _move_final(positions: Floats, values: NDArray[Any], threshold: float, mixed: int) -> int:
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


def sort_by_position(positions: Floats, values: NDArray[Any], bits: int, kernels: ModuleType | None) -> Ints:
    """Sort values by position, in place.

    Args:
        positions: float64 (n,), none negative; overwritten.
        values: integers (n,) in [0, 2**bits); sorted.
        bits: 1 to 63.
        kernels: The compiled loops, or None for numpy.

    Returns:
        Places whose position equals the next one's while the value differs.
    """
    if kernels is None or not _dense(positions):
        return _sort_packed(positions, values, bits)
    if not kernels.sort_by_position(positions, values):
        return np.empty(0, np.int64)
    return _unequal_ties(positions, values)


def _dense(positions: Floats) -> bool:
    """Whether about one position lies between two whole numbers, as the compiled sort wants it."""
    return len(positions) > 0 and float(positions.max() - positions.min()) < 4 * len(positions)


def _sort_packed(positions: Floats, values: NDArray[Any], bits: int) -> Ints:
    """Sort without temporary arrays of full size.

    Non-negative doubles order like their bit patterns, so position and value fit one integer wherever the
    patterns spread over less than 62 − ``bits`` bits, and sorting integers costs half of sorting indices.
    Positions too far below the largest are sorted by index and enter as their ranks.
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
    np.bitwise_and(packed, (1 << bits) - 1, out=values, casting="unsafe")
    packed >>= bits
    ties = _sort_by_index(few_positions, few_values)
    return np.concatenate([ties, _unequal_ties(packed, values)])


def _sort_by_index(positions: Floats, values: NDArray[Any]) -> Ints:
    order = np.argsort(positions)
    values[:] = values[order]
    return _unequal_ties(positions[order], values)


def _unequal_ties(ordered: NDArray[Any], values: NDArray[Any]) -> Ints:
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    return same[values[same] != values[same + 1]]
