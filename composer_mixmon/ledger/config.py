"""What the user writes under ``ledger:``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from composer_mixmon.errors import ConfigError

__all__ = ["LedgerConfig", "parse_ledger"]

_KEYS = ("folder", "rank_ids")


@dataclass(frozen=True)
class LedgerConfig:
    """Whether and where a ledger is kept.

    Attributes:
        kept: Whether one is kept, if there is a folder for it.
        folder: The folder of the ledgers; ``None``: that of the run's ``save_folder``.
        rank_ids: Whether every sample id is kept, too.
        asked: Whether the user has asked for it, so that a run without a folder for it is a mistake.
    """

    kept: bool = True
    folder: str | None = None
    rank_ids: bool = False
    asked: bool = False


def parse_ledger(value: Any) -> LedgerConfig:
    """Read ``ledger``: ``True``, ``False`` or ``None``, a folder, or ``{"folder": …, "rank_ids": True}``.

    Args:
        value: As the user wrote it, in plain containers.

    Raises:
        ConfigError: Not one of these.
    """
    if value is None or isinstance(value, bool):
        return LedgerConfig(kept=bool(value))
    if isinstance(value, str):
        value = {"folder": value}
    if not isinstance(value, dict):
        raise ConfigError("ledger", value, "write true, false, a folder or {folder: …, rank_ids: true}")
    spec = cast("dict[Any, Any]", value)
    for key in spec:
        if key not in _KEYS:
            raise ConfigError(f"ledger.{key}", spec[key], f"is unknown: choose of {', '.join(_KEYS)}")
    folder, rank_ids = spec.get("folder"), spec.get("rank_ids", False)
    if folder is not None and (
        not isinstance(folder, str) or not folder or "\0" in folder or "://" in folder
    ):
        mend = "name a folder on this machine; where save_folder is a URI, the ledger is uploaded there"
        raise ConfigError("ledger.folder", folder, mend)
    if not isinstance(rank_ids, bool):
        raise ConfigError("ledger.rank_ids", rank_ids, "write true or false")
    return LedgerConfig(True, folder, rank_ids, asked=True)
