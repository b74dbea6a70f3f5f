"""Swings and drifts of a mixture whose truth is known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from composer_mixmon.postmortem.seesaw import find_drift, find_swing, relations

EVEN = np.array([0.5, 0.5])


def counted(rng: np.random.Generator, first: npt.NDArray[np.float64], samples: int) -> npt.NDArray[np.int64]:
    """Counts of two labels, the first with this share in each row."""
    return rng.multinomial(samples, np.stack([first, 1 - first], axis=1))


def swing_of(counts: npt.NDArray[np.int64]):
    samples = counts.sum(axis=1)
    return find_swing(counts / samples[:, None], samples, EVEN)


@pytest.mark.parametrize("period", [8, 32, 90, 500])
@pytest.mark.parametrize("samples", [16, 256])
@pytest.mark.parametrize("shape", ["square", "sine"])
def test_the_period_of_a_periodic_mixture(period: int, samples: int, shape: str) -> None:
    """A square or sine wave is found with its period to 3 % and its amplitude to 10 %."""
    rng = np.random.default_rng(period)
    phase = 2 * np.pi * (np.arange(20 * period) + 0.5) / period
    wave = np.sin(phase) if shape == "sine" else np.sign(np.sin(phase))
    found = swing_of(counted(rng, 0.5 + 0.3 * wave, samples))
    assert found is not None
    assert found.period == pytest.approx(period, rel=0.03)
    assert found.amplitude == pytest.approx(0.3 * wave.std(), rel=0.1)
    # Its autocorrelation is a wave of the same period: it reaches 0 after a quarter.
    assert found.stay == pytest.approx(period / 4, rel=0.35, abs=1)


@pytest.mark.parametrize("shard", [4, 16, 100])
def test_shards_in_random_order(shard: int) -> None:
    """Shards of one label each, in random order: the mixture stays for one shard, and turns as they do."""
    rng = np.random.default_rng(shard)
    order = rng.integers(0, 2, 200)
    first = np.repeat(order, shard) * 0.9 + 0.05
    found = swing_of(counted(rng, first, 64))
    ups = np.flatnonzero(np.diff(order) > 0)
    assert found is not None
    assert found.stay == pytest.approx(shard, rel=0.3)
    assert found.period == pytest.approx(shard * (ups[-1] - ups[0]) / (len(ups) - 1), rel=0.1)
    assert found.cycles == pytest.approx(len(ups), rel=0.1)


@pytest.mark.parametrize("share", [0.03, 0.5])
def test_a_perfect_shuffle_does_not_swing(share: float) -> None:
    """Independent draws are never taken for a swing, in 200 runs."""
    rng = np.random.default_rng(1)
    target = np.array([share, 1 - share])
    for _ in range(200):
        counts = counted(rng, np.full(400, share), 64)
        assert find_swing(counts / 64, counts.sum(axis=1), target) is None


def test_a_label_that_comes_rarely_swings_too() -> None:
    """One shard in twenty of a rare label, and else none: its period is the distance of these shards."""
    rng = np.random.default_rng(2)
    first = np.tile(np.repeat([1.0, 0.0], [10, 190]), 30)
    counts = counted(rng, first, 32)
    found = find_swing(counts / 32, counts.sum(axis=1), np.array([0.05, 0.95]))
    assert found is not None
    assert found.period == pytest.approx(200, rel=0.02)


def test_two_cycles_are_no_swing() -> None:
    """What happens twice is not called a see-saw."""
    rng = np.random.default_rng(3)
    first = 0.5 + 0.4 * np.sign(np.sin(2 * np.pi * (np.arange(400) + 0.5) / 200))
    assert swing_of(counted(rng, first, 64)) is None


@pytest.mark.parametrize(
    ("length", "said"),
    [(16.0, "one shard"), (33.0, "two shards"), (8.0, "half a shard"), (61.0, "four shards"), (23.0, None)],
)
def test_relations_are_told_where_they_hold(length: float, said: str | None) -> None:
    """Half, one, two and four times a known length within 15 %, and nothing else."""
    found = relations({"one swing": length}, {"shard": 16.0, "epoch": 0.0})
    assert found == () if said is None else said in found[0]


def test_drift_is_told_with_its_ends() -> None:
    """A share that goes from 0.3 to 0.7 drifts; a see-saw does not, nor a share whose target moves along."""
    rng = np.random.default_rng(4)
    line = np.linspace(0.3, 0.7, 1000)
    counts = counted(rng, line, 256)
    samples, meant = counts.sum(axis=1), np.tile(EVEN, (1000, 1))
    found = find_drift(counts / 256, samples, meant, 0.05)
    assert {label for label, _, _ in found} == {0, 1}
    start, end = next((a, b) for label, a, b in found if label == 0)
    assert start == pytest.approx(0.32, abs=0.01)
    assert end == pytest.approx(0.68, abs=0.01)
    assert not find_drift(counts / 256, samples, np.stack([line, 1 - line], axis=1), 0.05)
    wave = 0.5 + 0.4 * np.sign(np.sin(np.arange(1000) / 5))
    assert not find_drift(counted(rng, wave, 256) / 256, samples, meant, 0.05)
