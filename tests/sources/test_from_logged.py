"""Counts come back exactly from the shares that mixmon logs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_mixmon.mixture import Mixture
from composer_mixmon.run_record import Resumption
from composer_mixmon.sources.from_logged import record_of
from composer_mixmon.sources.logged import LOSS, Logged, Part

NAMES = ("ja", "en/wiki", "code")
CONFIG = {
    "labels": list(NAMES),
    "log_interval": 4,
    "world": {"nodes": 2, "ranks_per_node": 2},
    "loader": {"batch_size": 8, "drop_last": False, "num_workers": 1},
    "dataset": {"batch_size": 8, "replication": None, "epoch_size": 100},
    "target": [
        {"from": "0ba", "shares": [0.5, 0.5, 0.0]},
        {"from": "2ep", "shares": [0.0, 0.5, 0.5]},
        {"from": "0.5dur", "shares": [0.0, 0.0, 1.0]},
    ],
}


def logged_by_mixmon(rows: np.ndarray, interval: int, samples_logged: bool) -> Part:
    """What Composer and mixmon log of a run with these counts: every ``interval`` batches, and at the end."""
    part, mixture, waiting = Part(), Mixture(np.full(len(NAMES), 1 / len(NAMES)), 5), 0
    for batch, _ in enumerate(rows):
        waiting += 1
        part.put(LOSS, batch, float(batch))
        if samples_logged:
            part.put("time/sample", batch, float(rows[:batch].sum()))
        if (batch + 1) % interval == 0:
            log(part, batch, mixture, rows[batch + 1 - waiting : batch + 1])
            waiting = 0
    if samples_logged:
        part.put("time/sample", len(rows), float(rows.sum()))
    if waiting:
        log(part, len(rows), mixture, rows[len(rows) - waiting :])
    return part


def log(part: Part, step: int, mixture: Mixture, rows: np.ndarray) -> None:
    fold = mixture.fold(rows)
    mixture.commit(fold)
    for key, value in mixture.metrics(fold, NAMES).items():
        part.put(key, step, value)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_counts_are_exact(data: st.DataObject) -> None:
    """Whatever the counts, the interval, and the rows that are lost; batches may differ in size."""
    seed = data.draw(st.integers(0, 2**32 - 1))
    batches = data.draw(st.integers(1, 60))
    interval = data.draw(st.integers(1, 9))
    scale = data.draw(st.sampled_from([1, 50, 1 << 20, 1 << 40]))
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, scale + 1, (batches, len(NAMES)))
    part = logged_by_mixmon(rows, interval, samples_logged=True)
    config = {"mixmon": CONFIG | {"log_interval": interval}}
    record = record_of(Logged.join("W&B", [part], config=config))
    assert record.counts is not None
    np.testing.assert_array_equal(record.counts.sum(axis=0), rows.sum(axis=0))
    for first, span, counts, loss in zip(record.first, record.span, record.counts, record.loss, strict=True):
        np.testing.assert_array_equal(counts, rows[first : first + span].sum(axis=0))
        assert loss == np.arange(first, first + span).mean()
    assert record.names == NAMES
    assert not [remark for remark in record.remarks if "approximate" in remark]


def test_rows_that_are_lost_make_longer_ones() -> None:
    """A sampled export has fewer rows; each holds the counts since the one before."""
    rows = np.random.default_rng(1).integers(0, 30, (40, 3))
    part = logged_by_mixmon(rows, 4, samples_logged=True)
    logged = Logged.join("CSV", [part], config={"mixmon": CONFIG})
    few = dict(logged.columns)
    for key in few:
        if key.startswith("mixmon/"):
            few[key] = type(few[key])(few[key].steps[[0, 3, 4, 9]], few[key].values[[0, 3, 4, 9]])
    record = record_of(Logged("CSV", few, config={"mixmon": CONFIG}))
    assert record.first.tolist() == [0, 4, 16, 20]
    assert record.span.tolist() == [4, 12, 4, 20]
    assert record.counts is not None
    np.testing.assert_array_equal(record.counts, np.add.reduceat(rows, [0, 4, 16, 20]))


def test_samples_from_the_settings() -> None:
    """Without Composer's count of samples, batches have the size that the settings say."""
    rows = np.random.default_rng(1).multinomial(32, [0.5, 0.3, 0.2], 20)
    part = logged_by_mixmon(rows, 4, samples_logged=False)
    record = record_of(Logged.join("W&B", [part], config={"mixmon": CONFIG}))
    assert record.counts is not None
    np.testing.assert_array_equal(record.counts, rows.reshape(5, 4, 3).sum(axis=1))
    bare = Logged.join("CSV", [part])
    record = record_of(bare, 32)
    assert record.counts is not None
    np.testing.assert_array_equal(record.counts, rows.reshape(5, 4, 3).sum(axis=1))
    record = record_of(bare)
    assert record.counts is None
    assert len(record.first) == 20
    assert "give --config" in record.remarks[-1]


def test_shares_in_single_precision() -> None:
    """TensorBoard's shares give exact counts up to millions of samples, and say so where they do not."""
    rng = np.random.default_rng(1)
    for scale, exact in ((1000, True), (10_000_000, False)):
        rows = rng.multinomial(scale, [0.5, 0.3, 0.2], 40)
        part = logged_by_mixmon(rows, 4, samples_logged=True)
        logged = Logged.join("TensorBoard", [part], precision=2.0**-24, config={"mixmon": CONFIG})
        for key, series in logged.columns.items():
            if key.startswith("mixmon/"):
                series.values[:] = series.values.astype(np.float32)
        record = record_of(logged)
        assert record.counts is not None
        off = np.abs(record.counts - rows.reshape(10, 4, 3).sum(axis=1)).max()
        assert (off == 0) == exact
        assert any("approximate" in remark for remark in record.remarks) != exact
        assert off < 2 * 40 * scale * 2**-24


def test_books_begun_afresh_are_not_believed() -> None:
    """Shares of a part of the run do not fit the samples of all of it: no counts, and a remark."""
    rows = np.random.default_rng(1).multinomial(32, [0.5, 0.3, 0.2], 40)
    whole = logged_by_mixmon(rows, 4, samples_logged=True)
    later = Part()
    log_again = logged_by_mixmon(np.eye(3, dtype=int)[[2] * 40] * 32, 4, samples_logged=False)
    for key in whole.keys:
        source = log_again if key.startswith("mixmon/") else whole
        series = source.series(key)
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
            if not key.startswith("mixmon/") or step >= 20:
                later.put(key, step, value)
    first = whole.series("mixmon/run/ratio/ja")
    for name in NAMES:
        for step, value in zip(first.steps[:5].tolist(), [1.0, 0.9, 0.8, 0.9, 0.9], strict=True):
            later.put(f"mixmon/run/ratio/{name}", step, value if name == "ja" else (1 - value) / 2)
    record = record_of(Logged.join("W&B", [later], config={"mixmon": CONFIG}))
    assert record.counts is None
    assert any("begun afresh" in remark for remark in record.remarks)
    assert len(record.first) == 40


def test_targets_and_where_they_begin() -> None:
    """In batches, epochs and parts of the run; what cannot be placed is said."""
    part = Part()
    part.put(LOSS, 0, 1.0)
    record = record_of(Logged.join("W&B", [part], config={"mixmon": CONFIG, "max_duration": "100ba"}))
    assert [target.first for target in record.targets] == [0, 8, 50]
    assert record.targets[2].shares.tolist() == [0.0, 0.0, 1.0]
    record = record_of(Logged.join("W&B", [part], config={"mixmon": CONFIG}))
    assert [target.first for target in record.targets] == [0, 8]
    assert "from 0.5dur on is left out" in record.remarks[0]


def test_resumptions() -> None:
    """A process that starts at another batch than 0 went on from a checkpoint, whose place Composer logs."""
    parts = [Part(), Part()]
    for part, steps in zip(parts, (range(10), range(7, 12)), strict=True):
        for step in steps:
            part.put(LOSS, step, 1.0)
            part.put("time/sample_in_epoch", step, 32.0 * (step % 4))
            if step % 4 == 0:
                part.put("time/epoch", step, step // 4)
    record = record_of(Logged.join("W&B", parts, config={}))
    assert record.resumptions == (Resumption(7, 1, 96, 3),)
    assert record.epoch.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert record_of(Logged.join("W&B", parts[1:], config={})).resumptions == (Resumption(7, discarded=0),)


def test_losses_that_are_no_numbers() -> None:
    """NaN and infinite losses stay what they are, in single rows and in means, without a warning."""
    part = logged_by_mixmon(np.full((8, 3), 4), 4, samples_logged=True)
    other = Part()
    for key in part.keys:
        series = part.series(key)
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
            bad = {2: np.inf, 3: -np.inf, 5: np.nan}.get(step, value) if key == LOSS else value
            other.put(key, step, bad)
    record = record_of(Logged.join("W&B", [other], config={"mixmon": CONFIG}))
    assert np.isnan(record.loss).tolist() == [True, True]


def test_the_loss_goes_on_without_the_mixture() -> None:
    """Where monitoring was turned off, the record ends with the mixture and says how much is left out."""
    part = logged_by_mixmon(np.full((8, 3), 4), 4, samples_logged=True)
    for step in range(8, 20):
        part.put(LOSS, step, 1.0)
    record = record_of(Logged.join("W&B", [part], config={"mixmon": CONFIG}))
    assert record.first.tolist() == [0, 4]
    assert "up to batch 7; 12 losses come later" in record.remarks[0]


@pytest.mark.parametrize("settings_", [{}, {"mixmon": None}, {"mixmon": "x"}, {"mixmon": {}}])
def test_no_settings(settings_: dict[str, object]) -> None:
    """A run without mixmon has its loss."""
    part = Part()
    part.put(LOSS, 3, 1.0)
    record = record_of(Logged.join("W&B", [part], config=settings_))
    assert (record.counts, record.names, record.settings) == (None, (), {})
    assert record.first.tolist() == [3]
