"""W&B's servers, asked through ``wandb.Api``."""

# wandb is typed only in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from typing import Any

from composer_mixmon.errors import ConfigError, MixmonError

__all__ = ["connect", "reason"]

TIMEOUT_S = 60


def connect(field: str, value: str) -> Any:
    """A ``wandb.Api`` of whoever is logged in.

    Args:
        field: What the user has given that is on W&B.
        value: How.

    Raises:
        MixmonError: wandb is not installed, nobody is logged in, or W&B cannot be reached.
    """
    try:
        import wandb
    except ImportError as error:
        raise MixmonError('what is on W&B is read with wandb: run pip install "wandb<0.29"') from error
    if not wandb.api.api_key:  # wandb.Api would ask for it, and wait
        raise ConfigError(field, value, "is on W&B, where nobody is logged in: run wandb login")
    try:
        wandb.setup(wandb.Settings(silent=True))
        return wandb.Api(timeout=TIMEOUT_S)
    except Exception as error:
        raise ConfigError(field, value, f"cannot be read from W&B: {reason(error)}") from error


def reason(error: Exception) -> str:
    """One line of it: wandb and its transport have errors of many kinds, without a common base."""
    return " ".join(str(error).split())[:300] or type(error).__name__
