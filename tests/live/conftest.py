"""Leaves no shared memory of streaming's behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from streaming.base.util import clean_stale_shared_memory


@pytest.fixture(autouse=True)
def _fresh_shared_memory() -> Iterator[None]:
    clean_stale_shared_memory()
    yield
    clean_stale_shared_memory()
