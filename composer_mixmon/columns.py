"""Labels by a column of the samples: what a value counts as, and which columns hold labels."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from composer_mixmon.config import is_label
from composer_mixmon.errors import ConfigError, DatasetError
from composer_mixmon.labels import UNLABELLED

__all__ = ["MISSING", "ColumnLabels", "find_column", "label_of", "value_in"]

MISSING = object()
"""Stands for the value of a sample that has no such column."""

_INTEGERS = ("int", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
_ENCODINGS = frozenset({"str", "str_int", "json", *_INTEGERS})
_NAMED = 10


def label_of(value: Any) -> str | None:
    """The label that a column's value is: text as it is, whole numbers and truth values in digits and words.

    Returns:
        ``None`` for anything else, and for text that is no label: empty, over 200 characters, or with
        characters that cannot be printed.
    """
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value))
    if not isinstance(value, str):
        try:
            value = str(operator.index(value))
        except (TypeError, ValueError):  # no whole number, or one of thousands of digits
            return None
    return value if is_label(value) else None


class ColumnLabels:
    """Labels that the samples themselves tell. Pickled to the workers, so it holds plain data only.

    Args:
        column: Name of the column.
        names: The labels' names; a value that is none of them counts as unlabelled.
        total: Samples of the dataset.
        everywhere: Whether every sample is to have the column.
    """

    def __init__(self, column: str, names: Sequence[str], total: int, everywhere: bool) -> None:
        self.column = column
        self.names = tuple(dict.fromkeys([*names, UNLABELLED]))
        self.total = total
        self._everywhere = everywhere
        self._index: dict[str | None, int] = {name: i for i, name in enumerate(self.names)}
        self._unlabelled = self._index[UNLABELLED]

    def __len__(self) -> int:
        return len(self.names)

    def __call__(self, values: Sequence[Any]) -> npt.NDArray[np.int64]:
        """Label index of each value.

        Args:
            values: The samples' values, or :data:`MISSING`.

        Returns:
            Indices into :attr:`names`, int64 (samples,).

        Raises:
            DatasetError: No sample has the column, though every sample is to have it.
        """
        if self._everywhere and all(value is MISSING for value in values):
            raise DatasetError(f"labels.column: no sample of a batch has a column {self.column!r}")
        return np.fromiter(map(self._find, values), np.int64, len(values))

    def _find(self, value: Any) -> int:
        return self._index.get(value if type(value) is str else label_of(value), self._unlabelled)


def value_in(sample: Any, column: str) -> Any:
    """A sample's value of a column, or :data:`MISSING`; whatever the sample is, nothing is raised."""
    try:
        return sample[column]
    except Exception:  # a tuple, a tensor, a class of the user's
        return MISSING


def find_column(column: str, shards: Iterable[Mapping[str, Any]]) -> list[str | None]:
    """How each shard encodes a column.

    Args:
        column: Its name.
        shards: What index.json says of each shard: ``column_names`` and ``column_encodings``, or ``columns``.

    Returns:
        The encodings, ``None`` for a shard that has no such column.

    Raises:
        ConfigError: No shard has it, or one encodes it as something that is no label.
    """
    known: dict[str, None] = {}
    found: list[str | None] = []
    for shard in shards:
        names: Any = shard.get("column_names")
        encodings: Any = shard.get("column_encodings")
        columns: Any = shard.get("columns") or {}
        if names is not None:
            columns = dict(zip(names, encodings, strict=True))
        known.update(dict.fromkeys(columns))
        encoding = columns.get(column)
        if encoding is not None and encoding not in _ENCODINGS:
            mend = f"the column is encoded as {encoding}: labels are str, int, intN, uintN, str_int or json"
            raise ConfigError("labels.column", column, mend)
        found.append(encoding)
    if not any(found):
        listed = ", ".join(map(str, list(known)[:_NAMED])) + (", …" if len(known) > _NAMED else "")
        raise ConfigError("labels.column", column, f"the dataset has no such column: it has {listed}")
    return found
