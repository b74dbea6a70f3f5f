"""TensorBoard's event files, written by Composer's logger and by torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from composer.loggers import InMemoryLogger, TensorboardLogger
from torch.utils.tensorboard import SummaryWriter

from composer_mixmon import MixMon
from composer_mixmon.errors import ConfigError
from composer_mixmon.sources import Given, read_run
from composer_mixmon.sources.logged import LOSS
from composer_mixmon.sources.tensorboard import find_event_files, read_event_files
from tests.live.data import mds_loader, two_streams
from tests.live.helpers import Witness, fit, metrics


def write(folder: Path, tag: str, steps: range, add: float = 0.0) -> None:
    writer = SummaryWriter(str(folder))
    for step in steps:
        writer.add_scalar(tag, step + add, step)
    writer.close()


def test_what_composer_writes(tmp_path: Path) -> None:
    """Loss and counts of a real run, from nothing but its event files and the size of a batch."""
    loader = mds_loader(two_streams(tmp_path, 8, shuffle=True))
    witness, mixmon = Witness(), MixMon(log_interval="3ba")
    memory, board = InMemoryLogger(), TensorboardLogger(log_dir=str(tmp_path / "tb"))
    run = fit(loader, mixmon, witness, duration="2ep", loggers=[memory, board])
    record = read_run(str(tmp_path / "tb"))
    streams = np.array([[sum(i < 40 for i in ids), sum(i >= 40 for i in ids)] for ids in witness.batches])
    assert record.source == "TensorBoard"
    assert record.names == ("a", "b")
    assert record.span.tolist() == [3, 3, 3, 3, 3, 1]
    assert record.counts is not None
    np.testing.assert_array_equal(record.counts, np.add.reduceat(streams, record.first))
    loss = np.array([value for _, value in metrics(run, LOSS)[LOSS]], np.float32)
    means = [loss[a : a + n].astype(float).mean() for a, n in zip(record.first, record.span, strict=True)]
    np.testing.assert_allclose(record.loss, means, rtol=1e-12)
    assert record.epoch.tolist() == [0, 0, 0, 1, 1, 1]
    assert (np.diff(record.time) > 0).all()


def test_a_run_in_several_files(tmp_path: Path) -> None:
    """Each process has a file; what was trained on last counts."""
    write(tmp_path, LOSS, range(10))
    first = find_event_files(tmp_path)[0]
    first.rename(first.with_name("events.out.tfevents.1000000000.x"))
    write(tmp_path, LOSS, range(7, 12), add=100)
    logged = read_event_files(find_event_files(tmp_path))
    assert logged.columns[LOSS].values.tolist() == [0, 1, 2, 3, 4, 5, 6, 107, 108, 109, 110, 111]
    assert logged.starts == ((7, 3),)


def test_another_tag(tmp_path: Path) -> None:
    """The tags that are there are named."""
    write(tmp_path, "train/ce", range(3))
    with pytest.raises(ConfigError, match="has no scalar loss/train/total; its tags are train/ce"):
        read_run(str(tmp_path))
    assert read_run(str(tmp_path), Given(loss="train/ce")).loss.tolist() == [0, 1, 2]


def test_several_runs(tmp_path: Path) -> None:
    """Folders are runs: one has to be chosen."""
    for name in "ab":
        write(tmp_path / name, LOSS, range(3))
    with pytest.raises(ConfigError, match="holds 2 runs of TensorBoard"):
        read_run(str(tmp_path))
    assert len(read_run(str(tmp_path / "a")).first) == 3


def test_a_torn_file(tmp_path: Path) -> None:
    """Is read to its last whole event; one of something else is refused."""
    write(tmp_path, LOSS, range(100))
    (path,) = find_event_files(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    assert len(read_event_files([path]).columns[LOSS].steps) == 99
    path.write_bytes(b"x" * 1000)
    with pytest.raises(ConfigError, match="has no scalar"):
        read_event_files([path])
