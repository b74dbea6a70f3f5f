"""All that a run's ``.wandb`` file holds, in the order in which it was recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from composer_mixmon.sources.wandb_file import Damage, config_items, items, wandb_records


@dataclass
class RunFile:
    """What a run recorded: history rows and alerts in order, config and summary as they ended."""

    history: list[dict[str, Any]] = field(default_factory=list)
    alerts: list[tuple[str, str]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)


def read_run(folder: Path) -> RunFile:
    """Read the one ``.wandb`` file somewhere under ``folder``, which must be undamaged."""
    (path,) = folder.rglob("*.wandb")
    run, damage = RunFile(), Damage()
    for record in wandb_records(path, damage):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            run.history.append(items(record.history.item))
        elif kind == "summary":
            run.summary |= items(record.summary.update)
        elif kind == "alert":
            run.alerts.append((record.alert.title, record.alert.text))
        run.config |= config_items(record)
    assert not damage.torn
    assert not damage.blocks
    return run
