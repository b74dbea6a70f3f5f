"""Uploads: snapshots beside the checkpoints, and failures that cost a warning."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from composer_mixmon.ledger import read_ledger
from composer_mixmon.ledger.upload import Uploads
from tests.ledger.data import closed, header, write


class Folder:
    """An object store that is a folder; the network's edge."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.go = threading.Event()
        self.go.set()

    def upload_object(self, object_name: str, filename: str) -> None:
        assert self.go.wait(10)
        path = self.folder / object_name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(filename, path)


def test_what_is_uploaded_is_a_ledger(tmp_path: Path) -> None:
    """Under the checkpoints' folder, with the run's folder around it; at the end, all of it."""
    store = Folder(tmp_path / "remote")
    path = write(tmp_path / "local" / "run-1", header(), closed(0, 10))
    uploads = Uploads(lambda: store, "/checkpoints/mixmon")
    assert not uploads.upload([path], now=False)  # ten minutes have not passed
    uploads.finish([path])
    uploaded = tmp_path / "remote" / "checkpoints" / "mixmon" / "run-1" / path.name
    assert uploaded.read_bytes() == path.read_bytes()
    assert len(read_ledger(str(tmp_path / "remote" / "checkpoints")).record.first) == 10


def test_one_at_a_time(tmp_path: Path) -> None:
    """A slow store keeps nobody waiting, and is asked again when it is done."""
    store = Folder(tmp_path / "remote")
    store.go.clear()
    path = write(tmp_path / "run-1", header(), closed(0, 10))
    uploads = Uploads(lambda: store, "x")
    assert uploads.upload([path], now=True)
    assert not uploads.upload([path], now=True)
    store.go.set()
    uploads.finish([path])
    assert (tmp_path / "remote" / "x" / "run-1" / path.name).exists()


def test_a_store_that_fails_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """However often."""

    def none() -> Folder:
        raise ConnectionError("no network")

    uploads = Uploads(none, "x")
    for _ in range(3):
        uploads.finish([tmp_path / "missing"])
    assert [record.message for record in caplog.records] == [
        "mixmon: the ledger was not uploaded: ConnectionError('no network')"
    ]
