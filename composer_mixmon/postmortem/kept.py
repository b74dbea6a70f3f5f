"""Whether the order was kept: order hashes against a replay's and against each other, and the resumptions.

Three witnesses, from the strongest to the weakest: a batch whose hash is another's was fed twice; a batch
whose hash is not the replay's holds other samples than the settings imply; and a resumption that went on at
another place of the epoch than the one where the run had come to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from composer_mixmon.postmortem.findings import Break, OrderFindings
from composer_mixmon.run_record import RunRecord
from composer_mixmon.sources.legs import Leg
from composer_mixmon.sources.order import RunOrder

__all__ = ["check_order"]

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

_ALONE = 8  # samples of a batch from which on a single one that comes twice is no chance
_BREAKS = 100


def check_order(record: RunRecord, order: RunOrder | None, hashes: Hashes | None) -> OrderFindings:
    """Check whether the order was kept.

    Args:
        record: The run.
        order: What its settings say that it was fed, or ``None``.
        hashes: The order's hashes of all batches, uint64 (batches,), or ``None``: not computed.
    """
    known = _known(record)
    breaks = list(_repeats(record, known)) if len(known) else []
    checked, by = 0, "nothing: no order hash was recorded"
    if len(known):
        checked, by = len(known), "each other: a batch that comes twice has the same order hash"
    if len(known) and hashes is not None:
        by = "the order hashes of a replay of the settings"
        breaks += _departures(record, known, hashes, breaks)
    if order is not None:
        breaks += [one for one in _at_resumptions(order.legs) if not _told(one, breaks)]
    breaks.sort(key=lambda one: one.first)
    return OrderFindings(checked, by, tuple(breaks[:_BREAKS]), record.resumptions)


def _known(record: RunRecord) -> Ints:
    """Rows that are a batch with an order hash."""
    if record.order is None:
        return np.zeros(0, np.int64)
    return np.flatnonzero((record.order != 0) & (record.span == 1))


def _told(one: Break, breaks: Sequence[Break]) -> bool:
    """Whether another break tells of the same batches."""
    return any(other.first <= one.last and one.first <= other.last + 1 for other in breaks)


def _repeats(record: RunRecord, known: Ints) -> Iterator[Break]:
    assert record.order is not None
    batch, hashes = record.first[known], record.order[known]
    earlier = _last_before(hashes)
    again = earlier >= 0
    if len(record.epoch) and not _shuffled(record.settings):  # then every epoch has the same order
        epoch = record.epoch[known]
        again &= epoch == epoch[np.maximum(earlier, 0)]
    at = np.flatnonzero(again)
    lone = _samples(record) < _ALONE
    for stretch in _stretches(batch[at], batch[at] - batch[earlier[at]]):
        first, last = int(batch[at[stretch[0]]]), int(batch[at[stretch[-1]]])
        if len(stretch) == 1 and lone:
            continue
        distance = first - int(batch[earlier[at[stretch[0]]]])
        before = _range(first - distance, last - distance)
        text = f"{_range(first, last)} were fed the samples of {before} once more"
        yield Break("repeat", first, last, len(stretch), text)


def _last_before(hashes: Hashes) -> Ints:
    """For each hash, the place of the last equal one before it, −1 for none."""
    order = np.argsort(hashes, kind="stable")
    same = np.append(False, hashes[order[1:]] == hashes[order[:-1]])
    earlier = np.full(len(hashes), -1, np.int64)
    earlier[order[same]] = order[np.flatnonzero(same) - 1]
    return earlier


def _shuffled(settings: dict[str, Any]) -> bool:
    dataset = settings.get("dataset")
    return isinstance(dataset, dict) and bool(cast("dict[str, Any]", dataset).get("shuffle"))


def _samples(record: RunRecord) -> float:
    """Samples of a batch; many where they are not known."""
    if record.counts is None or not len(record.counts):
        return float(_ALONE)
    samples: Ints = record.counts.sum(axis=1)
    return float(np.median(samples))


def _stretches(batch: Ints, kind: Ints) -> Iterator[Ints]:
    """Places of consecutive batches of one kind."""
    if not len(batch):
        return iter(())
    cuts = np.flatnonzero((np.diff(batch) != 1) | (np.diff(kind) != 0)) + 1
    return iter(np.split(np.arange(len(batch)), cuts))


def _departures(record: RunRecord, known: Ints, hashes: Hashes, told: Sequence[Break]) -> list[Break]:
    """Batches that a replay says should hold something else."""
    assert record.order is not None
    within = known[record.first[known] < len(hashes)]
    batch = record.first[within]
    other = batch[record.order[within] != hashes[batch]]
    found: list[Break] = []
    for stretch in _stretches(other, np.zeros_like(other)):
        first, last = int(other[stretch[0]]), int(other[stretch[-1]])
        where = _whereabouts(record.order[within][np.searchsorted(batch, first)], hashes)
        text = f"{_range(first, last)} held other samples than the settings imply{where}"
        one = Break("departure", first, last, len(stretch), text)
        if not _told(one, told):
            found.append(one)
    return found


def _whereabouts(seen: Any, hashes: Hashes) -> str:
    at = np.flatnonzero(hashes == seen).tolist()
    return f": the first of them is what batch {at[0]:,} should have been" if len(at) else ""


def _at_resumptions(legs: Sequence[Leg]) -> Iterator[Break]:
    """Places where a resumption did not go on where the run had come to."""
    fed: dict[int, int] = {}  # samples of each epoch of the order
    for number, leg in enumerate(legs):
        size = leg.replay().global_batch
        end, begin = fed.get(leg.order_epoch, 0), leg.first_sample
        if begin < end:
            batches = min(-(-(end - begin) // size), leg.batches)
            last = leg.batch + batches - 1
            text = (
                f"{_range(leg.batch, last)} were fed samples that had come before in epoch {leg.order_epoch}"
            )
            yield Break("repeat", leg.batch, last, batches, text)
        elif begin > end and number:
            yield _gap(leg.batch, (begin - end) // size, leg.order_epoch)
        if number and legs[number - 1].order_epoch < leg.order_epoch:
            before = legs[number - 1]
            yield from _left_out(before, leg.batch)
        fed[leg.order_epoch] = max(end, begin + leg.batches * size)


def _left_out(before: Leg, batch: int) -> Iterator[Break]:
    left = before.replay().batches - before.batches
    if left > 0:
        yield _gap(batch, left, before.order_epoch)


def _gap(batch: int, batches: int, epoch: int) -> Break:
    text = f"{batches:,} batches of epoch {epoch} were left out before batch {batch:,}"
    return Break("gap", batch, batch, batches, text)


def _range(first: int, last: int) -> str:
    return f"batches {first:,} to {last:,}" if last > first else f"batch {first:,}"
