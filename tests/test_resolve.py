"""Target and rules are checked against the labels that the dataset really has."""

from __future__ import annotations

import re

import numpy as np
import pytest

from composer_mixmon.config import parse_alarm
from composer_mixmon.errors import ConfigError
from composer_mixmon.resolve import cannot_meet, check_rules, resolve_labels, resolve_target
from composer_mixmon.shards import ShardTable

SHARDS = ShardTable.build(["ja/a.mds", "en/a.mds"], [4, 6], [0, 0], ["data"])


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        (("stream", None), ("data",)),
        (("shards", {"ja": ["ja/*"]}), ("ja", "unlabelled")),
        (("position", 2), ("part0", "part1")),
    ],
)
def test_labels(spec: tuple[str, object], names: tuple[str, ...]) -> None:
    """Each kind of label gives its names."""
    assert resolve_labels(spec, SHARDS).names == names


def test_target() -> None:
    """The dataset's own shares by default; labels that the user's target leaves out have none."""
    own = np.array([0.4, 0.6])
    assert resolve_target(None, ("ja", "en"), own) is own
    assert resolve_target({"en": 1.0}, ("ja", "en"), own).tolist() == [0.0, 1.0]
    with pytest.raises(
        ConfigError, match=re.escape("target.jp: 0.5: the dataset has no such label: it has ja, en")
    ):
        resolve_target({"jp": 0.5, "en": 0.5}, ("ja", "en", "unlabelled"), own)


def test_rules() -> None:
    """A rule on a label that does not exist would never fire: it is refused."""
    rules = parse_alarm({"rules": [{"deviation": 0.1}, {"ratio": "jp", "below": 0.1}]}).rules
    with pytest.raises(
        ConfigError, match=re.escape("alarm.rules[1].ratio: 'jp': the dataset has no such label")
    ):
        check_rules(rules, ("ja", "en"))
    check_rules(rules, ("jp",))


def test_target_that_cannot_be_met() -> None:
    """A target further than the tolerance from what the dataset holds is named, with both shares."""
    own = np.array([0.4, 0.6])
    assert cannot_meet(np.array([0.44, 0.56]), ("ja", "en"), own, 0.05) is None
    finding = cannot_meet(np.array([0.5, 0.5]), ("ja", "en"), own, 0.05)
    assert finding is not None
    assert "40.0% of its samples are ja, the target is 50.0%" in finding
