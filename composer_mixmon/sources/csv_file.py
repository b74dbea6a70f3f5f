"""A run's metrics as a CSV file: W&B's export, or any with a column of steps and one of the loss."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from composer_mixmon.errors import ConfigError
from composer_mixmon.sources.logged import LOSS, Logged, Part, is_wanted, number

__all__ = ["read_csv"]

_STEPS = ("step", "_step", "trainer/global_step", "global_step", "batch", "time/batch", "iteration")
_LOSSES = (LOSS, "train/loss", "train_loss", "training_loss", "loss", "train/ce_loss", "value")
# W&B heads a column "run's name - metric", and the least and largest value of what it drew as one point so.
_BETWEEN = " - "
_EXTREMES = ("__MIN", "__MAX")
_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


@dataclass(frozen=True)
class _Table:
    """Which column holds what.

    Attributes:
        step: The column of the steps.
        keys: The columns of what is wanted, by key.
        extremes: For the loss, the columns of its least and largest value, where W&B gives them.
    """

    step: int
    keys: dict[str, int]
    extremes: tuple[int, ...]


def read_csv(path: Path, loss: str | None = None) -> Logged:
    """Read a CSV file.

    Args:
        path: The file, in UTF-8 or, with a byte order mark, UTF-16; separated by comma, semicolon or tab.
        loss: The loss's column; ``None``: ``loss/train/total``, or another usual name.

    Raises:
        ConfigError: It has no such columns, columns of several runs, or no row with a step.
    """
    try:
        with path.open(encoding=_encoding(path), newline="") as file:
            return _read(path, file, loss)
    except UnicodeError as error:
        raise ConfigError("RUN", str(path), "is not in UTF-8: save it so") from error
    except csv.Error as error:
        raise ConfigError("RUN", str(path), f"is no CSV file: {error}") from error
    except OSError as error:
        raise ConfigError("RUN", str(path), f"cannot be read: {error.strerror or error}") from error


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(3)
    return next((name for bom, name in _BOMS.items() if start.startswith(bom)), "utf-8")


def _read(path: Path, file: IO[str], loss: str | None) -> Logged:
    head = file.readline(1 << 20)
    delimiter = max(",;\t", key=head.count)
    file.seek(0)
    rows = csv.reader(file, delimiter=delimiter)
    heads = next(rows, list[str]())
    table = _table(path, heads, loss)
    parts, without_step, averaged = [Part()], 0, 0
    last = -1
    for step, row in _steps(rows, table.step):
        if step is None:
            without_step += 1
            continue
        if step < last:
            parts.append(Part())
        last = step
        for key, column in table.keys.items():
            value = number(row[column]) if column < len(row) else None
            if value is not None:
                parts[-1].put(key, step, value)
        averaged += len({row[i] for i in table.extremes if i < len(row)}) > 1
    if last < 0:
        raise ConfigError("RUN", str(path), "has no row with a step: export the table with its rows")
    remarks: list[str] = []
    if without_step:
        remarks.append(f"{without_step} rows of {path.name} have no whole number as step and are left out")
    if averaged:
        remarks.append(
            f"{averaged} rows of {path.name} are means over several steps: export all points instead"
        )
    return Logged.join("CSV", parts, remarks=tuple(remarks))


def _steps(rows: Iterator[list[str]], column: int) -> Iterator[tuple[int | None, list[str]]]:
    """Each row that is not empty, with its step, ``None`` where it has none."""
    for row in rows:
        if row:
            value = number(row[column]) if column < len(row) else None
            whole = value is not None and value.is_integer() and 0 <= value < 2**53
            yield int(value) if value is not None and whole else None, row


def _table(path: Path, heads: Sequence[str], loss: str | None) -> _Table:
    heads = [head.strip() for head in heads]
    lower = [head.lower() for head in heads]
    step = next((lower.index(name) for name in _STEPS if name in lower), None)
    if step is None:
        mend = f"has no column of steps, such as Step; its columns are {_listed(heads)}"
        raise ConfigError("RUN", str(path), mend)
    columns = {i: _split(head) for i, head in enumerate(heads) if i != step and not head.endswith(_EXTREMES)}
    names = (loss,) if loss else _LOSSES
    key = next((name for name in names if any(name in (heads[i], k) for i, (_, k) in columns.items())), None)
    if key is None:
        mend = f"has no column {loss or LOSS}; its columns are {_listed(heads)}: name the loss with --loss"
        raise ConfigError("RUN", str(path), mend)
    keys: dict[str, int] = {}
    runs: set[str] = set()
    for i, (run, name) in columns.items():
        is_loss = key in (heads[i], name)
        if is_loss or is_wanted(name):
            runs.add(run)
            keys.setdefault(LOSS if is_loss else name, i)
    if len(runs) > 1:
        raise ConfigError(
            "RUN", str(path), f"has columns of several runs: {_listed(sorted(runs))}: export one"
        )
    at = keys[LOSS]
    extremes = tuple(i for i, head in enumerate(heads) if head in [heads[at] + end for end in _EXTREMES])
    return _Table(step, keys, extremes)


def _split(head: str) -> tuple[str, str]:
    """The run's name, empty if there is none, and the metric's."""
    places = [found.start() for found in re.finditer(_BETWEEN, head)]
    known = [i for i in places if is_wanted(head[i + len(_BETWEEN) :])]  # a label may hold a dash, too
    cut = next(iter(known or places[-1:]), None)
    return ("", head) if cut is None else (head[:cut], head[cut + len(_BETWEEN) :])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "") or "none"
