"""The integrity checks on one rank: batches in, numbers for the one all-reduce of an interval out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from composer_mixmon.integrity.books import FINGERPRINT_BATCHES, Books
from composer_mixmon.integrity.course import Course
from composer_mixmon.integrity.finding import Finding
from composer_mixmon.integrity.numbers import Detail, Numbers
from composer_mixmon.integrity.plan import PlanCheck
from composer_mixmon.integrity.spots import Spots, pack

__all__ = ["Batch", "Integrity", "Pass"]

Ints = npt.NDArray[np.int64]

log = logging.getLogger("composer_mixmon")

_STEP = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Batch:
    """A rank batch that has been fetched.

    Attributes:
        ids: Sample ids, int64 (samples,).
        spots: Those of them that are spots, by number.
        order: The rank batch's part of the order hash.
        digest: Hash of the ids, whatever their order.
        run: The batch's number in the run, from 0.
        epoch: Its number in the epoch, from 0.
        fetched: Its number in the pass, from 0.
    """

    ids: Ints
    spots: Ints
    order: int
    digest: int
    run: int
    epoch: int
    fetched: int


@dataclass(frozen=True)
class Pass:
    """One iteration over the DataLoader, from its first batch on.

    Attributes:
        epoch: The dataset's number of the epoch.
        first: Samples of it that the dataset leaves out, for they have been seen.
        course: What is to come; ``None`` if not known.
        plan: Compares it; ``None`` where it is not compared.
        batch: Samples of a global batch, where copies on several ranks count once.
        setup: Digest of all that it follows from, the same on every rank of a healthy run.
    """

    epoch: int
    first: int
    course: Course | None
    plan: PlanCheck | None
    batch: int
    setup: int


class Integrity:
    """The checks of one run on one rank.

    A batch is :meth:`put` when it has been fetched and, once it has been trained on, counted by
    :meth:`settle`. :meth:`part` and :meth:`receive` add up over the ranks, with or without the batch in hand.

    Args:
        books: The books, the same on every rank.
        spots: The dataset's spots.
        rank: This rank.
        ranks: How many there are.
        contributes: Whether this rank's samples count; not, if an earlier rank gets the same.
        begin: Tells what a pass will bring, at its first batch.
        judged: Whether repeats, gaps and overlaps are looked for.
        remarks: What the user should know of checks that cannot be made, said when the first batch comes.
    """

    def __init__(
        self,
        books: Books,
        spots: Spots,
        rank: int,
        ranks: int,
        contributes: bool,
        begin: Callable[[], Pass],
        judged: bool = True,
        remarks: Sequence[str] = (),
    ) -> None:
        self.books = books
        self._seen_by_rank = np.zeros(len(spots), np.int64)
        self._high = books.most_of_spots
        self._excess = 0  # appearances of spots on this rank, in this pass, beyond the most that may be
        self._first_batch = 0  # of the pass, counted over the run
        self._rank = rank
        self._ranks = ranks
        self._contributes = contributes
        self._begin = begin
        self._judged = judged
        self._remarks = remarks if rank == 0 else ()
        self._pass: Pass | None = None
        self._passes = 0
        self._told = 0  # mismatches of the pass that have been handed out
        self._plan_failed = False
        self._otherwise = False  # this rank's pass follows from other things than rank 0's
        self._detail: Detail | None = None
        self._detail_told = False
        self._waiting: list[Numbers] = []
        self._spots: list[Ints] = []
        self._pending: tuple[int, Ints] | None = None
        self._asked = 0
        self._in_hand = False  # the last batch put has not been trained on yet
        self._error: Exception | None = None

    def put(self, batch: Batch, passes: int) -> None:
        """Take a batch that has been fetched.

        Args:
            batch: The batch.
            passes: How many iterations over the DataLoader have begun.
        """
        self._in_hand = True
        numbers = Numbers(self._ranks)
        if passes != self._passes or self._pass is None:
            self._passes = passes
            self._start(batch, numbers)
        now = self._pass
        assert now is not None
        if now.plan:
            now.plan.put(batch.fetched, batch.run, batch.order, batch.ids)
            if self._otherwise:
                numbers["mismatches"] = 1
        spots = batch.spots[:0]
        if self._contributes:
            spots = self._count(batch, now, numbers)
        self._waiting.append(numbers)
        self._spots.append(spots)

    def part(self, batches: int) -> Ints:
        """This rank's numbers of the first batches that have not been settled."""
        self._asked = batches
        total = Numbers(self._ranks)
        try:
            return self._part(batches, total)
        except Exception as error:  # the other ranks wait for us: raised once they do not
            self._error = error
            return Numbers(self._ranks).values

    def receive(self, total: Ints) -> None:
        """Take the sum over all ranks.

        Raises:
            Exception: What went wrong on this rank in :meth:`part`.
        """
        if self._error:
            error, self._error = self._error, None
            raise error
        if self._in_hand and self._asked == len(self._waiting):
            self._pending = (self._asked, total)
            return
        if self._pending:  # in the middle of an interval's last batch, which stays to be settled
            batches, drafted = self._pending
            self._pending = (batches - self._asked, drafted - total)
        self._enter(self._asked, total)

    @property
    def metrics(self) -> dict[str, float]:
        """Figures of the run, with what was added up last, and ``mixmon/alarms`` of these checks alone."""
        books = self.books
        if self._pending:
            books = books.copy()
            books.add(Numbers(self._ranks, self._pending[1]), self._detail)
        figures = {f"mixmon/integrity/{name}": float(count) for name, count in books.metrics.items()}
        return figures | {"mixmon/alarms": float(books.alarms)}

    def settle(self, batch: int) -> list[Finding]:
        """Count the batch in hand; enter what was added up with it in the books.

        Args:
            batch: Its number, counted from 0 over the run.

        Returns:
            What has come to light; the same on every rank.
        """
        self._in_hand = False
        if self._pending:
            self._enter(*self._pending)
            self._pending = None
        return self.books.findings(batch)

    def end_epoch(self, batch: int, batches: int, whole: bool) -> list[Finding]:
        """Judge an epoch that is over, after :meth:`settle`.

        Args:
            batch: Its last batch, counted from 0 over the run.
            batches: How many batches it had.
            whole: Whether training meant to go through all of it.
        """
        self.books.end_epoch(batches, whole)
        self.stop()
        return self.books.findings(batch)

    def stop(self) -> None:
        """End what is being computed beside the training."""
        if self._pass and self._pass.plan:
            self._pass.plan.stop()

    def wait(self, seconds: float) -> None:
        """Wait for what is being computed, so long at most."""
        if self._pass and self._pass.plan:
            self._pass.plan.wait(seconds)

    def state_dict(self) -> dict[str, Any]:
        """The books as plain types, without a batch that is in hand."""
        return self.books.state_dict()

    def _start(self, batch: Batch, numbers: Numbers) -> None:
        """A pass begins."""
        for remark in self._remarks:
            log.warning("mixmon: %s", remark)
        self._remarks = ()
        self.stop()
        self._pass = now = self._begin()
        self._seen_by_rank[:] = 0
        self._excess = 0
        self._told, self._detail, self._detail_told, self._otherwise = 0, None, False, False
        self._first_batch = batch.run
        if self._rank == 0:
            skipped = batch.fetched * now.batch  # fetched and thrown away, to get to the right place
            start = now.course.start if now.course else now.first
            numbers["started"] = 1
            numbers["epoch"] = now.epoch
            numbers["first"] = now.first + skipped
            numbers["start"] = start + skipped
            numbers["total"] = now.course.total if now.course else -1
            numbers["dropped"] = now.course.dropped if now.course else 0
            numbers["setup"] = now.setup

    def _count(self, batch: Batch, now: Pass, numbers: Numbers) -> Ints:
        """Note a batch for the books; returns the spots to count."""
        numbers["samples"] = len(batch.ids)
        if batch.epoch < FINGERPRINT_BATCHES:
            # Of each batch as a set: a mid-epoch change of world size changes the places within a batch.
            numbers["fingerprint"] = batch.digest * (2 * batch.epoch + 1) * _STEP
            numbers["hashed"] = int(self._rank == 0)
        if not self._judged:
            return batch.spots[:0]
        if now.course and not now.course.counts(batch.fetched):
            numbers["uncounted"] = len(batch.ids)
            return batch.spots[:0]
        numbers.digests[self._rank] = batch.digest
        if self._high is None:
            return batch.spots[:0]
        if len(batch.spots):
            np.add.at(self._seen_by_rank, batch.spots, 1)
            before = self._excess
            self._excess = int(np.maximum(self._seen_by_rank - self._high, 0).sum())
            numbers["excess"] = self._excess - before
        return batch.spots

    def _part(self, batches: int, total: Numbers) -> Ints:
        for numbers in self._waiting[:batches]:
            total.values += numbers.values
        counts = np.zeros(len(self._seen_by_rank), np.int64)
        if batches and self._spots[:batches]:
            counts = np.bincount(np.concatenate(self._spots[:batches]), minlength=len(counts))
        packed = pack(counts, self._ranks)
        total["void"] = int(packed is None)
        if packed is not None:
            total.table[:] = packed
        if self._pass and self._pass.plan:
            self._compare(self._pass, self._pass.plan, total)
        return total.values

    def _compare(self, now: Pass, plan: PlanCheck, total: Numbers) -> None:
        """Name what has turned out not to be as planned."""
        try:
            plan.poll()
        except Exception as error:  # settings that StreamingDataset takes and the replay does not
            if not self._plan_failed:
                text = "mixmon cannot compare the samples of epoch %d with the plan: %r"
                log.warning(text, now.epoch, error)
            self._plan_failed = True
            self._pass = replace(now, plan=None)
            return
        if not self._otherwise:  # or every batch has counted when it was put
            total["mismatches"] += plan.mismatches - self._told
        self._told = plan.mismatches
        self._detail = self._detail or plan.first
        if self._detail and not self._detail_told:
            self._detail_told = True
            total.suspect(self._detail)
            if self._rank:
                log.warning("mixmon: %s", self._detail)

    def _enter(self, batches: int, total: Ints) -> None:
        """Enter the sum of so many batches in the books."""
        del self._waiting[:batches], self._spots[:batches]
        numbers = Numbers(self._ranks, total)
        self.books.add(numbers, self._detail)
        if numbers["started"] and self._pass and self._pass.setup != numbers["setup"]:
            self._otherwise = True
            self._detail = self._detail or Detail(self._rank, self._first_batch, [], [])
