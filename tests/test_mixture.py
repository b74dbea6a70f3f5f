"""Window and run are exact, however the batches are handed over, and survive being saved."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from composer_mixmon.mixture import Mixture

fixed = settings(derandomize=True, deadline=None)


def draw(batches: int, labels: int, seed: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).multinomial(64, np.full(labels, 1 / labels), batches)


def chunks(rows: npt.NDArray[np.int64], cuts: list[int]) -> list[npt.NDArray[np.int64]]:
    return np.split(rows, sorted({c for c in cuts if c <= len(rows)}))


@fixed
@given(
    st.integers(1, 60),
    st.integers(1, 6),
    st.integers(1, 20),
    st.lists(st.integers(0, 60), max_size=6),
    st.integers(0, 2**32 - 1),
)
def test_window_and_run_are_brute_force_sums(
    batches: int, labels: int, window: int, cuts: list[int], seed: int
) -> None:
    """After each batch, the window is the sum of the last W rows and the run the sum of all."""
    rows = draw(batches, labels, seed)
    mixture = Mixture(np.full(labels, 1 / labels), window)
    seen: list[npt.NDArray[np.int64]] = []
    for part in chunks(rows, cuts):
        fold = mixture.fold(part)
        assert fold.before == len(seen)
        for row, in_window, dispersion in zip(part, fold.window, fold.dispersion, strict=True):
            seen.append(row)
            assert np.array_equal(in_window, np.sum(seen[-window:], axis=0))
            if labels > 1:
                chi2 = [stats.chisquare(r).statistic / (labels - 1) for r in seen[-window:]]
                assert dispersion == pytest.approx(np.mean(chi2), rel=1e-12)
        mixture.commit(fold)
        assert np.array_equal(mixture.run, np.sum(seen, axis=0) if seen else np.zeros(labels))
        assert np.array_equal(mixture.recent, np.reshape(seen[-window:], (-1, labels)))
    assert mixture.batches == batches


@fixed
@given(
    st.integers(0, 50),
    st.integers(1, 5),
    st.integers(1, 15),
    st.lists(st.integers(0, 50), max_size=4),
    st.integers(0, 99),
)
def test_saved_and_loaded_is_uninterrupted(
    batches: int, labels: int, window: int, cuts: list[int], seed: int
) -> None:
    """Saving and loading between any two batches changes no bit of the state or of the figures."""
    rows = draw(batches, labels, seed)
    target = np.full(labels, 1 / labels)
    straight, broken = Mixture(target, window), Mixture(target, window)
    for part in chunks(rows, cuts):
        fold = straight.fold(part)
        straight.commit(fold)
        saved = json.loads(json.dumps(broken.state_dict()))
        broken = Mixture(target, window)
        broken.load_state_dict(saved)
        again = broken.fold(part)
        broken.commit(again)
        assert np.array_equal(fold.dispersion, again.dispersion)
        assert np.array_equal(fold.window, again.window)
        assert broken.state_dict() == straight.state_dict()


def test_fold_alone_records_nothing() -> None:
    """A fold that is not committed leaves the books as they were."""
    mixture = Mixture(np.array([0.5, 0.5]), 3)
    mixture.commit(mixture.fold(np.array([[1, 2], [3, 4]])))
    before = mixture.state_dict()
    mixture.fold(np.array([[100, 0]] * 20))
    assert mixture.state_dict() == before
    assert np.array_equal(mixture.fold(np.array([[5, 6], [7, 8]])).window, [[9, 12], [15, 18]])


def test_metrics_by_hand() -> None:
    """Two labels at 3:1 of 8 samples, target 1:1: deviation 0.25, noise floor 35/256."""
    mixture = Mixture(np.array([0.5, 0.5]), 2)
    figures = mixture.metrics(mixture.fold(np.array([[0, 4], [3, 1], [3, 1]])), ("ja", "en"))
    assert figures == {
        "mixmon/window/deviation": 0.25,
        "mixmon/window/noise_floor": pytest.approx(35 / 256, rel=1e-14),
        "mixmon/window/dispersion": 1.0,
        "mixmon/run/deviation": 0.0,
        "mixmon/window/ratio/ja": 0.75,
        "mixmon/window/ratio/en": 0.25,
        "mixmon/run/ratio/ja": 0.5,
        "mixmon/run/ratio/en": 0.5,
    }


def test_state_of_other_labels_is_refused() -> None:
    """Counts of three labels do not become counts of two."""
    saved = Mixture(np.full(3, 1 / 3), 4).state_dict()
    with pytest.raises(ValueError, match="3 labels were saved, 2 are counted"):
        Mixture(np.full(2, 1 / 2), 4).load_state_dict(saved)


def test_changed_target() -> None:
    """With a new target, the window starts anew and the run is measured against both in proportion."""
    mixture = Mixture(np.array([1.0, 0.0]), 4)
    mixture.commit(mixture.fold(np.array([[8, 0], [8, 0]])))
    mixture.retarget(np.array([0.5, 0.5]))
    resumed = Mixture(np.array([0.5, 0.5]), 4)
    resumed.load_state_dict(json.loads(json.dumps(mixture.state_dict())))
    for books in (mixture, resumed):
        fold = books.fold(np.array([[2, 6], [2, 6]]))
        assert fold.before == 0  # the grace of a rule begins anew
        assert fold.window.tolist() == [[2, 6], [4, 12]]
        assert fold.dispersion.tolist() == [2.0, 2.0]
        figures = books.metrics(fold, ("ja", "en"))
        # 20 of 32 are ja; meant were 16 of 16 and 8 of 16.
        assert (figures["mixmon/run/ratio/ja"], figures["mixmon/run/deviation"]) == (0.625, 0.125)
