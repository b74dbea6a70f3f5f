"""Runs without a Trainer: what streaming apportions, dealt to ranks as DataLoaders do, into the checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np

from composer_mixmon.integrity.books import Books, Sampled
from composer_mixmon.integrity.course import course_of
from composer_mixmon.integrity.plan import Plan, PlanCheck
from composer_mixmon.integrity.spots import Spots, allowed
from composer_mixmon.integrity.watch import Batch, Integrity, Pass
from composer_mixmon.order_hash import order_hash, place_hashes
from tests.replay.upstream import upstream_work


def fed(settings, world, epoch, first):
    """The batches of each rank, as its DataLoader's workers hand them on: lists of ids."""
    work = upstream_work(settings, world, epoch, first)
    copies = settings.replication or 1
    ranks = work.reshape(-1, *work.shape[2:])
    return [_of_rank(ranks[rank // copies], settings) for rank in range(world.ranks)]


def _of_rank(work, settings):
    size, workers = settings.batch_size, []
    for ids in work.reshape(len(work), -1):
        served = ids[ids >= 0].tolist()
        batches = [served[i : i + size] for i in range(0, len(served), size)]
        workers.append([b for b in batches if len(b) == size or not settings.drop_last])
    return [batch for turn in zip_longest(*workers) for batch in turn if batch is not None]


@dataclass
class Run:
    """All ranks of a run, with the checks on.

    Attributes:
        settings: The dataset's.
        interval: Batches from one addition over the ranks to the next.
        found: Findings of rank 0.
        done: Samples of the epoch that Composer counts, copies once.
    """

    settings: object
    interval: int = 3
    shuffled: bool = True
    found: list = field(default_factory=list)
    done: int = 0
    batch: int = 0
    batch_in_epoch: int = 0
    watches: list = field(default_factory=list)
    passes: int = 0
    waiting: int = 0
    saved: dict = field(default_factory=dict)

    def start(self, world):
        """Begin, or go on from :attr:`saved`, in a world."""
        settings = self.settings
        samples = np.array(settings.samples_per_stream)
        choose = np.array(settings.choose)
        spots = Spots(int(samples.sum()))
        copies = settings.replication or 1
        self.spots, self.world, self.watches = spots, world, []
        for rank in range(world.ranks):
            low, high = allowed(spots, samples, choose)
            sampled = Sampled(spots.stride, low, high, len(samples), bool((choose <= samples).all()))
            books = Books("data", sampled, self.shuffled and settings.shuffle)
            if self.saved:
                books.load_state_dict(self.saved)
            contributes = rank % copies == 0
            begin = lambda rank=rank: self._pass(rank)  # noqa: E731
            self.watches.append(Integrity(books, spots, rank, world.ranks, contributes, begin))

    def _pass(self, rank):
        plan = Plan(self.settings, self.world, self.epoch, self.first)
        course = course_of(plan, self.first)
        return Pass(self.epoch, self.first, course, PlanCheck(plan, rank), plan.global_batch, 7)

    def train(self, epoch, stop=None, first=None, tamper=None, fetched=0):
        """Train on an epoch from where it was left, up to a batch of it; whether it is over."""
        self.epoch, self.first = epoch, self.done if first is None else first
        self.passes += 1
        ranks = fed(self.settings, self.world, epoch, self.first)
        if tamper:
            ranks = tamper(ranks)
        batches = min(map(len, ranks))
        for number in range(fetched, batches):
            if stop is not None and self.batch_in_epoch >= stop:
                self.add_up()
                self.saved = self.watches[0].state_dict()
                return False
            self.feed([rank[number] for rank in ranks], number)
        self.end()
        return True

    def feed(self, ids_of_ranks, number):
        """One batch."""
        copies = self.settings.replication or 1
        for rank, (watch, ids) in enumerate(zip(self.watches, ids_of_ranks, strict=True)):
            ids = np.array(ids, np.int64)
            order = order_hash(ids, rank // copies * self.settings.batch_size)
            digest = int(place_hashes(ids, np.zeros(1, np.int64)).sum().view(np.int64))
            where = (self.batch, self.batch_in_epoch, number)
            watch.put(Batch(ids, self.spots.pick(ids), order, digest, *where), self.passes)
        self.done += sum(map(len, ids_of_ranks[::copies]))
        self.batch += 1
        self.batch_in_epoch += 1
        self.waiting += 1
        if self.waiting == self.interval:
            self.add_up()
        self.settle()

    def add_up(self):
        if not self.waiting:
            return
        parts = [watch.part(self.waiting) for watch in self.watches]
        self.waiting = 0
        for watch in self.watches:
            watch.receive(sum(parts))

    def settle(self):
        found = [watch.settle(self.batch - 1) for watch in self.watches]
        assert len({tuple(f.rule for f in one) for one in found}) == 1
        self.found += found[0]

    def end(self, whole=True):
        self.add_up()
        self.settle()
        for rank, watch in enumerate(self.watches):
            found = watch.end_epoch(self.batch - 1, self.batch_in_epoch, whole)
            self.found += found if rank == 0 else []
        self.done = self.batch_in_epoch = 0
        self.saved = self.watches[0].state_dict()

    @property
    def metrics(self):
        return self.watches[0].books.metrics
