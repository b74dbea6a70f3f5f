"""Whatever fails in us, the run goes on as if we were not there."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from composer.core import Callback, State
from composer.loggers import InMemoryLogger, Logger, LoggerDestination
from streaming import StreamingDataLoader

from composer_mixmon import MixMon
from tests.live.data import as_dict, streaming_dataset, write_mds
from tests.live.helpers import OFF, Tiny, Witness, by_id, fit, ids_to_rows, metrics, rows

BATCH, SAMPLES = 6, 32

# What of ours runs in the main process between Trainer.fit and its end, by where it is called from.
CALLS = [
    "callback.check_loader",
    "callback.assemble",
    "callback.agree",
    "callback.Tap",
    "callback.Ranks",
    "callback.RecentShards",
    "callback.current_phase",
    "callback._take",
    "assembly.shard_table",
    "assembly.resolve_labels",
    "assembly.own_shares",
    "assembly.resolve_target",
    "assembly.check_rules",
    "assembly.Monitor",
    "ranks.Ranks.add_up",
    "tap.Tap._attach",
    "tap.Tap._iterator_maker",
    "tap.Tap.take",
    "tap.Tap.detach",
    "monitor.Monitor.put",
    "monitor.Monitor.draft",
    "monitor.Monitor.done",
    "monitor.Monitor.finish",
    "monitor.Monitor.state_dict",
    "mixture.Mixture.fold",
    "mixture.Mixture.commit",
    "mixture.Mixture.metrics",
    "mixture.Mixture.state_dict",
    "evidence.Evidence.fold",
    "evidence.Evidence.commit",
    "evidence.Evidence.state_dict",
    "alarms.Alarms.look",
    "alarms.Alarms.commit",
    "alarms.Alarms.state_dict",
    "actions.Actions.check",
    "actions.Actions.take",
    "recent_shards.RecentShards.put",
    "labels.LabelMap.__call__",
]
AT_CLOSE = "tap.Tap.detach"  # when there is nothing left to turn off


def loader(folder: Path) -> StreamingDataLoader:
    if not folder.exists():
        write_mds(folder, SAMPLES)
    dataset = streaming_dataset(folder, BATCH, shuffle=True, shuffle_block_size=16)
    return StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=as_dict)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if r.name == "composer_mixmon" and r.levelname == "WARNING"]


class Fault(Exception):
    pass


def failing(*args: Any, **kwargs: Any) -> Any:
    raise Fault("injected")


def failing_from(original: Callable[..., Any], calls: int) -> Callable[..., Any]:
    """Works so many times, then fails for ever."""
    left = [calls]

    def call(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        return original(*args, **kwargs) if left[0] >= 0 else failing()

    return call


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]], list[float]]:
    """The dataset's folder, the batches and the weights of a run of two epochs without us."""
    folder = tmp_path_factory.mktemp("alone") / "mds"
    model, witness = Tiny(), Witness()
    fit(loader(folder), witness, model=model, duration="2ep")
    return folder, witness.batches, model.weights


@pytest.mark.parametrize("calls", [0, 1])
@pytest.mark.parametrize("name", CALLS)
def test_a_fault_costs_one_warning_and_the_monitoring(
    alone: tuple[Path, list[list[int]], list[float]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    calls: int,
) -> None:
    """At its first or second call: same batches, bit-identical weights, every checkpoint written."""
    folder, batches, weights = alone
    model, witness = Tiny(), Witness()
    module, _, attribute = name.partition(".")
    owner = __import__(f"composer_mixmon.{module}", fromlist=["_"])
    *path, attribute = attribute.split(".")
    for part in path:
        owner = getattr(owner, part)
    original, called = getattr(owner, attribute), []
    wrapped = failing_from(original, calls)

    def spy(*args: Any, **kwargs: Any) -> Any:
        called.append(1)
        return wrapped(*args, **kwargs)

    where = {"save_folder": str(tmp_path / "saved"), "save_filename": "ba{batch}.pt", "save_interval": "5ba"}
    monitor = by_id(SAMPLES, log_interval="3ba")
    with monkeypatch.context() as patched:
        patched.setattr(owner, attribute, spy)
        run = fit(loader(folder), witness, monitor, model=model, duration="2ep", **where)
    assert witness.batches == batches
    assert model.weights == weights
    assert int(run.state.timestamp.batch) == 12
    assert (tmp_path / "saved" / "ba10.pt").exists()
    failed = len(called) > calls
    assert failed or calls == 1
    off = failed and name != AT_CLOSE
    assert sum(OFF in message for message in warnings_of(caplog)) == off
    assert (monitor.state_dict() == {}) == off


def test_a_fault_in_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What fails beside the user's collate function does not fail the batch."""
    monkeypatch.setattr("composer_mixmon.labels.LabelMap.__call__", failing)
    witness, monitor = Witness(), by_id(SAMPLES)
    dataset = streaming_dataset(write_mds(tmp_path, SAMPLES), BATCH)
    workers = {"num_workers": 2, "multiprocessing_context": "fork"}
    fit(StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=as_dict, **workers), witness, monitor)
    assert sum(map(len, witness.batches)) == SAMPLES
    assert sum(OFF in message for message in warnings_of(caplog)) == 1


def test_an_error_in_the_users_own_collate_function_is_the_users(tmp_path: Path) -> None:
    """It comes out as without us, with its own type and message."""

    def collate(samples: list[Any]) -> Any:
        raise KeyError("the user's own")

    dataset = streaming_dataset(write_mds(tmp_path, SAMPLES), BATCH)
    with pytest.raises(KeyError, match="the user's own"):
        fit(StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=collate), by_id(SAMPLES))


def test_random_states_are_left_alone(tmp_path: Path) -> None:
    """Python's, numpy's and torch's generators are where they would be without us, at every batch."""

    class States(Callback):
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def batch_end(self, state: State, logger: Logger) -> None:
            numpys: Any = np.random.get_state()  # noqa: NPY002 - the global one is what a user's code draws from
            states = (random.getstate(), numpys[1].tolist(), numpys[2], torch.get_rng_state().tolist())
            self.seen.append(states)

        fit_start = after_dataloader = epoch_end = fit_end = batch_end

    without, with_us = States(), States()
    fit(loader(tmp_path / "mds"), without, duration="2ep")
    fit(loader(tmp_path / "mds"), by_id(SAMPLES, log_interval="2ba"), with_us, duration="2ep")
    assert with_us.seen == without.seen
    assert len(without.seen) == 1 + 2 * 6 * 2 + 2 + 1


class Raises(LoggerDestination):
    """A service that is down."""

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        if any(key.startswith("mixmon/") for key in metrics):
            raise ConnectionError("down")

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        if "mixmon" in hyperparameters:
            raise ConnectionError("down")


def test_a_logger_that_raises_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And the monitoring goes on counting."""
    witness, monitor = Witness(), by_id(SAMPLES, log_interval="1ba")
    fit(loader(tmp_path / "mds"), witness, monitor, loggers=[Raises()], duration="2ep")
    np.testing.assert_array_equal(rows(monitor), ids_to_rows(witness.batches, SAMPLES))
    assert len(warnings_of(caplog)) == 1
    assert "a logger did not take what was logged" in warnings_of(caplog)[0]


class Swaps(Callback):
    """Puts another loader in before the second epoch, as llm-foundry's curriculum does."""

    def __init__(self, other: Any) -> None:
        self.other = other

    def swap(self, state: State, logger: Logger) -> None:
        if int(state.timestamp.epoch) == 1:
            state.set_dataloader(dataloader=self.other, dataloader_label="train")
            state.train_dataloader = state.dataloader


class SwapsAtEpochStart(Swaps):
    epoch_start = Swaps.swap


class SwapsAtEpochEnd(Swaps):
    def epoch_end(self, state: State, logger: Logger) -> None:
        state.set_dataloader(dataloader=self.other, dataloader_label="train")
        state.train_dataloader = state.dataloader


@pytest.mark.parametrize("swaps", [SwapsAtEpochStart, SwapsAtEpochEnd])
def test_a_swapped_dataset_is_followed(tmp_path: Path, swaps: type[Swaps]) -> None:
    """The ids of the second dataset are looked up in the second, and both count for the run."""
    witness, monitor = Witness(), MixMon(labels={"position": 4}, window="1000ba", log_interval="4ba")
    other = StreamingDataLoader(
        streaming_dataset(write_mds(tmp_path / "other", 80), BATCH), batch_size=BATCH, collate_fn=as_dict
    )
    first = loader(tmp_path / "mds")
    fit(first, witness, swaps(other), monitor, duration="2ep")
    assert len(witness.batches) == 6 + 14
    parts = [[i * 4 // SAMPLES for i in ids] for ids in witness.batches[:6]]
    parts += [[i * 4 // 80 for i in ids] for ids in witness.batches[6:]]
    np.testing.assert_array_equal(rows(monitor), ids_to_rows(parts, 4))
    assert "__getitem__" not in vars(first.dataset)


def test_a_swap_after_our_turn_turns_monitoring_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A callback listed behind us may swap when we have looked already: one warning, and the run goes on."""
    other = StreamingDataLoader(
        streaming_dataset(write_mds(tmp_path / "other", 12), BATCH), batch_size=BATCH, collate_fn=as_dict
    )
    witness = Witness()
    fit(loader(tmp_path / "mds"), witness, by_id(SAMPLES), SwapsAtEpochStart(other), duration="2ep")
    assert len(witness.batches) == 8
    assert sum(OFF in message for message in warnings_of(caplog)) == 1


def test_a_swap_to_what_cannot_be_monitored_turns_it_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the middle of a run, even a mistake costs no more than the monitoring."""
    witness = Witness()
    other = [as_dict([{"id": i, "x": np.zeros(2, np.float32)}]) for i in range(3)]
    fit(loader(tmp_path / "mds"), witness, SwapsAtEpochStart(other), by_id(SAMPLES), duration="2ep")
    assert witness.batches[6:] == [[0], [1], [2]]
    assert sum(OFF in message for message in warnings_of(caplog)) == 1


def test_nothing_is_logged_once_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault at an interval's last batch leaves no figures of a batch that was not counted."""
    take = __import__("composer_mixmon.callback", fromlist=["_"])._take
    monkeypatch.setattr("composer_mixmon.callback._take", failing_from(take, 3))
    memory = InMemoryLogger()
    run = fit(loader(tmp_path / "mds"), by_id(SAMPLES, log_interval="4ba"), loggers=[memory])
    assert metrics(run) == {}
