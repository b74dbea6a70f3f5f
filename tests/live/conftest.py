"""Gives back what streaming would keep until the process ends."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest


@pytest.fixture(autouse=True)
def _shared_memory_ends_with_the_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A dataset's shared memory and its open files; else a few hundred datasets are too many for a process.

    ``clean_stale_shared_memory`` would take that of other runs on the machine, too.
    """
    cleanups: list[Callable[[], None]] = []
    monkeypatch.setattr("streaming.base.shared.memory.atexit", SimpleNamespace(register=cleanups.append))
    yield
    gc.collect()  # the arrays that look into it
    for cleanup in cleanups:
        cleanup()
