"""What an alarm does to a Composer run: log, alert in W&B, post, save a checkpoint, stop, raise."""

# Torch, Composer and streaming are typed only in part: what comes out of them is unknown to pyright.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import logging
from collections.abc import Sequence

from composer.callbacks import CheckpointSaver
from composer.core import State
from composer.loggers import Logger
from composer.utils import dist

from composer_mixmon.alarms import Alarm
from composer_mixmon.config import Action, Webhook
from composer_mixmon.errors import ConfigError, MixtureAlarm
from composer_mixmon.wandb_run import find_run
from composer_mixmon.webhook import Webhooks

__all__ = ["Actions", "checkpoint_saver"]

log = logging.getLogger("composer_mixmon")


class Actions:
    """The actions of a run.

    Args:
        actions: What to do about an alarm, in any order. Stopping and raising come last, so that what should
            be said or saved has been.
    """

    def __init__(self, actions: Sequence[Action]) -> None:
        self._actions = tuple(actions)
        self._webhooks = Webhooks()

    def check(self, state: State) -> None:
        """Check that the run has what the actions need.

        Raises:
            ConfigError: ``checkpoint``, but the run saves no checkpoints.
        """
        if "checkpoint" in self._actions and checkpoint_saver(state) is None:
            mend = "the run saves no checkpoints: give the Trainer a save_folder, or leave this action out"
            raise ConfigError("alarm.action", "checkpoint", mend)

    def take(self, alarms: Sequence[Alarm], state: State, logger: Logger) -> None:
        """Do it; every rank calls this with alarms of the same batches after the same batch.

        Args:
            alarms: The alarms of the batches since the last call.
            state: The run.
            logger: Its logger.

        Raises:
            MixtureAlarm: The ``raise`` action.
        """
        if not alarms:
            return
        for alarm in alarms:
            for action in self._actions:
                self._tell(action, alarm, logger)
        saver = checkpoint_saver(state)
        if "checkpoint" in self._actions and saver is not None:
            saver._save_checkpoint(state, logger)  # pyright: ignore[reportPrivateUsage]
        if "stop" in self._actions:
            if dist.get_global_rank() == 0:
                last = int(state.timestamp.batch) - 1
                log.warning("mixmon stops the run after batch %d: %s", last, alarms[0])
            state.stop_training()
        if "raise" in self._actions:
            raise MixtureAlarm(f"the run was fed wrongly: {'; '.join(map(str, alarms))}")

    def close(self) -> None:
        """Let the posts under way arrive."""
        self._webhooks.join()

    def _tell(self, action: Action, alarm: Alarm, logger: Logger) -> None:
        """Pass one alarm on. Nothing that a service or a user's function does may end the training."""
        try:
            if callable(action):
                action(alarm)
            elif dist.get_global_rank() != 0:
                return
            elif isinstance(action, Webhook):
                self._webhooks.post(action, alarm.to_dict())
            elif action == "log":
                log.warning("mixmon alarm: %s", alarm)
            elif action == "wandb":
                _alert(alarm, logger)
        except Exception as error:
            log.warning("mixmon: the action %s failed: %r", action, error)


def checkpoint_saver(state: State) -> CheckpointSaver | None:
    """The run's own CheckpointSaver, which also knows the batch it saved last and does not save it twice."""
    return next((c for c in state.callbacks if isinstance(c, CheckpointSaver)), None)


def _alert(alarm: Alarm, logger: Logger) -> None:
    """Alert through the run's own WandBLogger, if it has one."""
    run = find_run(logger.destinations)
    if run is not None:
        run.alert(title=f"mixmon: {alarm.rule}", text=str(alarm), level="WARN")
