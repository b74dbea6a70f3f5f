"""Finds out what RUN is, and reads it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from composer_mixmon.errors import ConfigError, MixmonError
from composer_mixmon.ledger import read_ledger
from composer_mixmon.run_record import RunRecord
from composer_mixmon.sources.csv_file import read_csv
from composer_mixmon.sources.from_logged import record_of
from composer_mixmon.sources.given import Given
from composer_mixmon.sources.logged import Logged
from composer_mixmon.sources.order import Advance
from composer_mixmon.sources.replayed import book_remarks, read_order, with_replay
from composer_mixmon.sources.settings import logged_labels
from composer_mixmon.sources.tensorboard import find_event_files, read_event_files
from composer_mixmon.sources.wandb_api import read_wandb_run, wandb_path
from composer_mixmon.sources.wandb_folder import find_wandb_files, read_wandb_files
from composer_mixmon.train_yaml import read_train_yaml

__all__ = ["read_run"]

_KINDS = "a ledger, a wandb folder, entity/project/run_id of W&B, a CSV file or TensorBoard's files"
_LEDGERS = ("segment-*.jsonl", "*/segment-*.jsonl", "mixmon/*/segment-*.jsonl")
_OTHERS = {
    ".pt": "is a checkpoint: give it with --checkpoint",
    ".distcp": "is part of a checkpoint: give its folder with --checkpoint",
    ".yaml": "is a YAML: give it with --config",
    ".yml": "is a YAML: give it with --config",
}


def read_run(run: str | None, given: Given | None = None, advance: Advance | None = None) -> RunRecord:
    """Read what is left of a run: its mixture and its loss, or its loss and the mixture by replay.

    Args:
        run: A ledger or the ``save_folder`` with one; W&B's folder, ``.wandb`` file or path of a run
            (``entity/project/run_id``); a CSV file; TensorBoard's files; ``None`` where only the
            training YAML is left.
        given: What the command line says beside it.
        advance: Told of the progress of a replay.

    Raises:
        MixmonError: There is nothing to read, or what there is does not fit together.
    """
    given = given or Given()
    found = _found(run, given)
    if isinstance(found, RunRecord):
        return book_remarks(found, given.resumed_from)
    record = record_of(found, _global_batch(given.config))
    if run is not None and not len(record.first):
        raise ConfigError("RUN", run, "holds no row with a loss: was the run stopped before its first batch?")
    if given.config is not None:
        record = _with_replay(record, found, given, advance)
    return book_remarks(record, given.resumed_from)


def _with_replay(record: RunRecord, logged: Logged, given: Given, advance: Advance | None) -> RunRecord:
    """The mixture batch by batch: a replay's, where it adds up to the intervals that were logged."""
    if record.counts is None:
        return with_replay(record, read_order(record, given), advance)
    if not (record.span > 1).any():
        return record
    try:
        bare = record_of(logged.without_mixture())
        replayed = with_replay(bare, read_order(bare, given), advance)
    except MixmonError as error:  # what was logged can be analysed all the same
        return _remark(record, f"the mixture could not be computed from the YAML: {error}")
    assert replayed.counts is not None
    told = logged_labels(record.settings)
    together = told if told is not None and told.labels == record.names else None
    names = tuple(record.settings["labels"]) if together else record.names
    if set(replayed.names) != set(names) or not len(replayed.first):
        return _remark(
            record, "the YAML's labels are others than were logged, so the logged mixture is taken"
        )
    column = {name: index for index, name in enumerate(replayed.names)}
    within = record.first[record.first < len(replayed.first)]
    sums = np.add.reduceat(replayed.counts, within, axis=0)[:, [column[name] for name in names]]
    if together:
        sums = together.sums(sums)
    differ = np.flatnonzero((sums != record.counts[: len(sums)]).any(axis=1))
    if len(differ):
        batch = int(record.first[differ[0]])
        return _remark(
            record, f"from batch {batch} on the logged mixture is not the one that the YAML implies"
        )
    return replayed


def _remark(record: RunRecord, remark: str) -> RunRecord:
    return replace(record, remarks=(*record.remarks, remark))


def _found(run: str | None, given: Given) -> RunRecord | Logged:
    if run is None:
        if given.config is None:
            raise ConfigError("RUN", run, f"give {_KINDS}, or --config TRAIN.yaml")
        return Logged("YAML", {})
    path = Path(run)
    try:
        if path.is_dir():
            return _read_folder(path, given)
        if path.exists():
            return _read_file(path, given)
    except (OSError, ValueError) as error:  # no access, or a NUL in the path
        if isinstance(error, ConfigError):
            raise
        raise ConfigError("RUN", run, f"cannot be read: {error}") from error
    name = None if path.parent.is_dir() else wandb_path(run)
    if name is None:
        raise ConfigError("RUN", run, f"there is no such file or folder: give {_KINDS}")
    return read_wandb_run(name, given.loss)


def _read_folder(folder: Path, given: Given) -> RunRecord | Logged:
    if any(next(folder.glob(pattern), None) for pattern in _LEDGERS):
        return _ledger(folder)
    if deeper := next(
        folder.glob("*/mixmon/*/segment-*.jsonl"), None
    ):  # a run's folder around its save_folder
        return _ledger(deeper.parents[2])
    if files := find_wandb_files(folder):
        return read_wandb_files(files, given.loss)
    if files := find_event_files(folder):
        return read_event_files(files, given.loss)
    if len(files := list(folder.glob("*.csv"))) == 1:
        return read_csv(files[0], given.loss)
    inside = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
    raise ConfigError("RUN", str(folder), f"holds no record of a run, but {inside}: give {_KINDS}")


def _read_file(path: Path, given: Given) -> RunRecord | Logged:
    if path.suffix in _OTHERS:
        raise ConfigError("RUN", str(path), _OTHERS[path.suffix])
    if path.suffix == ".jsonl":
        return _ledger(path)
    if path.suffix == ".wandb":
        return read_wandb_files(find_wandb_files(path), given.loss)
    if "tfevents" in path.name:
        return read_event_files([path], given.loss)
    with path.open("rb") as file:
        start = file.read(4096)
    if not start:
        raise ConfigError("RUN", str(path), f"is empty: give {_KINDS}")
    if b"\0" in start and not start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ConfigError("RUN", str(path), f"is no record of a run: give {_KINDS}")
    return read_csv(path, given.loss)


def _ledger(path: Path) -> RunRecord:
    return read_ledger(str(path)).record


def _global_batch(config: str | None) -> int | None:
    """Samples of a global batch as a training YAML tells them, if it does."""
    if config is None:
        return None
    samples = read_train_yaml(config).run.get("global_train_batch_size")
    return samples if isinstance(samples, int) else None
