"""The W&B run of a Composer run.

Its own steps are Composer's batches, so our charts share their x-axis with the loss, and go on with it when
the run is resumed. Neither tables nor charts of our own are logged: on wandb 0.18.7 a table hung an offline
run, and on 0.28.2 it took 1.3 s. ``mixmon wandb workspace`` makes charts of the metrics.
"""

# wandb is typed only in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from composer.loggers import LoggerDestination, WandBLogger

__all__ = ["describe_run", "find_run"]

_EXTREMES = (
    "mixmon/window/deviation",
    "mixmon/window/dispersion",
    "mixmon/tokens/deviation",
    "mixmon/evidence",
)
"""Whose summary tells the largest value beside the last one."""


def find_run(destinations: Iterable[LoggerDestination]) -> Any:
    """The run of a ``WandBLogger`` among them; ``None`` without one, and on ranks that have no run."""
    if not any(isinstance(destination, WandBLogger) for destination in destinations):
        return None
    import wandb  # the logger has

    return wandb.run


def describe_run(run: Any, settings: dict[str, Any]) -> None:
    """Tell a run which extremes its summary keeps, and our settings.

    Composer's way to the config raises where a resumed run or another DataLoader changes a setting.

    Args:
        run: The run.
        settings: What stands under ``mixmon`` in its config from now on.
    """
    for key in _EXTREMES:
        run.define_metric(key, summary="max,last")
    run.config.update({"mixmon": settings}, allow_val_change=True)
