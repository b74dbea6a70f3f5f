"""What is left of a real run, in every form, becomes the same record."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from composer.loggers import InMemoryLogger, WandBLogger
from wandb import finish

from composer_mixmon import MixMon
from composer_mixmon.errors import ConfigError, MixmonError
from composer_mixmon.order_hash import order_hash
from composer_mixmon.sources import Given, read_order, read_run

from .runs import by_stream, saving, train, write_yaml

LOSS = "loss/train/total"


class Run:
    """A run of 14 batches, killed, and resumed from batch 9, where two more epochs' ends lie before batch 30.

    Attributes:
        fed: The ids of each batch, as they were trained on last.
        losses: Each batch's loss, in the same way.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        first, before = self._train("14ba", **saving(folder, "3ba"))
        self.checkpoint = str(folder / "saved" / "ba9.pt")
        second, after = self._train("30ba", load_path=self.checkpoint)
        self.fed = first[:9] + second
        self.losses = np.array(before[:9] + after)

    def _train(self, until: str, **settings: Any) -> tuple[list[list[int]], list[float]]:
        memory = InMemoryLogger()
        wandb = WandBLogger(
            project="p", init_kwargs={"dir": str(self.folder), "id": "abc", "mode": "offline"}
        )
        run: list[list[int]] = train(
            self.folder, until, MixMon(log_interval="4ba"), loggers=[memory, wandb], **settings
        )
        finish()  # Composer leaves it to the process's end
        (losses,) = ([float(v) for _, v in data] for key, data in memory.data.items() if key == LOSS)
        return run, losses


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("run"))


def write_losses(path: Path, losses: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["Step", f"name - {LOSS}"])
        rows.writerows(enumerate(losses.tolist()))
    return str(path)


def test_wandb(run: Run) -> None:
    """Both of W&B's folders together: exact counts, the loss, the resumption, and the order's settings."""
    record = read_run(str(run.folder / "wandb"))
    assert record.source == "W&B"
    assert record.names == ("a", "b")
    assert record.first.tolist() == [0, 4, 8, 12, 16, 20, 24, 28]
    assert record.counts is not None
    np.testing.assert_array_equal(record.counts, np.add.reduceat(by_stream(run.fed), record.first))
    means = [run.losses[a : a + n].mean() for a, n in zip(record.first, record.span, strict=True)]
    np.testing.assert_allclose(record.loss, means, rtol=1e-12)
    (resumption,) = record.resumptions
    assert (resumption.batch, resumption.epoch, resumption.first_sample) == (9, 0, 54)
    assert resumption.discarded == 5
    assert record.settings["dataset"]["shuffle_seed"] == 5
    assert len(record.targets) == 1


def test_the_order_of_a_record(run: Run) -> None:
    """With nothing but what W&B recorded and the index files: counts and hashes of every batch."""
    record = read_run(str(run.folder / "wandb"))
    order = read_order(record, Given())
    assert order.labels is not None
    np.testing.assert_array_equal(order.counts(order.labels), by_stream(run.fed))
    expected = [order_hash(np.array(ids)) % 2**64 for ids in run.fed]
    assert order.hashes().tolist() == expected


def test_yaml_and_loss(run: Run, tmp_path: Path) -> None:
    """Everything deleted but the YAML, index.json and the losses: the mixture of each batch by replay."""
    given = Given(write_yaml(run.folder), (run.checkpoint,))
    record = read_run(write_losses(tmp_path / "x.csv", run.losses), given)
    assert record.source == "CSV, mixture by replay"
    assert record.counts is not None
    np.testing.assert_array_equal(record.counts, by_stream(run.fed))
    np.testing.assert_array_equal(record.loss, run.losses)
    assert (record.span == 1).all()
    assert [(r.batch, r.epoch, r.first_sample) for r in record.resumptions] == [(9, 0, 54)]
    assert record.epoch.tolist() == [0] * 11 + [1] * 11 + [2] * 8
    np.testing.assert_allclose(record.targets[0].shares, [40 / 64, 24 / 64])


def test_yaml_alone(run: Run) -> None:
    """As long as the YAML has the run train, without a loss."""
    record = read_run(None, Given(write_yaml(run.folder)))
    assert record.source == "replay"
    assert record.counts is not None
    np.testing.assert_array_equal(record.counts, by_stream(run.fed[:22]))
    assert np.isnan(record.loss).all()


def test_losses_with_gaps(run: Run, tmp_path: Path) -> None:
    """Rows are joined by the batch's number; where a loss is missing it is NaN."""
    path = tmp_path / "x.csv"
    path.write_text(f"Step,{LOSS}\n3,1.5\n7,2.5\n")
    record = read_run(str(path), Given(write_yaml(run.folder)))
    assert np.flatnonzero(~np.isnan(record.loss)).tolist() == [3, 7]
    assert len(record.first) == 8


def test_the_ledger(run: Run) -> None:
    """The ledger beside the checkpoints, through the save_folder."""
    record = read_run(str(run.folder / "saved"))
    assert record.source == "ledger"
    assert record.counts is not None
    np.testing.assert_array_equal(record.counts, by_stream(run.fed)[: len(record.counts)])
    order = read_order(record, Given())
    assert record.order is not None
    np.testing.assert_array_equal(order.hashes(), record.order)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"shuffle_seed": 6}, "shuffle_seed: 5 → 6"),
        ({"shuffle": False, "num_canonical_nodes": 4}, "num_canonical_nodes: 2 → 4; shuffle: True → False"),
        ({"epoch_size": 32}, "choose: "),
    ],
)
def test_a_yaml_of_another_run(run: Run, changes: dict[str, Any], says: str) -> None:
    """What differs from what was logged is named, in one line."""
    record = read_run(str(run.folder / "wandb"))
    with pytest.raises(ConfigError) as caught:
        read_order(record, Given(write_yaml(run.folder, **changes)))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_index_of_another_run(run: Run) -> None:
    """The files' hashes are compared, whatever the settings."""
    record = read_run(str(run.folder / "wandb"))
    path = run.folder / "b" / "index.json"
    content = path.read_text()
    path.write_text(content + " ")
    try:
        for given in (Given(), Given(write_yaml(run.folder))):
            with pytest.raises(ConfigError, match="index_sha256 of b"):
                read_order(record, given)
    finally:
        path.write_text(content)


def test_processes_that_contradict(run: Run) -> None:
    """What was logged of nodes and ranks counts, and flags that say otherwise are an error."""
    record = read_run(str(run.folder / "wandb"))
    with pytest.raises(ConfigError, match="--ranks: 2: the run's config says 1"):
        read_order(record, Given(write_yaml(run.folder), ranks=2))
    with pytest.raises(ConfigError, match="no settings were logged"):
        read_order(read_run(None, Given(write_yaml(run.folder))), Given())


def test_books_that_count_otherwise(run: Run, tmp_path: Path) -> None:
    """A checkpoint's books are compared with the record: a shuffle that was not on comes out."""
    losses, saved = write_losses(tmp_path / "x.csv", run.losses[:6]), str(run.folder / "saved" / "ba6.pt")
    assert read_run(losses, Given(write_yaml(run.folder), (saved,))).remarks == ()
    plain = write_yaml(run.folder, shuffle=False)
    (remark,) = read_run(losses, Given(plain, (saved,))).remarks
    assert f"24 samples, the books in {saved} count [16, 8] of a, b, this record [20, 4]" in remark


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.bin", b"\0\1\2", "is no record of a run"),
        ("x.csv", b"", "is empty"),
        ("x.pt", b"x", "is a checkpoint: give it with --checkpoint"),
        ("x.yaml", b"x: 1", "is a YAML: give it with --config"),
        ("x.wandb", b"x", "is no W&B file"),
        ("segment-1.jsonl", b"x", "segment-1.jsonl"),
        ("notes.txt", b"hello\nworld\n", "has no column of steps"),
    ],
)
def test_files_of_something_else(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    """Each is told what it is, or what it lacks, in one line."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MixmonError) as caught:
        read_run(str(tmp_path / name))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_to_read(tmp_path: Path) -> None:
    """An empty folder, a folder of something else, no path and no file."""
    with pytest.raises(ConfigError, match="holds no record of a run, but nothing"):
        read_run(str(tmp_path))
    (tmp_path / "weights.bin").touch()
    with pytest.raises(ConfigError, match=r"but weights\.bin"):
        read_run(str(tmp_path))
    for path in (str(tmp_path / "none"), "none", "a\0b"):
        with pytest.raises(ConfigError, match=r"there is no such file or folder|cannot be read"):
            read_run(path)
    with pytest.raises(ConfigError, match="or --config"):
        read_run(None)
