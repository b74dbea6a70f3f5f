"""Whole post-mortems of made-up runs whose cause is known, read from real ledgers and files."""

from __future__ import annotations

import contextlib
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from composer_mixmon.errors import ConfigError
from composer_mixmon.postmortem.diagnose import diagnose
from composer_mixmon.postmortem.findings import Findings
from composer_mixmon.rows import Closed, Rows
from composer_mixmon.sources import Given
from tests.ledger.data import header, write
from tests.sources.runs import saving, train, write_yaml

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

ROWS = 1200
SAMPLES = 128


def look(run: Path | str | None, **given: Any) -> Findings:
    return diagnose(
        None if run is None else str(run),
        Given(**given),
        lambda _, __: contextlib.nullcontext(lambda _: None),
    )


def counts(rng: np.random.Generator, ja: Floats) -> Ints:
    return rng.multinomial(SAMPLES, np.stack([ja, 1 - ja], axis=1))


def ledger(folder: Path, rows: Ints, loss: Floats) -> Path:
    """Write a run's ledger, in intervals of ten batches."""
    head = header(labels=("ja", "en"), target=(0.5, 0.5), settings={"window": 20})
    parts: list[Closed] = []
    for first in range(0, len(rows), 10):
        piece = Rows.empty(len(rows[first : first + 10]), 2)
        for row, one in enumerate(rows[first : first + 10]):
            piece.put(row, one, None, int(np.random.default_rng(first + row).integers(1, 1 << 62)))
        batches = np.arange(first, first + len(piece.counts))
        parts.append(Closed(piece, batches, np.zeros_like(batches), loss[first : first + 10]))
    return write(folder, head, *parts)


def falling(rng: np.random.Generator, rows: int = ROWS, noise: float = 0.05) -> Floats:
    return 2 + 6 * (np.arange(rows) + 10.0) ** -0.35 + rng.normal(0, noise, rows)


def swinging(rng: np.random.Generator) -> Floats:
    """A share of ja that is 0.2 or 0.8, for 30 batches at a time."""
    return 0.2 + 0.6 * np.repeat(rng.integers(0, 2, ROWS // 30), 30)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def test_a_loss_that_follows_a_see_saw(tmp_path: Path, rng: np.random.Generator) -> None:
    """The data are the cause: label, period, effect and share explained are those put in."""
    ja = swinging(rng)
    rows = counts(rng, ja)
    pull = 0.6 * rows[:, 0] / SAMPLES
    found = look(ledger(tmp_path, rows, falling(rng) + pull))
    assert found.verdict.kind == "data"
    assert found.biased
    assert found.mixture is not None
    assert found.mixture.see_saw is not None
    ups = np.flatnonzero(np.diff(ja) > 0)
    assert found.mixture.see_saw.period == pytest.approx((ups[-1] - ups[0]) / (len(ups) - 1), rel=0.1)
    assert found.loss is not None
    assert found.loss.explained is not None
    assert found.loss.explained.value == pytest.approx(pull.var() / (pull.var() + 0.05**2), abs=0.1)
    effects = {effect.label: effect.per_tenth.value for effect in found.loss.effects}
    assert effects == pytest.approx({"ja": 0.06, "en": -0.06}, rel=0.1)


def test_a_see_saw_that_the_loss_does_not_follow(tmp_path: Path, rng: np.random.Generator) -> None:
    """The mixture is biased, and still not why a loss moves that does not know it."""
    found = look(ledger(tmp_path, counts(rng, swinging(rng)), falling(rng)))
    assert found.verdict.kind == "not data"
    assert found.mixture is not None
    assert found.mixture.alarms
    assert "do not explain" in found.verdict.headline


@pytest.mark.parametrize("broken", [False, True])
def test_a_divergence_with_healthy_data(tmp_path: Path, rng: np.random.Generator, broken: bool) -> None:
    """The loss leaves its course while the mixture is as it should be: not the data."""
    loss = falling(rng)
    loss[700:] = np.nan if broken else loss[700:] + 4
    found = look(ledger(tmp_path, counts(rng, np.full(ROWS, 0.5)), loss))
    assert found.verdict.kind == "not data"
    assert found.loss is not None
    assert found.loss.onset is not None
    assert abs(found.loss.onset.batch - 700) <= 15
    assert f"{found.loss.onset.batch:,}" in found.verdict.headline
    assert any("mixmon show" in advice for advice in found.advice)


def test_a_divergence_when_the_data_went_wrong(tmp_path: Path, rng: np.random.Generator) -> None:
    """The mixture tips over at batch 700, and so does the loss: the data."""
    tipped = np.arange(ROWS) >= 700
    loss = falling(rng) + 3 * tipped
    found = look(ledger(tmp_path, counts(rng, np.where(tipped, 0.95, 0.5)), loss))
    assert found.verdict.kind == "data"
    assert found.mixture is not None
    assert 690 < found.mixture.alarms[0].batch < 720
    assert found.mixture.drift[0].end - found.mixture.drift[0].start == pytest.approx(0.45, abs=0.02)


def test_a_healthy_run(tmp_path: Path, rng: np.random.Generator) -> None:
    """Nothing is found, and no advice is given."""
    found = look(ledger(tmp_path, counts(rng, np.full(ROWS, 0.5)), falling(rng)))
    assert found.verdict.kind == "not data"
    assert not found.biased
    assert found.advice == ()
    assert found.mixture is not None
    assert found.mixture.see_saw is None
    assert found.mixture.dispersion == pytest.approx(1, abs=0.15)


def test_no_loss(tmp_path: Path, rng: np.random.Generator) -> None:
    """Without a loss the mixture is still told, and the verdict open."""
    found = look(ledger(tmp_path, counts(rng, swinging(rng)), np.full(ROWS, np.nan)))
    assert found.verdict.kind == "unknown"
    assert found.loss is None
    assert "biased" in found.verdict.headline


def test_only_a_loss(tmp_path: Path, rng: np.random.Generator) -> None:
    """A CSV export with a loss alone: its onset is told, and the verdict open."""
    loss = falling(rng)
    loss[900:] += 5
    with (tmp_path / "loss.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["Step", "loss/train/total"], *enumerate(loss.tolist())])
    found = look(tmp_path / "loss.csv")
    assert found.verdict.kind == "unknown"
    assert found.mixture is None
    assert found.loss is not None
    assert found.loss.onset is not None
    assert abs(found.loss.onset.batch - 900) <= 15


@pytest.mark.parametrize("rows", [1, 2, 9, 41])
def test_short_runs(tmp_path: Path, rng: np.random.Generator, rows: int) -> None:
    """Few batches give a report without figures that would need more."""
    found = look(ledger(tmp_path, counts(rng, np.full(rows, 0.5)), falling(rng, rows)))
    assert found.batches == rows
    assert len(found.series.edges) == rows + 1
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_cut_ledger_is_analysed_as_far_as_it_goes(tmp_path: Path, rng: np.random.Generator) -> None:
    """Cut anywhere, the whole records before the cut are analysed, and what is missing is said."""
    path = ledger(tmp_path, counts(rng, swinging(rng)), falling(rng))
    whole = path.read_bytes()
    for size in (len(whole) - 1, len(whole) * 2 // 3, len(whole) // 2 + 7):
        path.write_bytes(whole[:size])
        found = look(path)
        assert 0 < found.batches < ROWS
        assert found.batches % 10 == 0
        assert any("cut" in r or "damaged" in r or "incomplete" in r or "whole" in r for r in found.remarks)


@pytest.mark.parametrize("seed", range(3))
def test_everything_is_plain_and_finite(tmp_path: Path, seed: int) -> None:
    """JSON takes all of it, of losses that are NaN, infinite and huge, and of batches without a sample."""
    rng = np.random.default_rng(seed)
    loss = falling(rng)
    loss[rng.integers(0, ROWS, 60)] = np.nan
    loss[rng.integers(0, ROWS, 60)] = rng.choice([np.inf, -np.inf, 1e30], 60)
    rows = counts(rng, swinging(rng))
    rows[rng.integers(0, ROWS, 60)] = 0
    json.dumps(look(ledger(tmp_path, rows, loss)).to_dict(), allow_nan=False)


def test_a_real_run_and_a_yaml_that_is_not_its_own(tmp_path: Path) -> None:
    """A resumed run's order is proved; another seed is named, and the rest analysed all the same."""
    from composer_mixmon import MixMon

    train(tmp_path, "8ba", MixMon(log_interval="4ba"), **saving(tmp_path, "4ba"))
    train(
        tmp_path,
        "2ep",
        MixMon(log_interval="4ba"),
        load_path=str(tmp_path / "saved/ba8.pt"),
        **saving(tmp_path, "4ba"),
    )
    found = look(tmp_path / "saved")
    assert found.order.checked == 22
    assert "replay" in found.order.by
    assert found.order.breaks == ()
    assert [one.batch for one in found.order.resumptions] == [8]
    assert found.series.heat is not None
    other = look(tmp_path / "saved", config=write_yaml(tmp_path, shuffle_seed=6))
    assert any("shuffle_seed: 5 → 6" in remark for remark in other.remarks)
    assert other.order.checked == 22


def test_nothing_to_analyse(tmp_path: Path) -> None:
    """No run and no YAML, or an empty folder: one error."""
    with pytest.raises(ConfigError, match="RUN"):
        look(None)
    with pytest.raises(ConfigError, match="RUN"):
        look(tmp_path)
