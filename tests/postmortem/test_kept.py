"""Orders that were kept, and those that were not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_mixmon.order_hash import order_hashes
from composer_mixmon.postmortem.kept import check_order
from composer_mixmon.run_record import Resumption
from tests.postmortem.made import BATCH, ids_of, order_of, record_of

EPOCH = 25  # batches


@pytest.mark.parametrize("batches", [1, 10, EPOCH, 3 * EPOCH + 4])
def test_a_run_that_kept_its_order(batches: int) -> None:
    """Every batch is compared, and nothing is found, over epochs too."""
    order = order_of(batches)
    found = check_order(record_of(ids_of(order), order.epochs), order, order.hashes())
    assert found.checked == batches
    assert found.breaks == ()
    assert "replay" in found.by


@pytest.mark.parametrize("at", [1, 7, 24])
def test_a_resumption_that_goes_on_is_no_break(at: int) -> None:
    """Going on where the checkpoint was saved is what should happen."""
    order = order_of(40, [Resumption(at, 0, at * BATCH)])
    found = check_order(record_of(ids_of(order), order.epochs), order, order.hashes())
    assert found.breaks == ()


@settings(derandomize=True, deadline=None, max_examples=40)
@given(at=st.integers(2, 20), back=st.integers(1, 20), with_order=st.booleans())
def test_batches_fed_once_more(at: int, back: int, with_order: bool) -> None:
    """A resumption some batches too early is one repeat of these batches, with a replay and without."""
    begin = max(0, at - back)
    order = order_of(EPOCH, [Resumption(at, 0, begin * BATCH)])
    record = record_of(ids_of(order), order.epochs)
    known = (order, order.hashes()) if with_order else (None, None)
    (found,) = check_order(record, *known).breaks
    again = min(at - begin, EPOCH - at)
    assert (found.kind, found.first, found.last, found.batches) == ("repeat", at, at + again - 1, again)
    assert f"{begin:,}" in found.text


def test_other_batches_that_hold_the_same_samples() -> None:
    """Fed again in batches that begin elsewhere, no hash is the same: the resumption tells."""
    order = order_of(20, [Resumption(10, 0, 5 * BATCH + 8)])
    record = record_of(ids_of(order), order.epochs)
    (found,) = check_order(record, order, order.hashes()).breaks
    assert (found.kind, found.first, found.last) == ("repeat", 10, 14)
    assert check_order(record, None, None).breaks == ()


def test_batches_left_out() -> None:
    """A resumption three batches too late is a gap of three."""
    order = order_of(20, [Resumption(10, 0, 13 * BATCH)])
    (found,) = check_order(record_of(ids_of(order)), order, order.hashes()).breaks
    assert (found.kind, found.first, found.batches) == ("gap", 10, 3)


def test_an_epoch_that_was_cut_short() -> None:
    """A resumption in the next epoch leaves the rest of this one out."""
    order = order_of(30, [Resumption(10, 1, 0)])
    legs = tuple(replace(leg, order_epoch=leg.epoch) for leg in order.legs)
    order = replace(order, legs=legs)
    (found,) = check_order(record_of(ids_of(order), order.epochs), order, None).breaks
    assert (found.kind, found.first, found.batches) == ("gap", 10, 15)


def test_an_epoch_fed_once_more() -> None:
    """Resumed from a checkpoint of an epoch's end, the epoch comes again: one repeat of its batches."""
    order = order_of(2 * EPOCH, [Resumption(EPOCH, 1, 0)])
    record = record_of(ids_of(order), order.epochs)
    for known in ((order, order.hashes()), (None, None)):
        (found,) = check_order(record, *known).breaks
        assert (found.kind, found.first, found.batches) == ("repeat", EPOCH, EPOCH)


def test_unshuffled_epochs_are_all_the_same() -> None:
    """Without a shuffle, each epoch has the same order, and that is no repeat."""
    order = order_of(2 * EPOCH, shuffle=False)
    record = record_of(ids_of(order), order.epochs, settings={"dataset": {"shuffle": False}})
    assert check_order(record, order, order.hashes()).breaks == ()
    assert check_order(record, None, None).breaks == ()


def test_other_samples_than_the_settings_imply() -> None:
    """Swapped batches depart, and the text says where the first belongs; so do samples in another order."""
    order = order_of(EPOCH)
    ids = ids_of(order)
    ids[[3, 4]] = ids[[4, 3]]
    ids[10:13] = np.random.default_rng(1).permuted(ids[10:13], axis=1)
    swapped, foreign = check_order(record_of(ids), order, order.hashes()).breaks
    assert (swapped.kind, swapped.first, swapped.last) == ("departure", 3, 4)
    assert "what batch 4 should have been" in swapped.text
    assert (foreign.kind, foreign.first, foreign.last, foreign.batches) == ("departure", 10, 12, 3)


def test_rows_that_are_no_single_batch_are_not_compared() -> None:
    """Intervals, and batches without a hash, are left out."""
    order = order_of(10)
    record = record_of(ids_of(order))
    assert record.order is not None
    hashes = record.order.copy()
    hashes[2] = 0
    assert check_order(replace(record, order=hashes), order, order.hashes()).checked == 9
    assert check_order(replace(record, span=np.full(10, 5)), order, order.hashes()).checked == 0
    assert check_order(replace(record, order=None), None, None).by.startswith("nothing")


def test_single_samples_that_come_twice_are_chance() -> None:
    """Batches of one sample of an upsampled dataset may be the same; a stretch of them may not."""
    ids = np.array([[5], [1], [5], [2], [3], [4], [2], [3], [4]])
    record = record_of(ids, order=order_hashes(ids))
    (found,) = check_order(record, None, None).breaks
    assert (found.first, found.last) == (6, 8)
