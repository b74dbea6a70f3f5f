"""The first samples that a random permutation gives, for the generators that training code uses.

``torch.randperm`` up to 2.5.1 reduces 32 random bits modulo the samples that are left. With n samples,
values below 2³² mod n are then drawn more often than others by one part in ⌊2³²/n⌋: nothing at 10⁶ samples,
a quarter at 10⁹. From 2.6.0 on, n = ⌊(2³² − 1)/20⌋ and above are permuted "inside out" with 64 bits a draw
(``randperm_cpu`` in ``aten/src/ATen/native/TensorFactories.cpp``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from composer_mixmon.errors import ConfigError
from composer_mixmon.replay.permute import first_of_shuffle
from composer_mixmon.replay.sampling import Floats, Ints

__all__ = [
    "GENERATORS",
    "Uniformity",
    "biased_sampler",
    "deciles",
    "first_of_permutation",
    "remainder_excess",
    "uniformity",
]

# From here on torch 2.6.0 draws 64 bits.
_WIDE_FROM = (2**32 - 1) // 20
_CHUNK = 1 << 16
_WORTH_TELLING = 0.01


def first_of_permutation(generator: str, n: int, first: int, seed: int) -> Ints:
    """Compute the first elements of a permutation of n.

    ``torch-legacy`` needs time and memory for ``first`` elements only, whatever n. ``torch`` needs all draws
    where n is large, one after the other, but memory for ``first`` only; so does ``pcg64dxsm``, twice, up to
    n = 2³², and 8 bytes of memory for each of n beyond.

    Args:
        generator: One of :data:`GENERATORS`: ``torch`` is ``torch.randperm`` on a CPU from 2.6.0 on,
            ``torch-legacy`` up to 2.5.1, both just after ``manual_seed``; ``pcg64dxsm`` is
            ``Generator(PCG64DXSM(seed)).permutation``.
        n: Samples.
        first: How many elements, at most n.
        seed: Not negative.

    Returns:
        int64 (first,).

    Raises:
        ConfigError: An unknown generator, or numbers out of range.
    """
    if generator not in _FIRST:
        raise ConfigError("generator", generator, f"choose one of {', '.join(GENERATORS)}")
    if not 1 <= n < 2**53:
        raise ConfigError("n", n, "write a number of samples from 1 to 2**53")
    if not 1 <= first <= n:
        raise ConfigError("first", first, f"write a number from 1 to the {n} samples")
    if not 0 <= seed < 2**64:
        raise ConfigError("seed", seed, "write a whole number from 0 to 2**64")
    return _FIRST[generator](n, first, seed)


def deciles(elements: Ints, n: int, parts: int = 10) -> Ints:
    """Count elements by tenths of 0 … n: int64 (parts,)."""
    return np.bincount(elements * parts // n, minlength=parts)


def remainder_excess(n: int, bits: int = 32, parts: int = 10) -> Floats:
    """How much too often a random word modulo n falls into each tenth of 0 … n.

    With 2**bits = q·n + r, each value below r is the remainder of q + 1 words and each other value of q. So a
    part of s values, t of them below r, is drawn with probability (q·s + t)/2**bits instead of s/n. The first
    elements of an old ``torch.randperm`` are such remainders.

    Args:
        n: Values.
        bits: Of the word.
        parts: At most n.

    Returns:
        float64 (parts,): relative to an even share, 0.16 for 16 % too many.
    """
    quotient, remainder = divmod(1 << bits, n)
    edges = -(-np.arange(parts + 1) * n // parts)
    size, below = np.diff(edges), np.diff(np.minimum(edges, remainder))
    return (quotient * size + below) / 2.0**bits * n / size - 1


def biased_sampler(n: int, torch_version: str) -> str | None:
    """Say whether ``torch.randperm`` on a CPU, which torch's samplers draw, is biased at n samples.

    The bias grows with n, unevenly: a tenth can be off by 1 % from n = 4.8·10⁷ on.

    Args:
        n: Samples of the dataset.
        torch_version: Such as ``2.5.1+cu124``.

    Returns:
        A sentence where a tenth of the dataset is off by more than 1 %, otherwise None.
    """
    major, minor = map(int, torch_version.split(".")[:2])
    if (major, minor) >= (2, 6) or n < 10:
        return None
    excess = remainder_excess(n)
    tenth = int(np.argmax(np.abs(excess)))
    if abs(excess[tenth]) <= _WORTH_TELLING:
        return None
    return (
        f"torch {torch_version} shuffles {n:,} samples unevenly: early batches hold {abs(excess[tenth]):.1%} "
        f"too {'many' if excess[tenth] > 0 else 'few'} of tenth {tenth + 1} of the dataset "
        f"(mixmon sampler --n {n} --generator torch-legacy); use torch 2.6 or later"
    )


@dataclass(frozen=True)
class Uniformity:
    """Pearson's test that elements fall evenly into parts of equal size.

    Attributes:
        chi_square: Sum of (observed − expected)²/expected.
        degrees: Parts − 1.
        log10_p: log10 of the probability of so large a value were they even (very negative: biased).
    """

    chi_square: float
    degrees: int
    log10_p: float


def uniformity(counts: Ints) -> Uniformity:
    """Test counts of equally likely parts (Pearson 1900).

    Args:
        counts: int64 (parts,), at least two parts. Elements drawn without replacement vary slightly less than
            the test assumes, so it errs on the side of silence.
    """
    expected = counts.sum() / len(counts)
    chi_square = float(((counts - expected) ** 2).sum() / expected)
    degrees = len(counts) - 1
    return Uniformity(chi_square, degrees, _log10_chi_square_tail(chi_square, degrees))


def _log10_chi_square_tail(chi_square: float, degrees: int) -> float:
    """log10 P(X ≥ chi_square), X chi-square distributed: the regularised upper gamma function Q(k/2, x/2).

    Below its mean by the series of the lower function, above it by Lentz's continued fraction (Abramowitz and
    Stegun 6.5.29 and 6.5.31), in logs as the tail soon underflows.
    """
    a, x = degrees / 2, chi_square / 2
    if x <= 0:
        return 0.0
    front = a * math.log(x) - x - math.lgamma(a)
    if x < a + 1:
        term = total = 1 / a
        k = a
        while term > total * 1e-17:
            k += 1
            term *= x / k
            total += term
        return math.log1p(-min(math.exp(front) * total, 1 - 1e-16)) / math.log(10)
    b = x + 1 - a
    c, d = 1e300, 1 / b
    fraction = d
    for i in range(1, 10_000):
        step = -i * (i - a)
        b += 2
        d = 1 / (step * d + b)
        c = b + step / c
        fraction *= c * d
        if abs(c * d - 1) < 1e-16:
            break
    return (front + math.log(fraction)) / math.log(10)


def _torch(n: int, first: int, seed: int) -> Ints:
    return _torch_legacy(n, first, seed) if n < _WIDE_FROM else _inside_out(_twister(seed), n, first)


def _torch_legacy(n: int, first: int, seed: int) -> Ints:
    return _sparse(_twister(seed).randint(0, 1 << 32, first, dtype=np.uint32), n)


def _twister(seed: int) -> np.random.RandomState:
    """Return the Mersenne Twister, seeded by 32 bits as torch seeds it."""
    return np.random.RandomState(seed & 0xFFFFFFFF)


def _sparse(draws: NDArray[np.uint32], n: int) -> Ints:
    """Fisher and Yates' shuffle from the front, keeping only the places that were touched.

    Element k depends on draws 0 … k alone: it swaps place k with place k + draw mod (n − k).
    """
    places = np.arange(len(draws))
    targets = places + draws.astype(np.int64) % (n - places)
    moved: dict[int, int] = {}
    elements = np.empty(len(draws), np.int64)
    for place, target in enumerate(targets.tolist()):
        elements[place] = moved.get(target, target)
        moved[target] = moved.pop(place, place)
    return elements


def _inside_out(twister: np.random.RandomState, n: int, first: int) -> Ints:
    """Shuffle inside out: number i goes to place draw mod (i + 1), and what was there to place i.

    So of the leading places, each holds the last number that was sent there.
    """
    elements = np.arange(first)
    places = _wide(twister, first) % np.arange(1, first + 1, dtype=np.uint64)
    for number, place in enumerate(places.tolist()):
        elements[number] = elements[place]
        elements[place] = number
    for begin in range(first, n, _CHUNK):
        numbers = np.arange(begin, min(begin + _CHUNK, n))
        places = _wide(twister, len(numbers)) % (numbers + 1).astype(np.uint64)
        leading = np.flatnonzero(places < first)
        elements[places[leading].astype(np.int64)] = numbers[leading]  # where places repeat, the last stays
    return elements


def _wide(twister: np.random.RandomState, count: int) -> NDArray[np.uint64]:
    """Draw 64 bits, the upper half first."""
    halves = twister.randint(0, 1 << 32, 2 * count, dtype=np.uint32).astype(np.uint64)
    return (halves[0::2] << np.uint64(32)) | halves[1::2]


def _pcg64dxsm(n: int, first: int, seed: int) -> Ints:
    return first_of_shuffle(n, first, np.random.PCG64DXSM(seed))


_FIRST: dict[str, Callable[[int, int, int], Ints]] = {
    "torch": _torch,
    "torch-legacy": _torch_legacy,
    "pcg64dxsm": _pcg64dxsm,
}

GENERATORS = tuple(_FIRST)
