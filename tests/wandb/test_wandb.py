"""What real wandb, offline and online, records of a run."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.wandb.alone import ENVIRONMENT
from tests.wandb.backend import Backend
from tests.wandb.run_file import read_run

TRAIN = Path(__file__).with_name("train.py")
INTERVALS = [3, 7, 11, 15, 19, 23]


def train(folder: Path, *arguments: str, **environment: str) -> dict[str, list[list[float]]]:
    """Run train.py and return what its in-memory logger got."""
    ran = subprocess.run(
        [sys.executable, str(TRAIN), str(folder), *(arguments or ["with"])],
        capture_output=True,
        text=True,
        timeout=240,
        env=ENVIRONMENT | {"WANDB_SILENT": "true"} | environment,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "did not take" not in ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def monitored(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if "mixmon/window/deviation" in row]


def ours(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key.startswith("mixmon/")}


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[list[float]]]]:
    folder = tmp_path_factory.mktemp("offline")
    return folder, train(folder, WANDB_MODE="offline")


def test_metrics_alert_and_config_offline(offline: tuple[Path, dict[str, list[list[float]]]]) -> None:
    """All figures of an interval stand in one row with the loss of its last batch; the alert is there."""
    folder, memory = offline
    run = read_run(folder)
    rows = monitored(run.history)
    assert [row["_step"] for row in rows] == INTERVALS
    assert all("loss/train/total" in row for row in rows)
    for row in rows:
        expected = {
            key: value for key, data in memory.items() for step, value in data if step == row["_step"]
        }
        assert ours(row) == {key: value for key, value in expected.items() if key.startswith("mixmon/")}
    # English first, then Japanese, 12 batches each: the window of 8 is off until it holds four of each.
    assert [row["mixmon/window/ratio/ja"] for row in rows] == [0, 0, 0, 0.5, 1, 1]
    assert [row["mixmon/run/ratio/ja"] for row in rows] == [0, 0, 0, 0.25, 0.4, 0.5]
    assert [row["mixmon/alarms"] for row in rows] == [0, 0, 1, 1, 2, 2]
    assert [title for title, _ in run.alerts] == ["mixmon: deviation above 0.3 for 2 ba"] * len(run.alerts)
    assert "batches 2 to 9: ja 0.0% (target 50.0%, -50.0%), en 100.0% (target" in run.alerts[0][1]
    assert run.summary["mixmon/alarms"] == 2
    for key in ("mixmon/window/deviation", "mixmon/window/dispersion", "mixmon/evidence"):
        values = [row[key] for row in rows]
        assert run.summary[key] == {"max": max(values), "last": values[-1]}


def test_config_can_be_replayed(offline: tuple[Path, dict[str, list[list[float]]]]) -> None:
    """The run's config holds the effective settings, defaults filled in, and the hash of index.json."""
    folder, _ = offline
    config = read_run(folder).config["mixmon"]
    index = (folder / "data" / "index.json").read_bytes()
    (stream,) = config["dataset"]["streams"]
    assert stream["index_sha256"] == hashlib.sha256(index).hexdigest()
    assert stream["choose"] == stream["samples"] == config["dataset"]["epoch_size"] == 192
    assert (config["dataset"]["num_canonical_nodes"], config["dataset"]["shuffle_block_size"]) == (
        1,
        4_000_000,
    )
    assert (config["dataset"]["shuffle_algo"], config["dataset"]["shuffle_seed"]) == ("py1e", 9176)
    assert config["world"] == {"nodes": 1, "ranks_per_node": 1}
    assert config["loader"] == {"batch_size": 8, "drop_last": False, "num_workers": 1}
    assert config["labels"] == ["ja", "en"]
    assert config["target"] == [{"from": "0ba", "shares": [0.5, 0.5]}]


def test_nothing_of_composers_is_dropped(
    offline: tuple[Path, dict[str, list[list[float]]]], tmp_path: Path
) -> None:
    """Every row and key that Composer and its callbacks log without mixmon, W&B has with it, too."""
    train(tmp_path, "without", WANDB_MODE="offline")
    without = {row["_step"]: set(row) for row in read_run(tmp_path).history}
    with_us = {
        row["_step"]: {k for k in row if not k.startswith("mixmon/")} for row in read_run(offline[0]).history
    }
    assert with_us == without
    assert "throughput/batches_per_sec" in without[8]


def test_online_and_resumed(tmp_path: Path) -> None:
    """An online run sends the same rows, alerts and config; resumed, it goes on, even with other settings."""
    with Backend() as backend:
        server = {"WANDB_MODE": "online", "WANDB_BASE_URL": backend.url, "WANDB_API_KEY": "0" * 40}
        began = train(tmp_path, "with", "12", **server, WANDB_RUN_ID=Backend.run)
        assert [row["_step"] for row in monitored(backend.history)] == INTERVALS[:3]
        assert backend.config["mixmon"]["window"] == 8
        ended = train(tmp_path, "with", "24", "6", **server, WANDB_RUN_ID=Backend.run)
        assert [name for name, _ in backend.calls].count("RunResumeStatus") == 2
        rows = monitored(backend.history)
        assert [row["_step"] for row in rows] == INTERVALS
        for key in ("mixmon/window/ratio/ja", "mixmon/run/ratio/ja", "mixmon/alarms"):
            assert [[row["_step"], row[key]] for row in rows] == began[key] + ended[key]
        assert [row["mixmon/run/ratio/ja"] for row in rows] == [0, 0, 0, 0.25, 0.4, 0.5]
        assert backend.config["mixmon"]["window"] == 6
        assert backend.config["mixmon"]["dataset"]["streams"][0]["shards"] == 12
        assert ["en 100.0%" in alert["text"] for alert in backend.alerts()] == [True, False]


def test_disabled(tmp_path: Path) -> None:
    """With W&B disabled, the run trains and the other loggers get their figures."""
    memory = train(tmp_path, WANDB_MODE="disabled")
    assert [step for step, _ in memory["mixmon/alarms"]] == INTERVALS
