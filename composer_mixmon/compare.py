"""``mixmon compare``: where the orders of two runs part, and which settings differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from rich.console import Console

from composer_mixmon.errors import ConfigError
from composer_mixmon.printing import say
from composer_mixmon.run_record import RunRecord
from composer_mixmon.sources.read import read_run

__all__ = ["Compared", "Difference", "compare_records", "compare_runs", "print_compared"]

_FORMAT = 1
_SHOWN = 40
_MISSING = "(not set)"


@dataclass(frozen=True)
class Difference:
    """A setting that differs.

    Attributes:
        name: Its dotted name.
        first: The first run's value.
        second: The second run's.
    """

    name: str
    first: Any
    second: Any


@dataclass(frozen=True)
class Compared:
    """Two runs side by side.

    Attributes:
        by: What was compared: ``"order hashes"``, ``"counts"`` where one run has no hashes, or ``"nothing"``.
        rows: Batches, or intervals, that both runs have.
        differ: How many of them differ.
        first: Number of the first batch that does, or ``None``.
        settings: The settings that differ; an ``index_sha256`` among them means that the data differ.
        remarks: What a reader should know of the two records.
    """

    by: str
    rows: int
    differ: int
    first: int | None
    settings: tuple[Difference, ...]
    remarks: tuple[str, ...]

    @property
    def biased(self) -> bool:
        """Whether the runs were fed differently."""
        return self.first is not None

    @property
    def seeds_without_effect(self) -> bool:
        """Whether the order is the same although the runs' seeds differ."""
        reseeded = any(one.name.split(".")[-1] == "shuffle_seed" for one in self.settings)
        return reseeded and not self.biased and self.by == "order hashes"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain types, for JSON."""
        settings = [vars(one) for one in self.settings]
        told = vars(self) | {"settings": settings, "seeds_without_effect": self.seeds_without_effect}
        return {"format": _FORMAT, **told}


def compare_runs(first: str, second: str) -> Compared:
    """Read two runs and compare them.

    Args:
        first: A ledger, or whatever else a run has left.
        second: The same of another run.

    Raises:
        MixmonError: One of them cannot be read, or they have no record of the same batches.
    """
    compared = compare_records(read_run(first), read_run(second))
    if not compared.rows:
        mend = "has no record of the same batches as the first run's; compare two ledgers"
        raise ConfigError("RUN_B", second, mend)
    return compared


def compare_records(first: RunRecord, second: RunRecord) -> Compared:
    """Compare two runs, row by row where both have one of the same batches."""
    places_a, places_b = _common(first, second)
    by, same = _same(first, second, places_a, places_b)
    differing = np.flatnonzero(~same)
    begin = int(first.first[places_a[differing[0]]]) if len(differing) else None
    settings = tuple(_differences("", first.settings, second.settings))
    remarks = (*(f"first run: {r}" for r in first.remarks), *(f"second run: {r}" for r in second.remarks))
    return Compared(by, len(same), len(differing), begin, settings, remarks)


def _common(first: RunRecord, second: RunRecord) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows of the same batches: their places in both runs."""
    _, a, b = np.intersect1d(first.first, second.first, assume_unique=True, return_indices=True)
    equal = first.span[a] == second.span[b]
    return a[equal], b[equal]


def _same(
    first: RunRecord, second: RunRecord, a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]
) -> tuple[str, npt.NDArray[np.bool_]]:
    """Whether these rows are the same, and by what that is known: bool (rows,)."""
    if first.order is not None and second.order is not None:
        return "order hashes", first.order[a] == second.order[b]
    if first.counts is None or second.counts is None or set(first.names) != set(second.names):
        return "nothing", np.ones(0, np.bool_)
    columns = [second.names.index(name) for name in first.names]
    return "counts", (first.counts[a] == second.counts[np.ix_(b, np.array(columns))]).all(axis=1)


def _differences(name: str, first: Any, second: Any) -> Iterator[Difference]:
    """The settings that differ, into mappings and lists of the same length."""
    if isinstance(first, list) and isinstance(second, list):
        a, b = cast("list[Any]", first), cast("list[Any]", second)
        if len(a) == len(b):
            first, second = dict(enumerate(a)), dict(enumerate(b))
    if isinstance(first, dict) and isinstance(second, dict):
        a, b = cast("dict[Any, Any]", first), cast("dict[Any, Any]", second)
        for key in dict.fromkeys((*a, *b)):
            inner = f"{name}.{key}" if name else str(key)
            yield from _differences(inner, a.get(key, _MISSING), b.get(key, _MISSING))
    elif first != second:
        yield Difference(name, first, second)


def print_compared(compared: Compared, console: Console) -> None:
    """Print settings, remarks and verdict."""
    for one in compared.settings[:_SHOWN]:
        say(console, f"{one.name}: {str(one.first)[:80]} → {str(one.second)[:80]}")
    if len(compared.settings) > _SHOWN:
        say(console, f"… and {len(compared.settings) - _SHOWN} more settings")
    if not compared.settings:
        say(console, "no setting differs")
    for remark in compared.remarks:
        say(console, f"note: {remark}")
    if compared.seeds_without_effect:
        text = f"verdict: the same order in {compared.rows:,} rows although the seeds differ"
        say(console, text, "bold yellow")
    elif compared.first is None:
        say(console, f"verdict: no difference in {compared.rows:,} rows, by {compared.by}", "bold green")
    else:
        text = (
            f"verdict: the orders part at batch {compared.first}; {compared.differ:,} of {compared.rows:,} "
            f"rows differ, by {compared.by}"
        )
        say(console, text, "bold red")
