"""Made-up findings, as realistic as they need be for the reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from composer_mixmon.alarms import Alarm
from composer_mixmon.postmortem.findings import (
    Break,
    Coherence,
    Drift,
    Effect,
    Estimate,
    Findings,
    LossFindings,
    MixtureFindings,
    Onset,
    OrderFindings,
    SeeSaw,
    Series,
    Verdict,
    WorstWindow,
)
from composer_mixmon.run_record import Resumption
from composer_mixmon.sources.order import ShardHeat

Floats = npt.NDArray[np.float64]

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1)",
    "a\x1b[2J\x00\r\n\u202e\u2066gnp.exe",
    "</style></title><base href=//evil.example>",
    "{{ 7 * 7 }}{% raw %}",
    "--><svg onload=alert(1)>",
    "_$\\frac{a$ [red]x[/red]",
    "\ud800 url(https://evil.example/x) &lt;b&gt;",
)
LONG = "x" * 10_000

SETTINGS: dict[str, Any] = {
    "dataset": {"shuffle_algo": "py1s", "shuffle_seed": 9176, "num_canonical_nodes": 1, "batch_size": 256},
    "world": {"nodes": 1, "ranks_per_node": 8},
    "target": [{"from": 0, "shares": [0.5, 0.5]}],
    "window": 100,
}
KEPT = OrderFindings(999_000, "the order hashes of a replay of the settings", (), ())
NOT_CHECKED = OrderFindings(0, "nothing: no order hash was recorded", (), ())
NO_SERIES = Series(
    edges=np.zeros(0, np.int64),
    names=(),
    more=0,
    shares=np.zeros((0, 0, 3)),
    targets=np.zeros((0, 0)),
    deviation=np.zeros(0),
    noise=np.zeros(0),
    loss=np.zeros((0, 3)),
    trend=np.zeros(0),
    dispersion=np.zeros((0, 100)),
    heat=None,
)


def labels(number: int) -> tuple[str, ...]:
    known = ("ja", "en", "code", "wiki", "books", "arxiv", "forums", "law")
    return known[:number] + tuple(f"source-{place}" for place in range(len(known), number))


def band(mean: Floats, spread: Any) -> Floats:
    """Lowest, mean and highest: float64 (columns, 3)."""
    return np.stack([mean - spread, mean, mean + spread], axis=1)


def series(batches: int, names: tuple[str, ...], swing: float = 0.3, **changes: Any) -> Series:
    """Shares that swing around even ones, and a loss that falls and follows the first of them."""
    rng = np.random.default_rng(5)
    columns = min(batches, 1000)
    edges = np.arange(columns + 1) * batches // columns
    drawn = names[:8]
    share = 1 / len(names)
    wave = np.sin(np.arange(columns)[:, None] / 25 + np.arange(len(drawn)))
    means = share * (1 + swing * wave) + rng.normal(0, 0.003, (columns, len(drawn)))
    shares = np.stack([band(mean, share * (0.05 + swing)) for mean in means.T], axis=1).clip(0, 1)
    trend = 2 + 6 * (edges[:-1] / batches * 1000 + 10.0) ** -0.35
    loss = trend + 0.3 * swing * wave[:, 0] + rng.normal(0, 0.01, columns)
    found = Series(
        edges=edges,
        names=drawn,
        more=len(names) - len(drawn),
        shares=shares,
        targets=np.full((columns, len(drawn)), share),
        deviation=0.01 + swing * share * np.abs(wave[:, 0]),
        noise=np.full(columns, 0.008),
        loss=band(loss, 0.08),
        trend=trend,
        dispersion=1 + 40 * swing * np.abs(np.sin(np.arange(100) / 9 + np.arange(3)[:, None])),
        heat=heat(batches),
    )
    return replace(found, **changes)


def heat(batches: int, shards: int = 160) -> ShardHeat:
    """Shards that are read in turn, a few at a time."""
    bins = min(200, batches)
    edges = np.arange(bins + 1) * batches // bins
    place = np.arange(bins)[:, None] / bins * shards
    counts = np.exp(-(((np.arange(shards) - place) / 12) ** 2)) * 400 + 3
    return ShardHeat(counts.astype(np.int64), edges, np.arange(shards + 1))


def even(names: tuple[str, ...]) -> dict[str, float]:
    return dict.fromkeys(names, 1 / len(names))


def tilted(names: tuple[str, ...], by: float) -> dict[str, float]:
    """The first label's share higher by so much, the others' lower."""
    rest = max(1, len(names) - 1)
    return {name: 1 / len(names) + (by if place == 0 else -by / rest) for place, name in enumerate(names)}


def mixture(names: tuple[str, ...], batches: int = 1_000_000, **changes: Any) -> MixtureFindings:
    """A mixture that swings."""
    by = 0.3 / len(names) ** 0.5 if len(names) > 1 else 0.0
    first = batches // 3
    shards = {f"{names[0]}/shard.{place:05}.mds": 9000 - place for place in range(5)}
    alarm = Alarm("evidence > 6", first // 100, 0, 8.4, 8.4, tilted(names, by), even(names), shards)
    found = MixtureFindings(
        target=even(names),
        target_known=True,
        ratio=tilted(names, 0.011 if len(names) > 1 else 0.0),
        deviation=0.011,
        dispersion=34.2,
        row=1,
        window=100,
        tolerance=0.05,
        unmet=None,
        worst=tuple(
            WorstWindow(at, at + 99, by, 0.0061, tilted(names, by), shards) for at in (first, first * 2)
        ),
        alarms=(alarm, replace(alarm, batch=alarm.batch + batches // 5)),
        alarms_recorded=3,
        see_saw=SeeSaw(
            names[0],
            322.4,
            310,
            161.0,
            0.21,
            (
                "one swing (322.4 batches) is two shards (160.0 batches each)",
                "the time for which the mixture stays (161.0 batches) is one shard (160.0 batches each)",
            ),
        ),
        drift=(Drift(names[0], 0.02, 0.12),),
    )
    return replace(found, **changes)


def loss(names: tuple[str, ...], **changes: Any) -> LossFindings:
    """A loss that follows a mixture."""
    effects = [
        Effect(
            name,
            Estimate(0.06 * (-0.8) ** place, 0.06 * (-0.8) ** place - 0.02, 0.06 * (-0.8) ** place + 0.02),
        )
        for place, name in enumerate(names)
    ]
    found = LossFindings(
        rows=999_000,
        last=999_999,
        trend_share=0.972,
        explained=Estimate(0.431, 0.382, 0.478),
        p=0.001,
        lag=3,
        coherence=Coherence(322.4, 0.92, 0.31, 40),
        effects=tuple(effects),
        onset=None,
        spikes=(81_234, 4_120),
    )
    return replace(found, **changes)


def findings(**changes: Any) -> Findings:
    """A see-saw run of two labels, unless told otherwise."""
    names = labels(2)
    found = Findings(
        run="runs/modernbert-base",
        source="ledger",
        batches=1_000_000,
        rows=1_000_000,
        started=1_790_000_000.0,
        ended=1_790_400_000.0,
        verdict=Verdict(
            "data",
            "The data are the cause: the mixture swings, and the loss follows it.",
            (
                "The mixture was more than 0.05 off its target, for certain from batch 3,333 on; its worst "
                "100 batches, 333,333 to 333,432, were 0.212 off (a perfect shuffle shows 0.006).",
                "The mixture explains 43% of the loss's variance after its trend (95 % interval 38% to 48%, "
                "3 batches later; a shifted mixture explains as much in 0.1% of cases).",
            ),
        ),
        mixture=mixture(names),
        loss=loss(names),
        order=KEPT,
        advice=("Find settings that mix better: mixmon audit TRAIN.yaml --sweep",),
        yaml="train_loader:\n  dataset:\n    shuffle_algo: py1e\n    num_canonical_nodes: 8\n",
        settings=SETTINGS,
        remarks=("segment 3 of the ledger was cut off; its whole records were read",),
        series=series(1_000_000, names),
    )
    return replace(found, **changes)


def see_saw() -> Findings:
    """A long run of twenty labels with everything that can be found."""
    names = labels(20)
    order = replace(KEPT, resumptions=(Resumption(250_000, 0, 64_000_000, 120), Resumption(700_000)))
    return findings(
        mixture=mixture(names), loss=loss(names), order=order, series=series(1_000_000, names, 0.8)
    )


def diverged() -> Findings:
    """A loss that left its course while the mixture was as it should be."""
    names = labels(3)
    made = series(40_000, names, 0.02)
    values = made.loss.copy()
    values[700:] += np.minimum(4, 0.2 * np.arange(300))[:, None]
    healthy = mixture(names, 40_000, alarms=(), alarms_recorded=0, see_saw=None, drift=(), dispersion=1.02)
    onset = Onset(28_000, "rise", 2.31, 5.9, 0.007, 0.41)
    told = loss(names, last=27_999, explained=Estimate(0.001, -0.004, 0.01), p=0.4, lag=None, coherence=None)
    verdict = Verdict(
        "not data",
        "The data are not the cause: the loss left its course at batch 28,000 while the mixture was as it "
        "should be.",
        ("Nothing speaks for a mixture more than 0.05 off its target.",),
    )
    return findings(
        batches=40_000, rows=40_000, verdict=verdict, mixture=healthy, loss=replace(told, onset=onset),
        advice=("Look elsewhere: learning rate, precision, hardware.",), yaml="", remarks=(),
        series=replace(made, loss=values, trend=np.where(np.arange(1000) < 700, made.trend, np.nan)),
    )  # fmt: skip


def loss_only() -> Findings:
    """A CSV file with a loss that becomes NaN."""
    made = series(5_000, labels(2))
    values = np.where(np.arange(1000)[:, None] < 900, made.loss, np.nan)
    empty = replace(
        made, names=(), shares=np.zeros((1000, 0, 3)), targets=np.zeros((1000, 0)), deviation=np.zeros(1000),
        noise=np.zeros(1000), loss=values, dispersion=np.zeros((0, 100)), heat=None,
    )  # fmt: skip
    told = loss((), explained=None, p=None, lag=None, coherence=None, effects=())
    verdict = Verdict(
        "unknown", "The mixture is not known, so the data can neither be blamed nor ruled out.", ()
    )
    return findings(
        source="CSV", batches=5_000, verdict=verdict, mixture=None, order=NOT_CHECKED, settings={}, yaml="",
        loss=replace(told, onset=Onset(4_500, "not finite", 2.2, None, None, None)), series=empty,
    )  # fmt: skip


def no_loss() -> Findings:
    """A mixture that swings, and no loss."""
    nothing = np.full((1000, 3), np.nan)
    verdict = Verdict("unknown", "The mixture was biased; no loss was recorded.", ())
    made = series(1_000_000, labels(2), loss=nothing, trend=nothing[:, 0])
    return findings(verdict=verdict, loss=None, series=made)


def broken_order() -> Findings:
    """An order that was not kept at two resumptions."""
    again = "batches 5,000 to 5,999 were fed the samples of batches 4,000 to 4,999 once more"
    left_out = "120 batches of epoch 0 were left out before batch 8,000"
    other = "batches 9,000 to 9,002 held other samples than the settings imply"
    breaks = (
        Break("repeat", 5_000, 5_999, 1_000, again),
        Break("gap", 8_000, 8_000, 120, left_out),
        Break("departure", 9_000, 9_002, 3, other),
    )
    resumptions = (Resumption(5_000, 0, 1_024_000, 200), Resumption(8_000))
    order = OrderFindings(10_000, "the order hashes of a replay of the settings", breaks, resumptions)
    verdict = Verdict("order", f"The order was not kept: {breaks[0].text} (and 2 more).", ())
    return findings(batches=10_000, verdict=verdict, order=order, series=series(10_000, labels(2), 0.02))


def one_label() -> Findings:
    """A run whose samples all have one label."""
    names = labels(1)
    still = mixture(names, see_saw=None, drift=(), alarms=(), worst=())
    return findings(mixture=still, loss=loss((), explained=None), series=series(1_000_000, names, 0.0))


def one_batch() -> Findings:
    """A run that ended after its first batch."""
    names = labels(2)
    first = mixture(names, 1, alarms=(), see_saw=None, drift=(), worst=())
    return findings(
        batches=1, rows=1, mixture=first, loss=loss((), rows=1, last=0, explained=None, spikes=()),
        series=series(1, names, dispersion=np.ones((1, 1))),
    )  # fmt: skip


def nothing() -> Findings:
    """A record without a batch."""
    verdict = Verdict("unknown", "Neither a mixture nor a loss was recorded.", ())
    return findings(
        batches=0, rows=0, started=None, ended=None, verdict=verdict, mixture=None, loss=None,
        order=NOT_CHECKED, advice=(), yaml="", settings={}, remarks=(), series=NO_SERIES,
    )  # fmt: skip


def hostile() -> Findings:
    """Text that wants to be more than text, everywhere where text may come from data."""
    names = (*HOSTILE, LONG)
    text = " ".join(HOSTILE)
    swung = mixture(names, unmet=text)
    saw = SeeSaw(HOSTILE[1], 30.0, 5, 15.0, 0.2, (text,))
    window = replace(swung.worst[0], shards=dict.fromkeys(names, 5))
    broken = OrderFindings(5, text, (Break("gap", 1, 1, 1, text),), (Resumption(3),))
    return findings(
        run=text, source=text, verdict=Verdict("data", text, (text, LONG)),
        mixture=replace(swung, see_saw=saw, worst=(window,)), loss=loss(names), order=broken,
        advice=(text, LONG), yaml=f"{text}\n{LONG}", settings={text: {LONG: text, "list": [{text: LONG}]}},
        remarks=(text,) * 100, series=series(1_000_000, names),
    )  # fmt: skip


ALL = (see_saw, diverged, loss_only, no_loss, broken_order, one_label, one_batch, nothing, hostile)
