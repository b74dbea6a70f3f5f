"""Which samples make up each global batch, for the four batching methods.

A *lane* is a sequence of samples cut into units of equal width: global batches, a stream's part of them, or
one device's batches. A *schedule* says which units of which lanes each global batch consists of.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from composer_mixmon.errors import ConfigError
from composer_mixmon.replay.partition import Partition
from composer_mixmon.replay.sampling import Ints
from composer_mixmon.replay.settings import Settings
from composer_mixmon.replay.world import World

__all__ = ["Lane", "Schedule", "build_schedule"]


@dataclass(frozen=True)
class Lane:
    """Cells of a partition, cut into units.

    Attributes:
        group: Which shuffled order the positions refer to: a stream, or 0 for all streams together.
        part: The partition.
        width: Cells of a unit.
        layout: int64 (width,). Order of the cells within a unit.
        rows: Canonical nodes of one physical node where the lane is one node's, otherwise None.
    """

    group: int
    part: Partition
    width: int
    layout: Ints
    rows: range | None = None

    @property
    def full_units(self) -> int:
        """Units without padding."""
        cells = self.part.cells
        if self.rows is not None:
            cells = cells // self.part.canonical * len(self.rows)
        return cells // self.width

    def positions(self, units: Ints) -> Ints:
        """Positions in the shuffled order: int64 (units, width), −1 for padding."""
        return self.part.positions(self._cells(units[:, None] * self.width + self.layout))

    def units_of_row(self, row: int, columns: range) -> Ints:
        """The unit of each (regular) column of a canonical node, ascending; negative where dropped."""
        if self.rows is None:
            step, first = self.part.canonical, row - self.part.drop
            return np.arange(first + columns.start * step, first + columns.stop * step, step) // self.width
        return self._ordinal(np.arange(columns.start, columns.stop), row - self.rows.start) // self.width

    def units_of_cells(self, cells: Ints) -> Ints:
        """The unit of each cell; −1 where the cell is another lane's."""
        if self.rows is None:
            return cells // self.width
        turn, row = np.divmod(cells, self.part.canonical)
        mine = (row >= self.rows.start) & (row < self.rows.stop)
        return np.where(mine, self._ordinal(turn, row - self.rows.start) // self.width, -1)

    def _ordinal(self, turn: Ints, row: Ints | int) -> Ints:
        """Place in the lane of a node's sample: ranks change fastest, then the node's canonical nodes."""
        assert self.rows is not None
        ranks = self.part.ranks
        return (turn // ranks * len(self.rows) + row) * ranks + turn % ranks

    def _cells(self, ordinal: Ints) -> Ints:
        if self.rows is None:
            return ordinal
        ranks = self.part.ranks
        group, rank = np.divmod(ordinal, ranks)
        step, row = np.divmod(group, len(self.rows))
        return (step * ranks + rank) * self.part.canonical + self.rows.start + row


@dataclass(frozen=True)
class Schedule:
    """Units of each global batch.

    Attributes:
        lanes: All lanes.
        lane: int32 (batches, parts). Lane of each part of a batch; −1 for padding.
        unit: int64 (batches, parts). Unit in that lane.
        widths: Samples of each part.
    """

    lanes: tuple[Lane, ...]
    lane: np.ndarray[tuple[int, int], np.dtype[np.int32]]
    unit: Ints
    widths: tuple[int, ...]

    @property
    def global_batch(self) -> int:
        """Samples of a global batch."""
        return sum(self.widths)

    def __len__(self) -> int:
        return len(self.lane)


def build_schedule(
    settings: Settings, world: World, epoch: int, first_sample: int, samples: tuple[int, ...]
) -> Schedule:
    """Build the schedule of an epoch from ``first_sample`` on.

    Args:
        settings: The dataset's.
        world: The processes after replication.
        epoch: From 0.
        first_sample: Samples of the epoch seen before.
        samples: Samples of each order group: of all streams together for ``random``, else of each stream.

    Raises:
        ConfigError: Combinations that StreamingDataset refuses, such as a stream with no full batch.
    """
    batch = settings.batch_size * world.ranks
    if settings.batching_method == "random":
        return _random(settings, world, first_sample, samples[0])
    if settings.batching_method == "stratified":
        schedule = _stratified(settings, world, samples)
    elif settings.batching_method == "per_stream":
        schedule = _per_stream(settings, world, epoch, samples)
    else:
        schedule = _device_per_stream(settings, world, epoch, samples)
    seen = first_sample // batch
    return Schedule(schedule.lanes, schedule.lane[seen:], schedule.unit[seen:], schedule.widths)


def _global_lane(settings: Settings, world: World, group: int, samples: int, drop: int) -> Lane:
    """Lane of global batches, with ``relaxed`` falling back to the initial nodes where it must."""
    nodes, size = world.nodes, settings.batch_size
    initial = settings.initial_physical_nodes
    small, large = sorted((settings.num_canonical_nodes, nodes))
    if settings.partition_algo == "relaxed" and initial is not None and large % small:
        devices = initial * world.ranks_per_node
        if size * world.ranks % devices:
            mend = (
                f"the global batch of {size * world.ranks} must be divisible by the initial {devices} devices"
            )
            raise ConfigError("batch_size", size, mend)
        size = size * world.ranks // devices
        nodes = initial
    part = Partition(samples, settings.num_canonical_nodes, nodes, world.ranks_per_node, drop)
    # A batch is read node by node and rank by rank, its cells are dealt to nodes first, then to ranks.
    cells = np.arange(nodes * world.ranks_per_node * size).reshape(size, world.ranks_per_node, nodes)
    layout = cells.transpose(2, 1, 0).ravel()
    return Lane(group, part, len(layout), layout)


def _random(settings: Settings, world: World, first_sample: int, samples: int) -> Schedule:
    if first_sample > samples + world.ranks - samples % world.ranks:
        raise ConfigError("first_sample", first_sample, f"the epoch ends at {samples}: start before that")
    lane = _global_lane(settings, world, 0, samples, first_sample)
    batches = -(-lane.part.cells // lane.width)
    if settings.drop_last and batches > lane.full_units:
        present = (lane.positions(np.array([lane.full_units])) >= 0).reshape(world.ranks, -1).sum(1)
        if ((present > 0) & (present < settings.batch_size)).any():
            batches = lane.full_units
    return Schedule((lane,), np.zeros((batches, 1), np.int32), np.arange(batches)[:, None], (lane.width,))


def _stratified(settings: Settings, world: World, samples: tuple[int, ...]) -> Schedule:
    """Every batch has the same number of samples from each stream."""
    widths = _stratified_widths(settings.proportion, settings.batch_size * world.ranks)
    lanes: list[Lane] = []
    for stream, (count, width) in enumerate(zip(samples, widths, strict=True)):
        part = Partition(count, settings.num_canonical_nodes, 1, world.ranks_per_node)
        lanes.append(Lane(stream, part, width, np.arange(width)))
    batches = min(lane.full_units for lane in lanes)
    unit = np.repeat(np.arange(batches)[:, None], len(lanes), axis=1)
    lane = np.repeat(np.arange(len(lanes), dtype=np.int32)[None], batches, axis=0)
    return Schedule(tuple(lanes), lane, unit, widths)


def _stratified_widths(proportion: tuple[float, ...], batch: int) -> tuple[int, ...]:
    """Share a batch out: floors first, then one more for the streams nearest to it."""
    exact = batch * np.array(proportion)
    widths = np.array([int(share * batch) for share in proportion], np.int64)
    missing = batch - int(widths.sum())
    if missing:
        widths[np.flip(np.argsort(exact - widths))[:missing]] += 1
    for stream, width in enumerate(widths):
        if width <= 0:
            mend = f"stream {stream} gets no sample of a global batch of {batch}: raise one or the other"
            raise ConfigError("proportion", proportion[stream], mend)
    return tuple(widths.tolist())


def _per_stream(settings: Settings, world: World, epoch: int, samples: tuple[int, ...]) -> Schedule:
    """Every batch comes from one stream; batches of streams are shuffled among each other."""
    lanes = tuple(_global_lane(settings, world, s, count, 0) for s, count in enumerate(samples))
    full = _need_full_units(lanes, "global batch")
    origin = _shuffled_origins(full, _epoch_rng(settings, epoch))
    return Schedule(lanes, origin.astype(np.int32)[:, None], _ordinals(origin)[:, None], (lanes[0].width,))


def _device_per_stream(settings: Settings, world: World, epoch: int, samples: tuple[int, ...]) -> Schedule:
    """Every rank's batch comes from one stream; each physical node mixes its own."""
    canonical, nodes, ranks = settings.num_canonical_nodes, world.nodes, world.ranks
    if canonical % nodes:
        mend = f"device_per_stream needs a multiple of the {nodes} physical nodes"
        raise ConfigError("num_canonical_nodes", canonical, mend)
    share = canonical // nodes
    parts = [Partition(count, canonical, canonical, world.ranks_per_node) for count in samples]
    layout = np.arange(settings.batch_size)
    lanes: list[Lane] = []
    origins: list[Ints] = []
    rng = _epoch_rng(settings, epoch)
    for node in range(nodes):
        rows = range(node * share, (node + 1) * share)
        mine = [Lane(s, part, settings.batch_size, layout, rows) for s, part in enumerate(parts)]
        full = _need_full_units(mine, "device batch")
        origins.append(_shuffled_origins(full, rng) + len(lanes))
        lanes.extend(mine)
    # Device batches of the nodes are interleaved and then dealt to the ranks in turn.
    last = max((len(origin) - 1) * nodes + node for node, origin in enumerate(origins))
    batches = last // ranks + 1
    lane = np.full(batches * ranks, -1, np.int32)
    unit = np.zeros(batches * ranks, np.int64)
    for node, origin in enumerate(origins):
        lane[node : len(origin) * nodes : nodes] = origin
        unit[node : len(origin) * nodes : nodes] = _ordinals(origin)
    widths = (settings.batch_size,) * ranks
    return Schedule(tuple(lanes), lane.reshape(batches, ranks), unit.reshape(batches, ranks), widths)


def _epoch_rng(settings: Settings, epoch: int) -> np.random.Generator:
    changes = settings.shuffle and settings.sampling_method == "balanced"
    return np.random.default_rng(settings.shuffle_seed + (epoch if changes else 0))


def _need_full_units(lanes: tuple[Lane, ...] | list[Lane], what: str) -> list[int]:
    full = [lane.full_units for lane in lanes]
    for lane, units in zip(lanes, full, strict=True):
        if not units:
            mend = f"stream {lane.group} does not fill one {what}: lower the batch or raise the stream's part"
            raise ConfigError("batching_method", lane.part.samples, mend)
    return full


def _shuffled_origins(units: list[int], rng: np.random.Generator) -> Ints:
    origin = np.repeat(np.arange(len(units)), units)
    rng.shuffle(origin)
    return origin


def _ordinals(origin: Ints) -> Ints:
    """Number the occurrences of each value: [2, 0, 2, 2, 0] gives [0, 0, 1, 2, 1]."""
    order = np.argsort(origin, kind="stable")
    counts = np.bincount(origin)
    ordinals = np.empty_like(origin)
    ordinals[order] = np.arange(len(origin)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ordinals
