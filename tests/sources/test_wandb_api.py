"""Runs on W&B's servers: real wandb, and a server on loopback in place of W&B's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from composer_mixmon.sources.logged import LOSS
from composer_mixmon.sources.wandb_api import wandb_path
from tests.sources.test_from_logged import CONFIG, NAMES, logged_by_mixmon
from tests.wandb.alone import run_alone
from tests.wandb.backend import Backend

# In a process of its own: wandb keeps its server's address and key for a process's life.
READ = """
import faulthandler, json, os, sys
faulthandler.dump_traceback_later(100, exit=True)  # a hang says where
from composer_mixmon.errors import MixmonError
from composer_mixmon import wandb_connection
from composer_mixmon.sources import read_run
wandb_connection.TIMEOUT_S = 5
try:
    record = read_run(sys.argv[1])
except MixmonError as error:
    print(json.dumps({"error": str(error)}), flush=True)
    os._exit(0)  # at exit, wandb's service may go on trying to reach a server that is not there
else:
    counts = None if record.counts is None else record.counts.tolist()
    told = {"counts": counts, "first": record.first.tolist(), "loss": list(map(str, record.loss))}
    print(json.dumps(told | {"names": record.names, "source": record.source, "remarks": record.remarks}))
"""


def read(run: str, folder: Path, **environment: str) -> dict[str, Any]:
    """What ``read_run`` finds, in a process that knows no user and no key."""
    ran = run_alone(["-c", READ, run], folder, **environment)
    assert ran.status == 0, ran.errors
    return json.loads(ran.output.splitlines()[-1])


def test_a_run_on_wandb(tmp_path: Path) -> None:
    """Exact counts and the loss, NaN included; only the keys that are needed are asked for."""
    rows = np.random.default_rng(1).integers(0, 30, (38, 3))
    part, history = logged_by_mixmon(rows, 4, samples_logged=True), dict[int, dict[str, Any]]()
    for key in part.keys:
        series = part.series(key)
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
            row = history.setdefault(step, {"_step": step, "_timestamp": 1e9 + step, "lr": 0.1})
            row[key] = "NaN" if key == LOSS and step == 37 else value
            row["time/sample_in_epoch"] = 0
    with Backend() as backend:
        backend.history = [history[step] for step in sorted(history)]
        backend.config = {"mixmon": CONFIG, "max_duration": "38ba"}
        key = {"WANDB_BASE_URL": backend.url, "WANDB_API_KEY": "0" * 40}
        found = read("me/p/r1", tmp_path, **key)
        assert found["source"] == "W&B"
        assert found["names"] == list(NAMES)
        assert found["counts"] == np.add.reduceat(rows, found["first"]).tolist()
        assert found["loss"][0] == str(np.arange(4).mean())
        assert found["loss"][-1] == "nan"
        assert found["remarks"][0] == "W&B says that the run is crashed"
        asked = [json.loads(v["spec"])["keys"] for name, v in backend.calls if name == "SampledHistoryPage"]
        assert asked
        assert not any("lr" in keys for keys in asked)
        missing = read("me/p/nix", tmp_path, **key)["error"]
        assert "cannot be read from W&B" in missing
        assert "nix" in missing
        assert "\n" not in missing


def test_nobody_logged_in(tmp_path: Path) -> None:
    """One line, and no question on the terminal."""
    assert "run wandb login" in read("me/p/r1", tmp_path)["error"]


def test_no_network(tmp_path: Path) -> None:
    """One line that says what could not be reached."""
    away = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "0" * 40}
    error = read("me/p/r1", tmp_path, **away)["error"]
    assert "cannot be read from W&B" in error
    assert "\n" not in error


@pytest.mark.parametrize(
    ("run", "path"),
    [
        ("me/p/r1", "me/p/r1"),
        ("https://wandb.ai/me/p/runs/r1", "me/p/r1"),
        ("https://wandb.ai/me/p/runs/r1/overview?nw=x", "me/p/r1"),
        ("https://wandb.ai/me", None),
        ("a/b", None),
        ("a/b/c/d", None),
        ("/a/b/c", None),
        ("./a/b/c", None),
        ("../a/b", None),
        ("a", None),
    ],
)
def test_paths_of_runs(run: str, path: str | None) -> None:
    """What W&B's pages show, and what is no path of a run."""
    assert wandb_path(run) == path
