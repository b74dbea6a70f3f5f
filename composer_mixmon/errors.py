"""Errors that mixmon raises.

::

    MixmonError                  anything below; catch this one
    ├── ConfigError              a setting is wrong: the message quotes field, value and mend
    ├── DatasetError             the dataset, its index files or a label file cannot be used as asked
    └── MixtureAlarm             the ``raise`` action: the run was fed wrongly

All of them are raised before the first batch, except :class:`MixtureAlarm`, which is raised on every
rank at the same batch.
"""

from __future__ import annotations

__all__ = ["ConfigError", "DatasetError", "MixmonError", "MixtureAlarm"]


class MixmonError(Exception):
    """Base class of every error that mixmon raises on purpose."""


class ConfigError(MixmonError, ValueError):
    """A setting is wrong.

    Args:
        field: Dotted name of the setting as the user wrote it, such as ``alarm.tolerance``.
        value: What was found there.
        mend: What is wrong with it and what to write instead.
    """

    def __init__(self, field: str, value: object, mend: str) -> None:
        super().__init__(f"{field}: {_shown(value)}: {mend}")
        self.field = field
        self.value = value
        self.mend = mend

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.mend)


class DatasetError(MixmonError, ValueError):
    """The dataset, an index file or a label file cannot be used as asked."""


class MixtureAlarm(MixmonError, RuntimeError):
    """The alarm's ``raise`` action: what was fed is not what was promised."""


def _shown(value: object, limit: int = 200) -> str:
    """Quote ``value`` for a message, without letting a huge one flood the terminal."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
