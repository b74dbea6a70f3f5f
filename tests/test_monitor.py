"""The books of a run: exact over ranks and intervals, and the same after any interruption."""

from __future__ import annotations

import json
import pickle

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_mixmon.config import Rule
from composer_mixmon.evidence import EvidenceSettings
from composer_mixmon.monitor import Expectation, Monitor
from composer_mixmon.packing import pack_names

Counts = npt.NDArray[np.int64]
EVEN = np.array([0.5, 0.5])
RULES = (Rule("deviation", "", -np.inf, 0.2, 2, 3),)


def build(interval: int, window: int = 4) -> Monitor:
    phases = [Expectation(EVEN, EvidenceSettings(EVEN, 0.05, 1000)), Expectation(np.array([0.9, 0.1]))]
    return Monitor(("ja", "en"), phases, window, interval, RULES)


def alone(counts: Counts) -> Counts:
    return counts


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.integers(1, 30),
    st.integers(1, 7),
    st.sets(st.integers(0, 30)),
    st.none() | st.integers(0, 30),
    st.integers(0, 2**32 - 1),
)
def test_interrupted_anywhere_is_uninterrupted(
    batches: int, interval: int, saves: set[int], phase_at: int | None, seed: int
) -> None:
    """Saved and loaded after any batches, a run logs, alarms and remembers what it would have."""
    rng = np.random.default_rng(seed)
    rows = rng.multinomial(16, [0.8, 0.2], batches)

    def run(interrupted: bool) -> tuple[list[object], dict[str, object]]:
        monitor, seen = build(interval), []
        for batch, row in enumerate(rows):
            if batch == phase_at:
                seen.append(monitor.finish(batch - 1, alone))
                monitor.enter(1)
            monitor.put(row)
            if (batch + 1) % interval == 0:
                seen.append(monitor.draft(batch, alone))
            seen.append(monitor.done(batch))
            if batch in saves:
                state = json.loads(json.dumps(monitor.state_dict(alone)))
                if interrupted:
                    monitor = build(interval)
                    monitor.load_state_dict(state)
        return seen, monitor.state_dict(alone)

    assert run(interrupted=True) == run(interrupted=False)


def test_batch_in_hand_is_not_counted_yet() -> None:
    """A checkpoint between fetching and training holds no batch that was not trained on."""
    monitor = build(interval=2)
    for batch in range(2):
        monitor.put(np.array([1, 2]))
        if batch:
            monitor.draft(batch, alone)
            assert monitor.state_dict(alone)["mixture"]["run"] == [0, 0]
        monitor.done(batch)
    assert monitor.run.tolist() == [2, 4]


def test_batch_fetched_twice_counts_once() -> None:
    """A batch that was fetched and then dropped is replaced by the next one."""
    monitor = build(interval=1)
    monitor.put(np.array([100, 0]))
    monitor.draft(0, alone)
    monitor.put(np.array([1, 2]))
    monitor.draft(0, alone)
    monitor.done(0)
    assert monitor.run.tolist() == [1, 2]


def test_finish_counts_what_is_left_over_once() -> None:
    """At the end, the batches since the last interval are logged; then there is nothing left."""
    monitor = build(interval=4)
    calls: list[Counts] = []

    def three_ranks(counts: Counts) -> Counts:
        calls.append(counts)
        return counts * 3

    monitor.put(np.array([3, 1]))
    monitor.done(0)
    figures, alarms = monitor.finish(0, three_ranks)
    assert (figures["mixmon/run/ratio/ja"], alarms, monitor.run.tolist()) == (0.75, (), [9, 3])
    assert monitor.finish(0, three_ranks) == ({}, ())
    assert [call.shape for call in calls] == [(24,)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "they have the format 99"),
        ({"labels": pack_names(["ja", "fr"])}, "they count the labels ja, fr, this run counts ja, en"),
        ({"pending": "|u1:xx"}, "."),
    ],
)
def test_foreign_state_is_refused(change: dict[str, object], message: str) -> None:
    """Counts of other labels, of another format or damaged do not get into the books."""
    state = build(2).state_dict(alone) | change
    with pytest.raises(ValueError, match=message):
        build(2).load_state_dict(state)


def test_state_of_a_thousand_labels_is_small() -> None:
    """With a thousand labels and a window of a hundred batches, a checkpoint grows by 64 KiB at most."""
    labels = tuple(f"website-{i:04d}.example" for i in range(1000))
    even = np.full(1000, 1e-3)
    phases = [Expectation(even, EvidenceSettings(even, 0.05, 10**9))]
    monitor = Monitor(labels, phases, window=100, interval=10, rules=RULES)
    for batch, row in enumerate(np.random.default_rng(0).multinomial(4096, even, 119)):
        monitor.put(row)
        if (batch + 1) % 10 == 0:
            monitor.draft(batch, alone)
        monitor.done(batch)
    state = monitor.state_dict(alone)
    assert len(pickle.dumps(state)) <= 64 << 10
    again = Monitor(labels, phases, window=100, interval=10, rules=RULES)
    again.load_state_dict(state)
    assert again.state_dict(alone) == state


class Sums:
    """A rider that counts the batches that it was asked for, so many times each, in so many numbers."""

    def __init__(self, times: int = 1) -> None:
        self.times = times
        self.parts: list[int] = []
        self.totals: list[int] = []

    def part(self, batches: int) -> Counts:
        self.parts.append(batches)
        return np.full(self.times, self.times * batches)

    def receive(self, total: Counts) -> None:
        assert total.tolist() == [total[0]] * self.times
        self.totals.append(int(total[0]))


def test_riders_travel_with_every_addition() -> None:
    """The numbers of each are those of the batches added up, each once, whenever that happens."""
    rider, twice = Sums(), Sums(2)
    monitor = build(interval=4)
    monitor.carry(rider)
    monitor.carry(twice)
    for batch in range(7):
        monitor.put(np.array([1, 2]))
        if batch == 3:
            monitor.draft(batch, lambda table: table * 2)
        if batch == 2:
            monitor.state_dict(lambda table: table * 2)
        monitor.done(batch)
    monitor.finish(6, lambda table: table * 2)
    assert (rider.parts, rider.totals) == ([2, 2, 3], [4, 4, 6])
    assert (twice.parts, twice.totals) == ([2, 2, 3], [8, 8, 12])


def test_closed_batches_are_handed_out_once_with_their_losses() -> None:
    """Whatever is saved in between, every trained batch is drained once, with what belongs to it."""
    monitor = build(interval=4)
    drained = []
    for batch in range(7):
        monitor.put(np.array([batch, 1]), np.array([10 * batch, 5]), -batch)
        if batch % 4 == 3:
            monitor.draft(batch, alone)
        monitor.done(batch, epoch=batch // 5, loss=batch / 10)
        if batch in (1, 2):
            monitor.state_dict(alone)
        drained.extend(monitor.drain())
    monitor.finish(6, alone)
    drained.extend(monitor.drain())
    assert [len(closed.rows) for closed in drained] == [2, 1, 1, 3]
    together = {
        "batch": np.concatenate([c.batch for c in drained]).tolist(),
        "epoch": np.concatenate([c.epoch for c in drained]).tolist(),
        "loss": np.concatenate([c.loss for c in drained]).tolist(),
        "ja": np.concatenate([c.rows.counts[:, 0] for c in drained]).tolist(),
        "tokens": np.concatenate([c.rows.tokens[:, 0] for c in drained]).tolist(),
        "order": np.concatenate([c.rows.order for c in drained]).tolist(),
    }
    assert together == {
        "batch": list(range(7)),
        "epoch": [0] * 5 + [1] * 2,
        "loss": [i / 10 for i in range(7)],
        "ja": list(range(7)),
        "tokens": [10 * i for i in range(7)],
        "order": [(-i) % 2**64 for i in range(7)],
    }
