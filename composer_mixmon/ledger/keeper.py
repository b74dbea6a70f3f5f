"""Keeps the ledger of a live run. Nothing that goes wrong here reaches the run or the monitoring."""

# Torch, Composer and streaming are typed only in part: what comes out of them is unknown to pyright.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from composer.callbacks import CheckpointSaver
from composer.core import State
from composer.utils import dist, format_name_with_dist
from composer.utils.object_store.utils import build_remote_backend

from composer_mixmon.actions import checkpoint_saver
from composer_mixmon.errors import ConfigError
from composer_mixmon.ledger.config import LedgerConfig
from composer_mixmon.ledger.header import Header
from composer_mixmon.ledger.places import FOLDER, ids_name, name_run, safe_name, segment_name
from composer_mixmon.ledger.rank_ids import IdsWriter
from composer_mixmon.ledger.upload import Uploads
from composer_mixmon.ledger.writer import Writer
from composer_mixmon.rows import Closed

__all__ = ["Keeper"]

log = logging.getLogger("composer_mixmon")
Result = TypeVar("Result")


class Keeper:
    """The ledger of a run, on one rank; rank 0 writes the batches, every rank its ids where they are kept.

    Args:
        config: Whether and where.

    Attributes:
        run: What the run is called over all resumptions, to be saved with the checkpoint; empty where no
            ledger is kept.
    """

    def __init__(self, config: LedgerConfig) -> None:
        self._config = config
        self.run = ""
        self._writer: Writer | None = None
        self._ids: IdsWriter | None = None
        self._paths: list[Path] = []  # all files of this process
        self._uploads: Uploads | None = None
        self._saver: CheckpointSaver | None = None
        self._uploaded: Any = None  # the batch of the checkpoint after which the last upload was begun

    def check(self, state: State) -> None:
        """Check that there is a folder for the ledger that the user has asked for.

        Raises:
            ConfigError: There is none.
        """
        if self._config.asked and not self._config.folder and checkpoint_saver(state) is None:
            mend = "the run has no save_folder: name a folder for the ledger, or give the Trainer one"
            raise ConfigError("ledger.folder", None, mend)

    def begin(
        self,
        state: State,
        saved_run: object,
        resumed: bool,
        labels: tuple[str, ...],
        target: npt.NDArray[np.float64],
        settings: dict[str, Any],
        first_position: int | None,
    ) -> None:
        """Begin a segment; called on every rank or on none.

        Args:
            state: The run.
            saved_run: :attr:`run` as the checkpoint has it, if any.
            resumed: Whether the run goes on from a checkpoint.
            labels: The labels' names.
            target: Each label's target share, float64 (labels,).
            settings: What ``run_config`` tells.
            first_position: Place of this rank's first sample in the global batch; ``None`` where another
                rank gets the same samples.
        """
        self.drop()
        self._saver = checkpoint_saver(state)
        if not self._config.kept or not (self._config.folder or self._saver):
            return
        self.run = safe_name(saved_run) if isinstance(saved_run, str) and saved_run else ""

        def open_segment() -> Writer:
            self.run = self.run or name_run(state.run_name)
            stamp = state.timestamp
            header = Header(
                self.run,
                state.run_name,
                round(time.time(), 3),
                int(stamp.batch),
                int(stamp.epoch),
                int(stamp.sample_in_epoch),
                resumed,
                labels,
                tuple(target.tolist()),
                settings,
            )
            return self._open(header, state)

        if dist.get_global_rank() == 0:
            self._writer = self._try(open_segment)
        names = [(self.run, self._writer.path.name if self._writer else "")]
        dist.broadcast_object_list(names, src=0)
        self.run, segment = names[0]
        if self._config.rank_ids and segment and first_position is not None:
            self._ids = self._try(lambda: self._open_ids(segment, state, first_position))
        self._paths += [file.path for file in (self._writer, self._ids) if file]
        self._uploads = self._uploads or self._try(lambda: self._uploads_of(state))

    def put(self, batch: int, ids: npt.NDArray[np.int64]) -> None:
        """Hold this rank's sample ids of the batch that has been fetched."""
        if self._ids:
            self._ids.put(batch, ids)

    def write(
        self, closed: Sequence[Closed], target: npt.NDArray[np.float64], alarms: Sequence[dict[str, Any]]
    ) -> None:
        """Write what an interval has closed, and upload where it is time to.

        Args:
            closed: Its batches.
            target: Each label's target share in them, float64 (labels,).
            alarms: The alarms raised at their end.
        """
        if (self._writer or self._ids) and (closed or alarms):
            self._try(lambda: self._write(closed, target, alarms))

    def _write(
        self, closed: Sequence[Closed], target: npt.NDArray[np.float64], alarms: Sequence[dict[str, Any]]
    ) -> None:
        if self._ids and closed:
            self._ids.write(int(closed[-1].batch[-1]))
        if self._writer:
            self._writer.write(closed, target.tolist(), alarms)
        if self._uploads:
            saved = self._saver.last_checkpoint_batch if self._saver else None
            if self._uploads.upload(self._paths, now=saved != self._uploaded):
                self._uploaded = saved

    def close(self) -> None:
        """End the run: upload what there is, and wait for it."""
        self.drop()
        if self._uploads:
            self._uploads.finish(self._paths)
        self.run, self._paths, self._uploads = "", [], None

    def drop(self) -> None:
        """Let go of the files; they stay as they are."""
        files = (self._writer, self._ids)
        self._writer = self._ids = None
        for file in files:
            if file:
                with suppress(OSError):  # which says no more than the write did that failed before
                    file.close()

    def _try(self, act: Callable[[], Result]) -> Result | None:
        """Do it; where it fails, there is one warning and no ledger from here on."""
        try:
            return act()
        except Exception as error:  # a full disk, a folder that is gone, or a fault of ours
            log.warning("mixmon keeps no ledger from here on: %r", error)
            self.drop()
            return None

    def _open(self, header: Header, state: State) -> Writer:
        """Open a segment of a name that none has yet."""
        folder, number = self._made_folder(state), int(header.started * 1000)
        while (folder / segment_name(number)).exists():
            number += 1
        return Writer(folder / segment_name(number), header)

    def _open_ids(self, segment: str, state: State, first_position: int) -> IdsWriter:
        rank = dist.get_global_rank()
        return IdsWriter(self._made_folder(state) / ids_name(segment, rank), self.run, rank, first_position)

    def _made_folder(self, state: State) -> Path:
        if self._config.folder:
            ledgers = Path(format_name_with_dist(self._config.folder, safe_name(state.run_name)))
        else:
            assert self._saver is not None  # or there would be no ledger
            ledgers = Path(format_name_with_dist(str(self._saver.folder), state.run_name)) / FOLDER
        folder = ledgers / self.run
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _uploads_of(self, state: State) -> Uploads | None:
        """Uploads to where the checkpoints go, if they go anywhere."""
        remote = self._saver.remote_uploader if self._saver else None
        if remote is None or not self._paths:  # this rank writes nothing
            return None
        folder = f"{format_name_with_dist(remote.path, state.run_name)}/{FOLDER}"

        def store() -> Any:
            return build_remote_backend(remote.remote_backend_name, remote.backend_kwargs)

        return Uploads(store, folder)
