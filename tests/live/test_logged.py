"""What is logged, when, and beside which loss."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from composer.loggers import InMemoryLogger, LoggerDestination
from streaming import StreamingDataLoader

from composer_mixmon import MixMon
from tests.live.data import as_dict, ids_of, two_streams
from tests.live.helpers import Witness, fit, metrics

BATCH = 4


class Calls(LoggerDestination):
    """Every call of ``log_metrics`` that brings something of ours, with its step."""

    def __init__(self) -> None:
        self.calls: list[tuple[int | None, dict[str, Any]]] = []
        self.config: list[Any] = []

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        if any("mixmon" in key for key in metrics):
            self.calls.append((step, metrics))

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        if "mixmon" in hyperparameters:
            self.config.append(hyperparameters["mixmon"])


def with_lengths(samples: Any) -> dict[str, Any]:
    """Batches that tell their tokens: as many as the last digit of the id."""
    batch = as_dict(samples)
    return batch | {"lengths": torch.tensor(ids_of(batch)) % 10}


def loader(tmp_path: Path, collate: Any = as_dict) -> StreamingDataLoader:
    dataset = two_streams(tmp_path, BATCH, shuffle=True, shuffle_block_size=16)
    return StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=collate)


def documented(labels: list[str], loss: bool = False) -> set[str]:
    """The keys in the table of MixMon's docstring; ``loss``: those of the loss by label, too."""
    assert MixMon.__doc__ is not None
    keys = re.findall(r"^\s*\| ``(mixmon/[^`]*)``", MixMon.__doc__, re.MULTILINE)
    keys = [key for key in keys if loss or not key.startswith("mixmon/loss/")]
    return {key.replace("<label>", label) for key in keys for label in labels}


def test_the_keys_are_those_documented(tmp_path: Path) -> None:
    """All in one call an interval, and no other."""
    calls = Calls()
    fit(loader(tmp_path, with_lengths), MixMon(log_interval="4ba"), loggers=[calls])
    assert [step for step, _ in calls.calls] == [3, 7, 11, 15]
    for _, logged in calls.calls:
        assert set(logged) == documented(["a", "b"])
        assert all(type(value) is float and math.isfinite(value) for value in logged.values())


def test_tokens_are_weighed(tmp_path: Path) -> None:
    """The shares of tokens are those of the batches trained on; no batch carries anything for it."""
    witness, calls = Witness(), Calls()
    monitor = MixMon(window="8ba", log_interval="4ba")
    fit(loader(tmp_path, with_lengths), witness, monitor, loggers=[calls])
    for (_, logged), end in zip(calls.calls, (4, 8, 12, 16), strict=True):
        ids = np.concatenate(witness.batches[max(0, end - 8) : end])
        share = (ids % 10)[ids < 40].sum() / (ids % 10).sum()
        assert math.isclose(logged["mixmon/tokens/ratio/a"], share)


@pytest.mark.parametrize("interval", [1, 3, 4])
def test_figures_stand_beside_the_loss_of_their_last_batch(tmp_path: Path, interval: int) -> None:
    """On a step of ``loss/train/total``, over the window that ends with that very batch."""
    witness, memory = Witness(), InMemoryLogger()
    monitor = MixMon(window="3ba", log_interval=f"{interval}ba")
    run = fit(loader(tmp_path), witness, monitor, loggers=[memory])
    losses = [batch for batch, _ in metrics(run, "loss/train/total")["loss/train/total"]]
    assert losses == list(range(16))
    logged = metrics(run)
    ends = list(range(interval - 1, 16, interval))
    left_over = [16] if 16 % interval else []  # training has ended: beside the last loss was too early
    from_a = [[i < 40 for i in ids] for ids in witness.batches]
    for name, window in (("window", 3), ("run", 16)):
        seen = logged[f"mixmon/{name}/ratio/a"]
        assert [batch for batch, _ in seen] == ends + left_over
        for batch, share in seen:
            last = min(batch, 15)
            whole = [i for ids in from_a[max(0, last - window + 1) : last + 1] for i in ids]
            assert share == np.mean(whole)
    deviations = dict(logged["mixmon/window/deviation"])
    for batch, share in logged["mixmon/window/ratio/a"]:
        assert deviations[batch] == pytest.approx(abs(share - 40 / 64), abs=1e-15)


def test_the_runs_config_holds_what_a_replay_needs(tmp_path: Path) -> None:
    """Once, with the values that streaming fills in, which iterating then confirms."""
    calls, data = Calls(), loader(tmp_path)
    fit(data, MixMon(log_interval="4ba"), loggers=[calls])
    (config,) = calls.config
    dataset: Any = data.dataset
    assert config["labels"] == ["a", "b"]
    assert config["target"] == [{"from": "0ba", "shares": [40 / 64, 24 / 64]}]
    assert config["own_shares"] == [40 / 64, 24 / 64]
    for name in ("num_canonical_nodes", "shuffle_block_size", "shuffle_seed", "shuffle_algo", "epoch_size"):
        assert config["dataset"][name] == getattr(dataset, name)
    assert [len(stream["index_sha256"]) for stream in config["dataset"]["streams"]] == [64, 64]
