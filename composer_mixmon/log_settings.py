"""The monitor's settings as a hyperparameter of the run, where a logger would not take a second value."""

# Composer, wandb and MLflow are typed only in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

from composer.loggers import LoggerDestination, MLFlowLogger

from composer_mixmon.wandb_run import describe_run, find_run

__all__ = ["log_settings"]


def log_settings(destination: LoggerDestination, settings: dict[str, Any], again: bool) -> None:
    """Log the settings under ``mixmon``.

    W&B has the latest ones, MLflow those that its run began with.

    Args:
        destination: One of the run's loggers.
        settings: As :func:`~composer_mixmon.assembly.run_config` gives them.
        again: Whether others have been logged since the run, or this part of it, was started.
    """
    if isinstance(destination, MLFlowLogger) and (again or _in_mlflow_run()):
        return  # by default it would drop, with the change, whatever is logged in the same seconds
    run = find_run([destination])
    if run is not None:
        describe_run(run, settings)
    destination.log_hyperparameters({"mixmon": settings})


def _in_mlflow_run() -> bool:
    """Whether a run of MLflow's that is resumed has settings of ours already."""
    import mlflow  # the logger has

    run = mlflow.active_run()  # as it was when it was resumed
    return run is not None and "mixmon" in run.data.params
