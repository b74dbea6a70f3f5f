"""A computation beside the training: numpy and numba let go of the interpreter while they work."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Generic, TypeVar

__all__ = ["Background", "StoppedError"]

Result = TypeVar("Result")


class StoppedError(Exception):
    """The computation is not wanted any more."""


class Background(Generic[Result]):
    """One computation, begun at once. Holds no lock that a process forked meanwhile could inherit taken.

    Args:
        compute: What to compute; it calls what it is given now and then, which raises :class:`StoppedError`
            after :meth:`stop`.
        inline: Whether to do it here and now, for it is short.
    """

    def __init__(self, compute: Callable[[Callable[[], None]], Result], inline: bool) -> None:
        self._compute = compute
        self._stopped = False
        self._result: Result | None = None
        self._error: Exception | None = None
        self._thread = None if inline else Thread(target=self._run, name="mixmon plan", daemon=True)
        if self._thread:
            self._thread.start()
        else:
            self._run()

    @property
    def result(self) -> Result | None:
        """What was computed; ``None`` until then.

        Raises:
            Exception: What the computation has raised.
        """
        if self._error is not None:
            raise self._error
        return self._result

    def stop(self) -> None:
        """End it soon, and wait for that: no thread of ours runs when DataLoader workers are forked."""
        self._stopped = True
        self.wait(None)

    def wait(self, seconds: float | None) -> None:
        """Wait for the end of it, so long at most."""
        if self._thread:
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._result = self._compute(self._check)
        except StoppedError:
            pass
        except Exception as error:
            self._error = error

    def _check(self) -> None:
        if self._stopped:
            raise StoppedError
