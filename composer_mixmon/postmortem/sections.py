"""What a post-mortem says, section by section: words and tables, which are then printed or put on a page.

Nothing is escaped here: who shows it makes text that comes from data harmless. It is shortened, so that no
name of ten thousand characters hides the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, cast

from composer_mixmon.postmortem.findings import (
    Effect,
    Estimate,
    Findings,
    LossFindings,
    MixtureFindings,
    Onset,
    OrderFindings,
    SeeSaw,
    Verdict,
    WorstWindow,
)

__all__ = ["Section", "Table", "brief", "sections", "settings_section", "shortened"]

_NAME = 40  # characters of a name
_SENTENCE = 1200
_LABELS_SHOWN = 20
_LABELS_OF_WINDOW = 3
_SHARDS_OF_WINDOW = 3
_ROWS = 20
_NOTES = 50
_SETTINGS = 300
_CODE = 20_000
_FAR = 253_402_300_800.0  # the year 10000, which datetime does not know


@dataclass(frozen=True)
class Table:
    """Cells in rows.

    Attributes:
        headings: One for each column.
        align: ``l`` or ``r`` for each column.
        rows: Their cells.
        note: What stands below, or "".
    """

    headings: tuple[str, ...]
    align: str
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the report.

    Attributes:
        title: What it is about.
        facts: Figures, each with its name.
        tables: Tables.
        notes: Sentences.
        code: To paste, or "".
        charts: The charts that belong here, by the names of :func:`~composer_mixmon.postmortem.charts.draw`.
    """

    title: str
    facts: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    code: str = ""
    charts: tuple[str, ...] = ()


def brief(text: str, limit: int = _NAME) -> str:
    """Text of at most ``limit`` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def shortened(verdict: Verdict) -> Verdict:
    """A verdict of sentences of a reasonable length."""
    return Verdict(verdict.kind, brief(verdict.headline, _SENTENCE), _notes(verdict.reasons))


def sections(findings: Findings) -> list[Section]:
    """What there is to say, but for the verdict: what the run did, what to change, what is missing."""
    out = [_run(findings)]
    if findings.mixture:
        out.append(_mixture(findings.mixture))
    if findings.loss:
        out.append(_loss(findings.loss, findings.mixture is not None))
    out.append(_order(findings.order))
    if findings.advice or findings.yaml:
        out.append(Section("What to change", notes=_notes(findings.advice), code=brief(findings.yaml, _CODE)))
    if findings.remarks:
        out.append(Section("Remarks", notes=_notes(findings.remarks)))
    return out


def settings_section(settings: Mapping[str, Any]) -> Section | None:
    """The settings that were recorded, by their dotted names; ``None`` if none were."""
    rows = tuple(
        (brief(name, 2 * _NAME), brief(value, 4 * _NAME)) for name, value in _flat("", settings, _SETTINGS)
    )
    note = "further settings are left out" if len(rows) == _SETTINGS else ""
    return Section("Settings", tables=(Table(("setting", "value"), "ll", rows, note),)) if rows else None


def _flat(name: str, value: Any, most: int) -> Iterator[tuple[str, str]]:
    """At most so many settings, into mappings and lists of mappings."""
    inner: Sequence[tuple[str, Any]] = ()
    if isinstance(value, Mapping):
        inner = [(str(key), one) for key, one in cast("Mapping[Any, Any]", value).items()]
    elif isinstance(value, list) and any(isinstance(one, Mapping) for one in cast("list[Any]", value)):
        inner = [(str(place), one) for place, one in enumerate(cast("list[Any]", value))]
    else:
        yield name, str(cast("object", value))
    for key, one in inner:
        for found in _flat(f"{name}.{key}" if name else key, one, most):
            if most <= 0:
                return
            most -= 1
            yield found


def _notes(sentences: Sequence[str]) -> tuple[str, ...]:
    shown = tuple(brief(sentence, _SENTENCE) for sentence in sentences[:_NOTES])
    more = len(sentences) - len(shown)
    return (*shown, f"… and {more:,} more") if more else shown


def _run(findings: Findings) -> Section:
    facts = [
        ("run", brief(findings.run, 4 * _NAME)),
        ("record", f"{findings.source}, {_count(findings.rows, 'row')}"),
        ("batches", f"{findings.batches:,}"),
    ]
    started, ended = _moment(findings.started), _moment(findings.ended)
    if started and ended:
        facts.append(("recorded", f"{started} to {ended}"))
    return Section("Run", tuple(facts), charts=("course",))


def _moment(seconds: float | None) -> str:
    if seconds is None or not 0 <= seconds < _FAR:
        return ""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _mixture(mixture: MixtureFindings) -> Section:
    row = f", recorded in intervals of {mixture.row:,} batches" if mixture.row > 1 else ""
    facts = [("window", f"{_count(mixture.window, 'batch', 'es')}{row}")]
    if not mixture.target_known:
        facts.append(("target", "not recorded: the run's own shares are taken for it"))
    if mixture.unmet:
        facts.append(("out of reach", brief(mixture.unmet, _SENTENCE)))
    facts += [
        ("off its target", f"{mixture.deviation:.4f} over the run; tolerance {mixture.tolerance:g}"),
        ("dispersion", f"{mixture.dispersion:.2f} (a perfect shuffle shows 1)"),
        *_alarms(mixture),
    ]
    if mixture.see_saw:
        facts += _see_saw(mixture.see_saw)
    tables = [_labels(mixture)]
    if mixture.worst:
        tables.append(_worst(mixture))
    return Section("Mixture", tuple(facts), tuple(tables), charts=("dispersion", "shards"))


def _alarms(mixture: MixtureFindings) -> Iterator[tuple[str, str]]:
    if mixture.alarms:
        first = mixture.alarms[0]
        yield "alarm", f"from batch {first.batch:,} on: {brief(str(first), 10 * _NAME)}"
    else:
        yield "alarm", "none: the evidence does not suffice for one"
    yield "alarms raised", f"{mixture.alarms_recorded:,} during the run"


def _see_saw(see_saw: SeeSaw) -> Iterator[tuple[str, str]]:
    yield (
        "see-saw",
        f"{brief(see_saw.label)}: once in {see_saw.period:,.0f} batches, {_count(see_saw.cycles, 'time')}, "
        f"by {_points(see_saw.amplitude)} points (standard deviation); the mixture stays as it is for "
        f"{see_saw.stay:,.0f} batches",
    )
    for relation in see_saw.relations:
        yield "", brief(relation, _SENTENCE)


def _labels(mixture: MixtureFindings) -> Table:
    """Labels, those that drift first, then those that are the furthest off."""
    drift = {one.label: one for one in mixture.drift}
    off = {label: share - mixture.target.get(label, 0.0) for label, share in mixture.ratio.items()}
    places = {label: place for place, label in enumerate(drift)}
    order = sorted(off, key=lambda label: (places.get(label, len(places)), -abs(off[label])))
    rows: list[tuple[str, ...]] = []
    for label in order[:_LABELS_SHOWN]:
        cells = [brief(label), _share(mixture.target.get(label, 0.0)), _share(mixture.ratio[label])]
        cells.append(f"{_points(off[label], signed=True)}")
        if drift:
            moved = drift.get(label)
            cells += [_share(moved.start), _share(moved.end)] if moved else ["", ""]
        rows.append(tuple(cells))
    headings = ("label", "target", "share of the run", "off by, points")
    ends = ("first tenth", "last tenth") if drift else ()
    more = len(order) - len(rows)
    note = f"{_count(more, 'more label')}" if more else ""
    return Table((*headings, *ends), "l" + "r" * (3 + len(ends)), tuple(rows), note)


def _worst(mixture: MixtureFindings) -> Table:
    windows = mixture.worst[:_ROWS]
    known = any(window.shards for window in windows)
    rows = tuple(
        (
            _range(window.first, window.last),
            f"{window.deviation:.4f}",
            f"{window.noise_floor:.4f}",
            _furthest(window, mixture.target),
            *([_shards(window)] if known else []),
        )
        for window in windows
    )
    shards = ("most samples from",) if known else ()
    headings = ("worst windows", "off by", "noise floor", "labels (points)", *shards)
    return Table(headings, "lrrll"[: len(headings)], rows, "noise floor: what a perfect shuffle shows")


def _furthest(window: WorstWindow, target: Mapping[str, float]) -> str:
    off = {label: share - target.get(label, 0.0) for label, share in window.shares.items()}
    most = sorted(off, key=lambda label: -abs(off[label]))[:_LABELS_OF_WINDOW]
    named = [f"{brief(k)} {_share(window.shares[k])} ({_points(off[k], signed=True)})" for k in most]
    return ", ".join(named)


def _shards(window: WorstWindow) -> str:
    return ", ".join(f"{brief(s)} ({n:,})" for s, n in list(window.shards.items())[:_SHARDS_OF_WINDOW])


def _loss(loss: LossFindings, mixture_known: bool) -> Section:
    facts = [
        ("used", f"{_count(loss.rows, 'row')}, up to batch {loss.last:,}"),
        ("trend", f"takes {loss.trend_share:.1%} of the loss's variance out"),
    ]
    if mixture_known:
        facts.append(("explained", _explained(loss.explained)))
    if loss.p is not None:
        facts.append(("chance", f"p = {loss.p:.2g}: how often a mixture shifted in time explains as much"))
    if loss.lag is not None:
        lag = f"by {_count(loss.lag, 'batch', 'es')}" if loss.lag else "in the same batch"
        facts.append(("lag", f"the loss follows {lag}"))
    if loss.coherence:
        one = loss.coherence
        facts.append(
            (
                "coherence",
                f"{one.value:.2f} at a period of {one.period:,.0f} batches, over {one.segments:,} segments; "
                f"independent series stay below {one.chance:.2f} 95 times in 100",
            )
        )
    if loss.onset:
        facts.append(("left its course", _onset(loss.onset)))
    if loss.spikes:
        shown = ", ".join(f"{batch:,}" for batch in loss.spikes[:_ROWS])
        facts.append(("spikes", f"batch {shown}"))
    tables = (_effects(loss.effects),) if loss.effects else ()
    return Section("Loss", tuple(facts), tables, charts=("effects",))


def _explained(explained: Estimate | None) -> str:
    if explained is None:
        return "too few rows to tell what the mixture has to do with it"
    return (
        f"the mixture explains {max(explained.value, 0.0):.1%} of the rest "
        f"(95 % interval {explained.low:.1%} to {explained.high:.1%})"
    )


def _effects(effects: Sequence[Effect]) -> Table:
    rows = tuple(
        (
            brief(effect.label),
            f"{effect.per_tenth.value:+.4f}",
            f"{effect.per_tenth.low:+.4f} to {effect.per_tenth.high:+.4f}",
        )
        for effect in effects[:_LABELS_SHOWN]
    )
    more = len(effects) - len(rows)
    note = "all other labels lower in proportion" + (f"; {_count(more, 'more label')}" if more else "")
    return Table(("label, its share 10 points higher", "loss", "95 % interval"), "lrr", rows, note)


def _onset(onset: Onset) -> str:
    text = f"from batch {onset.batch:,} on no loss is finite; {onset.before:.4g} before"
    if onset.kind == "rise":
        after = "" if onset.after is None else f" to {onset.after:.4g}"
        text = f"from batch {onset.batch:,} on it rose from {onset.before:.4g}{after}"
    if onset.deviation is None:
        return text
    usual = "" if onset.usual is None else f", further than {onset.usual:.0%} of the windows before"
    return f"{text}; the mixture was {onset.deviation:.4f} off{usual}"


def _order(order: OrderFindings) -> Section:
    facts = [
        ("checked", _count(order.checked, "batch", "es")),
        ("compared with", brief(order.by, _SENTENCE)),
    ]
    if order.checked or order.breaks:
        facts.append(("breaks", f"{len(order.breaks):,}" if order.breaks else "none"))
    tables: list[Table] = []
    if order.breaks:
        rows = [
            (_range(b.first, b.last), b.kind, f"{b.batches:,}", brief(b.text, _SENTENCE))
            for b in order.breaks
        ]
        headings = ("where", "kind", "batches", "what happened")
        tables.append(Table(headings, "llrl", tuple(rows[:_ROWS]), _more(len(rows) - _ROWS, "more break")))
    if order.resumptions:
        cells = [
            (f"{one.batch:,}", _known(one.epoch), _known(one.first_sample), f"{one.discarded:,}")
            for one in order.resumptions
        ]
        headings = ("resumed at batch", "epoch", "samples left out", "batches done again")
        tables.append(
            Table(headings, "rrrr", tuple(cells[:_ROWS]), _more(len(cells) - _ROWS, "more resumption"))
        )
    return Section("Order", tuple(facts), tuple(tables))


def _more(number: int, noun: str) -> str:
    return _count(number, noun) if number > 0 else ""


def _known(number: int) -> str:
    return f"{number:,}" if number >= 0 else "–"


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}{plural * (number != 1)}"


def _range(first: int, last: int) -> str:
    return f"{first:,} to {last:,}" if last > first else f"{first:,}"


def _share(share: float) -> str:
    return f"{share:.1%}" if share >= 0.01 or share == 0 else f"{share:.2%}"


def _points(share: float, signed: bool = False) -> str:
    """A difference of shares in percentage points."""
    text = f"{100 * share:+.1f}" if signed else f"{100 * share:.1f}"
    return "0.0" if text in ("-0.0", "+0.0") else text
