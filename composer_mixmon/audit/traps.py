"""Known traps of StreamingDataset's order, named where the settings walk into them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from composer_mixmon.audit.plan import Plan
from composer_mixmon.audit.sweep import BLOCKED
from composer_mixmon.audit.watched import WatchedReplay

__all__ = ["Trap", "find_traps"]

_STREAMS_SHOWN = 5


@dataclass(frozen=True)
class Trap:
    """A trap.

    Attributes:
        name: Short and stable.
        text: What happens, with figures, and the way out.
        figures: The figures.
    """

    name: str
    text: str
    figures: dict[str, float]


def find_traps(plan: Plan, replay: WatchedReplay) -> list[Trap]:
    """Name the traps that apply to the audited batches.

    Args:
        plan: What is audited.
        replay: Its order.
    """
    return [trap for look in _LOOKS if (trap := look(plan, replay)) is not None]


def _single_label(plan: Plan, replay: WatchedReplay) -> Trap | None:
    del replay
    if plan.labels.count > 1:
        return None
    text = (
        f"there is no label but {plan.names[0]}, so nothing can be off: name others, with --labels position "
        "if there are none"
    )
    return Trap("single_label", text, {})


def _shuffle_off(plan: Plan, replay: WatchedReplay) -> Trap | None:
    del replay
    if plan.settings.shuffle:
        return None
    text = "shuffle is off: samples come in the order in which they were written. Set shuffle: true"
    return Trap("shuffle_off", text, {})


def _unshuffled_end(plan: Plan, replay: WatchedReplay) -> Trap | None:
    """py1br's stagger moves its blocks but not their running end: the last samples are in none (fact 7)."""
    settings = plan.settings
    if not settings.shuffle or settings.shuffle_algo != "py1br":
        return None
    ends = replay.unshuffled_end()
    samples, longest = int(ends.sum()), int(ends.max())
    batches = -(-longest * settings.num_canonical_nodes // plan.global_batch)
    if not samples or plan.chosen.stop <= plan.epoch_batches - batches:
        return None
    text = (
        f"py1br never shuffles the end of the epoch: {samples:,} of {settings.epoch_size:,} samples "
        f"({samples / settings.epoch_size:.2%}, about the last {batches:,} batches) come in file order. "
        "Use py1e"
    )
    return Trap("py1br_end", text, {"samples": samples, "batches": batches})


def _small_block(plan: Plan, replay: WatchedReplay) -> Trap | None:
    """A block as large as a shard at most: py1e shifts nothing out of its shard, py1br mixes no two."""
    settings = plan.settings
    if not settings.shuffle or settings.shuffle_algo not in BLOCKED:
        return None
    sizes = settings.shard_sizes()
    blocks = np.repeat(replay.blocks(), settings.shards_per_stream)
    larger = int(np.count_nonzero(sizes > blocks))
    if not larger:
        return None
    block, shard = int(blocks[sizes > blocks].min()), int(sizes[sizes > blocks].max())
    text = (
        f"the shuffle block is smaller than a shard: {larger:,} of {len(sizes):,} shards hold more samples "
        f"(up to {shard:,}) than the block ({block:,}), so {settings.shuffle_algo} hardly mixes them with "
        f"others. Set shuffle_block_size to many shards, such as {20 * shard}"
    )
    return Trap("small_block", text, {"shards": larger, "block": block, "largest_shard": shard})


def _ordered_shards(plan: Plan, replay: WatchedReplay) -> Trap | None:
    """py1s and py2s mix samples within their shard only."""
    del replay
    settings = plan.settings
    if not settings.shuffle or settings.shuffle_algo not in ("py1s", "py2s") or plan.labels.count < 2:
        return None
    sizes = settings.shard_sizes()
    ends = np.cumsum(sizes)
    ranges = plan.labels.ends
    first = np.searchsorted(ranges, ends - sizes, side="right")
    last = np.searchsorted(ranges, ends, side="left")
    pure = int(sizes[first == last].sum())
    share = pure / int(sizes.sum())
    if share < 0.5:
        return None
    nodes = settings.num_canonical_nodes
    several = f"{nodes:,} shards at a time, one for each canonical node"
    at_a_time = "one shard at a time" if nodes == 1 else several
    text = (
        f"{settings.shuffle_algo} mixes samples within their shard only, and {share:.0%} of the samples "
        f"lie in shards of a single label: each batch is drawn from {at_a_time}. Use py1e"
    )
    return Trap("ordered_shards", text, {"share": share, "shards_at_a_time": nodes})


def _few_samples(plan: Plan, replay: WatchedReplay) -> Trap | None:
    del replay
    settings = plan.settings
    groups = [settings.epoch_size] if settings.batching_method == "random" else list(settings.choose)
    samples, nodes = min(groups), settings.num_canonical_nodes
    if samples >= nodes:
        return None
    what = "the epoch" if settings.batching_method == "random" else "a stream"
    text = (
        f"{what} has {samples:,} samples, fewer than the {nodes:,} canonical nodes: streaming repeats "
        "samples to fill them. Lower num_canonical_nodes"
    )
    return Trap("few_samples", text, {"samples": samples, "canonical_nodes": nodes})


def _dropped_streams(plan: Plan, replay: WatchedReplay) -> Trap | None:
    """Streams that were meant to give something, and are rounded down to nothing."""
    del replay
    streams = plan.prepared.training.streams
    weights = [(s.weight.proportion, s.weight.repeat, s.weight.choose) for s in streams]
    off = [0 in weight for weight in weights]
    dropped = [
        name
        for name, choose, meant_off in zip(plan.shards.streams, plan.settings.choose, off, strict=True)
        if not choose and not meant_off
    ]
    if not dropped:
        return None
    more = f" and {len(dropped) - _STREAMS_SHOWN} more" if len(dropped) > _STREAMS_SHOWN else ""
    text = (
        f"{len(dropped)} of {len(streams)} streams give no sample to an epoch of "
        f"{plan.settings.epoch_size:,}, for their part rounds down to 0: "
        f"{', '.join(dropped[:_STREAMS_SHOWN])}{more}. "
        "Raise epoch_size, or their proportion or repeat"
    )
    return Trap("dropped_streams", text, {"streams": len(dropped)})


_LOOKS: tuple[Callable[[Plan, WatchedReplay], Trap | None], ...] = (
    _single_label,
    _shuffle_off,
    _unshuffled_end,
    _small_block,
    _ordered_shards,
    _few_samples,
    _dropped_streams,
)
