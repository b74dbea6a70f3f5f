"""How many samples each stream gives to an epoch, and which ones.

Reproduces ``Stream.apply_weights``, ``get_sampling`` and ``StreamingDataset.resample_streams`` of
streaming 0.13.0 draw by draw, but keeps whole repeats of a shard as ranges instead of lists of ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from composer_mixmon.errors import ConfigError, DatasetError

__all__ = [
    "StreamWeight",
    "Weighted",
    "apply_weights",
    "choose_per_shard",
    "choose_per_stream",
    "label_shares",
    "parse_epoch_size",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_UNITS = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


@dataclass(frozen=True)
class StreamWeight:
    """A stream's weight as written: at most one of three, none for "every sample once".

    Attributes:
        proportion: Relative weight; all streams of a dataset must have one, or none.
        repeat: How often each of the stream's samples comes in an epoch.
        choose: Samples of the stream in an epoch.

    Raises:
        ConfigError: More than one is given, or it is negative or not finite.
    """

    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) > 1:
            raise ConfigError("stream", given, "give at most one of proportion, repeat and choose")
        for name, value in given.items():
            if not 0 <= value < float("inf"):
                raise ConfigError(f"stream.{name}", value, "write a finite number that is not negative")

    @property
    def specified(self) -> bool:
        """Whether any of the three was given."""
        return not (self.proportion is None and self.repeat is None and self.choose is None)


@dataclass(frozen=True)
class Weighted:
    """Weights as a dataset applies them.

    Attributes:
        choose: int64 (S,). Samples of each stream in an epoch; the sum is the epoch's size.
        proportion: float64 (S,). Each stream's share, which sets its part of batches and shuffle blocks.
    """

    choose: Ints
    proportion: Floats


def parse_epoch_size(value: int | float | str | None) -> int | None:
    """Read an ``epoch_size`` as StreamingDataset does: ``"100k"``, ``"1.5b"``, a number, or nothing.

    Returns:
        Samples per epoch, or None where the streams decide (also for 0, as in StreamingDataset).

    Raises:
        ConfigError: Negative, or not a number with an optional suffix k, m, b or t.
    """
    if not value:
        return None
    size = _number(value) if isinstance(value, str) else int(value)
    if size < 0:
        raise ConfigError("epoch_size", value, "write a number of samples that is not negative")
    return size or None


def _number(text: str) -> int:
    word = text.lower().strip()
    try:
        if word[-1:] in _UNITS:
            return int(float(word[:-1]) * _UNITS[word[-1]])
        if word.isdigit():
            return int(word)
    except (ValueError, OverflowError):
        pass
    raise ConfigError("epoch_size", text, 'write samples as an integer or like "100k", "1.5m", "2b", "1t"')


def apply_weights(
    weights: Sequence[StreamWeight], samples_per_stream: Ints, epoch_size: int | None, seed: int
) -> Weighted:
    """Turn weights into samples per stream (streaming's ``Stream.apply_weights``).

    Relative weights, and no weights with an epoch size, share the epoch out: each stream gets the floor of
    its part, and the samples left over go to streams drawn without replacement by ``seed``.

    Args:
        weights: One for each of S streams.
        samples_per_stream: int64 (S,). Underlying samples.
        epoch_size: Samples per epoch, or None for what the streams hold.
        seed: The dataset's ``shuffle_seed``.

    Raises:
        ConfigError: Relative and absolute weights are mixed, absolute ones come with an epoch size, or
            nothing is left to choose.
        DatasetError: A stream without samples.
    """
    sizes = np.asarray(samples_per_stream, np.int64)
    _check_streams(weights, sizes)
    relative = weights[0].proportion is not None
    specified = any(weight.specified for weight in weights)
    if relative:
        parts = np.array([weight.proportion for weight in weights], np.float64)
        return _shared_out(parts, epoch_size or int(sizes.sum()), seed)
    if epoch_size and not specified:
        return _shared_out(sizes.astype(np.float64), epoch_size, seed)
    if epoch_size:
        mend = "leave it out, or weight every stream by proportion: repeat and choose already set it"
        raise ConfigError("epoch_size", epoch_size, mend)
    choose = np.array([_absolute(w, int(n)) for w, n in zip(weights, sizes, strict=True)], np.int64)
    if not choose.any():
        raise ConfigError("streams", list(weights), "no stream gives a sample: raise repeat or choose")
    return Weighted(choose, choose / choose.sum())


def choose_per_stream(
    weights: Sequence[StreamWeight], samples_per_stream: Ints, epoch_size: int | None, seed: int
) -> Ints:
    """Return int64 (S,): the samples of each stream in an epoch. See :func:`apply_weights`."""
    return apply_weights(weights, samples_per_stream, epoch_size, seed).choose


def label_shares(choose: Ints, label_counts: Ints) -> Floats:
    """Compute each label's share of an epoch: the dataset's own target.

    Stream s gives ``choose[s]`` samples, spread over its labels as its underlying samples are.

    Args:
        choose: int64 (S,). Samples of each stream in an epoch.
        label_counts: int64 (S, K). Underlying samples of each label in each stream.

    Returns:
        float64 (K,), adding up to 1.

    Raises:
        DatasetError: The shapes differ, a chosen stream has no labelled sample, or nothing is chosen.
    """
    counts = np.asarray(label_counts, np.float64)
    if counts.ndim != 2 or len(counts) != len(choose):
        raise DatasetError(f"label counts of shape {counts.shape} do not fit {len(choose)} streams")
    totals = counts.sum(1)
    empty = np.flatnonzero((totals == 0) & (np.asarray(choose) > 0))
    if empty.size:
        raise DatasetError(f"stream {empty[0]} is sampled but none of its samples has a label")
    if not np.sum(choose):
        raise DatasetError("no stream gives a sample, so labels have no shares")
    per_stream = counts / np.maximum(totals, 1)[:, None]
    return np.asarray(choose, np.float64) @ per_stream / float(np.sum(choose))


def choose_per_shard(samples_per_shard: Ints, choose: int, granularity: int, seed: int) -> Ints:
    """Spread a stream's samples over its shards (streaming's ``get_sampling``).

    Whole repeats take every shard in full; the rest is drawn in granules in the order of a permutation.

    Args:
        samples_per_shard: int64 (M,).
        choose: Samples to draw from the stream.
        granularity: Samples taken from one shard at a time.
        seed: Already including the epoch where the dataset changes its seed by epoch.

    Returns:
        int64 (M,), adding up to ``choose``.
    """
    total = int(samples_per_shard.sum())
    if not choose % total:
        return samples_per_shard * choose // total
    picks = (samples_per_shard + granularity - 1) // granularity
    last = np.cumsum(picks) - 1
    last_size = samples_per_shard - (picks - 1) * granularity
    # Shuffling the shard numbers themselves draws what `permutation(picks)` draws, at half the memory. The
    # shorter last granule of each shard is marked by a negative number, if granules are longer than 1.
    order = np.repeat(np.arange(len(picks), dtype=np.int32), picks)
    sizes_differ = granularity > 1
    if sizes_differ:
        order[last] = ~order[last]
    np.random.default_rng(seed).shuffle(order)
    if not sizes_differ:
        partial = np.bincount(order[: choose % total], minlength=len(picks))
        return samples_per_shard * (choose // total) + partial
    # An empty shard writes its size over its neighbour's last granule, as it does upstream.
    size_of_last = np.full(len(picks), granularity, np.int64)
    owner = np.repeat(np.arange(len(picks)), picks)[last]
    size_of_last[owner] = last_size
    shard = np.where(order < 0, ~order, order)
    drawn = np.where(order < 0, size_of_last[shard], granularity)
    taken = _up_to(drawn, choose % total)
    partial = np.zeros_like(samples_per_shard)
    np.add.at(partial, shard[: len(taken)], taken)
    return samples_per_shard * (choose // total) + partial


def _up_to(sizes: Ints, wanted: int) -> Ints:
    """Return the leading ``sizes`` that add up to ``wanted``, the last one cut to fit."""
    ends = np.cumsum(sizes)
    stop = int(np.searchsorted(ends, wanted)) + 1
    taken = sizes[:stop].copy()
    taken[-1] -= max(int(ends[len(taken) - 1]) - wanted, 0)
    return taken


def _check_streams(weights: Sequence[StreamWeight], sizes: Ints) -> None:
    if not len(weights) or len(weights) != len(sizes):
        raise ConfigError("streams", len(weights), f"give one weight for each of {len(sizes)} streams")
    for index, (weight, size) in enumerate(zip(weights, sizes, strict=True)):
        if size <= 0:
            raise DatasetError(f"stream {index} has no samples: check its index.json")
        if (weight.proportion is None) != (weights[0].proportion is None):
            mend = "weight every stream by proportion, or none (repeat and choose are absolute)"
            raise ConfigError(f"streams[{index}]", weight, mend)


def _shared_out(parts: Floats, epoch_size: int, seed: int) -> Weighted:
    if not parts.sum() > 0:
        raise ConfigError("proportion", parts.tolist(), "at least one stream needs a proportion above 0")
    proportion = parts / parts.sum()
    choose = (epoch_size * proportion).astype(np.int64)
    left_over = epoch_size - int(choose.sum())
    rng = np.random.default_rng(seed)
    choose[rng.choice(len(parts), left_over, False)] += 1
    return Weighted(choose, proportion)


def _absolute(weight: StreamWeight, samples: int) -> int:
    if weight.repeat is not None:
        return int(weight.repeat * samples)
    return samples if weight.choose is None else weight.choose
