"""Where two runs part, by hashes, by counts, or by nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from composer_mixmon.compare import Compared, Difference, compare_records
from composer_mixmon.run_record import RunRecord

BATCHES = 20


def record(**other: object) -> RunRecord:
    rng = np.random.default_rng(0)
    plain: dict[str, object] = {
        "source": "ledger",
        "names": ("a", "b"),
        "first": np.arange(BATCHES),
        "span": np.ones(BATCHES, np.int64),
        "counts": rng.integers(0, 99, (BATCHES, 2)),
        "loss": np.zeros(BATCHES),
        "order": rng.integers(0, 1 << 63, BATCHES).astype(np.uint64),
    }
    return RunRecord(**plain | other)  # type: ignore[arg-type]


@pytest.mark.parametrize("by", ["order hashes", "counts"])
def test_the_first_batch_that_differs(by: str) -> None:
    """Is found by hashes, or by counts where one run has no hashes, over the batches that both have."""
    one = record(order=None) if by == "counts" else record()
    other = record()
    other = replace(
        other, **{name: getattr(other, name)[5:] for name in ("first", "span", "counts", "loss", "order")}
    )
    assert compare_records(one, other) == Compared(by, 15, 0, None, (), ())
    changed = other.order if by == "order hashes" else other.counts
    assert changed is not None
    changed[7:9] += np.ones_like(changed[7:9])
    assert compare_records(one, other) == Compared(by, 15, 2, 12, (), ())


def test_labels_in_another_order() -> None:
    """Counts are compared label by label."""
    one = record(order=None)
    assert one.counts is not None
    other = replace(one, names=("b", "a"), counts=one.counts[:, ::-1])
    assert not compare_records(one, other).biased
    assert compare_records(one, replace(one, names=("b", "a"))).biased


def test_nothing_in_common() -> None:
    """Other labels without hashes, or no batch that both have, are no difference."""
    one = record(order=None)
    assert compare_records(one, replace(one, names=("x", "y"))).by == "nothing"
    assert compare_records(record(), record(first=np.arange(BATCHES) + 100)).rows == 0


def test_settings_that_differ() -> None:
    """Each is named by its place, in mappings and in lists; what only one run has, too."""
    one = record(settings={"dataset": {"seed": 1, "streams": [{"sha": "x"}, {"sha": "y"}]}, "same": [1]})
    two = record(
        settings={"dataset": {"seed": 2, "streams": [{"sha": "x"}, {"sha": "z"}]}, "same": [1], "new": 3}
    )
    assert compare_records(one, two).settings == (
        Difference("dataset.seed", 1, 2),
        Difference("dataset.streams.1.sha", "y", "z"),
        Difference("new", "(not set)", 3),
    )


def test_a_seed_without_effect() -> None:
    """The same order with different seeds is told apart from the same run twice."""
    one, two = (record(settings={"dataset": {"shuffle_seed": seed}}) for seed in (1, 2))
    assert compare_records(one, two).seeds_without_effect
    assert not compare_records(one, one).seeds_without_effect
    assert not compare_records(one, replace(two, order=None)).seeds_without_effect  # counts prove no order
