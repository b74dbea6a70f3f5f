"""A run that W&B keeps on its servers."""

# wandb is typed only in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from composer_mixmon.errors import ConfigError
from composer_mixmon.sources.logged import LOSS, RATIO, TIME, Logged, Part, number
from composer_mixmon.sources.settings import logged_labels
from composer_mixmon.wandb_connection import connect, reason

__all__ = ["read_wandb_run", "wandb_path"]

_PATH = re.compile(r"[^/\s]+/[^/\s]+/[^/\s]+")
_PAGE = 10_000  # rows a request
_STEP = "_step"


def wandb_path(run: str) -> str | None:
    """The ``entity/project/run_id`` that a text means, an address of W&B's pages included; else ``None``."""
    if run.startswith(("https://", "http://")):
        parts = [part for part in urlsplit(run).path.split("/") if part and part != "runs"]
        return "/".join(parts[:3]) if len(parts) >= 3 else None
    return run if _PATH.fullmatch(run) and not run.startswith(("/", ".", "~")) else None


def read_wandb_run(path: str, loss: str | None = None) -> Logged:
    """Read a run's config and history from W&B.

    Args:
        path: ``entity/project/run_id``.
        loss: The loss's key; ``None``: ``loss/train/total``.

    Raises:
        MixmonError: wandb is not installed, nobody is logged in, W&B cannot be reached or has no such run.
    """
    api, part = connect("RUN", path), Part()
    try:
        run = api.run(path)
        config: dict[str, Any] = dict(run.config)
        for keys in _scans(config, loss or LOSS):
            # W&B gives the rows that have all the keys, so that each kind of row is asked for apart.
            for row in run.scan_history(keys=[_STEP, *keys], page_size=_PAGE):
                _put(part, row, keys, loss or LOSS)
        state = str(run.state)
    except Exception as error:
        raise ConfigError("RUN", path, f"cannot be read from W&B: {reason(error)}") from error
    remarks = () if state == "finished" else (f"W&B says that the run is {state}",)
    return Logged.join("W&B", [part], config=config, remarks=remarks)


def _scans(config: dict[str, Any], loss: str) -> list[list[str]]:
    mixmon = config.get("mixmon")
    labels = logged_labels(mixmon) if isinstance(mixmon, dict) else None
    scans = [[loss, TIME], ["time/sample", "time/sample_in_epoch"], ["time/epoch"]]
    if labels is None:
        return scans
    return [*scans, [RATIO + name for name in labels.names], ["mixmon/alarms"]]


def _put(part: Part, row: dict[str, Any], keys: list[str], loss: str) -> None:
    step = row.get(_STEP)
    if not isinstance(step, int):
        return
    for key in keys:
        value = number(str(row.get(key)))
        if value is not None:
            part.put(LOSS if key == loss else key, step, value)
