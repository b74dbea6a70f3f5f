"""The view of a W&B project: what is sent to the server, by real wandb and wandb-workspaces."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from composer_mixmon.cli import main
from composer_mixmon.metric_names import metric_names
from composer_mixmon.workspace import find_targets
from tests.live.test_logged import documented
from tests.wandb.alone import Ran, run_alone
from tests.wandb.backend import Backend

LABELS = ["ja", "C++", "Wiki", "wiki"]
TARGET = [{"from": "0ba", "shares": [0.7, 0.1, 0.1, 0.1]}, {"from": "0.9dur", "shares": [1, 0, 0, 0.1]}]
COMMAND = ["-W", "ignore", "-c", "from composer_mixmon.cli import main; main()", "wandb", "workspace"]
LOSS = "loss/train/total"
HURRIED = """
import os
from composer_mixmon import wandb_connection
from composer_mixmon.cli import main
wandb_connection.TIMEOUT_S = 5
try:
    main(["wandb", "workspace", "me/p"])
except SystemExit as end:
    os._exit(end.code)  # at exit, wandb's service may go on trying to reach a server that is not there
"""


def workspace(project: str, folder: Path, backend: Backend) -> Ran:
    key = {"WANDB_BASE_URL": backend.url, "WANDB_API_KEY": "0" * 40}
    return run_alone([*COMMAND, project], folder, **key)


def panels(view: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Each panel's settings, by section."""
    sections = json.loads(view["spec"])["section"]["panelBankConfig"]["sections"]
    return {section["name"]: [panel["config"] for panel in section["panels"]] for section in sections}


def test_the_view_shows_every_metric(tmp_path: Path) -> None:
    """Each documented key is in a panel, and nothing else but the loss; labels have their targets."""
    with Backend() as backend:
        backend.config = {"mixmon": {"labels": LABELS, "target": TARGET}, "lr": 1}
        ran = workspace("me/p", tmp_path, backend)
        assert ran.status == 0, ran.errors
        assert ran.output == f"{backend.url}/me/p?nw=abc\n"
        (view,) = [variables for name, variables in backend.calls if name == "UpsertView2"]
    assert (view["entityName"], view["projectName"], view["displayName"]) == ("me", "p", "mixmon")
    shown = [panel for section in panels(view).values() for panel in section]
    keys = documented(list(metric_names(tuple(LABELS))), loss=True) | {LOSS}
    named = {key for panel in shown for key in panel["metrics"]}
    assert named <= keys
    matched = {key for key in keys for panel in shown if re.search(panel.get("metricRegex", "^$"), key)}
    assert named | matched == keys
    titles = [panel.get("chartTitle") for panel in panels(view)["mixmon: each label"]]
    assert titles[:2] == ["ja: target 70.00%, then 100.00%", "C++: target 10.00%, then 0.00%"]
    assert [panel["metrics"][0] for panel in panels(view)["mixmon: each label"]] == [
        f"mixmon/window/ratio/{name}" for name in metric_names(tuple(LABELS))
    ]
    (beside,) = panels(view)["mixmon: loss by label"]
    pattern = beside["metricRegex"]
    assert re.search(pattern, LOSS)
    assert re.search(pattern, "mixmon/loss/ja")
    assert not re.search(pattern, "loss/train/total_tokens")


def test_a_project_without_our_runs(tmp_path: Path) -> None:
    """The view is there before the first run."""
    with Backend() as backend:
        ran = workspace("me/p", tmp_path, backend)
        assert ran.status == 0, ran.errors
        (view,) = [variables for name, variables in backend.calls if name == "UpsertView2"]
    assert "mixmon: each label" not in panels(view)
    assert "mixmon: what the run was fed" in panels(view)


def test_nobody_logged_in(tmp_path: Path) -> None:
    """One line, and no question on the terminal."""
    ran = run_alone([*COMMAND, "me/p"], tmp_path)
    told = "is on W&B, where nobody is logged in: run wandb login"
    assert (ran.status, ran.errors) == (2, f"Error: ENTITY/PROJECT: 'me/p': {told}\n")


def test_no_network(tmp_path: Path) -> None:
    """One line that says what could not be reached."""
    away = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "0" * 40}
    ran = run_alone(["-W", "ignore", "-c", HURRIED], tmp_path, **away)
    assert ran.status == 2
    told = ran.errors.splitlines()[-1]  # wandb itself says before it where the key is from
    assert re.match(r"Error: ENTITY/PROJECT: 'me/p': cannot be (read|changed) (on|from) W&B: ", told)


@pytest.mark.parametrize("project", ["me", "me/p/r1", "", "me/", "https://wandb.ai/me/p", "me/p q"])
def test_no_project(project: str) -> None:
    """What is no entity and project is named."""
    ran = CliRunner().invoke(main, ["wandb", "workspace", project])
    assert ran.exit_code == 2
    assert "Error: ENTITY/PROJECT: " in ran.output
    assert "such as me/pretraining" in ran.output


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with what to install."""
    real = importlib.util.find_spec

    def find_spec(name: str, *more: Any) -> Any:
        return None if name == "wandb_workspaces" else real(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    ran = CliRunner().invoke(main, ["wandb", "workspace", "me/p"])
    assert (ran.exit_code, ran.output.count("\n")) == (2, 1)
    assert 'run pip install "composer-mixmon[workspace]"' in ran.output


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"mixmon": None},
        {"mixmon": {"labels": ["a"]}},
        {"mixmon": {"labels": ["a"], "target": [{"shares": [0.5, 0.5]}]}},
        {"mixmon": {"labels": ["a"], "target": [{"shares": ["x"]}]}},
        {"mixmon": {"labels": ["a"], "target": [{"shares": [1]}, {"shares": []}]}},
        {"mixmon": {"labels": 3, "target": 3}},
        {"mixmon": "a"},
    ],
)
def test_runs_that_tell_no_targets(config: dict[str, Any]) -> None:
    """The newest run that does counts."""
    good = {"mixmon": {"labels": ["a", "b"], "target": [{"from": "0ba", "shares": [0.25, 0.75]}]}}
    assert find_targets([config]) == {}
    assert find_targets([config, good, config]) == {"a": [0.25], "b": [0.75]}
