"""Figures along an epoch: counts of batches through the same books as live ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from composer_mixmon.alarms import Alarm, Alarms, evidence_rule
from composer_mixmon.config import Rule
from composer_mixmon.evidence import Evidence
from composer_mixmon.mixture import Mixture
from composer_mixmon.monitor import Expectation
from composer_mixmon.statistics import chi_square_per_degree, deviation, noise_floor

__all__ = ["Along", "Part", "Window", "look_along", "parts", "worst_windows"]

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_AT_ONCE = 4096  # batches folded at a time
_POINTS = 1000  # at which shares are kept, for the plot


@dataclass(frozen=True)
class Along:
    """Figures of consecutive batches.

    Attributes:
        first: Number of the first batch in the epoch.
        window: Batches in a window.
        batch_deviation: Deviation of each batch on its own, float64 (batches,).
        batch_noise: Its noise floor, float64 (batches,).
        spread: chi² per degree of freedom of each batch, float64 (batches,).
        deviation: Of the window that ends with each batch, float64 (batches,).
        noise: Its noise floor, float64 (batches,).
        length: Batches in that window: fewer where it is not full yet, int64 (batches,).
        evidence: log10 after each batch, float64 (batches,), or ``None`` where none is taken.
        alarms: What the alarm would have said.
        points: Batches, counted from ``first``, at which shares are kept, int64 (points,).
        shares: Each label's share of the window there, float64 (points, labels).
        targets: Its target there, float64 (points, labels).
    """

    first: int
    window: int
    batch_deviation: Floats
    batch_noise: Floats
    spread: Floats
    deviation: Floats
    noise: Floats
    length: Counts
    evidence: Floats | None
    alarms: tuple[Alarm, ...]
    points: Counts
    shares: Floats
    targets: Floats

    def __len__(self) -> int:
        return len(self.deviation)

    @property
    def excess(self) -> Floats:
        """Deviation of each window above its noise floor; −inf where it is not full (but for the last)."""
        full = self.length == self.window
        if not full.any():
            full[-1] = True
        return np.where(full, self.deviation - self.noise, -np.inf)


@dataclass(frozen=True)
class Part:
    """A part of the audited batches.

    Attributes:
        name: ``start`` (the first tenth), ``middle`` or ``end`` (the last tenth).
        first: Number of its first batch in the epoch.
        stop: Number of the batch after its last.
        batch_deviation: Mean deviation of its batches, each on its own.
        batch_noise_floor: What that is under a perfect shuffle.
        dispersion: Mean chi² per degree of freedom of its batches.
        window_deviation: Largest deviation of a full window that ends in it; ``None``: there is none.
        window_noise_floor: That window's noise floor.
    """

    name: str
    first: int
    stop: int
    batch_deviation: float
    batch_noise_floor: float
    dispersion: float
    window_deviation: float | None
    window_noise_floor: float | None


@dataclass(frozen=True)
class Window:
    """A window of batches ``first`` to ``last`` (numbers in the epoch, both within)."""

    first: int
    last: int
    deviation: float
    noise_floor: float

    def __len__(self) -> int:
        return self.last + 1 - self.first


def look_along(
    rows: Iterable[Counts],
    first: int,
    batches: int,
    phases: Sequence[tuple[int, Expectation]],
    names: tuple[str, ...],
    window: int,
    rules: tuple[Rule, ...],
) -> Along:
    """Keep the books of consecutive batches, as a run that begins with them.

    Args:
        rows: Their counts in pieces, each int64 (some batches, labels).
        first: Number of the first batch.
        batches: How many they are.
        phases: First batch of each part of the run and what is meant to come, ascending.
        names: The labels' names.
        window: Batches in the window.
        rules: The alarm's plain thresholds.
    """
    books = _Books(first, batches, names, window, rules)
    starts = [max(start, first) - first for start, _ in phases]
    done = 0
    for piece in rows:
        cuts = {*range(0, len(piece), _AT_ONCE), len(piece)}
        cuts |= {start - done for start in starts if 0 < start - done < len(piece)}
        edges = sorted(cuts)
        for begin, end in pairwise(edges):
            phase = max(index for index, start in enumerate(starts) if start <= done + begin)
            books.enter(phase, phases[phase][1])
            books.add(piece[begin:end])
        done += len(piece)
    return books.close()


class _Books:
    def __init__(
        self, first: int, batches: int, names: tuple[str, ...], window: int, rules: tuple[Rule, ...]
    ) -> None:
        self._first, self._names, self._window, self._rules = first, names, window, rules
        self._phase = -1
        self._done = self._begun = 0
        self._figures = np.zeros((6, batches))
        self._evidence_log10 = np.zeros(batches)
        self._found: list[Alarm] = []
        self._points = np.unique(np.linspace(0, batches - 1, min(batches, _POINTS)).astype(np.int64))
        self._shares = np.zeros((len(self._points), len(names)))
        self._targets = np.zeros((len(self._points), len(names)))

    def enter(self, phase: int, meant: Expectation) -> None:
        """Go on to a part of the run: a new window and new evidence, the same alarms."""
        if phase == self._phase:
            return
        settings = meant.evidence
        rules = (*self._rules, evidence_rule(settings.threshold)) if settings else self._rules
        alarms = Alarms(rules, self._names, meant.target, self._window)
        if self._phase < 0:
            self._mixture = Mixture(meant.target, self._window)
        else:
            alarms.load_state_dict(self._alarms.state_dict())
            self._mixture.retarget(meant.target)
        self._alarms = alarms
        self._evidence = Evidence(settings) if settings else None
        self._phase, self._begun = phase, self._done

    def add(self, rows: Counts) -> None:
        target, here = self._mixture.target, slice(self._done, self._done + len(rows))
        fold = self._mixture.fold(rows)
        evidence = self._evidence.fold(rows) if self._evidence else None
        look = self._alarms.look(self._first + self._done, fold, evidence.log10 if evidence else None)
        self._mixture.commit(fold)
        self._alarms.commit(look)
        self._found.extend(look.alarms)
        if self._evidence and evidence:
            self._evidence.commit(evidence)
            self._evidence_log10[here] = evidence.log10
        self._figures[:, here] = (
            deviation(rows, target),
            _noise(rows, target),
            chi_square_per_degree(rows, target),
            deviation(fold.window, target),
            _noise(fold.window, target),
            np.minimum(np.arange(here.start, here.stop) - self._begun + 1, self._window),
        )
        kept = (self._points >= here.start) & (self._points < here.stop)
        counts = fold.window[self._points[kept] - here.start]
        self._shares[kept] = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        self._targets[kept] = target
        self._done = here.stop

    def close(self) -> Along:
        *figures, length = self._figures
        return Along(
            self._first,
            self._window,
            *figures,
            length=length.astype(np.int64),
            evidence=self._evidence_log10 if self._evidence else None,
            alarms=tuple(self._found),
            points=self._points,
            shares=self._shares,
            targets=self._targets,
        )


def _noise(counts: Counts, target: Floats) -> Floats:
    """Noise floor of each row: hardly ever more than a few numbers of samples."""
    samples = counts.sum(axis=1)
    floor = {n: noise_floor(n, target) for n in set(samples.tolist())}
    return np.array([floor[n] for n in samples.tolist()])


def parts(along: Along) -> list[Part]:
    """Start, middle and end of the audited batches; with fewer than three of them, what there is."""
    batches = len(along)
    tenth = max(1, batches // 10)
    edges = {
        "start": (0, tenth),
        "middle": (tenth, batches - tenth),
        "end": (max(tenth, batches - tenth), batches),
    }
    return [_part(along, name, begin, end) for name, (begin, end) in edges.items() if begin < end]


def _part(along: Along, name: str, begin: int, end: int) -> Part:
    here = slice(begin, end)
    worst = begin + int(np.argmax(along.excess[here]))
    full = along.excess[worst] > -np.inf
    return Part(
        name,
        along.first + begin,
        along.first + end,
        float(along.batch_deviation[here].mean()),
        float(along.batch_noise[here].mean()),
        float(along.spread[here].mean()),
        float(along.deviation[worst]) if full else None,
        float(along.noise[worst]) if full else None,
    )


def worst_windows(along: Along, most: int = 3) -> list[Window]:
    """The full windows furthest above their noise floor, the worst first, none overlapping another."""
    excess = along.excess.copy()
    found: list[Window] = []
    while len(found) < most and (last := int(np.argmax(excess))) >= 0 and excess[last] > -np.inf:
        first = last - int(along.length[last]) + 1
        found.append(
            Window(
                along.first + first,
                along.first + last,
                float(along.deviation[last]),
                float(along.noise[last]),
            )
        )
        excess[max(0, first) : last + along.window] = -np.inf
    return found
