"""Copies a ledger to where a run's checkpoints are uploaded, from a thread of its own."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

__all__ = ["Store", "Uploads"]

log = logging.getLogger("composer_mixmon")

_EVERY_S = 600.0
_PATIENCE_S = 60.0


class Store(Protocol):
    """What we need of Composer's ``ObjectStore``."""

    def upload_object(self, object_name: str, filename: str) -> Any:
        """Upload a file."""
        ...


class Uploads:
    """The uploads of a run: whole files, one at a time, each a snapshot that ends with a whole record.

    Not through Composer's own uploaders, for an upload that fails there ends the run; here it costs one
    warning.

    Args:
        make_store: Opens the object store; called in the thread.
        folder: What goes before the files' names.
    """

    def __init__(self, make_store: Callable[[], Store], folder: str) -> None:
        self._make_store = make_store
        self._folder = folder.strip("/")
        self._thread: threading.Thread | None = None
        self._last = time.monotonic()
        self._warned = False

    def upload(self, paths: Sequence[Path], now: bool) -> bool:
        """Upload files if it is time to, and nothing is under way; returns at once.

        Args:
            paths: The files, which may be growing.
            now: Whether it is time, for a checkpoint has been saved; if not, ten minutes after the last.

        Returns:
            Whether an upload was begun.
        """
        busy = self._thread is not None and self._thread.is_alive()
        begin = not busy and (now or time.monotonic() - self._last >= _EVERY_S)
        if begin:
            self._last = time.monotonic()
            self._thread = threading.Thread(
                target=self._send, args=(paths,), daemon=True, name="mixmon-upload"
            )
            self._thread.start()
        return begin

    def finish(self, paths: Sequence[Path]) -> None:
        """Upload the files as they are at the end; waits two minutes at most."""
        self._wait()
        self.upload(paths, now=True)
        self._wait()

    def _wait(self) -> None:
        if self._thread:
            self._thread.join(_PATIENCE_S)

    def _send(self, paths: Sequence[Path]) -> None:
        try:
            store = self._make_store()
            with tempfile.TemporaryDirectory() as folder:
                for path in paths:
                    snapshot = Path(folder) / path.name
                    shutil.copyfile(path, snapshot)
                    store.upload_object(f"{self._folder}/{path.parent.name}/{path.name}", str(snapshot))
        except Exception as error:  # whatever the store, the network or the disk is made of
            if not self._warned:
                log.warning("mixmon: the ledger was not uploaded: %r", error)
            self._warned = True
