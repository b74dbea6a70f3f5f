"""What an alarm does to a Composer run: log, alert in W&B, stop, raise."""

# Torch, Composer and streaming are typed only in part: what comes out of them is unknown to pyright.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from composer.core import State
from composer.loggers import Logger, WandBLogger
from composer.utils import dist

from composer_mixmon.alarms import Alarm
from composer_mixmon.errors import MixtureAlarm

__all__ = ["act"]

log = logging.getLogger("composer_mixmon")


def act(actions: Sequence[str], alarms: Sequence[Alarm], state: State, logger: Logger) -> None:
    """Carry out the actions; every rank calls this with the same alarms after the same batch.

    Stopping and raising come last, so that what should be said has been said.

    Args:
        actions: Of :data:`composer_mixmon.config.ACTIONS`.
        alarms: The alarms of the batches since the last call.
        state: The run.
        logger: Its logger.

    Raises:
        MixtureAlarm: The ``raise`` action.
    """
    for alarm in alarms:
        for name, tell in _TELLING.items():
            if name in actions:
                tell(alarm, logger)
    if alarms and "stop" in actions:
        log.warning("mixmon stops the run after batch %d: %s", int(state.timestamp.batch) - 1, alarms[0])
        state.stop_training()
    if alarms and "raise" in actions:
        raise MixtureAlarm(f"the run was fed wrongly: {'; '.join(map(str, alarms))}")


def _log(alarm: Alarm, logger: Logger) -> None:
    del logger
    if dist.get_global_rank() == 0:
        log.warning("mixmon alarm: %s", alarm)


def _wandb(alarm: Alarm, logger: Logger) -> None:
    """Alert through the run's own WandBLogger, if it has one on this rank."""
    if dist.get_global_rank() != 0 or not any(isinstance(d, WandBLogger) for d in logger.destinations):
        return
    import wandb

    if wandb.run is None:
        return
    try:
        wandb.run.alert(title=f"mixmon: {alarm.rule}", text=str(alarm), level="WARN")
    except Exception as error:  # nothing that W&B does may end the training
        log.warning("mixmon: W&B did not take the alert: %r", error)


_TELLING: dict[str, Callable[[Alarm, Logger], None]] = {"log": _log, "wandb": _wandb}
