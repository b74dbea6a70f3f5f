"""Gives back what streaming would keep until the process ends, and what Composer would do over and over."""

from __future__ import annotations

import functools
import gc
import tempfile
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from composer.utils import collect_env


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


@pytest.fixture(scope="package", autouse=True)
def _lock_files_stay_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Streaming leaves two lock files a dataset among the temporary files, and looks at all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("locks")))
        yield


@pytest.fixture(scope="package", autouse=True)
def _composers_commit_is_looked_up_once() -> Iterator[None]:
    """Composer goes through all of its installed files for it, at every start and checkpoint of a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            collect_env, "get_composer_commit_hash", functools.cache(collect_env.get_composer_commit_hash)
        )
        yield
