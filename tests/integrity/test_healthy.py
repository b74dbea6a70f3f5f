"""What streaming itself apportions is healthy, whatever the settings."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from composer_mixmon.errors import MixmonError
from composer_mixmon.replay import Replay
from tests.integrity.runs import Run, fed
from tests.replay.test_order import cases, outcome

thorough = hypothesis_settings(derandomize=True, deadline=None, max_examples=60)
NOTHING = {"repeats": 0, "gaps": 0, "rank_overlap": 0, "plan_mismatch": 0}


def feasible(settings, world, epoch):
    """Whether streaming and the replay take the settings."""
    try:
        Replay(settings, world, epoch)
        return min(map(len, fed(settings, world, epoch, 0))) > 0
    except (ValueError, MixmonError, IndexError):
        return False


@given(case=cases(), interval=st.integers(1, 7))
@thorough
def test_epochs_give_no_findings(case, interval):
    """Two epochs over all settings: shuffles, batching, sampling, replication, partitions."""
    settings, world, epoch, _ = case
    assume(all(feasible(settings, world, epoch + i) for i in range(2)))
    run = Run(settings, interval, shuffled=False)
    run.start(world)
    assert run.train(epoch)
    assert run.train(epoch + 1)
    assert run.found == []
    assert run.metrics == NOTHING


@given(case=cases(), interval=st.integers(1, 7), data=st.data())
@thorough
def test_resumed_runs_give_no_findings_and_the_same_books(case, interval, data):
    """Interrupted at any batch and gone on with, the books are those of a run that was not."""
    settings, world, epoch, _ = case
    assume(feasible(settings, world, epoch))
    whole, parted = Run(settings, interval, shuffled=False), Run(settings, interval, shuffled=False)
    whole.start(world)
    whole.train(epoch)
    batches = whole.batch
    stop = data.draw(st.integers(1, batches))
    parted.start(world)
    if not parted.train(epoch, stop):
        assume(outcome(lambda: feasible_from(settings, world, epoch, parted.done)))
        parted.start(world)
        parted.train(epoch)
    assert parted.found == []
    assert parted.metrics == NOTHING
    assert parted.saved == whole.saved


def feasible_from(settings, world, epoch, first):
    return min(map(len, fed(settings, world, epoch, first))) > 0
