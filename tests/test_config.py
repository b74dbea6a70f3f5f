"""What is written in YAML is read as meant, or refused with field, value and mend."""

from __future__ import annotations

import contextlib
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from composer_mixmon.config import (
    MonitorConfig,
    Phase,
    Rule,
    Webhook,
    batches,
    parse_alarm,
    parse_labels,
    parse_target,
)
from composer_mixmon.errors import ConfigError


@pytest.mark.parametrize(("value", "number"), [("100ba", 100), (" 1_000_000ba ", 1_000_000), (7, 7)])
def test_batches(value: Any, number: int) -> None:
    """Batches are written with their unit, as Composer writes them, or as a plain number."""
    assert batches("window", value) == number


def test_numpy_numbers_are_numbers() -> None:
    """Settings that are computed with numpy are read as any others."""
    assert batches("window", np.int64(5)) == 5
    assert parse_alarm({"tolerance": np.float32(0.5)}).tolerance == 0.5


def test_too_many_batches() -> None:
    """Windows and intervals that no memory holds are refused here, not in the run."""
    with pytest.raises(ConfigError, match=r"window: 10000000: must be at most 100_000 batches"):
        MonitorConfig.read(window=10**7)
    with pytest.raises(ConfigError, match=r"log_interval: '100_000ba': must be at most 10_000 batches"):
        MonitorConfig.read(log_interval="100_000ba")
    with pytest.raises(ConfigError, match=r"alarm\.false_alarm_every: .*must be at most"):
        parse_alarm({"false_alarm_every": 10**400})


def test_webhook_keeps_its_url_to_itself() -> None:
    """Such URLs are secrets: only the host is shown, in logs and in the run's config."""
    (hook,) = parse_alarm({"action": {"webhook": "https://me:pass@hooks.host/T0/secret?key=1"}}).actions
    assert f"{hook} {hook!r}".count("hooks.host") == 1
    assert not {"secret", "pass", "key"} & set(re.findall(r"\w+", f"{hook} {hook!r}"))


@pytest.mark.parametrize("value", ["100", "1ep", "ba", "1.5ba", "-1ba", 0, "0ba", -3, True, None, 2.0, [1]])
def test_no_batches(value: Any) -> None:
    """Anything else is refused by the field's name."""
    with pytest.raises(ConfigError, match=re.escape(f"window: {value!r}: ")):
        batches("window", value)


@pytest.mark.parametrize(
    ("value", "parsed"),
    [
        ("stream", ("stream", None)),
        ({"by": "stream"}, ("stream", None)),
        ("position", ("position", 10)),
        ({"position": 4}, ("position", 4)),
        ({"file": "labels.json"}, ("file", "labels.json")),
        (
            {"shards": {"ja": "ja/*", "en": ["en/*", "0:3"]}},
            ("shards", {"ja": ["ja/*"], "en": ["en/*", "0:3"]}),
        ),
    ],
)
def test_labels(value: Any, parsed: tuple[str, Any]) -> None:
    """Each kind of label is read, from OmegaConf's containers as from plain ones."""
    assert parse_labels(value) == parsed
    if isinstance(value, dict):
        assert parse_labels(OmegaConf.create(value)) == parsed


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("streams", "labels: 'streams': choose one of"),
        (None, "labels: None"),
        (np.array([1, 2]), "labels: array([1, 2]): choose one of"),
        ({"shards": {False: "no/*"}}, "quote words such as"),
        ({}, "labels: {}"),
        ({"stream": 1, "position": 2}, "labels: "),
        ({"colum": "source"}, "labels: 'colum': is no kind of label"),
        ({"position": 1}, "labels.position: 1: "),
        ({"position": "10"}, "labels.position: '10': "),
        ({"file": 3}, "labels.file: 3: "),
        ({"shards": {}}, "labels.shards: {}: "),
        ({"shards": "ja/*"}, "labels.shards: 'ja/*': "),
        ({"shards": {"ja": []}}, "labels.shards.ja: []: "),
        ({"shards": {"ja": 3}}, "labels.shards.ja: 3: "),
        ({"shards": {"": "ja/*"}}, "labels.shards: '': a label is printable text"),
        ({"shards": {"a\x1b[2J": "ja/*"}}, "labels.shards: 'a\\x1b[2J': a label is printable text"),
    ],
)
def test_bad_labels(value: Any, field: str) -> None:
    """Every other spec names the field, the value and what to write."""
    with pytest.raises(ConfigError, match=re.escape(field)):
        parse_labels(value)


def test_target() -> None:
    """A target is the dataset's own, or shares that sum to 1, or phases of these."""
    assert parse_target("auto") == (Phase("0ba", None),)
    assert parse_target(None) == (Phase("0ba", None),)
    assert parse_target({"ja": 0.25, "en": 0.75}) == (Phase("0ba", {"ja": 0.25, "en": 0.75}),)
    (thirds,) = parse_target({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
    assert thirds.shares == {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}
    phases = [{"from": "0ba", "target": "auto"}, {"from": "0.5dur", "target": {"ja": 1.0}}]
    assert parse_target(phases) == (Phase("0ba", None), Phase("0.5dur", {"ja": 1.0}))
    assert parse_target(OmegaConf.create(phases)) == parse_target(phases)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"ja": 0.5, "en": 0.6}, "the shares sum to 1.1: make them sum to 1"),
        ({"ja": 0.5, "en": 0.5 + 2e-9}, "make them sum to 1"),
        ({"ja": math.nan, "en": 1}, "target.ja: nan: give a number from 0 to 1"),
        ({"ja": math.inf}, "target.ja: inf: give a number from 0 to 1"),
        ({"ja": 0.0, "en": 0.0}, "the shares sum to 0: make them sum to 1"),
        ({"ja": -0.5, "en": 1.5}, "target.ja: -0.5: give a number from 0 to 1"),
        ({"ja": "half"}, "target.ja: 'half': give a number from 0 to 1"),
        ({"ja": True}, "target.ja: True: "),
        ({}, "target: {}: "),
        ([0.5, 0.5], "target[0]: 0.5: give a mapping with keys of from, target"),
        ([], "target: []: give at least one phase"),
        ([{"from": "10ba", "target": "auto"}], "target[0].from: '10ba': the first phase must begin at 0ba"),
        ([{"from": "0ba"}, {"from": "0.5ba"}], "target[1].from: '0.5ba': give a Composer time"),
        ([{"from": "0ba"}, {"from": "1.5dur"}], "target[1].from: '1.5dur': give a Composer time"),
        ([{"from": "0ba"}, {"from": "4ba"}, {"from": "2ba"}], "target[2].from: '2ba': must come after 4ba"),
        ([{"from": 0, "target": "auto"}], "target[0].from: 0: give a Composer time"),
        ([{"from": "0ba", "target": {"ja": 2}}], "target[0].target.ja: 2: give a number from 0 to 1"),
        ([{"from": "0ba", "to": "5ba"}], "target[0].to: '5ba': is unknown: choose of from, target"),
        ("0.5", "target: '0.5': "),
    ],
)
def test_bad_target(value: Any, message: str) -> None:
    """Shares that are no shares are refused."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_target(value)


def test_alarm() -> None:
    """Rules and actions are read with their defaults filled in; none of them means: log only."""
    assert parse_alarm(None).actions == ("log",)
    assert parse_alarm(None).rules == ()
    alarm = parse_alarm(
        {
            "rules": [
                {"deviation": 0.2, "for": "20ba", "grace": "50ba"},
                {"ratio": "ja", "below": 0.4, "above": 0.6},
                {"dispersion": 3},
            ],
            "action": ["log", "stop"],
        }
    )
    assert alarm.actions == ("log", "stop")
    assert alarm.rules == (
        Rule("deviation", "", -math.inf, 0.2, 20, 50),
        Rule("ratio", "ja", 0.4, 0.6, 1, None),
        Rule("dispersion", "", -math.inf, 3.0, 1, None),
    )
    assert [str(rule) for rule in alarm.rules] == [
        "deviation above 0.2 for 20 ba",
        "ratio of ja below 0.4 or above 0.6 for 1 ba",
        "dispersion above 3 for 1 ba",
    ]
    assert parse_alarm({"action": "raise"}).actions == ("raise",)
    hook = {"webhook": "https://host/hook"}
    assert parse_alarm({"action": ["checkpoint", hook, print]}).actions == (
        "checkpoint",
        Webhook("https://host/hook"),
        print,
    )
    assert (parse_alarm(None).tolerance, parse_alarm(None).false_alarm_every) == (0.05, 1_000_000)
    assert parse_alarm({"tolerance": None}).tolerance is None
    assert parse_alarm({"tolerance": 0, "false_alarm_every": "5_000ba"}).false_alarm_every == 5000


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "alarm: []: give a mapping"),
        ({"rule": []}, "alarm.rule: []: is unknown: choose of tolerance, false_alarm_every, rules, action"),
        (
            {"action": "halt"},
            "alarm.action: 'halt': is unknown: choose of log, wandb, checkpoint, stop, raise",
        ),
        (
            {"action": [{"webhook": "host"}]},
            "alarm.action.webhook: 'host': give a URL that begins with https://",
        ),
        ({"action": [{"webhook": 3}]}, "alarm.action.webhook: 3: "),
        ({"action": [{"webhook": "ftp://host/x"}]}, "alarm.action.webhook: 'ftp://host/x': give a URL"),
        ({"action": [{"webhook": "http://["}]}, "alarm.action.webhook: 'http://[': give a URL"),
        ({"tolerance": 10**400}, "alarm.tolerance: "),
        ({"rules": [{"ratio": "ja", "below": 0.6, "above": 0.4}]}, "below is over above"),
        ({"action": [{"mail": "me"}]}, "alarm.action: {'mail': 'me'}: is unknown"),
        ({"tolerance": 1.0}, "alarm.tolerance: 1: give a share below 1"),
        ({"tolerance": math.nan}, "alarm.tolerance: nan: give a number from 0 to 1"),
        ({"tolerance": -0.1}, "alarm.tolerance: -0.1: "),
        ({"false_alarm_every": "1ep"}, "alarm.false_alarm_every: '1ep': give a number of batches"),
        ({"false_alarm_every": 0}, "alarm.false_alarm_every: 0: must be at least 1 batch"),
        ({"action": None}, "alarm.action: None: is unknown"),
        ({"rules": {"deviation": 0.2}}, "alarm.rules: "),
        ({"rules": [{}]}, "alarm.rules[0]: {}: needs exactly one of deviation, ratio, dispersion"),
        ({"rules": [{"deviation": 0.1, "ratio": "ja"}]}, "alarm.rules[0]: "),
        ({"rules": ["deviation"]}, "alarm.rules[0]: 'deviation'"),
        ({"rules": [{"deviation": 1.5}]}, "alarm.rules[0].deviation: 1.5: give a number from 0 to 1"),
        ({"rules": [{"deviation": math.nan}]}, "alarm.rules[0].deviation: nan"),
        ({"rules": [{"dispersion": -1}]}, "alarm.rules[0].dispersion: -1: give a number of at least 0"),
        ({"rules": [{"dispersion": 3, "above": 4}]}, "alarm.rules[0].above: 4: is unknown"),
        ({"rules": [{"ratio": "ja"}]}, "needs a threshold: below, above or both"),
        ({"rules": [{"ratio": "ja", "below": 2}]}, "alarm.rules[0].below: 2: "),
        ({"rules": [{"ratio": 3, "below": 0.2}]}, "alarm.rules[0].ratio: 3: a label is printable text"),
        (
            {"rules": [{"deviation": 0.1, "for": "0ba"}]},
            "alarm.rules[0].for: '0ba': must be at least 1 batch",
        ),
        ({"rules": [{"deviation": 0.1, "grace": "1ep"}]}, "alarm.rules[0].grace: '1ep': "),
        ({"rules": [{"deviation": 0.1, "patience": 3}]}, "alarm.rules[0].patience: 3: is unknown"),
    ],
)
def test_bad_alarm(value: Any, message: str) -> None:
    """Every wrong rule or action names its place in the list, the value and the mend."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_alarm(value)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["rules", "action", "deviation", "ratio", "for", "shards", "position", "by", "file", "x"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@settings(derandomize=True, deadline=None, max_examples=500)
@given(anything)
def test_anything_is_read_or_refused(value: Any) -> None:
    """Whatever stands in the YAML, only a ConfigError comes out of reading it."""
    for parse in (parse_labels, parse_target, parse_alarm, lambda v: batches("window", v)):
        with contextlib.suppress(ConfigError):
            parse(value)
