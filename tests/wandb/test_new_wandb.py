"""A wandb that Composer cannot work with is named, with what to install instead."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
import wandb
from composer.loggers import WandBLogger
from streaming import StreamingDataLoader

from composer_mixmon import MixMon
from composer_mixmon.errors import MixmonError
from tests.live.data import streaming_dataset, write_mds
from tests.live.helpers import trainer


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed wandb as 0.31.0 would be: without ``Run.get_url``."""
    real = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "0.31.0" if name == "wandb" else real(name)
    )
    monkeypatch.delattr(wandb.sdk.wandb_run.Run, "get_url")
    monkeypatch.setattr(WandBLogger, "init", WandBLogger.init)  # put back what MixMon wraps
    monkeypatch.setenv("WANDB_MODE", "disabled")


@pytest.mark.usefixtures("newer")
def test_newer_wandb_is_named(tmp_path: Path) -> None:
    """Instead of Composer's AttributeError, the user reads which wandb to install; twice wraps once."""
    MixMon()
    wrapped = WandBLogger.init
    mixmon = MixMon()
    assert WandBLogger.init is wrapped
    loader = StreamingDataLoader(streaming_dataset(write_mds(tmp_path / "data", 8), 4), batch_size=4)
    with pytest.raises(MixmonError, match=r'wandb 0\.31\.0 is installed.*pip install "wandb<0\.29"'):
        trainer(loader, mixmon, loggers=[WandBLogger(init_kwargs={"mode": "offline", "dir": str(tmp_path)})])
    wandb.finish()


def test_working_wandb_is_left_alone() -> None:
    """With a wandb that works, Composer's logger is not touched."""
    before = WandBLogger.init
    MixMon()
    assert WandBLogger.init is before


def test_no_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without wandb there is nothing to explain."""

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    before = WandBLogger.init
    MixMon()
    assert WandBLogger.init is before
