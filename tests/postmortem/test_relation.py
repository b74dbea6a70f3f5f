"""What the mixture has to do with the loss: simulated runs whose truth is known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy import signal

from composer_mixmon.postmortem.effect import coherence_at, relate
from composer_mixmon.postmortem.trend import trend_basis

Floats = npt.NDArray[np.float64]

NAMES = ("ja", "en", "de")


def mixture(rng: np.random.Generator, rows: int, stay: int, labels: int = 3) -> Floats:
    """Shares of rows of 64 samples, most of them from one label that changes at random."""
    main = np.repeat(rng.integers(0, labels, -(-rows // stay)), stay)[:rows]
    p = np.full((rows, labels), 0.3 / labels)
    p[np.arange(rows), main] += 0.7
    return rng.multinomial(64, p) / 64


def falling(rows: int) -> Floats:
    """A loss as it falls without any see-saw."""
    return 2 + 6 * (np.arange(rows) + 10.0) ** -0.35


def wandering(rng: np.random.Generator, rows: int, memory: float, size: float) -> Floats:
    """First-order autoregressive noise."""
    return signal.lfilter([1], [1, -memory], rng.normal(0, size, rows))


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.4])
@pytest.mark.parametrize("rows", [600, 6000])
def test_the_share_explained_is_the_true_one(noise: float, rows: int) -> None:
    """The cross-fitted R² is within 0.12 of the variance that was put in, and its interval holds it."""
    rng = np.random.default_rng(rows)
    shares = mixture(rng, rows, rows // 50)
    pull = shares @ np.array([0.5, -0.5, 0.0])
    loss = falling(rows) + pull + rng.normal(0, noise, rows)
    found = relate(loss, shares, NAMES, 0.0, rows / 50).explained
    truth = pull.var() / (pull.var() + noise**2)
    assert found is not None
    assert found.value == pytest.approx(truth, abs=0.12)
    assert found.low - 0.05 < truth < found.high + 0.05


def test_effects_are_those_put_in() -> None:
    """Each label's effect is that of a least-squares fit of the untrended loss on it alone."""
    rng = np.random.default_rng(3)
    shares = mixture(rng, 5000, 40)
    loss = 1.0 + shares @ np.array([0.8, -0.4, 0.0]) + rng.normal(0, 0.05, 5000)
    found = relate(loss, shares, NAMES, 0.0, 40.0)
    assert found.effects[0].label in ("ja", "en")
    for effect in found.effects:
        share = shares[:, NAMES.index(effect.label)]
        slope = np.polyfit(share, loss, 1)[0]
        assert effect.per_tenth.value == pytest.approx(0.1 * slope, rel=0.15, abs=5e-3)
        assert effect.per_tenth.low < 0.1 * slope < effect.per_tenth.high


@pytest.mark.parametrize("late", [-2, 0, 1, 3])
def test_a_late_loss_is_found_late(late: int) -> None:
    """The lag is the number of rows by which the loss was moved, and the share explained stays."""
    rng = np.random.default_rng(5)
    shares = mixture(rng, 4000, 5)
    loss = falling(4000) + np.roll(shares @ np.array([0.6, -0.6, 0.0]), late) + rng.normal(0, 0.1, 4000)
    found = relate(loss, shares, NAMES, 0.0, 5.0)
    assert found.lag == late
    assert found.explained is not None
    assert found.explained.value > 0.6


@pytest.mark.parametrize("memory", [0.0, 0.9, 0.99])
def test_a_loss_that_wanders_by_itself_is_not_explained(memory: float) -> None:
    """Of 100 runs whose loss knows nothing of the mixture, at most 5 pass both hurdles."""
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(100):
        shares = mixture(rng, 600, 20)
        loss = falling(600) + wandering(rng, 600, memory, 0.05)
        found = relate(loss, shares, NAMES, 0.0, 20.0)
        assert found.explained is not None
        assert found.p is not None
        wrong += found.explained.low > 0 and found.explained.value >= 0.05 and found.p <= 0.05
    assert wrong <= 5


def test_p_is_uniform_where_there_is_nothing() -> None:
    """Of 300 unrelated runs, about a tenth have p ≤ 0.1 (binomial: 14 to 48 at 99.9 %)."""
    rng = np.random.default_rng(8)
    p = [
        relate(falling(500) + rng.normal(0, 0.1, 500), mixture(rng, 500, 10), NAMES, 0.0, 10.0).p
        for _ in range(300)
    ]
    assert 14 <= sum(one is not None and one <= 0.1 for one in p) <= 48


def test_one_spike_is_not_the_answer() -> None:
    """A single loss a hundred thousand times too high changes the share explained by less than 0.05."""
    rng = np.random.default_rng(9)
    shares = mixture(rng, 2000, 20)
    loss = falling(2000) + shares @ np.array([0.5, -0.5, 0.0]) + rng.normal(0, 0.1, 2000)
    clean = relate(loss, shares, NAMES, 0.0, 20.0).explained
    loss[1234] = 1e5
    spiked = relate(loss, shares, NAMES, 0.0, 20.0).explained
    assert clean is not None
    assert spiked is not None
    assert spiked.value == pytest.approx(clean.value, abs=0.05)


@pytest.mark.parametrize("rows", [1, 2, 5, 39, 40, 80])
def test_short_runs_give_no_figures_or_sound_ones(rows: int) -> None:
    """Too few rows give none; no run is too short for an answer."""
    rng = np.random.default_rng(rows)
    found = relate(falling(rows), mixture(rng, rows, 3), NAMES, 0.0, 3.0)
    assert len(found.trend) == rows
    if rows < 40:
        assert found.explained is None


def test_a_mixture_that_never_changes_explains_nothing() -> None:
    """Constant shares have no effect, and nothing is divided by zero."""
    rng = np.random.default_rng(1)
    found = relate(falling(500) + rng.normal(0, 0.1, 500), np.full((500, 2), 0.5), ("a", "b"))
    assert found.explained is None
    assert found.effects == ()


def test_a_thousand_labels() -> None:
    """More labels than directions that can be told apart: the one that matters still comes first."""
    rng = np.random.default_rng(2)
    shares = rng.dirichlet(np.full(1000, 0.02), 1500)
    loss = falling(1500) + 3 * shares[:, 17] + rng.normal(0, 0.05, 1500)
    found = relate(loss, shares, tuple(map(str, range(1000))), 0.0, 1.0)
    assert found.effects[0].label == "17"


def test_coherence_is_scipys() -> None:
    """At a frequency that Welch's method has a bin for, scipy gives the same magnitude-squared coherence."""
    rng = np.random.default_rng(4)
    wave = np.sin(2 * np.pi * np.arange(3200) / 32)
    a, b = wave + rng.normal(0, 2, 3200), wave + rng.normal(0, 2, 3200)
    found = coherence_at(32.0, a, b)
    frequencies, theirs = signal.coherence(a, b, nperseg=64, noverlap=32, window=np.hanning(64))
    assert found is not None
    assert found.value == pytest.approx(theirs[np.argmin(abs(frequencies - 1 / 32))], rel=1e-9)
    assert found.value > found.chance


def test_chance_is_where_unrelated_series_stay() -> None:
    """Of 400 pairs of unrelated series, about 1 in 20 is above the chance level (binomial: 7 to 36)."""
    rng = np.random.default_rng(6)
    pairs = (coherence_at(20.0, rng.normal(size=1000), rng.normal(size=1000)) for _ in range(400))
    above = sum(found is not None and found.value > found.chance for found in pairs)
    assert 7 <= above <= 36


def test_coherence_needs_segments() -> None:
    """A swing of which the run has only two has no coherence."""
    assert coherence_at(200.0, np.arange(500.0), np.arange(500.0)) is None


@pytest.mark.parametrize("rows", [1, 2, 3, 24, 500, 100_000])
@pytest.mark.parametrize("swing", [0.0, 10.0, 1e6])
def test_trend_functions_sum_to_one(rows: int, swing: float) -> None:
    """Hat functions sum to 1 everywhere, so that a constant is always a trend."""
    basis = trend_basis(rows, swing)
    assert np.allclose(basis.sum(axis=1), 1)
    assert (basis >= 0).all()


def test_trend_leaves_slow_swings() -> None:
    """A swing of a third of the run is left by a trend that was told of it."""
    wave = np.sin(2 * np.pi * np.arange(900) / 300)
    basis = trend_basis(900, 300.0)
    left = wave - basis @ np.linalg.lstsq(basis, wave, rcond=None)[0]
    assert left.var() > 0.6 * wave.var()
