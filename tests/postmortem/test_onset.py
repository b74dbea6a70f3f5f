"""Losses that diverge, break, spike, swing, or do nothing of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from composer_mixmon.postmortem.onset import find_onset, find_spikes

Floats = npt.NDArray[np.float64]


def healthy(rng: np.random.Generator, rows: int, noise: float) -> Floats:
    return 2 + 6 * (np.arange(rows) + 10.0) ** -0.35 + rng.normal(0, noise, rows)


@pytest.mark.parametrize("rows", [60, 500, 20_000])
@pytest.mark.parametrize("noise", [0.01, 0.3])
def test_a_healthy_loss_has_no_onset(rows: int, noise: float) -> None:
    """A falling, noisy loss never left its course, in 50 runs."""
    rng = np.random.default_rng(rows)
    assert all(find_onset(healthy(rng, rows, noise)) is None for _ in range(50))


@pytest.mark.parametrize("stay", [5, 40])
def test_a_see_saw_has_no_onset(stay: int) -> None:
    """A loss that swings by 1 at random, wherever the run ends in a swing, never left its course."""
    rng = np.random.default_rng(stay)
    for _ in range(50):
        swing = np.repeat(rng.integers(0, 2, 2000 // stay), stay)
        loss = healthy(rng, len(swing), 0.1) + swing
        assert find_onset(loss[: rng.integers(600, len(loss))]) is None


@pytest.mark.parametrize("rows", [200, 3000, 50_000])
@pytest.mark.parametrize("part", [0.3, 0.8])
@pytest.mark.parametrize("ramp", [0.0, 0.05])
def test_a_rise_for_good_is_found_where_it_begins(rows: int, part: float, ramp: float) -> None:
    """A rise by 3, at once or over a twentieth of the run, is found within 2 % of the run, or in its ramp."""
    rng = np.random.default_rng(rows)
    loss = healthy(rng, rows, 0.1)
    onset = int(part * rows)
    loss += 3 * np.clip((np.arange(rows) - onset) / max(1, ramp * rows), 0, 1)
    found = find_onset(loss)
    assert found is not None
    assert found.kind == "rise"
    assert -0.02 * rows <= found.row - onset <= (0.02 + ramp) * rows
    assert found.after is not None
    assert found.after > found.before + 2


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_broken_loss_is_found_at_its_first_row(broken: float) -> None:
    """NaN or infinite from row 700 on; single ones before do not count."""
    loss = healthy(np.random.default_rng(1), 1000, 0.1)
    loss[[100, 400]] = np.nan
    assert find_onset(loss) is None
    loss[700:] = broken
    found = find_onset(loss)
    assert found is not None
    assert (found.row, found.kind, found.after) == (700, "not finite", None)


def test_a_loss_that_rises_before_it_breaks() -> None:
    """The rise is the onset, and the NaN that follow do not hide it."""
    rng = np.random.default_rng(2)
    loss = healthy(rng, 1000, 0.05)
    loss[600:] += 4
    loss[800:] = np.nan
    found = find_onset(loss)
    assert found is not None
    assert found.kind == "rise"
    assert abs(found.row - 600) <= 10


def test_a_loss_logged_now_and_then_is_not_broken() -> None:
    """NaN between logged losses, and as many after the last, mean nothing."""
    loss = np.full(1000, np.nan)
    loss[::25] = healthy(np.random.default_rng(3), 40, 0.05)
    assert find_onset(loss) is None


def test_a_rise_that_comes_back_is_a_spike_only() -> None:
    """An excursion of 20 rows is none for good, and its highest row is told as a spike."""
    rng = np.random.default_rng(4)
    trend = healthy(rng, 2000, 0.0)
    noise = rng.normal(0, 0.05, 2000)
    noise[900:920] += 3
    noise[907] += 1
    assert find_onset(trend + noise) is None
    assert find_spikes(noise) == [907]


def test_spikes_are_told_highest_first_and_not_of_a_see_saw() -> None:
    """Single spikes by height; a loss that is high half of the time has none."""
    rng = np.random.default_rng(5)
    noise = rng.normal(0, 0.05, 1000)
    noise[[100, 500, 800]] += [2, 5, 3]
    assert find_spikes(noise) == [500, 800, 100]
    assert find_spikes(np.repeat(rng.integers(0, 2, 100), 10) * 1.0) == []
    assert find_spikes(np.zeros(10)) == []
    assert find_spikes(np.zeros(0)) == []


@pytest.mark.parametrize("rows", range(13))
def test_tiny_runs_have_no_onset(rows: int) -> None:
    """Fewer rows than can tell."""
    assert find_onset(np.arange(rows, dtype=np.float64)) is None or rows >= 12
