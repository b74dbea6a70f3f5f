"""The shipped scenarios, shortened by overrides: real trainings that went wrong, and their post-mortems."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from composer_mixmon.ledger import read_ledger
from composer_mixmon.order_hash import order_hashes
from tests.e2e.test_demo import REPO, module, script

BATCHES, FIRST_JOB = 256, 100

# 4,096 sequences in 64 shards: one is 8 batches, as in the shipped scenarios.
SHORT = [
    "global_train_batch_size=8",
    "device_train_microbatch_size=8",
    f"max_duration={BATCHES}ba",
]


@pytest.fixture(scope="module")
def scenarios() -> ModuleType:
    """The script as a module; it imports pretrain.py from beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(REPO / "scripts"))
        return module("scenarios")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The folder with all scenarios, and the script's process."""
    folder = tmp_path_factory.mktemp("scenarios")
    module("demo_data").main([str(folder / "data"), "--sequences", "4096", "--shards", "64"])
    return folder, script("scenarios", folder, "--first-job", str(FIRST_JOB), "--set", *SHORT)


@pytest.fixture(scope="module")
def folder(ran: tuple[Path, subprocess.CompletedProcess[str]]) -> Path:
    """The folder with all scenarios."""
    return ran[0]


def findings(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())


def test_all_that_is_found_is_true(ran: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """Verdicts, exit statuses, periods, shares of variance, onset and repeats are those of the oracles."""
    _, done = ran
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right") == 5 + 3 + 2 + 4 + 4
    assert "WRONG" not in done.stdout


@pytest.mark.parametrize("name", ["leftovers", "unmonitored"])
def test_a_yaml_index_json_and_the_loss_are_enough(folder: Path, name: str) -> None:
    """With runs, ledger, checkpoints and shards gone, what is left gives the findings of the ledger."""
    gone = [folder / "data", folder / "see-saw", folder / name / "checkpoints", folder / name / "wandb"]
    there = [path for path in gone if path.exists()]
    for path in there:
        path.rename(path.with_suffix(".gone"))
    try:
        left = folder / name / "left"
        command = [
            Path(sys.executable).with_name("mixmon"),
            "postmortem",
            left / "wandb",
            "--config",
            left / "train.yaml",
            "--json",
        ]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    finally:
        for path in there:
            path.with_suffix(".gone").rename(path)
    assert done.returncode == 1, done.stderr
    seen, truth = json.loads(done.stdout), findings(folder, "see-saw")
    assert seen["verdict"]["headline"] == truth["verdict"]["headline"]
    assert seen["mixture"]["see_saw"] == truth["mixture"]["see_saw"]
    for figure in ("explained", "coherence"):
        assert seen["loss"][figure] == pytest.approx(truth["loss"][figure], rel=1e-5)


def test_the_repeat_repeats(folder: Path, scenarios: ModuleType) -> None:
    """The second job was fed the epoch from its start, as streaming orders it, while Composer counted on."""
    run = folder / "repeat"
    order, _ = scenarios.epoch_order(OmegaConf.load(run / "config.yaml"))
    record = read_ledger(str(run / "checkpoints")).record
    plan = order_hashes(order)
    assert record.first.tolist() == list(range(BATCHES))
    assert record.order is not None
    assert np.array_equal(record.order[:FIRST_JOB], plan[:FIRST_JOB])
    assert np.array_equal(record.order[FIRST_JOB:], plan[: BATCHES - FIRST_JOB])
    assert [(one.batch, one.epoch) for one in record.resumptions] == [(FIRST_JOB, 0)]


def test_the_divergence_stays(folder: Path, scenarios: ModuleType) -> None:
    """The loss falls at first, and is above where it began from the middle on."""
    loss = scenarios.losses(folder / "divergence")
    assert loss[16:32].mean() < loss[:8].mean()
    assert loss[-BATCHES // 4 :].min() > loss[:8].max()


def test_monitoring_leaves_the_loss_as_it_is(folder: Path, scenarios: ModuleType) -> None:
    """The see-saw has the same losses with mixmon and without, to the last bit."""
    with_mixmon, without = (scenarios.losses(folder / name) for name in ("see-saw", "unmonitored"))
    assert len(without) == BATCHES
    assert np.array_equal(with_mixmon, without)


def test_a_swing_is_from_one_turn_to_japanese_to_the_next(scenarios: ModuleType) -> None:
    """Turns at batches 2, 6 and 12 are 5 batches apart on average."""
    japanese = np.array([0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1], float)
    assert scenarios.SeeSaw(japanese, japanese, 1).period == 5


@pytest.mark.parametrize(("noise", "explained"), [(0, 1.0), (1, 0.5), (3, 0.1)])
def test_share_explained_is_that_of_what_the_trend_leaves(
    scenarios: ModuleType, noise: float, explained: float
) -> None:
    """Language and noise of known variances, over a loss that falls, give the share of the language's."""
    rng = np.random.default_rng(0)
    japanese = rng.integers(0, 2, 20_000).astype(float)
    trend = -np.log(np.arange(len(japanese)) + 1)
    loss = trend + 2 * japanese + noise * rng.normal(size=len(japanese))
    assert scenarios.SeeSaw(japanese, loss, 1).explained == pytest.approx(explained, abs=0.01)
