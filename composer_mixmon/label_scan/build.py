"""Reads a column of a dataset once and writes the label file."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from composer_mixmon.errors import ConfigError, DatasetError
from composer_mixmon.label_file import shard_entry
from composer_mixmon.label_scan.kept import Kept
from composer_mixmon.label_scan.shard_column import MOST_VALUES, Shard, read_column
from composer_mixmon.label_scan.streams import Scan, plan_scan
from composer_mixmon.labels import UNLABELLED

__all__ = ["Built", "build_labels"]

Stage = Callable[[str, int | None], AbstractContextManager[Callable[[int], object]]]

_FORMAT = 1
_MOST_PROCESSES = 8
_WORTH_PROCESSES = 1 << 28  # bytes; less is read before another process has begun


@dataclass(frozen=True)
class Built:
    """What a label file holds.

    Attributes:
        column: The column that it was built from.
        out: Where it is.
        labels: Samples of each label, the largest first.
        shards: Shards of the dataset.
        samples: Samples of the dataset.
        mixed_shards: Shards of several labels.
        mixed_samples: Samples in these.
        lacking: Streams that have no such column.
        resumed: Shards that an interrupted scan had read before.
    """

    column: str
    out: str
    labels: dict[str, int]
    shards: int
    samples: int
    mixed_shards: int
    mixed_samples: int
    lacking: tuple[str, ...]
    resumed: int

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain types, for JSON."""
        return {"format": _FORMAT, **asdict(self)}


def build_labels(dataset: str, column: str, out: str, workers: int | None, stage: Stage) -> Built:
    """Read a column of a dataset once and write the label file.

    Args:
        dataset: A folder with an index.json, or a training YAML.
        column: The column.
        out: The label file.
        workers: Processes that read at the same time; ``None``: as many as there are cores, at most eight.
        stage: Opens a stage of the work, as :func:`composer_mixmon.progress.bars` makes it.

    Raises:
        MixmonError: Whatever is wrong with these, or with a shard.
    """
    path = _checked(out)
    if workers is not None and workers < 1:
        raise ConfigError("--workers", workers, "give at least 1")
    scan = plan_scan(dataset, column)
    try:
        tally, resumed = _read(scan, column, path, workers, stage)
    except OSError as error:
        mend = f"cannot be written ({error.strerror}): the same command goes on where it was"
        raise ConfigError("--out", out, mend) from error
    labels = dict(sorted(tally.labels.items(), key=lambda item: (-item[1], item[0])))
    mixed = tally.mixed_shards, tally.mixed_samples
    return Built(
        column, out, labels, len(scan.table), scan.table.total, *mixed, lacking=scan.lacking, resumed=resumed
    )


def _read(scan: Scan, column: str, path: Path, workers: int | None, stage: Stage) -> tuple[_Tally, int]:
    """Read what an interrupted scan has left, and write the file; returns how many shards it had read."""
    tally = _Tally(column)
    with Kept(path, column, scan.sha256) as kept, stage(f"reading {column}", scan.table.total) as advance:
        resumed = len(kept.entries)
        try:
            for entry in kept.entries.values():
                tally.add(entry)
                advance(entry[1])
            left = [shard for shard in scan.shards if shard.number not in kept.entries]
            with closing(_entries(left, column, workers)) as entries:
                for number, entry in entries:
                    tally.add(entry)
                    kept.add(number, entry)
                    advance(entry[1])
            tally.check()
        except ConfigError:  # it will never be a label file
            kept.discard()
            raise
        kept.finish(column, len(scan.shards))
    return tally, resumed


def _checked(out: str) -> Path:
    path = Path(out)
    if path.suffix.lower() != ".json":
        raise ConfigError("--out", out, "name a file that ends in .json")
    if path.exists():
        raise ConfigError("--out", out, "is there already: remove it, or name another file")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError("--out", out, f"nothing can be written to {str(path.parent)!r}")
    return path


class _Tally:
    """What the shards read so far hold.

    Attributes:
        labels: Samples of each label.
        mixed_shards: Shards of several labels.
        mixed_samples: Samples in these.
    """

    def __init__(self, column: str) -> None:
        self._column = column
        self.labels: Counter[str] = Counter()
        self.mixed_shards = 0
        self.mixed_samples = 0

    def add(self, entry: list[Any]) -> None:
        """Enter a shard."""
        _, samples, label, *order = entry
        if order:
            self.mixed_shards += 1
            self.mixed_samples += samples
            self.labels.update(label)
        elif samples:
            self.labels[label] += samples
        if len(self.labels) > MOST_VALUES:
            mend = f"has more than {MOST_VALUES:,} values: labels are few; is it the right column?"
            raise ConfigError("--column", self._column, mend)

    def check(self) -> None:
        """Check that there are labels at all."""
        if not set(self.labels) - {UNLABELLED}:
            mend = "no sample has a label there, which is printable text of 1 to 200 characters, or a number"
            raise ConfigError("--column", self._column, mend)


def _entry(shard: Shard, column: str) -> tuple[int, list[Any]]:
    """The number of a shard and what the label file says of it."""
    labels, order = read_column(shard, column)
    if not shard.samples:
        return shard.number, [shard.name, 0, UNLABELLED]
    return shard.number, shard_entry(shard.name, labels, order)


def _entries(
    shards: Sequence[Shard], column: str, workers: int | None
) -> Generator[tuple[int, list[Any]], None, None]:
    """The entries of shards, as they come; at most two shards a process are on their way."""
    size = sum(part.size for shard in shards for part in shard.files)
    if workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = min(cores, _MOST_PROCESSES) if size > _WORTH_PROCESSES else 1
    if workers == 1:
        yield from (_entry(shard, column) for shard in shards)
        return
    # Spawned, not forked: the caller may have threads. An interrupt is for the caller to act on.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN))
    try:
        yield from _in_processes(pool, iter(shards), column, 2 * workers)
    except BrokenProcessPool as error:
        raise DatasetError(
            "a process that read shards was killed, perhaps for want of memory: the same command goes on "
            "where it was, try it with fewer --workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _in_processes(
    pool: ProcessPoolExecutor, shards: Iterator[Shard], column: str, most: int
) -> Generator[tuple[int, list[Any]], None, None]:
    waiting: set[Future[tuple[int, list[Any]]]] = set()
    while True:
        waiting |= {pool.submit(_entry, shard, column) for shard in islice(shards, most - len(waiting))}
        if not waiting:
            return
        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()
