"""A post-mortem as it is printed: the verdict first, every figure, and nothing that a terminal acts on."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from composer_mixmon.postmortem.findings import Break, Effect, Estimate, Findings, OrderFindings, Verdict
from composer_mixmon.postmortem.sections import brief, settings_section
from composer_mixmon.postmortem.show import show
from composer_mixmon.run_record import Resumption

from . import data


def printed(findings: Findings, width: int = 100, **options: bool) -> str:
    file = io.StringIO()
    show(findings, Console(file=file, width=width, **options))
    return file.getvalue()


def words(text: str) -> str:
    """Text without its line breaks and columns."""
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("made", data.ALL)
def test_the_verdict_comes_first(made: Callable[[], Findings]) -> None:
    """The first words are the headline, whatever was found, and the reasons follow it."""
    findings = made()
    out = words(printed(findings))
    headline = words(findings.verdict.headline)
    assert out.startswith(headline[:9])
    for reason in findings.verdict.reasons:
        assert words(reason)[:40] in out


@pytest.mark.parametrize("made", [made for made in data.ALL if made is not data.hostile])
@pytest.mark.parametrize("width", [40, 100])
def test_a_hundred_columns(made: Callable[[], Findings], width: int) -> None:
    """No line is longer than 100 characters, nor is anything squeezed where a terminal is narrower."""
    assert max(map(len, printed(made(), width).splitlines())) <= 100


def test_the_figures() -> None:
    """What was found is there, in words and with its unit."""
    out = words(printed(data.see_saw()))
    for text in (
        "record ledger, 1,000,000 rows",
        "recorded 2026-09-21 14:13 UTC to 2026-09-26 05:20 UTC",
        "off its target 0.0110 over the run; tolerance 0.05",
        "dispersion 34.20 (a perfect shuffle shows 1)",
        "alarm from batch 3,333 on: evidence > 6",
        "alarms raised 3 during the run",
        "see-saw ja: once in 322 batches, 310 times, by 21.0 points",
        "stays as it is for 161 batches one swing (322.4 batches) is two shards",
        "ja 5.0% 6.1% +1.1 2.0% 12.0%",
        "333,333 to 333,432 0.0671 0.0061 ja 11.7% (+6.7)",
        "ja/shard.00000.mds (9,000)",
        "used 999,000 rows, up to batch 999,999",
        "trend takes 97.2% of the loss's variance out",
        "the mixture explains 43.1% of the rest (95 % interval 38.2% to 47.8%)",
        "p = 0.001",
        "the loss follows by 3 batches",
        "0.92 at a period of 322 batches, over 40 segments; independent series stay below 0.31",
        "spikes batch 81,234, 4,120",
        "ja +0.0600 +0.0400 to +0.0800",
        "checked 999,000 batches",
        "compared with the order hashes of a replay of the settings",
        "250,000 0 64,000,000 120 700,000 – – 0",
        "mixmon audit TRAIN.yaml --sweep",
        "segment 3 of the ledger was cut off",
    ):
        assert text in out, text


def test_yaml_is_printed_to_paste() -> None:
    """The settings stand there line for line, without anything before or behind them."""
    findings = data.see_saw()
    assert f"\n{findings.yaml}" in printed(findings)


@pytest.mark.parametrize(("onset", "text"), [
    (data.diverged, "from batch 28,000 on it rose from 2.31 to 5.9; the mixture was 0.0070 off, further"),
    (data.loss_only, "from batch 4,500 on no loss is finite; 2.2 before"),
])  # fmt: skip
def test_an_onset(onset: Callable[[], Findings], text: str) -> None:
    """Where the loss left its course, how, and what the mixture did then, if that is known."""
    assert text in words(printed(onset()))


def test_breaks() -> None:
    """Each break of the order is a row; of very many, the first twenty, and how many more there are."""
    out = words(printed(data.broken_order()))
    assert "5,000 to 5,999 repeat 1,000 batches 5,000 to 5,999 were fed the samples" in out
    assert "8,000 gap 120 120 batches of epoch 0 were left out" in out
    many = tuple(Break("gap", at, at, 1, f"gap {at}.") for at in range(50))
    order = OrderFindings(9, "replay", many, tuple(Resumption(at) for at in range(21)))
    out = words(printed(replace(data.broken_order(), order=order)))
    assert "breaks 50" in out
    assert "gap 19." in out
    assert "gap 20." not in out
    assert "30 more breaks" in out
    assert "1 more resumption" in out


@pytest.mark.parametrize("made", [data.loss_only, data.no_loss, data.nothing, data.one_label])
def test_what_is_not_known_is_not_told(made: Callable[[], Findings]) -> None:
    """A part that is not known has no section, and no figure is made up for it."""
    findings = made()
    titles = [
        line for line in printed(findings).splitlines() if line in ("Mixture", "Loss", "What to change")
    ]
    told = {"Mixture": findings.mixture, "Loss": findings.loss, "What to change": findings.advice}
    assert titles == [title for title, found in told.items() if found]
    assert ("breaks" in printed(findings)) == bool(findings.order.checked)


def test_many_labels() -> None:
    """Of a thousand labels those that are the furthest off are told, and the number of the others."""
    names = tuple(f"label-{number}" for number in range(1000))
    effect = Estimate(0.1, 0.0, 0.2)
    loss = data.loss(names[:1], effects=tuple(Effect(name, effect) for name in names))
    mixture = data.mixture(names, drift=())
    ratio = {name: share + 0.2 * (name == "label-777") for name, share in mixture.ratio.items()}
    findings = data.findings(mixture=replace(mixture, ratio=ratio), loss=loss)
    lines = printed(findings).splitlines()
    head = next(row for row, line in enumerate(lines) if line.startswith("label "))
    assert lines[head + 1].split()[0] == "label-777"
    assert sum("980 more labels" in line for line in lines) == 2
    assert len(lines) < 150


@pytest.mark.parametrize("kind", ["data", "order", "not data", "unknown"])
def test_colours(kind: str) -> None:
    """A verdict has a colour on a terminal, and none in a file."""
    findings = data.findings(verdict=Verdict(kind, "So it is.", ()))  # pyright: ignore[reportArgumentType]
    assert re.search(r"\x1b\[1;3[123]mSo it is\.", printed(findings, force_terminal=True))
    assert "\x1b" not in printed(findings)


def test_hostile_text() -> None:
    """Markup is printed as it is; what a terminal acts on is replaced, and long names are shortened."""
    out = printed(data.hostile())
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800]", out)
    assert "[red]x[/red]" in out
    assert "{{ 7 * 7 }}" in out
    assert len(out) < 60_000
    assert "x" * 30 in out
    unbroken = re.sub(r"\s+", "", printed(replace(data.hostile(), yaml="")))
    assert "x" * 2000 not in unbroken


@pytest.mark.parametrize("seconds", [None, -1.0, 1e18, float("nan"), float("inf")])
def test_times_that_are_none(seconds: float | None) -> None:
    """A time that no calendar has is left out."""
    assert "recorded " not in printed(data.findings(started=seconds))


def test_brief() -> None:
    """Text is cut at its limit, with a sign that it was."""
    assert brief("abc", 3) == "abc"
    assert brief("abcd", 3) == "ab…"


def test_settings() -> None:
    """Settings are told by their dotted names, lists of mappings too; of too many, the first."""
    section = settings_section(data.SETTINGS)
    assert section is not None
    assert ("dataset.shuffle_algo", "py1s") in section.tables[0].rows
    assert ("target.0.shares", "[0.5, 0.5]") in section.tables[0].rows
    many = settings_section({"streams": [{"remote": f"s3://{number}"} for number in range(100_000)]})
    assert many is not None
    assert len(many.tables[0].rows) == 300
    assert many.tables[0].note
    assert settings_section({}) is None
