"""What an alarm does to a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from composer.core import DataSpec

from composer_mixmon import MixMon
from composer_mixmon.errors import MixtureAlarm
from tests.live.data import mds_loader, two_streams
from tests.live.helpers import Tiny, Witness, fit, trainer

BATCH, WINDOW, PATIENCE, LIMIT = 4, 4, 2, 0.3


def loader(tmp_path: Path) -> DataSpec:
    """Stream ``a`` first (10 batches), then stream ``b`` (6 batches); a sample has 5 tokens."""
    batches = mds_loader(two_streams(tmp_path, BATCH))
    return DataSpec(batches, get_num_tokens_in_batch=lambda batch: 5 * len(batch["id"]))


def monitor(interval: int, action: Any = None, grace: int = 5) -> MixMon:
    rules = [{"deviation": LIMIT, "for": f"{PATIENCE}ba", "grace": f"{grace}ba"}]
    alarm = {"rules": rules} | ({} if action is None else {"action": action})
    return MixMon(window=f"{WINDOW}ba", log_interval=f"{interval}ba", alarm=alarm)


def alarm_batch(batches: list[list[int]], grace: int = 5) -> int:
    """The brute force: the batch that completes the first streak of windows too far off."""
    streak = 0
    for last in range(len(batches)):
        window = [i for ids in batches[max(0, last - WINDOW + 1) : last + 1] for i in ids]
        share = float(np.mean([i < 40 for i in window]))
        off = abs(share - 40 / 64)  # with two labels, the total variation distance
        streak = streak + 1 if last >= grace and off > LIMIT else 0
        if streak == PATIENCE:
            return last
    raise AssertionError("no alarm")


@pytest.mark.parametrize("interval", [1, 3, 5])
@pytest.mark.parametrize("duration", ["16ba", "64sp", "320tok", "1ep", "2ep"])
def test_stop_ends_the_run_where_the_alarm_is_seen(tmp_path: Path, interval: int, duration: str) -> None:
    """At the end of its interval, whatever the unit of the run's length; a checkpoint is written."""
    witness, everything = Witness(), Witness()
    fit(loader(tmp_path), everything)
    where = {
        "save_folder": str(tmp_path / "saved"),
        "save_filename": "ba{batch}.pt",
        "save_interval": "999ba",
    }
    run = fit(loader(tmp_path), witness, monitor(interval, "stop"), duration=duration, **where)
    fired = alarm_batch(everything.batches)
    assert fired == 6
    end = -(-(fired + 1) // interval) * interval
    assert int(run.state.timestamp.batch) == end
    assert witness.batches == everything.batches[:end]
    assert (tmp_path / "saved" / f"ba{end}.pt").exists()


@pytest.mark.parametrize("grace", [0, 5, 9])
def test_raise(tmp_path: Path, grace: int) -> None:
    """The error says what was seen, where, and what was promised."""
    witness, everything = Witness(), Witness()
    fit(loader(tmp_path), everything)
    fired = alarm_batch(everything.batches, grace)
    run = trainer(loader(tmp_path), witness, monitor(1, "raise", grace))
    with pytest.raises(MixtureAlarm, match=rf"deviation above 0\.3 .* to {fired}: a \d.*target 62\.5%"):
        run.fit()
    run.close()
    assert len(witness.batches) == fired + 1


def test_log_only_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By default an alarm is a line in the log: the run and its weights are as without us."""
    plain, watched = Tiny(), Tiny()
    fit(loader(tmp_path), model=plain)
    run = fit(loader(tmp_path), monitor(3), model=watched)
    assert int(run.state.timestamp.batch) == 16
    assert watched.weights == plain.weights
    assert sum("mixmon alarm" in r.message for r in caplog.records) >= 1


def test_an_alarm_in_what_is_left_over_raises_at_the_end(tmp_path: Path) -> None:
    """A run that ends within an interval is looked at to its last batch."""
    run = trainer(loader(tmp_path), monitor(100, "raise"))
    with pytest.raises(MixtureAlarm, match="batches 3 to 6"):
        run.fit()
    run.close()
    assert int(run.state.timestamp.batch) == 16
