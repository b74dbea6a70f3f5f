"""However long a run lasts, watching it takes no more memory."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

from composer.core import Callback, State
from composer.loggers import Logger

import composer_mixmon
from composer_mixmon import MixMon
from tests.live.data import mds_loader, two_streams
from tests.live.helpers import fit

BEGIN, FIRST, LAST = 100, 200, 400
OURS = tracemalloc.Filter(True, f"{Path(composer_mixmon.__file__).parent}/*")


class Weighs(Callback):
    """Adds up what our code has allocated since an early batch, and not let go of."""

    def __init__(self) -> None:
        self.bytes: list[int] = []

    def batch_end(self, state: State, logger: Logger) -> None:
        batch = int(state.timestamp.batch)
        if batch == BEGIN:
            tracemalloc.start()
        elif batch in (FIRST, LAST):
            gc.collect()
            traces = tracemalloc.take_snapshot().filter_traces([OURS]).traces
            self.bytes.append(sum(trace.size for trace in traces))


def test_memory_does_not_grow(tmp_path: Path) -> None:
    """With the ledger and all checks, by less than 1 MiB in 10,000 batches."""
    weighs, settings = Weighs(), {"shuffle": True, "weights": ({"repeat": 50}, {"repeat": 50})}
    monitor = MixMon(window="50ba", log_interval="10ba", ledger=str(tmp_path / "books"))
    loader = mds_loader(two_streams(tmp_path, 2, **settings))
    try:
        fit(loader, monitor, weighs, duration=f"{LAST}ba")
    finally:
        tracemalloc.stop()
    first, last = weighs.bytes
    assert first > 1000
    assert (last - first) / (LAST - FIRST) < (1 << 20) / 10_000
