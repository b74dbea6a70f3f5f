"""Whether a rank is fed the samples that the settings imply, batch by batch.

The whole plan of an epoch is computed once, in one pass over its shuffled order and beside the training, and
kept as one order hash of 8 bytes for each batch of the rank; what comes meanwhile waits as 8 bytes and four
ids a batch. Where that would take more than about 200 MB or a minute of a core (more than 134 million samples
in an epoch, or py1e with more than 4 million in a canonical node, which it holds all at once), only the first
batches of each pass are looked at, up to about a million samples. A pass begins at the start of training, of
an epoch, and after a resumption.
"""

# The steps of a replay are needed apart from its ids.
# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from composer_mixmon.integrity.background import Background
from composer_mixmon.integrity.numbers import SHOWN, Detail
from composer_mixmon.order_hash import order_hash
from composer_mixmon.replay import Replay, Settings, World
from composer_mixmon.replay.schedule import Lane
from composer_mixmon.replay.spans import Pieces
from composer_mixmon.replay.units import Payload
from composer_mixmon.sources.hashing import replay_hashes

__all__ = ["Plan", "PlanCheck", "rank_batches"]

Ints = npt.NDArray[np.int64]

_INLINE = 1 << 17  # samples of an epoch that are shuffled while the training waits: a few milliseconds
_WHOLE = 1 << 27  # samples of an epoch up to which all of its batches are looked at
_HELD = 1 << 22  # samples of a canonical node of py1e, likewise
_FIRST = 1 << 20  # samples looked at of a larger one


class Plan(Replay):
    """A replay that can be stopped.

    Args:
        settings: The dataset's.
        world: The processes, before replication.
        epoch: From 0.
        first_sample: Samples of the epoch seen before.
    """

    def __init__(self, settings: Settings, world: World, epoch: int = 0, first_sample: int = 0) -> None:
        super().__init__(settings, world, epoch, first_sample)
        self.check: Callable[[], None] = lambda: None
        self._ties: dict[int, list[int]] = {}

    def _pieces(self, group: int, payload: Payload, ties: list[int], wanted: Ints | None = None) -> Pieces:
        self._ties[group] = ties
        for piece in super()._pieces(group, payload, ties, wanted):
            self.check()
            yield piece

    def unsure(self) -> set[int]:
        """Batches whose ids may differ from one machine to another, once the order has been computed.

        py1e sorts by random positions; of two that are equal, either may come first (see ``Counted.ties``).
        """
        found: set[int] = set()
        for group, ties in self._ties.items():
            for place in {place + step for place in ties for step in (0, 1)}:
                for lane, batch_of_unit in self._lanes_with_batches(group, range(self.batches)):
                    found.update(batch_of_unit[_units_at(lane, place)].tolist())
        return found

    @property
    def affordable(self) -> bool:
        """Whether all of it can be computed."""
        settings = self.settings
        holds = settings.epoch_size // settings.num_canonical_nodes
        py1e = settings.shuffle and settings.shuffle_algo == "py1e"
        return settings.epoch_size <= _WHOLE and not (py1e and holds > _HELD)

    @property
    def brief(self) -> bool:
        """Whether it takes no time worth speaking of."""
        return self.settings.epoch_size <= _INLINE


def _units_at(lane: Lane, place: int) -> Ints:
    """Units of a lane that hold a place of the shuffled order: int64 (units,)."""
    part = lane.part
    row = int(np.searchsorted(part.rows, place, side="right")) - 1
    column = place - int(part.rows[row])
    if column >= part.regular_columns:
        tail = part.tail_cells()
        units = lane.units_of_cells(tail[part.positions(tail) == place])
    elif lane.rows is not None and row not in lane.rows:
        return np.zeros(0, np.int64)
    else:
        units = lane.units_of_row(row, range(column, column + 1))
    return units[units >= 0]


def rank_batches(hashes: Sequence[int] | Ints, workers: int) -> Ints:
    """The order in which a rank's batches reach it: int64 (batches,), numbers of the plan's batches.

    Batch b of the plan is worker b mod W's. Workers hand on their batches in turn; those that have no more,
    and batches in which the rank has no sample, are left out.

    Args:
        hashes: Hash of the rank's part of each batch of the plan, 0 where it has none.
        workers: W.
    """
    number = np.flatnonzero(np.asarray(hashes))
    worker = number % workers
    turn = np.zeros_like(number)
    for one in range(workers):
        turn[worker == one] = np.arange(np.count_nonzero(worker == one))
    return number[np.lexsort((worker, turn))]


class PlanCheck:
    """Compares the batches of one pass on one rank.

    Args:
        plan: The rest of the epoch.
        rank: This rank.

    Attributes:
        mismatches: Batches that were not as planned.
        first: The first of them, as soon as its planned ids are known.
    """

    def __init__(self, plan: Plan, rank: int) -> None:
        self._plan = plan
        self._rank = rank
        self._looked_at = plan.batches if plan.affordable else max(1, _FIRST // plan.global_batch)
        self._looked_at = min(self._looked_at, plan.batches)
        self._expected: Ints | None = None
        self._unsure: set[int] = set()
        self._order: Ints = np.zeros(0, np.int64)
        self._waiting: list[tuple[int, int, int, list[int]]] = []
        self._suspect: Detail | None = None
        self.mismatches = 0
        self.first: Detail | None = None
        self._look_up: Background[Ints] | None = None
        self._hashing = Background(self._hash, plan.brief)

    def put(self, number: int, batch: int, order: int, ids: Ints) -> None:
        """Take a batch that has been fetched.

        Args:
            number: Its number in the pass, from 0.
            batch: Its number in the run, from 0.
            order: This rank's part of its order hash.
            ids: This rank's sample ids.
        """
        if number < self._looked_at or self._looked_at == self._plan.batches:
            self._waiting.append((number, batch, order, ids[:SHOWN].tolist()))

    def poll(self) -> None:
        """Compare what can be compared by now.

        Raises:
            MixmonError: The order of these settings cannot be computed.
        """
        if self._expected is None:
            hashes = self._hashing.result
            if hashes is None:
                return
            self._order = rank_batches(hashes, self._plan.world.workers_per_rank)
            self._expected = hashes[self._order]
            self._unsure = self._plan.unsure()
        waiting, self._waiting = self._waiting, []
        for number, batch, order, seen in waiting:
            planned = int(self._expected[number]) if number < len(self._expected) else None
            if planned != order and not (planned and int(self._order[number]) in self._unsure):
                self.mismatches += 1
                self._note(number, Detail(self._rank, batch, [], seen))
        if self._suspect and self._look_up and self._look_up.result is not None:
            self._suspect.expected = self._look_up.result[:SHOWN].tolist()
            self.first, self._suspect, self._look_up = self._suspect, None, None

    def stop(self) -> None:
        """End what is being computed."""
        for work in (self._hashing, self._look_up):
            if work:
                work.stop()

    def wait(self, seconds: float) -> None:
        """Wait for what is being computed, so long at most."""
        for work in (self._hashing, self._look_up):
            if work:
                work.wait(seconds)

    def _note(self, number: int, detail: Detail) -> None:
        """Find out what was planned for the first mismatch."""
        if self.first or self._suspect:
            return
        if number >= len(self._order):  # more batches than planned
            self.first = detail
            return
        planned = int(self._order[number])
        self._suspect = detail
        self._look_up = Background(lambda check: self._ids(planned, check), self._plan.brief)

    def _ids(self, number: int, check: Callable[[], None]) -> Ints:
        self._plan.check = check
        ids = self._plan.rank_ids(slice(number, number + 1))[0, self._rank]
        return ids[ids >= 0]

    def _hash(self, check: Callable[[], None]) -> Ints:
        """Hash of the rank's part of each batch looked at: int64 (batches,)."""
        plan, size = self._plan, self._plan.settings.batch_size
        plan.check = check
        first = self._rank // (plan.settings.replication or 1) * size
        if self._looked_at == plan.batches:
            return replay_hashes(plan, range(plan.batches), range(first, first + size)).view(np.int64)
        ids = plan.rank_ids(slice(self._looked_at))[:, self._rank]
        return np.array([order_hash(row, first) for row in ids], np.int64)
