"""Evidence, phases and the remaining actions, in real runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from streaming import Stream, StreamingDataLoader, StreamingDataset

from composer_mixmon import MixMon
from composer_mixmon.alarms import Alarm
from composer_mixmon.errors import ConfigError
from composer_mixmon.evidence import Evidence, EvidenceSettings
from tests.live.data import as_dict, two_streams, write_mds
from tests.live.helpers import Witness, fit, metrics, trainer
from tests.test_webhook import Server, server

__all__ = ["server"]

TARGET = np.array([40 / 64, 24 / 64])


def ordered(tmp_path: Path, **settings: Any) -> StreamingDataLoader:
    """Stream ``a`` first (10 batches of 4), then stream ``b`` (6 batches)."""
    return StreamingDataLoader(two_streams(tmp_path, 4, **settings), batch_size=4, collate_fn=as_dict)


def memory() -> Any:
    from composer.loggers import InMemoryLogger

    return InMemoryLogger()


@pytest.mark.parametrize("interval", [1, 4, 7])
def test_evidence_is_what_the_detector_says(tmp_path: Path, interval: int) -> None:
    """The evidence logged is that of the batches fed; the alarm fires at the first over the threshold."""
    witness, seen = Witness(), []
    mixmon = MixMon(log_interval=interval, alarm={"false_alarm_every": "100ba", "action": [seen.append]})
    run = fit(ordered(tmp_path), witness, mixmon, duration="2ep", loggers=[memory()])
    counts = np.array([[sum(i < 40 for i in ids), sum(i >= 40 for i in ids)] for ids in witness.batches])
    settings = EvidenceSettings(TARGET, 0.05, 100)
    expected = Evidence(settings).update(counts)
    logged = dict(metrics(run)["mixmon/evidence"])
    ends = [*range(interval - 1, len(expected), interval)]
    assert [logged[b] for b in ends] == pytest.approx(expected[ends].tolist(), rel=1e-12)
    first = seen[0]
    assert isinstance(first, Alarm)
    assert first.batch == int(np.argmax(expected > settings.threshold)) > 0
    assert first.evidence == pytest.approx(expected[first.batch])


def test_no_tolerance_no_evidence(tmp_path: Path) -> None:
    """``tolerance: null`` takes no evidence and logs none."""
    run = fit(ordered(tmp_path), MixMon(log_interval="4ba", alarm={"tolerance": None}), loggers=[memory()])
    assert "mixmon/evidence" not in metrics(run)


@pytest.mark.parametrize("method", ["stratified", "per_stream", "device_per_stream"])
def test_batching_methods_do_not_alarm(tmp_path: Path, method: str) -> None:
    """What a batching method does to each batch is no bias: silent over four epochs at tolerance 0."""
    seen: list[Alarm] = []
    mixmon = MixMon(log_interval="2ba", alarm={"tolerance": 0, "action": [seen.append]})
    settings = {"shuffle": True, "shuffle_algo": "naive", "batching_method": method}
    fit(ordered(tmp_path, **settings), mixmon, duration="4ep")
    assert seen == []


def test_alarm_names_the_shards(tmp_path: Path) -> None:
    """The event says which shards gave the window's samples, the most first."""
    seen: list[Alarm] = []
    rules = [{"ratio": "b", "above": 0.7}]
    mixmon = MixMon(
        window="4ba", log_interval="8ba", alarm={"tolerance": None, "rules": rules, "action": [seen.append]}
    )
    fit(ordered(tmp_path), mixmon)
    (alarm,) = seen  # batches 10 to 12 are of b: three of four in the window of 9 to 12
    assert (alarm.first, alarm.batch) == (9, 12)
    assert alarm.shards == {"b/shard.00000.mds": 8, "a/shard.00004.mds": 4, "b/shard.00001.mds": 4}


def test_webhook(tmp_path: Path, server: Server) -> None:
    """The event reaches the server, also where the same alarm ends the run."""
    rules = [{"ratio": "b", "above": 0.7}]
    action = [{"webhook": server.url}, "stop"]
    fit(
        ordered(tmp_path),
        MixMon(window="4ba", log_interval="2ba", alarm={"tolerance": None, "rules": rules, "action": action}),
    )
    ((kind, event),) = server.received
    assert kind == "application/json"
    assert (event["batch"], event["first"], event["rule"]) == (12, 9, "ratio of b above 0.7 for 1 ba")
    assert event["deviations"] == {"b": 0.75 - 24 / 64, "a": 0.25 - 40 / 64}


def test_checkpoint_is_the_runs_own(tmp_path: Path) -> None:
    """The alarm's checkpoint is saved once, by the run's own saver, and training resumes from it."""
    rules = [{"ratio": "b", "above": 0.7}]
    alarm = {"tolerance": None, "rules": rules, "action": ["checkpoint", "stop"]}
    saved = {"save_folder": str(tmp_path / "saved"), "save_filename": "ba{batch}.pt", "save_interval": "7ba"}
    mixmon = MixMon(window="4ba", log_interval="1ba", alarm=alarm)
    run = fit(ordered(tmp_path), mixmon, **saved)
    assert int(run.state.timestamp.batch) == 13
    assert sorted(p.name for p in (tmp_path / "saved").glob("ba*.pt")) == ["ba13.pt", "ba7.pt"]
    resumed = MixMon(window="4ba", log_interval="1ba", alarm={"tolerance": None, "rules": rules})
    witness = Witness()
    fit(ordered(tmp_path), witness, resumed, load_path=str(tmp_path / "saved" / "ba13.pt"))
    assert len(witness.batches) == 3
    assert resumed.state_dict()["mixture"]["run"] == [40, 24]
    assert resumed.state_dict()["alarms"]["fired"] == 1


def test_checkpoint_without_a_save_folder_is_refused(tmp_path: Path) -> None:
    """An action that the run cannot take is an error before the first batch."""
    run = trainer(ordered(tmp_path), MixMon(alarm={"action": "checkpoint"}))
    with pytest.raises(ConfigError, match=r"alarm\.action: 'checkpoint': the run saves no checkpoints"):
        run.fit()
    run.close()


def test_a_function_that_fails_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a user's function raises does not end the run, nor the monitoring."""

    def fail(alarm: Alarm) -> None:
        raise OSError("no mail server")

    mixmon = MixMon(
        log_interval="4ba",
        window="4ba",
        alarm={"tolerance": None, "rules": [{"ratio": "b", "above": 0.7}], "action": [fail, "log"]},
    )
    run = fit(ordered(tmp_path), mixmon)
    assert int(run.state.timestamp.batch) == 16
    assert "no mail server" in caplog.text
    assert "mixmon alarm: ratio of b" in caplog.text
    assert mixmon.state_dict()["alarms"]["fired"] == 1


@pytest.mark.parametrize("start", ["10ba", "40sp", "0.625dur"])
@pytest.mark.parametrize("interval", [1, 3, 4])
def test_phases(tmp_path: Path, start: str, interval: int) -> None:
    """A curriculum that comes as its phases say alarms nobody; its window starts anew with each phase."""
    seen: list[Alarm] = []
    phases = [{"from": "0ba", "target": {"a": 1.0}}, {"from": start, "target": {"b": 1.0}}]
    mixmon = MixMon(
        target=phases,
        window="4ba",
        log_interval=interval,
        alarm={"rules": [{"deviation": 0.01, "grace": 0}], "action": [seen.append]},
    )
    run = fit(ordered(tmp_path), mixmon, loggers=[memory()], duration="16ba")
    assert seen == []
    logged = metrics(run)
    assert {v for _, v in logged["mixmon/window/deviation"]} == {0.0}
    assert {v for _, v in logged["mixmon/run/deviation"]} == {0.0}
    assert logged["mixmon/run/ratio/b"][-1][1] == 24 / 64


def test_phases_resumed(tmp_path: Path) -> None:
    """Interrupted at the change of the phase and in either phase, the books are those of the whole run."""
    phases = [{"from": "0ba", "target": "auto"}, {"from": "10ba", "target": {"b": 1.0}}]
    whole = MixMon(target=phases, window="4ba", log_interval="3ba")
    fit(ordered(tmp_path), whole)
    for cut in (4, 10, 12):
        folder = {"save_folder": str(tmp_path / str(cut)), "save_filename": "cut.pt", "save_interval": "99ba"}
        fit(
            ordered(tmp_path),
            MixMon(target=phases, window="4ba", log_interval="3ba"),
            duration=f"{cut}ba",
            **folder,
        )
        rest = MixMon(target=phases, window="4ba", log_interval="3ba")
        fit(ordered(tmp_path), rest, load_path=str(tmp_path / str(cut) / "cut.pt"))
        assert rest.state_dict() == whole.state_dict(), cut


def test_target_that_cannot_be_met_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Such a target is a finding at the start; the evidence is then held against what the dataset can do."""
    seen: list[Alarm] = []
    write_mds(tmp_path / "c", 640)
    write_mds(tmp_path / "d", 640, 640)
    dataset = StreamingDataset(
        streams=[Stream(local=str(tmp_path / n)) for n in "cd"],
        batch_size=16,
        shuffle=True,
        shuffle_algo="naive",
        num_canonical_nodes=1,
    )
    loader = StreamingDataLoader(dataset, batch_size=16, collate_fn=as_dict)
    mixmon = MixMon(target={"c": 0.9, "d": 0.1}, log_interval="8ba", alarm={"action": [seen.append]})
    run = fit(loader, mixmon, loggers=[memory()])
    assert caplog.text.count("the dataset cannot meet the target") == 1
    assert "Evidence is taken against the dataset's own shares" in caplog.text
    assert "50.0% of its samples are c, the target is 90.0%" in caplog.text
    assert seen == []
    assert metrics(run)["mixmon/run/deviation"][-1][1] == pytest.approx(0.4)


def test_one_label_is_remarked_and_never_alarms(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run with a single label is told so, and takes no evidence, which could only grow by itself."""
    dataset = StreamingDataset(local=write_mds(tmp_path / "c", 640), batch_size=4)
    loader = StreamingDataLoader(dataset, batch_size=4, collate_fn=as_dict)
    run = fit(loader, MixMon(alarm={"false_alarm_every": "20ba"}), loggers=[memory()])
    assert "all samples have one label, c: group the shards" in caplog.text
    assert "mixmon/evidence" not in metrics(run)
    assert metrics(run)["mixmon/alarms"][-1][1] == 0


def test_alarm_after_a_phase_changed_names_its_own_batches(tmp_path: Path) -> None:
    """The window of a new phase, its grace and the batches of an alarm begin with the phase."""
    seen: list[Alarm] = []
    phases = [{"from": "0ba", "target": "auto"}, {"from": "6ba", "target": {"b": 1.0}}]
    alarm = {"tolerance": None, "rules": [{"deviation": 0.9}], "action": [seen.append]}
    fit(ordered(tmp_path), MixMon(target=phases, window="2ba", log_interval="1ba", alarm=alarm))
    assert [(a.first, a.batch) for a in seen] == [(7, 8)]


def test_two_monitors_are_refused(tmp_path: Path) -> None:
    """Their metrics and saved counts would mix."""
    run = trainer(ordered(tmp_path), MixMon(), MixMon())
    with pytest.raises(ConfigError, match="give the Trainer one"):
        run.fit()
    run.close()


def test_the_same_monitor_in_a_second_run_starts_afresh(tmp_path: Path) -> None:
    """Closed with its Trainer, a callback counts the next run's batches, and only these."""
    mixmon, loader = MixMon(log_interval="4ba"), ordered(tmp_path)
    fit(loader, mixmon)
    fit(loader, mixmon, duration="2ba")
    assert mixmon.state_dict()["mixture"]["run"] == [8, 0]


def test_state_loads_without_any_class(tmp_path: Path) -> None:
    """With evidence and phases, too, the saved books are plain types: JSON, and torch's safe loading."""
    mixmon = MixMon(target=[{"from": "0ba", "target": "auto"}, {"from": "10ba", "target": {"b": 1.0}}])
    fit(ordered(tmp_path), mixmon)
    state = mixmon.state_dict()
    assert json.loads(json.dumps(state)) == state
    torch.save(state, tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == state


def test_damaged_state_is_left_out_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Saved books that are damaged anywhere are not used in part: one warning, and counting starts afresh."""
    first = MixMon(log_interval="4ba")
    fit(ordered(tmp_path), first)
    for part in ("alarms", "mixture", "phase", "pending"):
        damaged = MixMon(log_interval="4ba")
        damaged.load_state_dict(first.state_dict() | {part: None})
        fit(ordered(tmp_path), damaged)
        assert damaged.state_dict()["mixture"]["run"] == [40, 24], part
    assert caplog.text.count("counts afresh") == 4
