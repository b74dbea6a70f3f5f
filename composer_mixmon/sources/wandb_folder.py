"""A run that W&B recorded on this machine: ``wandb/run-…``, ``wandb/offline-run-…`` or a ``.wandb`` file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from composer_mixmon.errors import ConfigError
from composer_mixmon.sources.logged import LOSS, Logged, Part, is_wanted, number
from composer_mixmon.sources.wandb_file import Damage, config_items, history_step, wandb_records

__all__ = ["find_wandb_files", "read_wandb_files"]

_FILE = "run-*.wandb"
_STARTED = re.compile(r"run-(\d{8}_\d{6})-")


def find_wandb_files(run: Path) -> list[Path]:
    """Find the files of a run, in the order in which they were begun.

    A run that was resumed has a folder for each start, with its id in the name: all of them are taken.

    Args:
        run: A ``.wandb`` file, the folder that holds it, or one of the folders above.

    Returns:
        Files of one run, none if there are none.

    Raises:
        ConfigError: Files of several runs.
    """
    files = [run] if run.is_file() else run.rglob(_FILE)
    found = {path.resolve() for path in files}  # wandb/latest-run is a link to one of the others
    names = sorted({path.name for path in found})
    if len(names) > 1:
        which = ", ".join(sorted(path.parent.name for path in found)[:5])
        raise ConfigError(
            "RUN", str(run), f"holds {len(names)} runs of W&B: give the folder of one, of {which}"
        )
    for path in list(found):
        found |= {sibling.resolve() for sibling in path.parent.parent.glob(f"*run-*/{path.name}")}
    return sorted(found, key=_started)


def _started(path: Path) -> tuple[str, float]:
    found = _STARTED.search(path.parent.name)
    return found[1] if found else "", path.stat().st_mtime


def read_wandb_files(paths: Sequence[Path], loss: str | None = None) -> Logged:
    """Read what W&B recorded of a run.

    Args:
        paths: The run's files, in the order in which they were begun.
        loss: The loss's key; ``None``: ``loss/train/total``.

    Raises:
        MixmonError: One of them is none, none has the loss, or wandb is not installed.
    """
    keys: dict[str, str | None] = {loss: LOSS} if loss else {}
    config: dict[str, Any] = {}
    parts: list[Part] = []
    remarks: list[str] = []
    for path in paths:
        part, remark = _read(path, config, keys)
        parts.append(part)
        remarks += remark
    if not any(LOSS in part.keys for part in parts):
        metrics = [key for key in keys if not key.startswith("_")]
        found = ", ".join(sorted(metrics)[:12]) or "nothing"
        mend = f"has no {loss or LOSS}, but {found}: name the loss with --loss"
        raise ConfigError("RUN", str(paths[0].parent), mend)
    if len(paths) > 1:
        remarks.append(
            f"W&B recorded the run in {len(paths)} parts: {', '.join(p.parent.name for p in paths)}"
        )
    return Logged.join("W&B", parts, config=config, remarks=tuple(remarks))


def _read(path: Path, config: dict[str, Any], keys: dict[str, str | None]) -> tuple[Part, list[str]]:
    part, damage = Part(), Damage()
    alerts, ended = 0, False
    for record in wandb_records(path, damage):
        if record.HasField("history"):
            _put_row(part, record.history, keys)
        elif record.HasField("exit"):
            ended = True
        elif record.HasField("alert"):
            alerts += 1
        else:
            config.update(config_items(record))
    return part, _remarks(path.name, damage, alerts, ended)


def _put_row(part: Part, row: Any, keys: dict[str, str | None]) -> None:
    """Add what is wanted of a row.

    Args:
        part: Where to.
        row: A history record.
        keys: What each key that has been seen is called here, ``None`` where it is not wanted.
    """
    step = history_step(row)
    if step is None:
        return
    for item in row.item:
        key = item.key or "/".join(item.nested_key)
        if key not in keys:
            keys[key] = key if is_wanted(key) else None
        name = keys[key]
        value = number(item.value_json) if name else None
        if name and value is not None:
            part.put(name, step, value)


def _remarks(name: str, damage: Damage, alerts: int, ended: bool) -> list[str]:
    remarks: list[str] = []
    if damage.torn:
        remarks.append(
            f"{name} ends in the middle of a record: the run was killed, or goes on; its end is missing"
        )
    elif not ended:
        remarks.append(
            f"{name} has no exit record: the run was killed, or goes on; up to 32 KiB may be missing"
        )
    if damage.blocks:
        remarks.append(f"{name} is damaged in {damage.blocks} places: rows are missing there")
    if alerts:
        remarks.append(f"{alerts} alerts were sent to W&B during the run")
    return remarks
