"""Real checkpoints of real Trainers, and files that only look like one."""

from __future__ import annotations

import os
import pickle
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from composer_mixmon import MixMon
from composer_mixmon.errors import ConfigError
from composer_mixmon.sources import checkpoint as module
from composer_mixmon.sources import read_checkpoint
from tests.live.data import mds_loader, two_streams
from tests.live.helpers import fit

BATCH = 6
pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning"),
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run's checkpoints, ``ba3.pt``, ``ba6.pt``, …; epochs of 11 batches, the last short."""
    folder = tmp_path_factory.mktemp("run")
    loader = mds_loader(two_streams(folder, BATCH, shuffle=True, shuffle_seed=5, num_canonical_nodes=2))
    where = {"save_folder": str(folder / "saved"), "save_filename": "ba{batch}.pt", "save_interval": "3ba"}
    fit(loader, MixMon(log_interval="2ba"), duration="14ba", save_num_checkpoints_to_keep=-1, **where)
    return folder / "saved"


def test_what_a_checkpoint_tells(saved: Path) -> None:
    """The same as ``torch.load``, in the middle of the second epoch, and what its dataset was set to."""
    path = str(saved / "ba12.pt")
    state = torch.load(path, weights_only=False)["state"]
    found, time = read_checkpoint(path), state["timestamp"]["Timestamp"]
    train = state["dataset_state"]["train"]
    assert (found.batch, found.epoch, found.sample_in_epoch) == (12, 1, 6)
    assert (time["batch"], time["epoch"], time["sample_in_epoch"]) == (12, 1, 6)
    assert (found.order_epoch, found.first_sample) == (train["epoch"], train["sample_in_epoch"]) == (1, 6)
    assert (found.num_canonical_nodes, found.shuffle_seed, found.initial_physical_nodes) == (2, 5, 1)
    assert (found.world_size, found.nodes, found.device_batch) == (1, 1, BATCH)
    assert found.labels == ("a", "b")
    assert list(found.run) == state["callbacks"]["MixMon"]["mixture"]["run"]
    assert sum(found.run) == 70  # samples up to the last interval of two batches


def test_a_sharded_checkpoint_tells_the_same(saved: Path, tmp_path: Path) -> None:
    """Written by torch.distributed.checkpoint, as Composer does with FSDP."""
    state = torch.load(saved / "ba12.pt", weights_only=False)["state"]
    dcp.save({"state": state}, checkpoint_id=str(tmp_path / "ep1-ba12"), no_dist=True)
    sharded, whole = read_checkpoint(str(tmp_path / "ep1-ba12")), read_checkpoint(str(saved / "ba12.pt"))
    assert vars(sharded) | {"path": ""} == vars(whole) | {"path": ""}


def test_hostile_checkpoints_run_nothing(tmp_path: Path) -> None:
    """A pickle that runs a command, as ``.pt`` file and as sharded checkpoint's metadata and entries."""
    marker = tmp_path / "marker"

    class Hostile:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {marker}",)

    state = {"timestamp": {"Timestamp": {"batch": 3, "x": Hostile()}}, "dataset_state": Hostile()}
    torch.save({"state": state, "rng": Hostile()}, tmp_path / "hostile.pt")
    assert read_checkpoint(str(tmp_path / "hostile.pt")).batch == 3
    sharded = tmp_path / "sharded"
    dcp.save({"state": {"timestamp": {"Timestamp": {"batch": 3}}}}, checkpoint_id=str(sharded), no_dist=True)
    assert read_checkpoint(str(sharded)).batch == 3
    (sharded / ".metadata").write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(ConfigError, match="no timestamp"):
        read_checkpoint(str(sharded))
    assert not marker.exists()
    torch.load(tmp_path / "hostile.pt", weights_only=False)
    assert marker.exists()  # hostile indeed


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "..", ""])
def test_metadata_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    """Entries of a sharded checkpoint lie in its folder."""
    dcp.save({"state": {"timestamp": {"Timestamp": {"batch": 3}}}}, checkpoint_id=str(tmp_path), no_dist=True)
    metadata = pickle.loads((tmp_path / ".metadata").read_bytes())
    for info in metadata.storage_data.values():
        info.relative_path = name
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(ConfigError, match=r"outside of the folder|cannot be read"):
        read_checkpoint(str(tmp_path))


def test_zip_bombs_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data.pkl that is compressed, or larger than any checkpoint's."""
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"N" * 50_000_000 + b".")
    with pytest.raises(ConfigError, match="is compressed"):
        read_checkpoint(str(tmp_path / "bomb.pt"))
    torch.save({"state": {"x": "y" * 5000}}, tmp_path / "large.pt")
    monkeypatch.setattr(module, "_LARGEST_PICKLE", 4096)
    with pytest.raises(ConfigError, match="larger than"):
        read_checkpoint(str(tmp_path / "large.pt"))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no whole checkpoint"),
        (b"PK\x03\x04", "no whole checkpoint"),
        (pickle.dumps({"state": {}}), "no whole checkpoint"),
        (b"x" * 100_000, "no whole checkpoint"),
    ],
)
def test_no_checkpoint(tmp_path: Path, content: bytes, says: str) -> None:
    """One line, with the mend, whatever lies there."""
    (tmp_path / "x.pt").write_bytes(content)
    with pytest.raises(ConfigError, match=says) as caught:
        read_checkpoint(str(tmp_path / "x.pt"))
    assert "\n" not in str(caught.value)


def test_nothing_there(tmp_path: Path) -> None:
    """No file, a folder without metadata, and a save of something else."""
    for path in ("none.pt", "."):
        with pytest.raises(ConfigError, match="cannot be read: No such file"):
            read_checkpoint(str(tmp_path / path))
    torch.save({"weights": torch.zeros(3)}, tmp_path / "weights.pt")
    with pytest.raises(ConfigError, match="no timestamp"):
        read_checkpoint(str(tmp_path / "weights.pt"))


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_damaged_checkpoints(saved: Path, tmp_path: Path, data: Any) -> None:
    """Cut off anywhere, or with bytes changed, a checkpoint is read or refused."""
    whole = bytearray((saved / "ba12.pt").read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "x.pt").write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with suppress(ConfigError):
        read_checkpoint(str(tmp_path / "x.pt"))
