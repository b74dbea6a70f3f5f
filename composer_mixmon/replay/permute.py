"""``Generator.shuffle`` of large arrays of small items, several steps at a time.

numpy takes one random step after another, each waiting for memory. Here the steps are drawn in bulk, and
stretches of steps that touch different places are taken together, so that memory is read and written many
places at a time. The draws and the result are numpy's, bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from composer_mixmon.replay.ahead import Arrays, ahead

__all__ = ["first_of_shuffle", "shuffle"]

Bits = np.random.PCG64 | np.random.PCG64DXSM

# What is left when so few places remain is numpy's: steps collide too often.
_REST = 1 << 20
_WORDS = 1 << 16
# Steps that are drawn again at a time.
_STRETCH = 1 << 18


def shuffle(values: NDArray[Any], bits: Bits) -> None:
    """Shuffle in place, as ``np.random.Generator(bits).shuffle(values)`` does.

    Args:
        values: (n,), any type.
        bits: numpy's default generator of bits.
    """
    if not _REST < len(values) <= 1 << 32:
        np.random.Generator(bits).shuffle(values)
        return
    draws = _Targets(bits, len(values) - 1, _REST)
    step = len(values) - 1
    for (targets,) in ahead(draws.pieces(), step - _REST):
        done = 0
        while done < len(targets):
            stretch = targets[done : done + int(1.5 * math.sqrt(step))]
            _take_steps(values, step, stretch)
            done += len(stretch)
            step -= len(stretch)
    bits.state = draws.state()
    np.random.Generator(bits).shuffle(values[: step + 1])


def first_of_shuffle(n: int, first: int, bits: Bits) -> NDArray[np.int64]:
    """First elements of ``np.random.Generator(bits).permutation(n)``, without an array of n.

    numpy swaps from the last place to the first, so the first elements are known last. They are followed
    backwards: the draws are passed over once, and then drawn again, the last ones first.

    Args:
        n: At most 2³², or n elements are held after all.
        first: How many.
        bits: Advanced by the permutation's draws.
    """
    stretches: list[tuple[_Targets, int]] = []
    rest = max(_REST, first) if n <= 1 << 32 else n
    last = n - 1
    while last > rest:
        stop = max(last - _STRETCH, rest)
        stretches.append((_Targets(bits, last, stop), stop))
        passed = _Targets(bits, last, stop)
        for _ in passed.pieces():
            pass
        bits.state = passed.state()
        last = stop
    places = np.arange(last + 1)
    np.random.Generator(bits).shuffle(places)
    element_at = {place: number for number, place in enumerate(places[:first].tolist())}
    for draws, stop in reversed(stretches):
        targets = np.concatenate([piece for (piece,) in draws.pieces()])[::-1]
        _follow_back(element_at, targets, stop)
    return np.array(sorted(element_at, key=element_at.__getitem__), np.int64)


def _follow_back(element_at: dict[int, int], targets: NDArray[np.uint32], stop: int) -> None:
    """Move elements to their places before the swaps of steps ``stop + 1``, ``stop + 2``, … ."""
    places = np.fromiter(element_at, np.int64, len(element_at))
    mark = np.zeros(1 << 20, bool)  # of places by their lower bits: few others pass
    mark[places & 0xFFFFF] = True
    met = np.flatnonzero(mark[targets & np.uint32(0xFFFFF)] | (targets > stop))
    for step, target in zip((met + stop + 1).tolist(), targets[met].tolist(), strict=True):
        if target in element_at:
            element_at[step] = element_at.pop(target)


def _take_steps(values: NDArray[Any], step: int, targets: NDArray[np.uint32]) -> None:
    """Swap place ``step − t`` with ``targets[t]`` for each t in turn.

    Steps are taken together up to the first that touches a place which one before it touched: the same
    target as another's, or a place that was a target.
    """
    ordered = np.sort(targets)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    splits = [int(t) for value in repeated for t in np.flatnonzero(targets == value)[1:]]
    own_places = step - targets[targets > step - len(targets)].astype(np.int64)
    splits += own_places.tolist()
    begin = 0
    for end in sorted({*splits, len(targets)} - {0}):
        places = targets[begin:end].astype(np.int64)
        own = values[step - end + 1 : step - begin + 1][::-1]
        moved = values[places]
        values[places] = own
        own[:] = moved
        begin = end


class _Targets:
    """The places that ``Generator.shuffle`` draws: for each step the first word that is not above it.

    numpy's ``random_interval`` masks 32-bit words to the step's bits and draws again where the result is too
    large; PCG64 gives the lower half of each 64 bits first.
    """

    def __init__(self, bits: Bits, step: int, rest: int) -> None:
        self._kind = type(bits)
        self._start: Any = bits.state
        self._step = step
        self._rest = rest
        self._words = 0

    def pieces(self) -> Iterator[Arrays]:
        """Yield targets from the first step down to ``rest``, exclusive: uint32, in pieces."""
        bits = self._bits()
        words = np.array([self._start["uinteger"]] * self._start["has_uint32"], np.uint32)
        while self._step > self._rest:
            if not len(words):
                words = bits.random_raw(_WORDS // 2).astype("<u8").view(np.uint32)
            floor = max(1 << (self._step.bit_length() - 1), self._rest + 1)
            targets, used = _accepted(words, self._step, self._step - floor + 1)
            self._step -= len(targets)
            self._words += used
            words = words[used:]
            yield (targets,)

    def state(self) -> Any:
        """Return the generator's state after these draws."""
        bits = self._bits()
        words = self._words - self._start["has_uint32"]
        bits.advance(words // 2)
        upper = int(bits.random_raw()) >> 32 if words % 2 else 0
        return {**bits.state, "has_uint32": words % 2, "uinteger": upper}

    def _bits(self) -> Bits:
        bits = self._kind(0)
        bits.state = self._start
        return bits


def _accepted(words: NDArray[np.uint32], step: int, limit: int) -> tuple[NDArray[np.uint32], int]:
    """Masked words that are accepted for steps ``step``, ``step − 1``, …, and how many words that used.

    Args:
        words: uint32.
        step: The first step; all steps have the same mask.
        limit: Steps at most.
    """
    masked = words & np.uint32((1 << step.bit_length()) - 1)
    places = np.flatnonzero(masked <= step)
    targets = masked[places]
    # Each word accepted lowers the bound by one: only words just below the first bound need a closer look.
    rejected: list[int] = []
    near = np.flatnonzero(targets > max(step - len(targets), 0))
    for place, target in zip(near.tolist(), targets[near].tolist(), strict=True):
        if target > step - (place - len(rejected)):
            rejected.append(place)
    targets = np.delete(targets, rejected)
    if len(targets) < limit:
        return targets, len(words)
    return targets[:limit], int(np.delete(places, rejected)[limit - 1]) + 1
