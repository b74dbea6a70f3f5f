"""Whatever fails in us, the run goes on as if we were not there."""

from __future__ import annotations

import importlib
import inspect
import random
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from composer.core import Callback, State
from composer.loggers import InMemoryLogger, Logger, LoggerDestination
from streaming import StreamingDataLoader

import composer_mixmon
from composer_mixmon import MixMon
from composer_mixmon.ledger import read_ledger
from tests.live.data import as_dict, streaming_dataset, write_mds
from tests.live.helpers import OFF, Tiny, Witness, by_id, fit, ids_to_rows, metrics, rows

BATCH, SAMPLES = 6, 32

# What of ours runs in the main process between Trainer.fit and its end, by where it is called from.
CALLS = [
    "callback.check_loader",
    "callback.find_packer",
    "callback.assemble",
    "callback.watch_data",
    "callback.run_config",
    "callback.agree",
    "callback.Annotator",
    "callback.Tap",
    "callback.Ranks",
    "callback.RecentShards",
    "callback.current_phase",
    "callback._take",
    "callback._settle",
    "callback._extent",
    "callback._loss",
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
    "annotate.Annotator.__call__",
    "annotate.tokens_of",
    "annotate.order_hash",
    "annotate.set_hash",
    "labels.LabelMap.__call__",
    "monitor.Monitor.put",
    "monitor.Monitor.draft",
    "monitor.Monitor.done",
    "monitor.Monitor.drain",
    "monitor.Monitor.flush",
    "monitor.Monitor.finish",
    "monitor.Monitor.state_dict",
    "mixture.Mixture.fold",
    "mixture.Mixture.commit",
    "mixture.Mixture.metrics",
    "mixture.Mixture.state_dict",
    "token_mixture.TokenMixture.fold",
    "token_mixture.TokenMixture.state_dict",
    "evidence.Evidence.fold",
    "evidence.Evidence.commit",
    "evidence.Evidence.state_dict",
    "alarms.Alarms.look",
    "alarms.Alarms.commit",
    "alarms.Alarms.state_dict",
    "actions.Actions.check",
    "actions.Actions.take",
    "recent_shards.RecentShards.put",
    "integrity.live.spots_of",
    "integrity.live.allowed",
    "integrity.live.Plan",
    "integrity.live.PlanCheck",
    "integrity.live.course_of",
    "integrity.spots.Spots.pick",
    "integrity.numbers.Numbers.__init__",
    "integrity.plan.PlanCheck.put",
    "integrity.watch.pack",
    "integrity.watch.Integrity.put",
    "integrity.watch.Integrity.part",
    "integrity.watch.Integrity.receive",
    "integrity.watch.Integrity.metrics",
    "integrity.watch.Integrity.settle",
    "integrity.watch.Integrity.end_epoch",
    "integrity.watch.Integrity.stop",
    "integrity.watch.Integrity.wait",
    "integrity.watch.Integrity.state_dict",
    "integrity.books.Books.add",
    "integrity.books.Books.copy",
    "integrity.books.Books.metrics",
    "integrity.books.Books.end_epoch",
    "integrity.books.Books.findings",
    "integrity.books.Books.state_dict",
    "ledger.keeper.Keeper.check",
    "ledger.keeper.Keeper.begin",
    "ledger.keeper.Keeper.put",
    "ledger.keeper.Keeper.write",
]
# What costs less than the monitoring, and how the one warning begins.
LEDGER = "mixmon keeps no ledger from here on"
NO_PLAN = "mixmon cannot compare the samples of epoch"
LESS = {
    "ledger.keeper.name_run": LEDGER,
    "ledger.keeper.Header": LEDGER,
    "ledger.keeper.Writer": LEDGER,
    "ledger.writer.blocks_of": LEDGER,
    "ledger.writer.frame": LEDGER,
    "ledger.writer.Writer.write": LEDGER,
    "integrity.plan.replay_hashes": NO_PLAN,
    "integrity.plan.rank_batches": NO_PLAN,
    "integrity.plan.PlanCheck.poll": NO_PLAN,
}
# When there is nothing left to turn off.
AT_THE_END = [
    "tap.Tap.detach",
    "actions.Actions.close",
    "ledger.keeper.Keeper.close",
    "ledger.writer.Appender.close",
]


# What is called in the middle of training, and fails there at its second call, too.
AGAIN = [
    "callback.current_phase",
    "callback._take",
    "ranks.Ranks.add_up",
    "tap.Tap.take",
    "annotate.Annotator.__call__",
    "monitor.Monitor.put",
    "monitor.Monitor.draft",
    "monitor.Monitor.done",
    "monitor.Monitor.flush",
    "monitor.Monitor.state_dict",
    "mixture.Mixture.fold",
    "mixture.Mixture.commit",
    "evidence.Evidence.fold",
    "alarms.Alarms.look",
    "integrity.live.Plan",
    "integrity.plan.replay_hashes",
    "integrity.plan.PlanCheck.poll",
    "integrity.watch.Integrity.put",
    "integrity.watch.Integrity.part",
    "integrity.watch.Integrity.receive",
    "integrity.watch.Integrity.settle",
    "integrity.watch.Integrity.end_epoch",
    "integrity.books.Books.add",
    "ledger.keeper.Keeper.write",
    "ledger.writer.Writer.write",
]


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


class Surroundings(Callback):
    """What we must leave alone: random generators, the state's attributes, the batch's keys."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def after_dataloader(self, state: State, logger: Logger) -> None:
        numpys: Any = np.random.get_state()  # noqa: NPY002 - the global one is what a user's code draws from
        torchs = torch.get_rng_state().numpy().tobytes()
        randoms = hash((random.getstate(), numpys[1].tobytes(), numpys[2], torchs))
        self.seen.append((randoms, sorted(vars(state)), list(state.batch or ())))

    fit_start = batch_end = epoch_end = fit_end = after_dataloader


class Run(NamedTuple):
    """All that a run must be without us and with us, whatever fails."""

    batches: list[list[int]]
    weights: list[float]
    surroundings: list[Any]
    ended_at: int
    checkpoints: list[str]


def two_epochs(data: Path, saved: Path, *monitors: MixMon) -> Run:
    model, witness, around = Tiny(), Witness(), Surroundings()
    where = {"save_folder": str(saved), "save_filename": "ba{batch}.pt", "save_interval": "5ba"}
    where |= {"save_num_checkpoints_to_keep": -1}
    run = fit(loader(data), witness, *monitors, around, model=model, duration="2ep", **where)
    kept = sorted(path.name for path in saved.glob("ba*.pt"))
    return Run(witness.batches, model.weights, around.seen, int(run.state.timestamp.batch), kept)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """The dataset's folder and a run of two epochs without us."""
    folder = tmp_path_factory.mktemp("alone")
    run = two_epochs(folder / "mds", folder / "saved")
    assert (run.ended_at, len(run.surroundings)) == (12, 1 + 2 * 12 + 2 + 1)
    assert run.checkpoints == ["ba10.pt", "ba12.pt", "ba5.pt"]
    return folder / "mds", run


class Spoilt:
    """One of our functions, classes or properties works so many times, then fails for ever."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str, calls: int) -> None:
        self.failed = False
        self._left = calls
        owner, attribute = self._find(name)
        original = inspect.getattr_static(owner, attribute)
        if isinstance(original, property):
            assert original.fget is not None
            patch.setattr(owner, attribute, property(self._wrap(original.fget)))
        else:
            patch.setattr(owner, attribute, self._wrap(original))

    @staticmethod
    def _find(name: str) -> tuple[Any, str]:
        """``module.Class.attribute`` below our package, where the class may be missing."""
        parts = name.split(".")
        depth = next(i for i in range(len(parts), 0, -1) if _is_module(parts[:i]))
        owner = importlib.import_module(".".join(["composer_mixmon", *parts[:depth]]))
        return reduce(getattr, parts[depth:-1], owner), parts[-1]

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left >= 0:
                return original(*args, **kwargs)
            self.failed = True
            return failing()

        return call


def _is_module(parts: list[str]) -> bool:
    folder = Path(composer_mixmon.__file__).parent.joinpath(*parts)
    return folder.with_suffix(".py").exists()


@pytest.mark.parametrize(
    ("name", "calls"), [*((name, 0) for name in (*CALLS, *LESS, *AT_THE_END)), *((name, 1) for name in AGAIN)]
)
def test_a_fault_costs_one_warning_and_the_monitoring(
    alone: tuple[Path, Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    calls: int,
) -> None:
    """At its first or second call: the run is to the bit the one without us, and there is one warning."""
    data, without = alone
    monitor = by_id(SAMPLES, log_interval="3ba")
    with monkeypatch.context() as patch:
        spoilt = Spoilt(patch, name, calls)
        assert two_epochs(data, tmp_path / "saved", monitor) == without
    assert spoilt.failed
    warned = warnings_of(caplog)
    assert len(warned) == 1
    off = name in CALLS
    assert sum(OFF in message for message in warned) == off
    assert (monitor.state_dict() == {}) == off
    if name in LESS:
        assert warned[0].startswith(LESS[name])
    if not off:
        np.testing.assert_array_equal(rows(monitor), ids_to_rows(without.batches, SAMPLES))


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


def test_random_states_are_left_alone(alone: tuple[Path, Run], tmp_path: Path) -> None:
    """Where nothing fails, too: generators, state, batches and weights are those of a run without us."""
    data, without = alone
    assert two_epochs(data, tmp_path / "saved", by_id(SAMPLES, log_interval="2ba")) == without


class Raises(LoggerDestination):
    """A service that is down."""

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        if any(key.startswith("mixmon/") for key in metrics):
            raise ConnectionError("down")

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        if "mixmon" in hyperparameters:
            raise ConnectionError("down")


def test_a_logger_that_raises_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And the monitoring goes on counting, and keeping its ledger."""
    witness, monitor = Witness(), by_id(SAMPLES, log_interval="1ba", ledger=str(tmp_path / "books"))
    fit(loader(tmp_path / "mds"), witness, monitor, loggers=[Raises()], duration="2ep")
    fed = ids_to_rows(witness.batches, SAMPLES)
    np.testing.assert_array_equal(rows(monitor), fed)
    np.testing.assert_array_equal(read_ledger(str(tmp_path / "books")).record.counts, fed)
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
    spoilt = Spoilt(monkeypatch, "callback._take", 3)
    memory = InMemoryLogger()
    run = fit(loader(tmp_path / "mds"), by_id(SAMPLES, log_interval="4ba"), loggers=[memory])
    assert spoilt.failed
    assert metrics(run) == {}
