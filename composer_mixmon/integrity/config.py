"""What the user writes under ``integrity:``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from composer_mixmon.errors import ConfigError

__all__ = ["IntegrityConfig", "parse_integrity"]


@dataclass(frozen=True)
class IntegrityConfig:
    """What is looked for in the sample ids themselves.

    Attributes:
        plan: Batches that are not those that the settings imply.
        repeats: Repeats, gaps, overlaps between ranks and epochs of the same order.
    """

    plan: bool = True
    repeats: bool = True

    def __bool__(self) -> bool:
        return self.plan or self.repeats


def parse_integrity(value: Any) -> IntegrityConfig:
    """Read ``integrity``: true, false, or a mapping of ``plan`` and ``repeats``.

    Raises:
        ConfigError: Anything else.
    """
    if value is None or isinstance(value, bool):
        return IntegrityConfig(bool(value), bool(value))
    mend = "write true, false or which checks to make, such as {plan: true, repeats: false}"
    if not isinstance(value, dict):
        raise ConfigError("integrity", value, mend)
    given = cast("dict[Any, Any]", value)
    for name, wanted in given.items():
        if name not in ("plan", "repeats") or not isinstance(wanted, bool):
            raise ConfigError(f"integrity.{name}", wanted, mend)
    return IntegrityConfig(**given)
