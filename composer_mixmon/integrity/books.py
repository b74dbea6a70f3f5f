"""What all ranks together have seen of an epoch, and what it tells. The same on every rank.

Everything here follows from numbers added up over the ranks (rank 0 alone tells where a pass begins), and is
saved with the run's books.

- *repeats*: samples that come again within an epoch. A pass that begins before the place up to which the
  epoch has been trained on repeats the samples between: exact. Besides, the appearances of 1,024 spots (see
  :mod:`~composer_mixmon.integrity.spots`) are counted over ranks and resumptions, and each that the settings
  do not allow stands for ``stride`` samples: exact for datasets of up to 1,024 samples.
- *rank overlap*: two ranks whose ids over a whole interval are the same set, and spots that came on several
  ranks of one pass more often than allowed and were not repeats on one of them.
- *gaps*: samples of an epoch that a pass left out at its beginning or that were not reached at the epoch's
  end: exact; and spots that came less often than the settings demand, where they are more than padding and
  incomplete batches can explain. Judged when an epoch has ended, never in the middle of one.
- *same order*: the first 64 batches of two epochs that should differ hold the same ids at the same places.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from composer_mixmon.integrity.finding import Finding
from composer_mixmon.integrity.numbers import Detail, Numbers, wrap
from composer_mixmon.integrity.spots import Ints, unpack
from composer_mixmon.packing import pack_counts, unpack_counts

__all__ = ["FINGERPRINT_BATCHES", "Books", "Sampled"]

FINGERPRINT_BATCHES = 64
_FEWEST = 32  # samples without which two orders may well be the same by chance
_EPOCHS_KEPT = 256
_KINDS = ("plan mismatch", "repeats", "gaps", "rank overlap", "same order")


@dataclass(frozen=True)
class Sampled:
    """The dataset's spots and how often they may come in an epoch.

    Attributes:
        stride: Samples that a spot stands for.
        low: int64 (spots,). At least.
        high: int64 (spots,). At most.
        streams: Streams of the dataset.
        exclusive: Whether no sample may come twice in an epoch.
    """

    stride: int
    low: Ints
    high: Ints
    streams: int
    exclusive: bool


@dataclass
class _Epoch:
    """An epoch up to now; all but ``base`` and ``excess`` is saved.

    Attributes:
        number: The dataset's own number of it; −1 before the first.
        position: Samples of it that are done, where copies on several ranks count once.
        again: Of these, those that a pass began before.
        skipped: Of these, those that a pass left out.
        alike: Samples of ranks that had the same ids as another.
        overlap: Spots that came too often because several ranks had them, in earlier passes.
        uncounted: Samples not looked at as spots, for they may be padding.
        void: Whether a spot came so often that its count is lost.
        total: Samples that the epoch has; −1 if not known.
        dropped: Samples that may be missing in the end.
        fingerprint: Of its order, as far as hashed.
        hashed: Batches in the fingerprint.
        noted: Whether it has been compared.
        counts: int64 (spots,). How often each spot has come.
        base: int64 (spots,). How often it had come when the pass began.
        excess: Spots that came too often on one and the same rank, in this pass.
    """

    number: int = -1
    position: int = 0
    again: int = 0
    skipped: int = 0
    alike: int = 0
    overlap: int = 0
    uncounted: int = 0
    void: int = 0
    total: int = -1
    dropped: int = 0
    fingerprint: int = 0
    hashed: int = 0
    noted: int = 0
    counts: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    base: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    excess: int = 0


_SAVED = tuple(name for name in _Epoch.__dataclass_fields__ if name not in ("counts", "base", "excess"))


class Books:
    """The integrity of one run.

    Args:
        dataset: Names the dataset; the books of another one's epoch are not gone on with.
        sampled: Its spots; ``None`` where their number in an epoch is not known.
        shuffled: Whether each epoch is meant to have an order of its own.

    Attributes:
        alarms: Findings of the run so far.
    """

    def __init__(self, dataset: str, sampled: Sampled | None, shuffled: bool) -> None:
        self._dataset = dataset
        self._sampled = sampled
        self._shuffled = shuffled
        self._epoch = self._empty(-1)
        self._sums = {"repeats": 0, "gaps": 0, "rank_overlap": 0, "plan_mismatch": 0}
        self._orders: list[list[int]] = []  # epoch, batches and fingerprint of those that are over
        self._fired: dict[str, int] = {}
        self._told: list[tuple[str, str]] = []
        self.alarms = 0

    @property
    def most_of_spots(self) -> Ints | None:
        """How often each spot may come in an epoch, int64 (spots,); ``None`` where that is not known."""
        return None if self._sampled is None else self._sampled.high

    @property
    def metrics(self) -> dict[str, int]:
        """Findings of the run so far, by the last part of the metric's name."""
        epoch = {"repeats": self._repeats, "gaps": self._epoch.skipped, "rank_overlap": self._overlap}
        return {name: count + epoch.get(name, 0) for name, count in self._sums.items()}

    def copy(self) -> Books:
        """Books that can be gone on with without touching these."""
        other = copy.copy(self)
        other._epoch = replace(self._epoch, counts=self._epoch.counts.copy())
        other._sums, other._fired, other._told = dict(self._sums), dict(self._fired), list(self._told)
        return other

    def add(self, total: Numbers, own: Detail | None) -> None:
        """Take the numbers of an interval, added up over the ranks.

        Args:
            total: The numbers.
            own: This rank's mismatch, should several ranks have one.
        """
        if total["started"]:
            self._begin(total)
        epoch = self._epoch
        epoch.position += total["samples"]
        epoch.uncounted += total["uncounted"]
        epoch.void |= int(total["void"] > 0)
        epoch.excess += total["excess"]
        epoch.fingerprint = wrap(epoch.fingerprint + total["fingerprint"])
        epoch.hashed += total["hashed"]
        epoch.counts += unpack(total.table, len(epoch.counts))
        if self._sampled is None or self._sampled.exclusive:
            self._compare_ranks(total)
        self._sums["plan_mismatch"] += total["mismatches"]
        if total.suspects:
            self._tell("plan mismatch", _mismatch(total.suspects, total.detail or own))
        if self._repeats:
            self._tell("repeats", f"about {self._repeats} samples of epoch {epoch.number} came again")
        if self._overlap:
            text = f"about {self._overlap} samples of epoch {epoch.number} came on several ranks"
            self._tell("rank overlap", text)
        if epoch.hashed == FINGERPRINT_BATCHES:
            self._note_order()

    def end_epoch(self, batches: int, whole: bool) -> None:
        """Judge an epoch that is over; everything of it has been added.

        Args:
            batches: How many batches it had.
            whole: Whether training meant to go through all of it.
        """
        epoch = self._epoch
        if epoch.hashed == batches:
            self._note_order()
        gaps = self._gaps() if whole else epoch.skipped
        if gaps > epoch.skipped:
            self._tell("gaps", f"about {gaps} samples of epoch {epoch.number} never came")
        self._close(gaps)

    def findings(self, batch: int) -> list[Finding]:
        """What has come to light since the last call.

        Args:
            batch: The batch in hand, counted from 0 over the run.
        """
        if not self._told:  # asked after every batch, and hardly ever with an answer
            return []
        told, self._told = self._told, []
        values = self.metrics
        return [
            Finding.of(kind, batch, values.get(kind.replace(" ", "_"), 1), f"{text}, by batch {batch}")
            for kind, text in told
        ]

    def state_dict(self) -> dict[str, Any]:
        """The books as plain types."""
        epoch = self._epoch
        saved = {name: getattr(epoch, name) for name in _SAVED}
        saved["overlap"] = self._spot_overlap()
        return {
            "dataset": self._dataset,
            "epoch": saved,
            "counts": pack_counts(epoch.counts[None]) if len(epoch.counts) else "",
            "sums": dict(self._sums),
            "orders": [list(order) for order in self._orders],
            "fired": dict(self._fired),
            "alarms": self.alarms,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved books.

        Raises:
            ValueError: They are damaged.
            KeyError: They are damaged.
        """
        self._sums = {name: int(state["sums"][name]) for name in self._sums}
        self.alarms = int(state["alarms"])
        if state["dataset"] != self._dataset:
            return
        self._orders = [[int(number) for number in order] for order in state["orders"]]
        self._fired = {kind: int(epoch) for kind, epoch in state["fired"].items() if kind in _KINDS}
        self._epoch = self._empty(-1)
        for name in _SAVED:
            setattr(self._epoch, name, int(state["epoch"][name]))
        counts = self._epoch.counts
        if len(counts) and state["counts"]:
            counts = unpack_counts(state["counts"], len(counts))[0]
        self._epoch.counts, self._epoch.base = counts, counts.copy()

    def _empty(self, number: int) -> _Epoch:
        spots = 0 if self._sampled is None else len(self._sampled.low)
        return _Epoch(number, counts=np.zeros(spots, np.int64), base=np.zeros(spots, np.int64))

    def _begin(self, total: Numbers) -> None:
        """A pass begins: with a new epoch, or somewhere in the one that was begun before."""
        number, first = total["epoch"], total["first"]
        epoch = self._epoch
        if number != epoch.number:
            self._close(epoch.skipped)
            self._epoch = epoch = self._empty(number)
            epoch.uncounted = first  # where monitoring begins in the middle of an epoch
        else:
            epoch.overlap, epoch.excess, epoch.base = self._spot_overlap(), 0, epoch.counts.copy()
            epoch.again += max(0, epoch.position - first)
            epoch.skipped += max(0, first - epoch.position)
            if first > epoch.position:
                left_out = f"the data of epoch {number} goes on after {first} samples, and training "
                self._tell("gaps", f"{left_out}had done {epoch.position}")
        epoch.position = total["start"]
        epoch.total, epoch.dropped = total["total"], total["dropped"]

    def _close(self, gaps: int) -> None:
        """Enter an epoch that is over in the run's sums."""
        for name, count in (("repeats", self._repeats), ("rank_overlap", self._overlap), ("gaps", gaps)):
            self._sums[name] += count
        self._epoch = self._empty(-1)

    def _compare_ranks(self, total: Numbers) -> None:
        """Count the samples of ranks whose ids in the interval were those of another rank."""
        digests = total.digests[total.digests != 0]
        same = len(digests) - len(np.unique(digests))
        samples = total["samples"]
        if same and samples >= _FEWEST // 2 * len(digests):
            self._epoch.alike += samples // len(digests) * same

    def _too_often(self, counts: Ints) -> int:
        return 0 if self._sampled is None else int(np.maximum(counts - self._sampled.high, 0).sum())

    def _spot_overlap(self) -> int:
        """Spots that came too often because several ranks had them."""
        epoch = self._epoch
        return epoch.overlap + max(0, self._too_often(epoch.counts - epoch.base) - epoch.excess)

    @property
    def _overlap(self) -> int:
        return self._together(self._epoch.alike, self._spot_overlap())

    @property
    def _repeats(self) -> int:
        spots = max(0, self._too_often(self._epoch.counts) - self._spot_overlap())
        return self._together(self._epoch.again, spots)

    def _gaps(self) -> int:
        """Samples of the epoch that never came, at its end."""
        epoch, sampled = self._epoch, self._sampled
        unreached = max(0, epoch.total - epoch.position) if epoch.total >= 0 else 0
        exact = epoch.skipped + unreached
        if sampled is None or epoch.void or epoch.total < 0:
            return exact
        missing = int(np.maximum(sampled.low - epoch.counts, 0).sum())
        excused = epoch.dropped + epoch.uncounted
        if sampled.stride > 1:  # as many as of a random choice, to 1 in 10**13, and one for each stream's end
            excused = min(excused, 4 * excused // sampled.stride + 16 + sampled.streams)
        return self._together(exact, max(0, missing - excused))

    def _together(self, exact: int, spots: int) -> int:
        """Samples at fault for certain, or those that spots stand for, where they are clearly more.

        Of n samples, n / stride are spots on average, with a variance of n / stride · (1 − 1 / stride) if
        they are drawn at random: none where every sample is a spot.
        """
        stride = self._sampled.stride if self._sampled else 1
        mean = exact / stride
        explained = mean + 4 * math.sqrt((mean + (exact > 0)) * (1 - 1 / stride))
        return spots * stride if spots > explained else exact

    def _note_order(self) -> None:
        """Compare the order of an epoch with those before."""
        epoch = self._epoch
        if epoch.noted or not epoch.hashed:
            return
        epoch.noted = 1
        entry = [epoch.number, epoch.hashed, epoch.fingerprint]
        same = [order[0] for order in self._orders if order[1:] == entry[1:]]
        if same and self._shuffled and epoch.position >= _FEWEST:
            self._tell("same order", f"epoch {epoch.number} has the order of epoch {same[0]}")
        self._orders = [*self._orders, entry][-_EPOCHS_KEPT:]

    def _tell(self, kind: str, text: str) -> None:
        """Report once for each kind and epoch."""
        if self._fired.get(kind) != self._epoch.number:
            self._fired[kind] = self._epoch.number
            self._told.append((kind, text))
            self.alarms += 1


def _mismatch(suspects: Sequence[int], detail: Detail | None) -> str:
    """Say which rank was fed what instead of what."""
    if detail is None:
        ranks = ", ".join(map(str, suspects[:8]))
        return f"ranks {ranks} were fed other samples than planned; each one's log says which"
    return str(detail)
