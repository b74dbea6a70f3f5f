"""How a run went through the epochs: stretches of batches that one replay covers.

Where an epoch ends, StreamingDataset goes on to the next. Where a run is resumed, it goes on as the
checkpoint's ``dataset_state`` says, and there it counts otherwise than Composer: a checkpoint that is saved
when an epoch has ended (``save_interval: 1ep``) holds ``{epoch: e − 1, sample_in_epoch: 0}``, where Composer
is at epoch e. A run that is resumed from it is fed epoch e − 1 **once more**, in the same order, and every
epoch after it comes one late (Composer 0.32.1 with streaming 0.13.0, found by training). Checkpoints tell;
without them, a resumption at the first sample of an epoch is taken for one of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from composer_mixmon.errors import ConfigError
from composer_mixmon.replay import Replay, Settings, World
from composer_mixmon.replay.settings import default_block_size
from composer_mixmon.run_record import Resumption
from composer_mixmon.sources.checkpoint import Checkpoint

__all__ = ["Leg", "lay_out"]


@dataclass(frozen=True)
class Leg:
    """A stretch of a run within one epoch of the order and one process.

    Attributes:
        settings: Of the order.
        world: The processes.
        order_epoch: Epoch of the order.
        first_sample: Samples of it that were left out before the first batch.
        epoch: Composer's epoch.
        batch: Number of the first batch, counted from 0 over the run.
        batches: How many there are.
    """

    settings: Settings
    world: World
    order_epoch: int
    first_sample: int
    epoch: int
    batch: int
    batches: int

    def replay(self) -> Replay:
        """The order from the leg's first batch on."""
        return Replay(self.settings, self.world, self.order_epoch, self.first_sample)


def lay_out(
    settings: Settings,
    world: World,
    batches: int,
    resumptions: Sequence[Resumption] = (),
    checkpoints: Sequence[Checkpoint] = (),
) -> tuple[Leg, ...]:
    """Find the legs of a run.

    Args:
        settings: Of the order at the end of the run.
        world: The processes at the end of the run.
        batches: How many were trained on.
        resumptions: Where it was resumed.
        checkpoints: From which it was resumed; where both tell, these count.

    Raises:
        ConfigError: An epoch without a batch, or settings that StreamingDataset refuses.
    """
    walk = _Walk()
    marks: dict[int, Resumption | Checkpoint] = {mark.batch: mark for mark in (*resumptions, *checkpoints)}
    for end in sorted({min(end, batches) for end in marks} | {batches}):
        mark = marks.get(end)
        now, processes = settings, world
        if isinstance(mark, Checkpoint):
            processes = _world_before(mark, world)
            walk.keep(mark)
            if mark.device_batch:
                now = replace(now, batch_size=mark.device_batch)
        walk.go_on(walk.kept_by(now), processes, end)
        if mark is not None and end < batches:
            walk.resume(mark)
    return tuple(walk.legs)


class _Walk:
    """Where the run has come to."""

    def __init__(self) -> None:
        self.legs: list[Leg] = []
        self._batch = self._epoch = self._order_epoch = self._first_sample = 0
        self._resumed = False
        self._kept: Checkpoint | None = None

    def keep(self, mark: Checkpoint) -> None:
        """Remember what the dataset keeps over resumptions."""
        self._kept = mark

    def kept_by(self, settings: Settings) -> Settings:
        """The settings with what the dataset has kept."""
        kept = self._kept
        if kept is None:
            return settings
        canonical = kept.num_canonical_nodes or settings.num_canonical_nodes
        block = settings.shuffle_block_size
        if block == default_block_size(settings.num_canonical_nodes):
            block = default_block_size(canonical)
        return replace(
            settings,
            num_canonical_nodes=canonical,
            shuffle_block_size=block,
            shuffle_seed=settings.shuffle_seed if kept.shuffle_seed is None else kept.shuffle_seed,
            initial_physical_nodes=kept.initial_physical_nodes if self._resumed else None,
        )

    def go_on(self, settings: Settings, world: World, end: int) -> None:
        """Go through epochs up to a batch."""
        while self._batch < end:
            replay = Replay(settings, world, self._order_epoch, self._first_sample)
            if not replay.batches and not self._first_sample:
                raise ConfigError("batch_size", settings.batch_size, "the epoch does not fill one batch")
            count = min(replay.batches, end - self._batch)
            if count:
                place = self._order_epoch, self._first_sample, self._epoch, self._batch, count
                self.legs.append(Leg(settings, world, *place))
            self._batch += count
            if count == replay.batches:
                self._order_epoch, self._epoch, self._first_sample = self._order_epoch + 1, self._epoch + 1, 0
            else:
                self._first_sample += count * replay.global_batch

    def resume(self, mark: Resumption | Checkpoint) -> None:
        """Go on from where a resumption did."""
        self._resumed = True
        sample = mark.sample_in_epoch if isinstance(mark, Checkpoint) else mark.first_sample
        if mark.epoch >= 0 and sample >= 0:
            late = self._epoch - self._order_epoch + (sample == 0 and mark.epoch > 0)
            self._epoch, self._order_epoch, self._first_sample = mark.epoch, max(0, mark.epoch - late), sample
        if isinstance(mark, Checkpoint) and mark.order_epoch >= 0 and mark.first_sample >= 0:
            self._order_epoch, self._first_sample = mark.order_epoch, mark.first_sample


def _world_before(mark: Checkpoint, world: World) -> World:
    """The processes that saved a checkpoint, as far as it tells."""
    if mark.world_size is None or mark.nodes is None or mark.nodes < 1 or mark.world_size % mark.nodes:
        return world
    return World(mark.nodes, mark.world_size // mark.nodes, world.workers_per_rank)
