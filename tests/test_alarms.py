"""Rules fire at the right batch, once, and remember what they must."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_mixmon.alarms import Alarms, evidence_rule
from composer_mixmon.config import Rule
from composer_mixmon.mixture import Mixture

EVEN = np.array([0.5, 0.5])


def rule(figure: str = "deviation", above: float = 0.2, patience: int = 1, grace: int | None = 0) -> Rule:
    label = "ja" if figure == "ratio" else ""
    return Rule(figure, label, -math.inf, above, patience, grace)


def run(rules: list[Rule], ja: list[int], window: int = 1, step: int = 1) -> list[int]:
    """Batches at which something fires, when each batch has ``ja[i]`` of 10 samples."""
    mixture, alarms = Mixture(EVEN, window), Alarms(rules, ("ja", "en"), EVEN, window)
    rows = np.array([[n, 10 - n] for n in ja])
    fired: list[int] = []
    for begin in range(0, len(rows), step):
        fold = mixture.fold(rows[begin : begin + step])
        look = alarms.look(begin, fold)
        mixture.commit(fold)
        alarms.commit(look)
        fired += [alarm.batch for alarm in look.alarms]
    assert alarms.fired == len(fired)
    return fired


def brute_force(rule: Rule, values: list[float], window: int) -> list[int]:
    """The rule of the docstring, read batch by batch from all values so far."""
    grace = window if rule.grace is None else rule.grace
    on, fired = False, []
    since = 0
    for i in range(len(values)):
        holds = [j >= grace and not rule.below <= v <= rule.above for j, v in enumerate(values[: i + 1])]
        recent = holds[since:][-rule.patience :]
        if len(recent) == rule.patience and all(h != on for h in recent):
            on, since = not on, i + 1
            if on:
                fired.append(i)
    return fired


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    st.lists(st.sampled_from([5, 5, 8, 10]), min_size=1, max_size=40),
    st.integers(1, 5),
    st.integers(0, 12) | st.none(),
    st.integers(1, 7),
)
def test_patience_grace_and_hysteresis(ja: list[int], patience: int, grace: int | None, step: int) -> None:
    """A rule fires as a reading of its definition says, however many batches it is told of at once."""
    watched = rule(patience=patience, grace=grace)
    values = [abs(n / 10 - 0.5) for n in ja]
    assert run([watched], ja, step=step) == brute_force(watched, values, window=1)


def test_one_event_for_one_bias() -> None:
    """A bias that lasts fires once; after it was gone for as long as the patience, it may fire again."""
    ja = [5] * 3 + [10] * 10 + [5] + [10] * 3 + [5] * 2 + [10] * 5
    assert run([rule(patience=2)], ja) == [4, 20]


def test_default_grace_is_a_window() -> None:
    """The noise of a window that is not full yet alarms nobody."""
    assert run([rule(grace=None)], [10] * 12, window=8) == [8]


def test_ratio_and_dispersion() -> None:
    """One label's ratio is watched on both sides; dispersion at a window of even batches is 0."""
    both = Rule("ratio", "ja", 0.4, 0.6, 1, 0)
    assert run([both], [5, 7, 5, 3, 4, 6]) == [1, 3]
    assert run([rule("dispersion", above=3.0)], [5, 5, 9, 10]) == [2]


def test_evidence_is_one_event() -> None:
    """Evidence fires at its threshold and again only after a thousandth of it was left."""
    evidence = np.array([2.0, 6.1, 9.0, 5.0, 3.1, 6.5, 2.9, 5.9, 6.2])
    mixture, alarms = Mixture(EVEN, 1), Alarms([evidence_rule(6.0)], ("ja", "en"), EVEN, 1)
    look = alarms.look(0, mixture.fold(np.full((9, 2), 5)), evidence)
    assert [(alarm.batch, alarm.value, alarm.evidence) for alarm in look.alarms] == [
        (1, 6.1, 6.1),
        (8, 6.2, 6.2),
    ]


def test_alarm_says_what_was_seen() -> None:
    """The text names the rule, its figure, the batches and the labels with their shares and targets."""
    mixture, alarms = Mixture(EVEN, 2), Alarms([rule(patience=3)], ("ja", "en"), EVEN, 2)
    look = alarms.look(100, mixture.fold(np.array([[9, 1]] * 4)))
    (alarm,) = look.alarms
    assert (alarm.batch, alarm.first, alarm.value) == (102, 101, pytest.approx(0.4))
    assert str(alarm) == (
        "deviation above 0.2 for 3 ba: 0.4 in batches 101 to 102: "
        "ja 90.0% (target 50.0%, +40.0%), en 10.0% (target 50.0%, -40.0%)"
    )


def test_event_is_plain_types() -> None:
    """What is posted to a webhook is JSON: signed deviations, furthest off first, batches, shares, shards."""
    fold = Mixture(EVEN, 1).fold(np.array([[9, 1]]))
    (alarm,) = Alarms([rule()], ("ja", "en"), EVEN, 1).look(7, fold, np.array([2.5])).alarms
    alarm = dataclasses.replace(alarm, shards={"ja/a.mds": 8, "en/b.mds": 1})
    event = json.loads(json.dumps(alarm.to_dict()))
    assert event["text"].endswith("; most from ja/a.mds, en/b.mds")
    assert list(event["deviations"].items()) == [("ja", pytest.approx(0.4)), ("en", pytest.approx(-0.4))]
    assert (event["batch"], event["first"], event["evidence"]) == (7, 7, 2.5)
    assert event["shards"] == {"ja/a.mds": 8, "en/b.mds": 1}


def test_alarm_of_many_labels_names_the_worst() -> None:
    """Of a thousand labels, the text shows the three that are furthest off."""
    names = tuple(f"l{i}" for i in range(1000))
    target = np.full(1000, 1e-3)
    counts: npt.NDArray[np.int64] = np.full(1000, 1)
    counts[[7, 8, 9]] = [3000, 2000, 1000]
    look = Alarms([rule()], names, target, 1).look(0, Mixture(target, 1).fold(counts[None]))
    assert "l7 42.9%" in str(look.alarms[0])
    assert str(look.alarms[0]).endswith("and 997 more labels")


@settings(derandomize=True, deadline=None)
@given(st.lists(st.sampled_from([5, 9]), min_size=2, max_size=30), st.integers(1, 4), st.integers(1, 29))
def test_memory_survives_being_saved(ja: list[int], patience: int, cut: int) -> None:
    """Interrupted at any batch and resumed, a rule fires as it would have."""
    rows = np.array([[n, 10 - n] for n in ja])
    mixture, alarms = Mixture(EVEN, 1), Alarms([rule(patience=patience)], ("ja", "en"), EVEN, 1)
    fold = mixture.fold(rows[:cut])
    alarms.commit(look := alarms.look(0, fold))
    fired = [alarm.batch for alarm in look.alarms]
    mixture.commit(fold)
    resumed = Alarms([rule("ratio"), rule(patience=patience)], ("ja", "en"), EVEN, 1)
    resumed.load_state_dict(json.loads(json.dumps(alarms.state_dict())))
    look = resumed.look(cut, mixture.fold(rows[cut:]))
    fired += [alarm.batch for alarm in look.alarms if alarm.rule.startswith("deviation")]
    assert fired == run([rule(patience=patience)], ja)
