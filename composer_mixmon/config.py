"""What the user writes under ``mixmon:`` in a training YAML, checked and turned into records."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, TypeGuard, cast
from urllib.parse import urlsplit

from composer_mixmon.errors import ConfigError
from composer_mixmon.integrity.config import IntegrityConfig, parse_integrity
from composer_mixmon.ledger.config import LedgerConfig, parse_ledger

__all__ = [
    "ACTIONS",
    "Action",
    "AlarmConfig",
    "Column",
    "MonitorConfig",
    "Phase",
    "Rule",
    "Webhook",
    "batches",
    "is_label",
    "label_name",
    "parse_alarm",
    "parse_labels",
    "parse_loss",
    "parse_target",
    "plain",
]

ACTIONS = ("log", "wandb", "checkpoint", "stop", "raise")
RULE_FIGURES = ("deviation", "ratio", "dispersion")
_SHORT_LABELS = {"stream": None, "position": 10}
_TIME = re.compile(r"\d[\d_]*(?:ep|iter|ba|sp|tok)|0(?:\.\d+)?dur")
_BATCHES = re.compile(r"\s*(\d[\d_]*)\s*ba\s*")
# Rows of counts are held for a window and for an interval: these keep them in memory.
_LONGEST_WINDOW = 100_000
_LONGEST_INTERVAL = 10_000
_MOST_BATCHES = 10**300


@dataclass(frozen=True)
class Rule:
    """One threshold.

    Attributes:
        figure: ``deviation``, ``dispersion`` or ``ratio`` of the window, or ``evidence``.
        label: The label whose ratio is watched (``ratio`` only).
        below: The alarm's condition holds under this figure, or −inf.
        above: The alarm's condition holds over this figure, or inf.
        patience: Consecutive batches for which it must hold (``for:`` in YAML).
        grace: Batches at the start of the run in which it is not looked at; ``None``: a window's.
        quiet: The figure at or under which an alarm is over; ``None``: where the condition does not hold.
    """

    figure: str
    label: str
    below: float
    above: float
    patience: int
    grace: int | None
    quiet: float | None = None

    def __str__(self) -> str:
        if self.figure == "evidence":
            return f"evidence above {self.above:.4g}"
        subject = f"ratio of {self.label}" if self.figure == "ratio" else self.figure
        bounds = [f"below {self.below:g}"] * (self.below > -math.inf)
        bounds += [f"above {self.above:g}"] * (self.above < math.inf)
        return f"{subject} {' or '.join(bounds)} for {self.patience} ba"


@dataclass(frozen=True)
class Webhook:
    """The action of posting an alarm, as JSON, to a URL; shows the host only, for such URLs are secrets."""

    url: str = field(repr=False)

    @property
    def host(self) -> str:
        """Where the URL leads."""
        return urlsplit(self.url).netloc.rpartition("@")[2]

    def __str__(self) -> str:
        return f"webhook to {self.host}"


@dataclass(frozen=True)
class Column:
    """A column of the samples whose values are the labels.

    Attributes:
        name: Its name.
        file: A label file that was built from it, which tells its values and their shares.
    """

    name: str
    file: str | None = None


Action = str | Webhook | Callable[[Any], object]
"""One of :data:`ACTIONS`, a webhook, or a function that is called with the alarm."""


@dataclass(frozen=True)
class AlarmConfig:
    """When there is an alarm, and what to do then.

    Attributes:
        tolerance: Smallest bias of a label's share worth an alarm; ``None``: no evidence is taken.
        false_alarm_every: Batches to a false alarm of the evidence, at least, on average.
        rules: Plain thresholds.
        actions: What to do.
    """

    tolerance: float | None
    false_alarm_every: int
    rules: tuple[Rule, ...]
    actions: tuple[Action, ...]


@dataclass(frozen=True)
class Phase:
    """A part of a run and the shares that it is meant to see.

    Attributes:
        start: When it begins, a Composer time such as ``0ba`` or ``0.5dur``.
        shares: Each label's share; ``None`` for the dataset's own.
    """

    start: str
    shares: dict[str, float] | None


@dataclass(frozen=True)
class MonitorConfig:
    """All settings of a monitor, read.

    Attributes:
        labels: As :func:`parse_labels` returns it.
        target: As :func:`parse_target` returns it.
        window: Batches in the window.
        interval: Batches from one log to the next.
        alarm: Rules and actions.
        ledger: Whether and where a ledger is kept.
        integrity: What is looked for in the sample ids themselves.
        loss: Batches from one whose loss is taken by label to the next; ``None``: it is not taken.
    """

    labels: tuple[str, Any]
    target: tuple[Phase, ...]
    window: int
    interval: int
    alarm: AlarmConfig
    ledger: LedgerConfig
    integrity: IntegrityConfig
    loss: int | None

    @classmethod
    def read(
        cls,
        labels: Any = "stream",
        target: Any = "auto",
        window: Any = "100ba",
        log_interval: Any = "10ba",
        alarm: Any = None,
        ledger: Any = True,
        integrity: Any = True,
        loss: Any = None,
    ) -> MonitorConfig:
        """Read the settings as the user wrote them.

        Raises:
            ConfigError: One of them is wrong.
        """
        return cls(
            parse_labels(labels),
            parse_target(target),
            batches("window", window, most=_LONGEST_WINDOW),
            batches("log_interval", log_interval, most=_LONGEST_INTERVAL),
            parse_alarm(alarm),
            parse_ledger(plain(ledger)),
            parse_integrity(plain(integrity)),
            parse_loss(plain(loss)),
        )


def plain(value: Any) -> Any:
    """Turn configuration containers (OmegaConf's, too) into dicts and lists."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [plain(item) for item in cast("Sequence[Any]", value)]
    return value


def _is_dict(value: Any) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def batches(field: str, value: Any, least: int = 1, most: int = _MOST_BATCHES) -> int:
    """Read a number of batches: ``100ba``, ``1_000_000ba`` or a plain 100.

    Raises:
        ConfigError: Another unit, no number, fewer than ``least`` or more than ``most``.
    """
    found = _BATCHES.fullmatch(value) if isinstance(value, str) else None
    if found:
        number = int(found[1].replace("_", ""))
    elif not isinstance(value, bool) and isinstance(value, Integral):
        number = int(value)  # numpy's integers, too
    else:
        raise ConfigError(field, value, 'give a number of batches, such as "100ba"')
    if number > most:
        raise ConfigError(field, value, f"must be at most {most:_} batches")
    if number < least:
        raise ConfigError(field, value, f"must be at least {least} batch{'es' * (least != 1)}")
    return number


def parse_labels(value: Any) -> tuple[str, Any]:
    """Read ``labels`` as its kind and the kind's argument.

    Returns:
        ``("stream", None)``, ``("shards", {label: [patterns]})``, ``("position", parts)``,
        ``("file", path)`` or ``("column", Column)``.

    Raises:
        ConfigError: Not one of these.
    """
    field, spec = "labels", plain(value)
    if isinstance(spec, str) and spec in _SHORT_LABELS:
        return spec, _SHORT_LABELS[spec]
    if _is_dict(spec) and spec == {"by": "stream"}:
        return "stream", None
    if _is_dict(spec) and "column" in spec:
        return "column", _column(spec)
    choices = (
        '"stream", {shards: {ja: "ja/*", en: "en/*"}}, {position: 10}, {column: source} or '
        "{file: labels.json}"
    )
    if not _is_dict(spec) or len(spec) != 1:
        raise ConfigError(field, value, f"choose one of {choices}")
    kind, argument = next(iter(spec.items()))
    readers = {"shards": _shard_groups, "position": _parts, "file": _path}
    if kind not in readers:
        raise ConfigError(field, kind, f"is no kind of label: choose one of {choices}")
    return kind, readers[kind](argument)


def _column(spec: dict[Any, Any]) -> Column:
    keys = _keys("labels", spec, {"column": None, "file": None})
    name, file = keys["column"], keys["file"]
    if not isinstance(name, str) or not name:
        raise ConfigError("labels.column", name, "give the column's name, such as source")
    return Column(name, None if file is None else _path(file))


def _shard_groups(argument: Any) -> dict[str, list[str]]:
    field = "labels.shards"
    if not _is_dict(argument) or not argument:
        raise ConfigError(field, argument, 'map each label to a glob or a range, such as {ja: "ja/*"}')
    groups: dict[str, list[str]] = {}
    for name, patterns in argument.items():
        listed: list[Any] = patterns if _is_list(patterns) else [patterns]
        if not listed or not all(isinstance(p, str) and p for p in listed):
            raise ConfigError(
                f"{field}.{name}", patterns, 'give a glob ("ja/*") or a range ("0:16"), or a list'
            )
        groups[label_name(field, name)] = listed
    return groups


def is_label(name: object) -> TypeGuard[str]:
    """Whether this can be part of a metric's name and of a line in a terminal."""
    return isinstance(name, str) and 0 < len(name) <= 200 and name.isprintable()


def label_name(field: str, name: Any) -> str:
    """Check a label's name.

    Raises:
        ConfigError: Not text, empty, longer than 200 characters, or with control characters.
    """
    if not is_label(name):
        mend = 'a label is printable text of 1 to 200 characters (in YAML, quote words such as "no")'
        raise ConfigError(field, name, mend)
    return name


def _parts(argument: Any) -> int:
    if isinstance(argument, bool) or not isinstance(argument, int) or not 2 <= argument <= 10_000:
        raise ConfigError(
            "labels.position", argument, "give a number of equal parts from 2 to 10000, such as 10"
        )
    return argument


def _path(argument: Any) -> str:
    if not isinstance(argument, str) or not argument:
        raise ConfigError("labels.file", argument, "give the path of a label file")
    return argument


def parse_target(value: Any) -> tuple[Phase, ...]:
    """Read ``target``: ``auto``, each label's share, or a list of phases with a target each.

    Raises:
        ConfigError: A share that is no number in [0, 1], shares that do not sum to 1 within 1e-9, or phases
            that do not begin at 0 or have no Composer time.
    """
    spec = plain(value)
    if not _is_list(spec):
        return (Phase("0ba", _shares("target", spec)),)
    if not spec:
        raise ConfigError("target", value, "give at least one phase, such as {from: 0ba, target: auto}")
    phases: list[Phase] = []
    for i, phase in enumerate(spec):
        field = f"target[{i}]"
        keys = _keys(field, phase, {"from": None, "target": None})
        start = keys["from"]
        if not isinstance(start, str) or not _TIME.fullmatch(start):
            mend = 'give a Composer time, such as "1_000ba", "2ep" or, below 1, "0.5dur"'
            raise ConfigError(f"{field}.from", start, mend)
        shares = _shares(f"{field}.target", keys["target"])
        phases.append(Phase(start.replace("_", ""), shares))
    if _time(phases[0].start)[0]:
        raise ConfigError("target[0].from", phases[0].start, "the first phase must begin at 0ba")
    for i, (before, after) in enumerate(pairwise(phases), 1):
        (earlier, unit), (later, other_unit) = _time(before.start), _time(after.start)
        if unit == other_unit and later <= earlier:
            raise ConfigError(f"target[{i}].from", after.start, f"must come after {before.start}")
    return tuple(phases)


def _time(start: str) -> tuple[float, str]:
    """Number and unit of a phase's start."""
    number = start.rstrip("abcdefghijklmnopqrstuvwxyz")
    return float(number), start[len(number) :]


def _shares(field: str, spec: Any) -> dict[str, float] | None:
    if spec is None or spec == "auto":
        return None
    if not _is_dict(spec) or not spec:
        raise ConfigError(field, spec, 'write "auto" or each label\'s share, such as {ja: 0.5, en: 0.5}')
    shares = {str(label): _number(f"{field}.{label}", share, 0.0, 1.0) for label, share in spec.items()}
    total = math.fsum(shares.values())
    if abs(total - 1) > 1e-9:
        raise ConfigError(field, spec, f"the shares sum to {total:.12g}: make them sum to 1")
    return shares


def parse_alarm(value: Any) -> AlarmConfig:
    """Read ``alarm``: tolerance, rules and actions.

    Raises:
        ConfigError: An unknown key, figure or action, or a threshold out of its range.
    """
    defaults = {"tolerance": 0.05, "false_alarm_every": 1_000_000, "rules": [], "action": ["log"]}
    spec = _keys("alarm", {} if value is None else plain(value), defaults)
    tolerance, rules, actions = spec["tolerance"], spec["rules"], spec["action"]
    listed: list[Any] = actions if _is_list(actions) else [actions]
    if tolerance is not None:
        tolerance = _number("alarm.tolerance", tolerance, 0.0, 1.0)
        if tolerance == 1:
            raise ConfigError("alarm.tolerance", 1, "give a share below 1, such as 0.05")
    if not _is_list(rules):
        raise ConfigError("alarm.rules", rules, "give a list, such as [{deviation: 0.2, for: 20ba}]")
    return AlarmConfig(
        tolerance,
        batches("alarm.false_alarm_every", spec["false_alarm_every"]),
        tuple(_rule(f"alarm.rules[{i}]", rule) for i, rule in enumerate(rules)),
        tuple(map(_action, listed)),
    )


def parse_loss(value: Any) -> int | None:
    """Read ``loss``: how many batches apart it is taken by label, or ``None`` if it is not.

    Raises:
        ConfigError: No mapping with a number of batches as ``every``, true or false.
    """
    if value is None or value is False:
        return None
    spec = _keys("loss", {} if value is True else value, {"every": "50ba"})
    return batches("loss.every", spec["every"])


def _action(value: Any) -> Any:
    if callable(value) or value in ACTIONS:
        return value
    if _is_dict(value) and list(value) == ["webhook"]:
        url = value["webhook"]
        if not _is_url(url):
            raise ConfigError("alarm.action.webhook", url, "give a URL that begins with https:// or http://")
        return Webhook(url)
    mend = f"is unknown: choose of {', '.join(ACTIONS)}, {{webhook: URL}} or, in Python, a function"
    raise ConfigError("alarm.action", value, mend)


def _rule(field: str, value: Any) -> Rule:
    figures = [figure for figure in RULE_FIGURES if _is_dict(value) and figure in value]
    if len(figures) != 1:
        raise ConfigError(field, value, f"needs exactly one of {', '.join(RULE_FIGURES)}")
    figure = figures[0]
    bounds = {"below": None, "above": None} if figure == "ratio" else {}
    spec = _keys(field, value, {figure: None, "for": 1, "grace": None, **bounds})
    label, below, above = "", -math.inf, math.inf
    if figure == "ratio":
        label = label_name(f"{field}.ratio", spec["ratio"])
        if spec["below"] is None and spec["above"] is None:
            raise ConfigError(field, value, "needs a threshold: below, above or both")
        if spec["below"] is not None:
            below = _number(f"{field}.below", spec["below"], 0.0, 1.0)
        if spec["above"] is not None:
            above = _number(f"{field}.above", spec["above"], 0.0, 1.0)
        if below > above:
            raise ConfigError(field, value, "below is over above: every ratio is one of them; swap them")
    else:
        above = _number(f"{field}.{figure}", spec[figure], 0.0, 1.0 if figure == "deviation" else math.inf)
    patience = batches(f"{field}.for", spec["for"])
    grace = None if spec["grace"] is None else batches(f"{field}.grace", spec["grace"], least=0)
    return Rule(figure, label, below, above, patience, grace)


def _is_url(value: Any) -> bool:
    try:
        return (
            isinstance(value, str)
            and urlsplit(value).scheme in ("http", "https")
            and bool(Webhook(value).host)
        )
    except ValueError:
        return False


def _number(field: str, value: Any, low: float, high: float) -> float:
    """Check a number in [low, high]."""
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else value
    if not low <= number <= high or number == math.inf:  # pyright: ignore[reportOperatorIssue]
        bound = f"from {low:g} to {high:g}" if math.isfinite(high) else f"of at least {low:g}"
        raise ConfigError(field, value, f"give a number {bound}")
    return float(value)


def _keys(field: str, value: Any, defaults: dict[str, Any]) -> dict[str, Any]:
    """Fill in the defaults of a mapping and refuse keys that mean nothing."""
    if not _is_dict(value):
        raise ConfigError(field, value, f"give a mapping with keys of {', '.join(defaults)}")
    for key in value:
        if key not in defaults:
            raise ConfigError(f"{field}.{key}", value[key], f"is unknown: choose of {', '.join(defaults)}")
    return {**defaults, **value}
