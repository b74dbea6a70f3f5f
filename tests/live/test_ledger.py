"""The ledger of real runs: what they were fed, however they were interrupted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from composer.core import Callback, State
from composer.loggers import Logger
from streaming import StreamingDataLoader

from composer_mixmon import MixMon
from composer_mixmon.errors import ConfigError
from composer_mixmon.ledger import read_ledger
from composer_mixmon.ledger.rank_ids import read_rank_ids
from composer_mixmon.order_hash import order_hash, order_hashes
from composer_mixmon.replay import Replay, Settings, World
from composer_mixmon.run_record import RunRecord
from tests.live.data import as_dict, ids_of, mds_loader, two_streams
from tests.live.helpers import Witness, fit, ids_to_rows, trainer

SAMPLES, BATCH = 64, 6
EACH = {"labels": {"position": SAMPLES}, "log_interval": "4ba"}


def loader(tmp_path: Path, workers: int = 0, **settings: Any) -> StreamingDataLoader:
    order = {"shuffle": True, "shuffle_block_size": 16, "num_canonical_nodes": 1} | settings
    dataset = two_streams(tmp_path, BATCH, **order)
    return StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=as_dict)


def saving(folder: Path, interval: str = "1ba") -> dict[str, Any]:
    return {
        "save_folder": str(folder),
        "save_filename": "ba{batch}.pt",
        "save_interval": interval,
        "save_num_checkpoints_to_keep": -1,
    }


class DiesAfter(Callback):
    """An error in the user's own code, once so many batches have been trained on."""

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        if int(state.timestamp.batch) == self.batch:
            raise KeyError("a crash")


def is_what_was_fed(record: RunRecord, batches: list[list[int]]) -> None:
    assert record.counts is not None
    assert record.order is not None
    assert record.first.tolist() == list(range(len(batches)))
    np.testing.assert_array_equal(record.counts, ids_to_rows(batches, SAMPLES))
    assert record.order.tolist() == [order_hash(np.array(ids)) % (1 << 64) for ids in batches]


def test_a_run_with_a_save_folder_has_a_ledger(tmp_path: Path) -> None:
    """Counts, order hashes, losses and epochs of each batch, the last interval's rest included."""
    witness, losses = Witness(), []

    class Losses(Callback):
        def batch_end(self, state: State, logger: Logger) -> None:
            losses.append(state.total_loss_dict["loss/train/total"])

    run = fit(
        loader(tmp_path),
        witness,
        Losses(),
        MixMon(**EACH),
        duration="2ep",
        **saving(tmp_path / "save", "1ep"),
    )
    record = read_ledger(str(tmp_path / "save")).record
    is_what_was_fed(record, witness.batches)
    assert record.loss.tolist() == losses
    assert record.epoch.tolist() == [0] * 11 + [1] * 11
    assert (np.diff(record.time) >= 0).all()
    assert len(record.names) == SAMPLES
    assert record.settings["dataset"]["shuffle_block_size"] == 16
    assert record.remarks == record.resumptions == ()
    assert int(run.state.timestamp.batch) == 22


def test_without_a_save_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless ``ledger`` names a folder, which then has it."""
    data = loader(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    fit(data, MixMon(), duration="4ba")
    assert list(Path().iterdir()) == []
    fit(data, MixMon(ledger="books/{run_name}"), duration="4ba", run_name="../up\0and/away")
    assert [path.name for path in Path().iterdir()] == ["books"]
    assert len(list(Path("books").glob("*/*/segment-*.jsonl"))) == 1


def test_ledger_false(tmp_path: Path) -> None:
    """The checkpoints only."""
    fit(loader(tmp_path), MixMon(ledger=False), duration="2ba", **saving(tmp_path / "save"))
    assert not (tmp_path / "save" / "mixmon").exists()


@pytest.mark.parametrize("ledger", [7, "s3://bucket", "a\0b", "", {"folders": "x"}, {"rank_ids": 1}, []])
def test_a_setting_that_is_wrong(ledger: Any) -> None:
    """Says so at once."""
    with pytest.raises(ConfigError, match="ledger"):
        MixMon(ledger=ledger)


def test_asked_for_but_without_a_folder(tmp_path: Path) -> None:
    """A mistake, said before the first batch."""
    with pytest.raises(ConfigError, match="save_folder"):
        fit(loader(tmp_path), MixMon(ledger={"rank_ids": True}), duration="2ba")


@pytest.mark.filterwarnings("ignore:No batches were trained:UserWarning")  # resumed where an epoch ends
@pytest.mark.parametrize(("crash", "checkpoint", "workers"), [(8, 7, 0), (9, 5, 2), (14, 11, 0), (16, 13, 0)])
def test_interrupted_and_resumed(tmp_path: Path, crash: int, checkpoint: int, workers: int) -> None:
    """The joined ledger is that of what was trained on last; batches done again are counted."""
    save = tmp_path / "save"
    witness, again = Witness(), Witness()
    run = trainer(
        loader(tmp_path, workers), witness, MixMon(**EACH), DiesAfter(crash), duration="2ep", **saving(save)
    )
    with pytest.raises(KeyError, match="a crash"):
        run.fit()
    run.close()
    where = {"load_path": str(save / f"ba{checkpoint}.pt"), "save_overwrite": True}
    fit(loader(tmp_path, workers), again, MixMon(**EACH), duration="22ba", **saving(save), **where)
    record = read_ledger(str(save)).record
    is_what_was_fed(record, witness.batches[:checkpoint] + again.batches)
    (resumption,) = record.resumptions
    kept = crash - (crash % 4 > 0)  # written at an interval's end, or by the checkpoint before the crash
    assert (resumption.batch, resumption.discarded) == (checkpoint, max(kept - checkpoint, 0))
    in_epoch = checkpoint % 11 * BATCH
    assert (resumption.epoch, resumption.first_sample) in [(checkpoint // 11, in_epoch), (0, 64)]


class Tells(Callback):
    """Prints the ids of each batch before it is trained on."""

    def batch_start(self, state: State, logger: Logger) -> None:
        print(*ids_of(state.batch), flush=True)


TERMINATED = """
import sys
from pathlib import Path
from composer_mixmon import MixMon
from tests.live.helpers import fit
from tests.live.test_ledger import EACH, Tells, loader
folder = Path(sys.argv[1])
one_long_epoch = loader(folder, workers=2, weights=({"repeat": 1000}, {"repeat": 1000}))
fit(one_long_epoch, MixMon(**EACH, ledger=str(folder / "books")), Tells())
"""


def test_terminated_while_it_trains(tmp_path: Path) -> None:
    """After SIGTERM, Composer ends the process, and the ledger holds every interval that was over."""
    told = tmp_path / "told"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", TERMINATED, str(tmp_path)]
    with told.open("w") as out, subprocess.Popen(command, stdout=out, env=environment) as process:
        try:
            while process.poll() is None and told.read_text().count("\n") < 30:
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 128 + signal.SIGTERM
        finally:
            process.kill()
    begun = [list(map(int, line.split())) for line in told.read_text().splitlines()]
    record = read_ledger(str(tmp_path / "books")).record
    kept = len(record.first)
    assert (len(begun) - 1) // 4 * 4 <= kept <= len(begun)  # whether the last one was over is not told
    assert kept % 4 == 0
    is_what_was_fed(record, begun[:kept])
    assert record.remarks == ()


METHODS = ["random", "stratified", "per_stream", "device_per_stream"]


@pytest.mark.parametrize("method", METHODS)
def test_the_order_is_the_replays(tmp_path: Path, method: str) -> None:
    """For each batching method, and the last batch that is not full, from the header's settings."""
    weights = ({"proportion": 0.6}, {"proportion": 0.4})
    data = loader(tmp_path, 2, batching_method=method, weights=weights, shuffle_block_size=64)
    fit(data, MixMon(**EACH), duration="2ep", **saving(tmp_path / "save", "1ep"))
    record = read_ledger(str(tmp_path / "save")).record
    assert record.order is not None
    settings = Settings.of_dataset(data.dataset, World(1, 1, 2))
    for epoch in (0, 1):
        ids = Replay(settings, World(1, 1, 2), epoch).ids()
        np.testing.assert_array_equal(record.order[record.epoch == epoch], order_hashes(ids))
    assert len(set(record.order.tolist())) == len(record.order)


class Spoils(Callback):
    """Does something to the ledger after a few batches."""

    def __init__(self, monitor: MixMon, folder: Path, how: str) -> None:
        self.monitor = monitor
        self.folder = folder
        self.how = how

    def batch_start(self, state: State, logger: Logger) -> None:
        if int(state.timestamp.batch) != 6:
            return
        writer = self.monitor._ledger._writer
        assert writer is not None
        if self.how == "full":
            with open("/dev/full", "wb") as full:
                os.dup2(full.fileno(), writer._lines._file)
        elif self.how == "closed":
            os.close(writer._lines._file)
        else:
            shutil.rmtree(self.folder)


@pytest.mark.parametrize(("how", "warnings"), [("full", 1), ("closed", 1), ("removed", 0)])
def test_a_ledger_that_fails_costs_the_ledger_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str, warnings: int
) -> None:
    """Same weights as without it, monitoring goes on, and there is one warning at most."""
    without = fit(loader(tmp_path), duration="1ep").state.model.weights
    monitor, witness = MixMon(**EACH, ledger=str(tmp_path / "books")), Witness()
    spoils = Spoils(monitor, tmp_path / "books", how)
    run = fit(loader(tmp_path), monitor, witness, spoils, duration="1ep")
    assert run.state.model.weights == without
    assert int(np.sum(monitor.state_dict()["mixture"]["run"])) == sum(map(len, witness.batches)) == SAMPLES
    assert [record.message[:22] for record in caplog.records] == ["mixmon keeps no ledger"] * warnings
    if how != "removed":
        is_what_was_fed(read_ledger(str(tmp_path / "books")).record, witness.batches[:4])


def test_a_folder_that_cannot_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where a file is in the way, there is one warning and no ledger."""
    (tmp_path / "file").write_text("")
    fit(loader(tmp_path), MixMon(ledger=str(tmp_path / "file" / "books")), duration="4ba")
    assert ["keeps no ledger" in record.message for record in caplog.records] == [True]


def test_every_sample_id(tmp_path: Path) -> None:
    """With ``rank_ids``, each batch's ids are there as they were fed, and prove the order hash."""
    witness = Witness()
    monitor = MixMon(**EACH, ledger={"rank_ids": True})
    fit(loader(tmp_path), witness, monitor, duration="2ep", **saving(tmp_path / "save", "1ep"))
    ledger = read_ledger(str(tmp_path / "save"))
    assert ledger.record.order is not None
    for batch, fed in enumerate(witness.batches):
        (found,) = read_rank_ids(ledger.parts[0].path, ledger.parts[0].header.run, batch)
        assert found.ids.tolist() == fed
        assert order_hash(found.ids, found.first_position) % (1 << 64) == ledger.record.order[batch]


def test_two_runs_in_one_save_folder(tmp_path: Path) -> None:
    """Each has a folder of its own."""
    for _ in range(2):
        settings = saving(tmp_path / "save") | {"save_overwrite": True}
        fit(loader(tmp_path), MixMon(), duration="2ba", run_name="same", **settings)
    with pytest.raises(ConfigError, match="2 runs"):
        read_ledger(str(tmp_path / "save"))
    for folder in (tmp_path / "save" / "mixmon").iterdir():
        assert len(read_ledger(str(folder)).record.first) == 2


def test_alarms_are_kept(tmp_path: Path) -> None:
    """With the batch and the shards, as they are posted."""
    data = mds_loader(two_streams(tmp_path, BATCH))
    rule = {"rules": [{"deviation": 0.3, "for": "2ba", "grace": 0}]}
    fit(data, MixMon(window="2ba", log_interval="4ba", alarm=rule, ledger=str(tmp_path / "books")))
    (alarm,) = read_ledger(str(tmp_path / "books")).record.alarms[:1]
    assert alarm["rule"].startswith("deviation above 0.3")
    assert alarm["shards"]
