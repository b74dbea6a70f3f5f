"""Other shuffles for the same data: how well each mixes, and what it costs.

The grid: py1e and py1br with blocks of 2¹⁸ (the shuffle functions' own default), 2²⁰ and 2²² samples, py1s
and py2s (which have no block), each at 1, 8 and 64 canonical nodes a physical node; naive, which knows
neither; and the settings as they are. Of the blocks that hold all samples of a canonical node, the smallest.

A node's resident shards are those that it reads from within one window of batches in the middle of the
audited ones: with fewer in its cache, shards are fetched again and again. First downloads are the shards
that the first audited batch needs. Both are of the node that needs the most, in uncompressed bytes.

Pareto-best is what no other setting beats in one of excess, resident bytes and first bytes without losing
in another. Seconds are shown but not weighed: they differ from run to run. Recommended is, of the
Pareto-best that raise no alarm and whose windows all stay within half the tolerance of their noise floor, the
one with the fewest resident bytes; if there is none, the setting with the least excess.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from composer_mixmon.audit.along import Along
from composer_mixmon.audit.plan import Plan
from composer_mixmon.errors import ConfigError
from composer_mixmon.replay import LabelRanges, Settings
from composer_mixmon.replay.settings import default_block_size

if TYPE_CHECKING:
    from composer_mixmon.audit.report import Stage

__all__ = ["BLOCKED", "Sweep", "SweepRow", "grid", "sweep"]

_BLOCKS = (1 << 18, 1 << 20, 1 << 22)
_NODES = (1, 8, 64)
BLOCKED = ("py1e", "py1br")
"""Algorithms that shuffle_block_size means anything to."""

_TOLERANCE = 0.05  # where the YAML asks for no evidence: the monitor's default


@dataclass(frozen=True)
class SweepRow:
    """One setting.

    Attributes:
        shuffle_algo: ``none`` where shuffle is off, as only the YAML's own setting may be.
        shuffle_block_size: Samples; has no meaning for naive, py1s and py2s.
        num_canonical_nodes: Parts that are shuffled apart.
        current: Whether it is the YAML's own.
        batch_deviation: Mean over batches.
        excess: Largest deviation of a window above its noise floor, at least 0.
        dispersion: Mean over batches.
        alarm: Batch of the first alarm, or ``None``.
        seconds: What this replay took for the order and the figures.
        resident_shards: See the module.
        resident_bytes: See the module.
        first_shards: Shards that the first batch needs.
        first_bytes: Their bytes.
        pareto: Whether no other setting is better in all respects.
        recommended: Whether it is the one to take.
    """

    shuffle_algo: str
    shuffle_block_size: int
    num_canonical_nodes: int
    current: bool
    batch_deviation: float
    excess: float
    dispersion: float
    alarm: int | None
    seconds: float
    resident_shards: int
    resident_bytes: int
    first_shards: int
    first_bytes: int
    pareto: bool = False
    recommended: bool = False

    @property
    def has_block(self) -> bool:
        """Whether the block means anything to the algorithm."""
        return self.shuffle_algo in BLOCKED

    @property
    def objectives(self) -> tuple[float, int, int]:
        """What is weighed, all the less the better."""
        return self.excess, self.resident_bytes, self.first_bytes


@dataclass(frozen=True)
class Sweep:
    """Settings tried.

    Attributes:
        rows: One for each, the least deviation first.
        yaml: The recommended one, to paste into the training YAML.
        healthy: Whether the recommended one raises no alarm.
        refused: Settings that StreamingDataset refuses for this dataset.
    """

    rows: tuple[SweepRow, ...]
    yaml: str
    healthy: bool
    refused: int

    def to_dict(self) -> dict[str, Any]:
        """As plain types."""
        rows = [asdict(row) for row in self.rows]
        return {"rows": rows, "yaml": self.yaml, "healthy": self.healthy, "refused": self.refused}


def grid(plan: Plan) -> list[Settings]:
    """The settings to try, the YAML's own first."""
    current, nodes = plan.settings, plan.world.replicate(plan.settings.replication).nodes
    found = {_key(current): current}
    for canonical in [factor * nodes for factor in _NODES]:
        default = default_block_size(canonical)
        # ModernBERT's code sets no block, so streaming's default is all there is.
        blocks = (default,) if plan.modernbert else _useful(current.epoch_size // canonical)
        tried = [(algo, block) for algo in BLOCKED for block in blocks]
        for algo, block in [*tried, ("py1s", default), ("py2s", default), ("naive", default)]:
            settings = replace(
                current,
                shuffle=True,
                shuffle_algo=algo,
                shuffle_block_size=block,
                num_canonical_nodes=canonical,
            )
            found.setdefault(_key(settings), settings)
    return list(found.values())


def _useful(samples: int) -> tuple[int, ...]:
    """Blocks up to the first that holds a canonical node's samples."""
    first = next((i for i, block in enumerate(_BLOCKS) if 0.75 * block >= samples), len(_BLOCKS))
    return _BLOCKS[: first + 1]


def _key(settings: Settings) -> tuple[object, ...]:
    """What tells settings apart: naive knows no canonical nodes, and only some algorithms a block."""
    algo = settings.shuffle_algo if settings.shuffle else "none"
    block = settings.shuffle_block_size if algo in BLOCKED else None
    return algo, block, None if algo == "naive" else settings.num_canonical_nodes


def sweep(plan: Plan, look: Callable[[Settings], tuple[Along, int]], stage: Stage) -> Sweep:
    """Try the grid.

    Args:
        plan: What is audited.
        look: Computes the figures of the audited batches under other settings.
        stage: Told of the progress, in settings.
    """
    rows: list[SweepRow] = []
    settings_tried = grid(plan)
    with stage("sweep", len(settings_tried)) as advance:
        for settings in settings_tried:
            try:
                rows.append(_row(plan, settings, look))
            except ConfigError:
                if settings == plan.settings:
                    raise
            advance(1)
    rows = _recommend([replace(row, pareto=_is_pareto(row, rows)) for row in rows], plan)
    rows.sort(key=lambda row: (row.excess, row.batch_deviation))
    best = next(row for row in rows if row.recommended)
    return Sweep(tuple(rows), _yaml(best, plan), best.alarm is None, len(settings_tried) - len(rows))


def _row(plan: Plan, settings: Settings, look: Callable[[Settings], tuple[Along, int]]) -> SweepRow:
    began = time.perf_counter()
    along, _ = look(settings)
    seconds = time.perf_counter() - began
    window = min(along.window, len(along))
    middle = along.first + (len(along) - window) // 2
    sizes = settings.shard_sizes()
    by_shard = LabelRanges.of_shards(sizes, np.arange(len(sizes)), len(sizes))
    shard = plan.replay(settings).only([along.first, *range(middle, middle + window)]).by_node(by_shard)
    first, resident = _needed(plan, shard[:1]), _needed(plan, shard[1:])
    return SweepRow(
        shuffle_algo=settings.shuffle_algo if settings.shuffle else "none",
        shuffle_block_size=settings.shuffle_block_size,
        num_canonical_nodes=settings.num_canonical_nodes,
        current=settings == plan.settings,
        batch_deviation=float(along.batch_deviation.mean()),
        excess=max(0.0, float(along.excess.max())),
        dispersion=float(along.spread.mean()),
        alarm=along.alarms[0].batch if along.alarms else None,
        seconds=round(seconds, 3),
        resident_shards=resident[0],
        resident_bytes=resident[1],
        first_shards=first[0],
        first_bytes=first[1],
    )


def _needed(plan: Plan, shard: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Shards and bytes that batches need on the node that needs the most bytes.

    Args:
        plan: What is audited.
        shard: The shard of every sample, int64 (batches, nodes, samples), −1 for padding.
    """
    sizes = np.concatenate([np.array(index.bytes, np.int64) for index in plan.prepared.indices])
    needed = [np.bincount(node[node >= 0], minlength=len(sizes)) > 0 for node in shard.transpose(1, 0, 2)]
    return max(((int(n.sum()), int(sizes[n].sum())) for n in needed), key=lambda pair: pair[1])


def _is_pareto(row: SweepRow, rows: list[SweepRow]) -> bool:
    return not any(
        other.objectives != row.objectives
        and all(a <= b for a, b in zip(other.objectives, row.objectives, strict=True))
        for other in rows
    )


def _recommend(rows: list[SweepRow], plan: Plan) -> list[SweepRow]:
    tolerance = plan.config.alarm.tolerance
    near = (_TOLERANCE if tolerance is None else tolerance) / 2
    good = [row for row in rows if row.pareto and row.alarm is None and row.excess <= near]
    if good:
        best = min(good, key=lambda row: (row.resident_bytes, row.first_bytes, row.excess))
    else:
        best = min(rows, key=lambda row: (row.alarm is not None, row.excess, row.resident_bytes))
    return [replace(row, recommended=row is best) for row in rows]


def _yaml(row: SweepRow, plan: Plan) -> str:
    lines = ["train_loader:", "  dataset:"]
    if row.shuffle_algo == "none":
        lines.append("    shuffle: false")
    else:
        lines += ["    shuffle: true", f"    shuffle_algo: {row.shuffle_algo}"]
        if row.has_block and not plan.modernbert:
            lines.append(f"    shuffle_block_size: {row.shuffle_block_size}")
    lines.append(f"    num_canonical_nodes: {row.num_canonical_nodes}")
    return "\n".join(lines)
