"""What a post-mortem finds: plain records, which the printed, JSON, PNG and HTML reports all read.

Batches are numbered from 0 over the run; ``first`` and ``last`` both lie within. Shares are fractions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from composer_mixmon.alarms import Alarm
from composer_mixmon.run_record import Resumption
from composer_mixmon.sources.order import ShardHeat

__all__ = [
    "Break",
    "Coherence",
    "Drift",
    "Effect",
    "Estimate",
    "Findings",
    "LossFindings",
    "MixtureFindings",
    "Onset",
    "OrderFindings",
    "SeeSaw",
    "Series",
    "Verdict",
    "WorstWindow",
]

_FORMAT = 1

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Kind = Literal["data", "order", "not data", "unknown"]


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """Whether the data are the cause.

    Attributes:
        kind: ``data``: the mixture was biased and the loss follows it, or left its course with it. ``order``:
            samples were repeated, skipped, or not those that the settings imply. ``not data``: neither.
            ``unknown``: not enough was recorded to tell.
        headline: One sentence.
        reasons: Further sentences with the figures behind it, the weightiest first.
    """

    kind: Kind
    headline: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class WorstWindow:
    """A window far from its target.

    Attributes:
        first: Its first batch.
        last: Its last batch.
        deviation: Of its shares from the target.
        noise_floor: What a perfect shuffle would show.
        shares: Each label's.
        shards: The shards that gave most of its samples, and how many; empty if not known.
    """

    first: int
    last: int
    deviation: float
    noise_floor: float
    shares: dict[str, float]
    shards: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True)
class SeeSaw:
    """A mixture that swings.

    Attributes:
        label: The label whose share swings the most.
        period: Mean batches from one swing up to the next.
        cycles: How many swings there are.
        stay: Batches for which the mixture stays as it is: where its autocorrelation reaches 0.
        amplitude: Standard deviation of the label's share beyond the noise.
        relations: What these lengths are equal to, in words: a shard, a shuffle block, an epoch.
    """

    label: str
    period: float
    cycles: int
    stay: float
    amplitude: float
    relations: tuple[str, ...]


@dataclass(frozen=True)
class Drift:
    """A label whose share at the end of the run differs from that at its start (a tenth of the run each)."""

    label: str
    start: float
    end: float


@dataclass(frozen=True)
class MixtureFindings:
    """What the mixture did.

    Attributes:
        target: Each label's target at the end of the run.
        target_known: Whether that was recorded; otherwise the run's own shares were taken.
        ratio: Each label's share of the run.
        deviation: Total variation distance of the run's shares from its targets.
        dispersion: Mean chi² per degree of freedom of the rows: 1 is a perfect shuffle.
        row: Batches of a row: 1, or an interval where only those are known.
        window: Batches of the windows looked at.
        tolerance: Largest bias that is not worth an alarm.
        unmet: What is wrong with a target that the dataset was bound to miss, or ``None``.
        worst: The worst windows.
        alarms: What the alarm says of the recorded counts, with the default rules or the run's own.
        alarms_recorded: How many were raised during the run.
        see_saw: How it swings, or ``None``.
        drift: What drifts, most first.
    """

    target: dict[str, float]
    target_known: bool
    ratio: dict[str, float]
    deviation: float
    dispersion: float
    row: int
    window: int
    tolerance: float
    unmet: str | None
    worst: tuple[WorstWindow, ...]
    alarms: tuple[Alarm, ...]
    alarms_recorded: int
    see_saw: SeeSaw | None
    drift: tuple[Drift, ...]


@dataclass(frozen=True)
class Effect:
    """What a label's share has to do with the loss.

    Attributes:
        label: Which.
        per_tenth: Change of the loss where the label's share is 0.1 higher, all others lower in proportion.
    """

    label: str
    per_tenth: Estimate


@dataclass(frozen=True)
class Coherence:
    """How far loss and mixture swing together.

    Attributes:
        period: In batches.
        value: Magnitude-squared coherence at that period, 0 to 1.
        chance: What independent series stay below 95 times in 100.
        segments: Number of segments averaged.
    """

    period: float
    value: float
    chance: float
    segments: int


@dataclass(frozen=True)
class Onset:
    """Where the loss left its course for good.

    Attributes:
        batch: From which batch on.
        kind: ``not finite`` (NaN or infinite from there on) or ``rise``.
        before: Lowest smoothed loss before it.
        after: Mean of the finite losses after it; ``None``: there is none.
        deviation: Of the mixture in the window around the onset.
        usual: Its quantile among the windows before: 0.5 is as usual as can be, 1 the furthest off.
    """

    batch: int
    kind: Literal["not finite", "rise"]
    before: float
    after: float | None
    deviation: float | None
    usual: float | None


@dataclass(frozen=True)
class LossFindings:
    """What the loss did, and what the mixture has to do with it.

    Attributes:
        rows: Rows with a finite loss that were used.
        last: Last batch that was used: the one before the onset, if there is one.
        trend_share: Share of the loss's variance that its smooth trend takes out.
        explained: Share of the remaining variance that the mixture predicts where it was not fitted
            (cross-fitted R², so it may be negative); ``None``: too few rows.
        p: How often a mixture shifted in time explains as much; ``None``: too few rows.
        lag: Batches by which the loss follows the mixture, where it follows best.
        coherence: At the period of the see-saw, if there is one.
        effects: Of each label, the strongest first.
        onset: Where it left its course, if it did.
        spikes: Batches at which the loss jumped and came back, the highest first.
    """

    rows: int
    last: int
    trend_share: float
    explained: Estimate | None
    p: float | None
    lag: int | None
    coherence: Coherence | None
    effects: tuple[Effect, ...]
    onset: Onset | None
    spikes: tuple[int, ...]


@dataclass(frozen=True)
class Break:
    """Batches that were not what should have come.

    Attributes:
        kind: ``repeat``: the samples had come before in this epoch. ``gap``: batches of the epoch were left
            out. ``departure``: not what the settings imply, in whatever order.
        first: First batch; of a gap, the one after it.
        last: Last batch; of a gap, equal to ``first``.
        batches: How many batches it is.
        text: A sentence.
    """

    kind: Literal["repeat", "gap", "departure"]
    first: int
    last: int
    batches: int
    text: str


@dataclass(frozen=True)
class OrderFindings:
    """Whether the order was kept.

    Attributes:
        checked: Batches whose order hash was compared.
        by: What with, in words.
        breaks: Where it was not kept, in the order of the batches.
        resumptions: Where the run was resumed.
    """

    checked: int
    by: str
    breaks: tuple[Break, ...]
    resumptions: tuple[Resumption, ...]


@dataclass(frozen=True)
class Series:
    """What the charts show, down to at most 1,000 columns; the extremes of each are kept.

    Attributes:
        edges: First batch of each column and, last, the end: int64 (columns + 1,).
        names: The labels drawn, those that stray the most first.
        more: Labels that are not drawn.
        shares: Lowest, mean and highest share of the windows that end in the column, NaN before the first
            full window and where nothing was counted: float64 (columns, labels drawn, 3).
        targets: float64 (columns, labels drawn).
        deviation: Highest of the windows that end in the column: float64 (columns,).
        noise: Their noise floor: float64 (columns,).
        loss: Lowest, mean and highest loss of the column, NaN where there is none: float64 (columns, 3).
        trend: The loss's smooth trend, NaN where none was taken: float64 (columns,).
        dispersion: Mean chi² per degree of freedom by place in the epoch, NaN where nothing is known:
            float64 (epochs drawn, at most 100 bins); the epochs are the first ones, at most 8.
        heat: Which shards came when, or ``None`` where the order is not known.
    """

    edges: Ints
    names: tuple[str, ...]
    more: int
    shares: Floats
    targets: Floats
    deviation: Floats
    noise: Floats
    loss: Floats
    trend: Floats
    dispersion: Floats
    heat: ShardHeat | None


@dataclass(frozen=True)
class Findings:
    """The post-mortem of a run.

    Attributes:
        run: What was given as RUN, or the YAML.
        source: Where the record comes from, in words.
        batches: Batches of the run.
        rows: Rows of the record.
        started: Seconds since 1970, or ``None``.
        ended: The same.
        verdict: Whether the data are the cause.
        mixture: ``None`` where no mixture is known.
        loss: ``None`` where no loss is known.
        order: Whether the order was kept.
        advice: What to change, in sentences.
        yaml: Settings to paste that mix better, or "".
        settings: What was recorded of the run's settings.
        remarks: What is missing or damaged, in sentences.
        series: For the charts.
    """

    run: str
    source: str
    batches: int
    rows: int
    started: float | None
    ended: float | None
    verdict: Verdict
    mixture: MixtureFindings | None
    loss: LossFindings | None
    order: OrderFindings
    advice: tuple[str, ...]
    yaml: str
    settings: Mapping[str, Any]
    remarks: tuple[str, ...]
    series: Series

    @property
    def biased(self) -> bool:
        """Whether the data are the cause."""
        return self.verdict.kind in ("data", "order")

    def to_dict(self) -> dict[str, Any]:
        """Everything but the charts' series as plain types, for JSON; no number is NaN or infinite."""
        told = {name: value for name, value in vars(self).items() if name not in ("series", "settings")}
        plain: dict[str, Any] = {name: _plain(value) for name, value in told.items()}
        return {"format": _FORMAT, **plain}


def _plain(value: Any) -> Any:
    if isinstance(value, Alarm):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, MixtureFindings | OrderFindings):
        return {name: _plain(item) for name, item in vars(value).items()}
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value
