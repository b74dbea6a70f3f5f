"""A view of a W&B project with the panels that matter: what the runs were fed, beside their loss."""

# wandb and wandb-workspaces are typed only in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingImports=false, reportUnknownParameterType=false
from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from composer_mixmon.errors import ConfigError, MixmonError
from composer_mixmon.logged_labels import choose_labels
from composer_mixmon.wandb_connection import connect, reason

__all__ = ["build_workspace", "find_targets", "save_workspace"]

_FIELD = "ENTITY/PROJECT"
_RUNS = 20  # the newest ones, of which one should tell the labels
_LABELS = 30  # those with a panel each, of the largest targets; all are in the panels of all labels
_LOSS = "loss/train/total"
_COLUMNS = 3
_SCOPES = ("window", "run", "tokens")


@dataclass(frozen=True)
class _Panel:
    """Lines over the batches, of the metrics named or those whose names match, or bars of last values."""

    title: str
    keys: Sequence[str] = ()
    pattern: str = ""
    bars: bool = False


_FED = [
    _Panel("Shares of the window", pattern="^mixmon/window/ratio/"),
    _Panel("Deviation, and a perfect shuffle's", ["mixmon/window/deviation", "mixmon/window/noise_floor"]),
    _Panel("Loss", [_LOSS]),
    _Panel("Evidence of a bias, log10", ["mixmon/evidence"]),
    _Panel("Alarms", ["mixmon/alarms"]),
    _Panel("Dispersion: 1 is a perfect shuffle", ["mixmon/window/dispersion"]),
    _Panel("Shares of the run so far", pattern="^mixmon/run/ratio/"),
    _Panel("Deviation of the run so far", ["mixmon/run/deviation"]),
]
_MORE = {
    "loss by label": [_Panel("Loss by label", pattern=f"^(mixmon/loss/|{_LOSS}$)")],
    "tokens": [
        _Panel("Shares of the window's tokens", pattern="^mixmon/tokens/ratio/"),
        _Panel("Deviation of tokens and of samples", ["mixmon/tokens/deviation", "mixmon/window/deviation"]),
    ],
    "integrity": [
        _Panel("Batches that were not as planned", ["mixmon/integrity/plan_mismatch"]),
        _Panel("Samples that came again", ["mixmon/integrity/repeats"]),
        _Panel("Samples that never came", ["mixmon/integrity/gaps"]),
        _Panel("Samples on several ranks", ["mixmon/integrity/rank_overlap"]),
    ],
}


def save_workspace(project: str) -> str:
    """Save the view to a project.

    Args:
        project: ``entity/project``.

    Returns:
        The view's address.

    Raises:
        MixmonError: Not such a name, wandb or wandb-workspaces is not installed, nobody is logged in, or W&B
            cannot be reached or has no such project.
    """
    parts = re.fullmatch(r"([^/\s]+)/([^/\s]+)", project)
    if parts is None:
        raise ConfigError(_FIELD, project, "give both, as in W&B's addresses, such as me/pretraining")
    if importlib.util.find_spec("wandb_workspaces") is None:
        mend = 'views of W&B are made with wandb-workspaces: run pip install "composer-mixmon[workspace]"'
        raise MixmonError(mend)
    api = connect(_FIELD, project)
    try:
        newest = islice(api.runs(project, order="-created_at", per_page=_RUNS), _RUNS)
        targets = find_targets([run.config for run in newest])
        view = build_workspace(parts[1], parts[2], targets)
        view.save()
        return str(view.url)
    except Exception as error:
        raise ConfigError(_FIELD, project, f"cannot be changed on W&B: {reason(error)}") from error


def find_targets(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Labels of a run, with each one's target in each phase.

    Args:
        configs: Runs' configs; the first that tells labels and targets counts.
    """
    for config in configs:
        try:
            settings = config["mixmon"]
            phases = [[float(share) for share in phase["shares"]] for phase in settings["target"]]
            columns = map(list, zip(*phases, strict=True))
            return dict(zip(map(str, settings["labels"]), columns, strict=True))
        except (KeyError, TypeError, ValueError, AttributeError):  # mixmon did not watch it
            continue
    return {}


def build_workspace(entity: str, project: str, targets: Mapping[str, Sequence[float]]) -> Any:
    """Lay the view out: a ``wandb_workspaces.workspaces.Workspace`` that has not been saved.

    Args:
        entity: Whose project it is.
        project: Its name.
        targets: As :func:`find_targets` returns them; with none, there are no panels of single labels.
    """
    import wandb_workspaces.workspaces as ws

    sections: list[Any] = []
    for name, panels in _sections(targets).items():
        rows = ws.SectionLayoutSettings(columns=_COLUMNS, rows=math.ceil(len(panels) / _COLUMNS))
        drawn = [_draw(panel) for panel in panels]
        sections.append(ws.Section(name=f"mixmon: {name}", panels=drawn, is_open=True, layout_settings=rows))
    return ws.Workspace(entity=entity, project=project, name="mixmon", sections=sections)


def _sections(targets: Mapping[str, Sequence[float]]) -> dict[str, list[_Panel]]:
    """The sections' panels, by the sections' names."""
    if not targets:
        return {"what the run was fed": _FED, **_MORE}
    shares = np.array(list(targets.values()), np.float64)  # (labels, phases)
    logged = choose_labels(tuple(targets), shares[:, 0].copy())
    bars = _Panel("Mixture of the run", [f"mixmon/run/ratio/{name}" for name in logged.names], bars=True)
    each = zip(logged.labels, logged.names, logged.sums(shares.T).T.tolist(), strict=True)
    labels = [
        _Panel(_title(label, meant), [f"mixmon/{scope}/ratio/{name}" for scope in _SCOPES])
        for label, name, meant in sorted(each, key=lambda one: -max(one[2]))[:_LABELS]
    ]
    return {"what the run was fed": [*_FED, bars], "each label": labels, **_MORE}


def _draw(panel: _Panel) -> Any:
    import wandb_workspaces.reports.v2 as wr

    keys: list[Any] = list(panel.keys)
    if panel.bars:
        return wr.BarPlot(title=panel.title, metrics=keys)
    whole = (0, 1) if panel.pattern.endswith("/ratio/") else (None, None)
    return wr.LinePlot(title=panel.title, y=keys, metric_regex=panel.pattern or None, range_y=whole)


def _title(label: str, shares: Sequence[float]) -> str:
    """The label and its target, phase by phase where that changes."""
    changes = [share for i, share in enumerate(shares) if i == 0 or share != shares[i - 1]]
    return f"{label}: target {', then '.join(f'{share:.2%}' for share in changes)}"
