"""What Composer's other loggers keep of a run whose labels not all of them would take as they are."""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
from composer.loggers import FileLogger, InMemoryLogger, MLFlowLogger, TensorboardLogger
from streaming import StreamingDataLoader
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from composer_mixmon import MixMon
from composer_mixmon.metric_names import metric_names
from tests.live.data import SHARD, mds_loader, streaming_dataset, write_mds
from tests.live.helpers import Witness, fit, metrics
from tests.live.losses import composer_model, masked
from tests.live.test_logged import documented

LABELS = {"ja+en": "0:2", "日本語": "2:4", "C++": "4:5", "news": "5:6", "news/ja": "6:7", "News": "7:8"}
NAMES = dict(zip(LABELS, metric_names(tuple(LABELS)), strict=True))
LOSS = "loss/train/total"
Logged = dict[str, list[tuple[int, float]]]


@dataclass
class Run:
    """A run that is over, and where its loggers have left what they got."""

    folder: Path
    witness: Witness
    memory: Logged
    console: str


@pytest.fixture(scope="module", autouse=True)
def _mlflow_stays_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """MLflow's files in a folder of ours, and nothing sent anywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("MLFLOW_ASYNC_LOGGING_BUFFERING_SECONDS", "0")  # Composer's logger sets it
        patch.setattr(sys, "excepthook", sys.excepthook)  # and this
        patch.chdir(tmp_path_factory.mktemp("here"))
        yield


def mlflow_logger(folder: Path, **settings: Any) -> MLFlowLogger:
    """As a training YAML's ``mlflow: {}`` makes it, with a file store, which needs no database."""
    return MLFlowLogger("e", tracking_uri=f"file:{folder}/mlflow", log_system_metrics=False, **settings)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run with all of them: masked prediction, two epochs of eight batches."""
    folder = tmp_path_factory.mktemp("run")
    dataset = streaming_dataset(write_mds(folder / "data", 64), 8, shuffle=True, num_canonical_nodes=1)
    witness, console = Witness(), io.StringIO()
    monitor = MixMon(labels={"shards": LABELS}, window="6ba", log_interval="4ba", loss={"every": "2ba"})
    over = fit(
        StreamingDataLoader(dataset, batch_size=8, collate_fn=masked),
        monitor,
        witness,
        model=composer_model("masked"),
        duration="2ep",
        log_to_console=True,
        console_log_interval="4ba",
        console_stream=console,
        loggers=[
            mlflow_logger(folder),
            TensorboardLogger(log_dir=f"{folder}/tensorboard"),
            FileLogger(f"{folder}/log.txt", capture_stdout=False, capture_stderr=False),
            InMemoryLogger(),
        ],
    )
    memory = metrics(over) | metrics(over, LOSS)
    return Run(folder, witness, memory, console.getvalue())


def shares(weights: list[list[int]], ids: list[list[int]], label: int, begin: int, end: int) -> float:
    """The label's share of batches, sample by sample."""
    starts = [int(shards.split(":")[0]) * SHARD for shards in LABELS.values()] + [64]
    mine = total = 0
    for batch in range(max(0, begin), end):
        for sample, weight in zip(ids[batch], weights[batch], strict=True):
            total += weight
            mine += weight * (starts[label] <= sample < starts[label + 1])
    return mine / total


def test_the_run_logs_what_it_was_fed(run: Run) -> None:
    """Every documented key, and in each share what a count by hand gives: the measure for the tests below."""
    assert set(run.memory) == documented(list(NAMES.values()), loss=True) | {LOSS}
    ids = run.witness.batches
    ones, tokens = [[1] * len(batch) for batch in ids], [[4 + i % 6 for i in batch] for batch in ids]
    for label, name in enumerate(NAMES.values()):
        for key, weights, begin in (
            ("mixmon/window/ratio", ones, 6),
            ("mixmon/run/ratio", ones, 100),
            ("mixmon/tokens/ratio", tokens, 8),
        ):
            expected = [(end - 1, shares(weights, ids, label, end - begin, end)) for end in (4, 8, 12, 16)]
            assert dict(run.memory[f"{key}/{name}"]) == pytest.approx(dict(expected))
            assert len({share for _, share in expected}) > 1


def test_tensorboard(run: Run) -> None:
    """Event files hold every value, to float32's precision."""
    files = sorted((run.folder / "tensorboard").rglob("events.*"))
    kept: Logged = {}
    for file in files:
        events = EventAccumulator(str(file), {"scalars": 0}).Reload()
        for tag in events.Tags()["scalars"]:
            kept.setdefault(tag, []).extend((event.step, event.value) for event in events.Scalars(tag))
    for key, values in run.memory.items():
        assert kept[key] == [(step, float(np.float32(value))) for step, value in values]


def deduplicated(values: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """What MLFlowLogger sends: a value that has not changed within 100 steps is left out."""
    kept = values[:1]
    for step, value in values[1:]:
        if value != kept[-1][1] or step >= kept[-1][0] + 100:
            kept.append((step, value))
    return kept


def mlflow_histories(folder: Path) -> tuple[Logged, dict[str, str]]:
    """All values of the one run in the store, and its parameters."""
    client = mlflow.MlflowClient(f"file:{folder}/mlflow")
    experiment = client.get_experiment_by_name("e")
    assert experiment is not None
    (kept,) = client.search_runs([experiment.experiment_id])
    histories = {key: client.get_metric_history(kept.info.run_id, key) for key in kept.data.metrics}
    return {key: [(m.step, m.value) for m in seen] for key, seen in histories.items()}, kept.data.params


def test_mlflow(run: Run) -> None:
    """In its default mode, where one name that it refuses costs all that was logged in ten seconds."""
    kept, parameters = mlflow_histories(run.folder)
    for key, values in run.memory.items():
        assert kept[key] == deduplicated(values)
    assert "'labels': ['ja+en', '日本語', 'C++'" in parameters["mixmon"]


def test_mlflow_would_refuse_the_labels(tmp_path: Path) -> None:
    """That is why they are renamed: MLflow refuses these."""
    client = mlflow.MlflowClient(f"file:{tmp_path}")
    kept = client.create_run(client.create_experiment("e")).info.run_id
    client.log_metric(kept, "mixmon/run/ratio/news", 0.5)
    for label in ("ja+en", "C++", "news/ja"):
        with pytest.raises((mlflow.exceptions.MlflowException, NotADirectoryError)):
            client.log_metric(kept, f"mixmon/run/ratio/{label}", 0.5)


def test_a_resumed_mlflow_run_keeps_its_settings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It takes no other value of a parameter; what is logged beside one would be lost."""
    dataset = write_mds(tmp_path / "data", 64)
    steps = 0
    for part, window in enumerate((6, 4), 1):
        loader = mds_loader(streaming_dataset(dataset, 8))
        monitor = MixMon(labels={"position": 2}, window=window, log_interval="4ba", alarm={"tolerance": None})
        logger = mlflow_logger(tmp_path, resume=True)
        fit(loader, monitor, run_name="r", loggers=[logger, InMemoryLogger()])
        kept, parameters = mlflow_histories(tmp_path)
        assert len(kept["mixmon/window/ratio/part0"]) == 2 * part
        assert len(kept[LOSS]) > steps
        steps = len(kept[LOSS])
        assert "'window': 6" in parameters["mixmon"]
    assert not [r for r in caplog.records if r.name.startswith(("composer_mixmon", "mlflow"))]


def test_file(run: Run) -> None:
    """The log file has every value, as Composer prints numbers."""
    lines = (run.folder / "log.txt").read_text().splitlines()
    found = re.findall(r"^\[metric\]\[batch=(\d+)\]: (\S+): (\S+) $", "\n".join(lines), re.MULTILINE)
    kept = {(key, int(step)): float(value) for step, key, value in found}
    for key, values in run.memory.items():
        for step, value in values:
            assert math.isclose(kept[key, step], value, rel_tol=1e-3, abs_tol=1e-4)


def test_console(run: Run) -> None:
    """What is printed after a batch is what was logged beside its loss."""
    blocks = re.split(r"^\[epoch=(\d)\]\[batch=(\d+)/8\]:$", run.console, flags=re.MULTILINE)[1:]
    printed: dict[int, dict[str, str]] = {}
    for epoch, batch, text in zip(blocks[::3], blocks[1::3], blocks[2::3], strict=True):
        lines = re.findall(r"^\t Train (\S+): (\S+)$", text, re.MULTILINE)
        printed[8 * (int(epoch) - 1) + int(batch) - 1] = dict(lines)
    assert set(printed) >= {3, 7, 11, 15}
    for key, values in run.memory.items():
        for step, value in values:
            if step in (3, 7, 11, 15):
                assert math.isclose(float(printed[step][key]), value, rel_tol=1e-3, abs_tol=1e-4)
