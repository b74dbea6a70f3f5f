"""The sample ids watched in real runs: faults are named, healthy runs give no findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from composer.loggers import InMemoryLogger
from streaming import StreamingDataset
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Sampler

from composer_mixmon import MixMon
from composer_mixmon.errors import ConfigError
from tests.live.data import Listed, as_dict, mds_loader, streaming_dataset, two_streams, write_mds
from tests.live.helpers import fit, metrics, trainer

KINDS = ("plan_mismatch", "repeats", "gaps", "rank_overlap")
SHUFFLED = {"shuffle": True, "shuffle_block_size": 64, "num_canonical_nodes": 1}


class Heard:
    """An action that remembers the alarms."""

    def __init__(self) -> None:
        self.alarms: list[Any] = []

    def __call__(self, alarm: Any) -> None:
        self.alarms.append(alarm)

    @property
    def rules(self) -> list[str]:
        return [alarm.rule for alarm in self.alarms]


def watched(**settings: Any) -> tuple[MixMon, Heard]:
    """A monitor that takes no evidence, so that all alarms are findings."""
    heard = Heard()
    alarm = {"tolerance": None, "action": heard}
    return MixMon(**{"labels": {"position": 2}, "log_interval": "4ba", "alarm": alarm} | settings), heard


def found(run: Any) -> dict[str, float]:
    """The last figure logged of each kind."""
    logged = metrics(run, "mixmon/integrity/")
    return {kind: logged[f"mixmon/integrity/{kind}"][-1][1] for kind in KINDS}


NOTHING = dict.fromkeys(KINDS, 0.0)


def saving(folder: Path) -> dict[str, Any]:
    where = {"save_folder": str(folder), "save_filename": "ba{batch}.pt", "save_interval": "1ba"}
    return where | {"save_num_checkpoints_to_keep": -1}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("method", ["random", "stratified", "per_stream", "device_per_stream"])
def test_healthy_runs_give_no_findings(tmp_path: Path, method: str, workers: int) -> None:
    """Each batching method, interrupted within its second epoch and resumed, with padding and repeats."""
    weights = ({"repeat": 1.6}, {"choose": 30})

    def loader() -> Any:
        data = two_streams(tmp_path, 4, batching_method=method, weights=weights, **SHUFFLED)
        return mds_loader(data, num_workers=workers, persistent_workers=workers > 0)

    first, heard = watched()
    run = fit(loader(), first, duration="30ba", loggers=[InMemoryLogger()], **saving(tmp_path / "saved"))
    assert int(run.state.timestamp.epoch) == 1
    assert found(run) == NOTHING
    second, heard_later = watched()
    where = {"load_path": str(tmp_path / "saved" / "ba30.pt")}
    run = fit(loader(), second, duration="3ep", loggers=[InMemoryLogger()], **where)
    assert found(run) == NOTHING
    assert heard.alarms == heard_later.alarms == []
    state = second.state_dict()["integrity"]
    assert [epoch for epoch, _, _ in state["orders"]] == [0, 1, 2]


def test_a_resume_that_repeats_batches(tmp_path: Path) -> None:
    """The dataset's own state is not restored: it begins anew in the middle of training."""
    write_mds(tmp_path / "mds", 400)

    def loader() -> Any:
        return mds_loader(streaming_dataset(tmp_path / "mds", 1, **SHUFFLED))

    first = {"loggers": [InMemoryLogger()]} | saving(tmp_path / "saved")
    fit(loader(), watched()[0], duration="202ba", **first)
    resumed, heard = watched()
    settings = {
        "load_path": str(tmp_path / "saved" / "ba202.pt"),
        "load_ignore_keys": ["state/dataset_state"],
        "spin_dataloaders": False,
        "loggers": [InMemoryLogger()],
    }
    run = fit(loader(), resumed, duration="220ba", **settings)
    assert found(run) == NOTHING | {"repeats": 202.0}
    assert heard.rules == ["integrity: repeats"]
    assert metrics(run)["mixmon/alarms"][-1][1] == 1
    assert str(heard.alarms[0]) == (
        "integrity: repeats: about 202 samples of epoch 0 came again, by batch 203"
    )


def test_samples_that_are_skipped_at_a_resume(tmp_path: Path) -> None:
    """The checkpoint is made to say that more had been done."""
    write_mds(tmp_path / "mds", 96)

    def loader() -> Any:
        return mds_loader(streaming_dataset(tmp_path / "mds", 4, **SHUFFLED))

    first = {"loggers": [InMemoryLogger()]} | saving(tmp_path / "saved")
    fit(loader(), watched()[0], duration="6ba", **first)
    path = tmp_path / "saved" / "ba6.pt"
    saved = torch.load(path, weights_only=False)
    saved["state"]["dataset_state"]["train"]["sample_in_epoch"] += 20
    torch.save(saved, path)
    resumed, heard = watched()
    run = fit(loader(), resumed, duration="1ep", load_path=str(path), loggers=[InMemoryLogger()])
    assert found(run) == NOTHING | {"gaps": 20.0}
    assert heard.rules == ["integrity: gaps"]


class Stuck(Sampler[int]):
    """A sampler of the user's own."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Any:
        return iter([i % 4 for i in range(self.samples)])

    def __len__(self) -> int:
        return self.samples


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_are_not_planned(tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another order than the settings imply is named with what was planned: here, of another seed."""
    write_mds(tmp_path / "mds", 96)
    dataset = streaming_dataset(tmp_path / "mds", 4, **SHUFFLED)
    from streaming.base import dataset as upstream

    apportion = upstream.generate_work

    def of_another_seed(method: str, data: Any, *args: Any) -> Any:
        seed, data.shuffle_seed = data.shuffle_seed, 5
        try:
            return apportion(method, data, *args)
        finally:
            data.shuffle_seed = seed

    monkeypatch.setattr(upstream, "generate_work", of_another_seed)
    monitor, heard = watched()
    run = fit(mds_loader(dataset, num_workers=workers), monitor, loggers=[InMemoryLogger()])
    assert found(run)["plan_mismatch"] == 24
    assert heard.rules == ["integrity: plan mismatch"]
    assert "rank 0 in batch 0 was fed the samples" in str(heard.alarms[0])
    assert found(run)["repeats"] == found(run)["gaps"] == 0


def test_stops_the_run(tmp_path: Path) -> None:
    """A finding is an event for the same actions."""
    write_mds(tmp_path / "mds", 96)
    dataset = streaming_dataset(tmp_path / "mds", 4, **SHUFFLED)
    monitor = MixMon(labels={"position": 2}, log_interval="4ba", alarm={"action": "stop"})
    run = trainer(mds_loader(dataset), monitor)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("composer_mixmon.integrity.plan.PlanCheck._hash", lambda self, check: _no_hashes(self))
        run.fit()
    run.close()
    assert int(run.state.timestamp.batch) == 4


def _no_hashes(check: Any) -> Any:
    import numpy as np

    return np.ones(check._plan.batches, np.int64)


@pytest.mark.parametrize(
    "sampler", [None, RandomSampler(Listed(22)), DistributedSampler(Listed(22), 1, 0)], ids=str
)
@pytest.mark.parametrize("drop_last", [False, True])
def test_map_style_datasets_give_no_findings(sampler: Any, drop_last: bool) -> None:
    """Torch's own samplers, over epochs with and without an incomplete batch."""
    loader: Any = DataLoader(Listed(22), batch_size=4, sampler=sampler, drop_last=drop_last, num_workers=2)
    monitor, heard = watched()
    run = fit(loader, monitor, duration="3ep", loggers=[InMemoryLogger()])
    assert found(run) == NOTHING
    assert heard.alarms == []


def test_a_sampler_of_the_users_own_is_not_judged(caplog: pytest.LogCaptureFixture) -> None:
    """It may repeat on purpose: this is said once."""
    loader: Any = DataLoader(Listed(16), batch_size=4, sampler=Stuck(16))
    monitor, heard = watched()
    run = fit(loader, monitor, loggers=[InMemoryLogger()])
    assert found(run) == NOTHING
    assert heard.alarms == []
    assert sum("are not judged" in record.message for record in caplog.records) == 1


def test_a_random_sampler_that_is_not_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeats and gaps of a dataset of up to 1,024 samples are counted to the sample."""
    sampler = RandomSampler(Listed(40))
    monkeypatch.setattr(RandomSampler, "__iter__", lambda self: iter([i % 30 for i in range(40)]))
    loader: Any = DataLoader(Listed(40), batch_size=4, sampler=sampler)
    monitor, heard = watched()
    run = fit(loader, monitor, loggers=[InMemoryLogger()])
    assert monitor.state_dict()["integrity"]["sums"] == {
        "repeats": 10,
        "gaps": 10,
        "rank_overlap": 0,
        "plan_mismatch": 0,
    }
    assert heard.rules == ["integrity: repeats", "integrity: gaps"]
    assert found(run)["repeats"] == 10


def test_a_subclass_that_decides_the_order_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What it overrides is said once, and nothing is compared."""

    class Backwards(StreamingDataset):
        def _get_work(self, epoch: int, sample_in_epoch: int) -> Any:
            return super()._get_work(epoch, sample_in_epoch)[::-1]

    write_mds(tmp_path / "mds", 16)
    dataset = Backwards(local=str(tmp_path / "mds"), batch_size=4, shuffle=False)
    monitor, heard = watched()
    run = fit(mds_loader(dataset), monitor, duration="2ep", loggers=[InMemoryLogger()])
    assert found(run) == NOTHING
    assert heard.alarms == []
    (said,) = [r.message for r in caplog.records if "not compared" in r.message]
    assert "Backwards has its own _get_work" in said


def test_switched_off(tmp_path: Path) -> None:
    """Nothing is logged, saved or added up for it."""
    write_mds(tmp_path / "mds", 16)
    monitor, _ = watched(integrity=False)
    dataset = streaming_dataset(tmp_path / "mds", 4)
    run = fit(DataLoader(dataset, batch_size=4, collate_fn=as_dict), monitor, loggers=[InMemoryLogger()])
    assert metrics(run, "mixmon/integrity") == {}
    assert monitor.state_dict()["integrity"] == {}


@pytest.mark.parametrize("wrong", [{"plans": True}, {"plan": 1}, "yes", 3])
def test_wrong_settings(wrong: Any) -> None:
    """What is written and what to write instead."""
    with pytest.raises(ConfigError, match=r"plan: true, repeats: false"):
        MixMon(integrity=wrong)


def test_state_is_small(tmp_path: Path) -> None:
    """A thousand spots take no more than 2 KiB."""
    import json

    write_mds(tmp_path / "mds", 2000)
    monitor, _ = watched()
    fit(mds_loader(streaming_dataset(tmp_path / "mds", 16, **SHUFFLED)), monitor, duration="60ba")
    assert len(json.dumps(monitor.state_dict()["integrity"])) < 2048
