"""Composer 0.32's WandBLogger dies with wandb 0.29 or newer; say so instead of an AttributeError."""

from __future__ import annotations

import functools
import importlib.metadata
import re

from composer.core import State
from composer.loggers import Logger, WandBLogger

from composer_mixmon.errors import MixmonError

__all__ = ["explain_new_wandb"]

_FIRST_BROKEN = (0, 29)


def explain_new_wandb() -> None:
    """Make ``WandBLogger.init`` say what to install, if the installed wandb lacks what it calls.

    Composer initialises loggers before callbacks, so a callback of ours would come too late. Nothing is
    touched with a wandb that works, and wandb is not imported here.
    """
    try:
        version = importlib.metadata.version("wandb")
    except importlib.metadata.PackageNotFoundError:
        return
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or tuple(map(int, numbers.groups())) < _FIRST_BROKEN:
        return
    original = WandBLogger.init
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def init(self: WandBLogger, state: State, logger: Logger) -> None:
        try:
            original(self, state, logger)
        except AttributeError as error:
            if "get_url" not in str(error):
                raise
            raise MixmonError(
                f"wandb {version} is installed, but Composer's WandBLogger calls Run.get_url, which wandb "
                'removed in 0.29: run pip install "wandb<0.29"'
            ) from error

    WandBLogger.init = init
