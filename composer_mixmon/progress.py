"""A progress bar on stderr for work of more than two seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

__all__ = ["bars"]

_PATIENCE_S = 2.0

Advance = Callable[[int], object]


def bars(console: Console) -> Callable[[str, int], AbstractContextManager[Advance]]:
    """Make a function that opens a stage of the work, whose bar shows once it has taken two seconds.

    Args:
        console: Where to; nothing is drawn where it is no terminal.
    """

    @contextmanager
    def stage(what: str, total: int) -> Generator[Advance]:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        progress = Progress(*columns, console=console, transient=True)
        task = progress.add_task(what, total=total)
        began = time.monotonic()

        def advance(done: int) -> None:
            progress.advance(task, done)
            if (
                console.is_terminal
                and not progress.live.is_started
                and time.monotonic() - began > _PATIENCE_S
            ):
                progress.start()

        try:
            yield advance
        finally:
            if progress.live.is_started:
                progress.stop()

    return stage
