"""A progress bar on stderr for work of more than two seconds."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from threading import Timer

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

__all__ = ["bars"]

_PATIENCE_S = 2.0

Advance = Callable[[int], object]


def bars(console: Console) -> Callable[[str, int | None], AbstractContextManager[Advance]]:
    """Make a function that opens a stage of the work, whose bar shows once it has taken two seconds.

    Args:
        console: Where to; nothing is drawn where it is no terminal. A stage of unknown length has the
            total ``None``.
    """

    @contextmanager
    def stage(what: str, total: int | None) -> Generator[Advance]:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        progress = Progress(*columns, console=console, transient=True)
        task = progress.add_task(what, total=total)
        timer = Timer(_PATIENCE_S, progress.start)
        timer.daemon = True
        if console.is_terminal:
            timer.start()
        try:
            yield lambda done: progress.advance(task, done)
        finally:
            timer.cancel()
            if timer.ident:  # started: wait, so that no bar is drawn after it has been taken away
                timer.join()
                progress.stop()

    return stage
