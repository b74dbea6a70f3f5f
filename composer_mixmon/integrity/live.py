"""What a live run says of the passes over its data: the edge to torch and streaming."""

# Torch, Composer and streaming are typed only in part: what comes out of them is unknown to pyright.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from composer.core import State
from composer.utils import dist
from streaming import StreamingDataset
from streaming.base.world import World as LiveWorld
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from composer_mixmon.dataset import rank_batch_size, replication
from composer_mixmon.errors import MixmonError
from composer_mixmon.integrity.books import Books, Sampled
from composer_mixmon.integrity.config import IntegrityConfig
from composer_mixmon.integrity.course import Course, course_of, map_course
from composer_mixmon.integrity.plan import Plan, PlanCheck
from composer_mixmon.integrity.spots import Spots, allowed
from composer_mixmon.integrity.watch import Integrity, Pass
from composer_mixmon.replay import Settings, World

__all__ = ["spots_of", "watch_data"]

log = logging.getLogger("composer_mixmon")

# What decides which samples come when; a subclass may do so in its own way.
_DECIDE = ("__iter__", "_each_sample_id", "_get_work", "_resume", "_resume_incr_epoch", "resample_streams")
_RESOLVED_LATE = ("num_canonical_nodes", "shuffle_block_size", "shuffle_seed", "initial_physical_nodes")
_MOST_UNITS = 1 << 23  # parts of batches of an epoch, each of which the schedule of a replay holds
_NAIVE = 1 << 24  # samples up to which a shuffle that holds them all at once is computed


def spots_of(loader: Any) -> Spots:
    """The spots of a DataLoader's dataset."""
    dataset = loader.dataset
    return Spots(dataset.num_samples if isinstance(dataset, StreamingDataset) else len(dataset))


def watch_data(config: IntegrityConfig, loader: Any, state: State) -> Integrity:
    """Set up the checks of a DataLoader.

    Args:
        config: Which.
        loader: A DataLoader over a ``StreamingDataset`` or a map-style dataset.
        state: The run.
    """
    streamed = isinstance(loader.dataset, StreamingDataset)
    edge = _Streamed(config, loader) if streamed else _MapStyle(config, loader, state)
    copies = replication(loader)
    rank = dist.get_global_rank()
    return Integrity(
        Books(edge.dataset, edge.sampled if config.repeats else None, edge.shuffled),
        spots_of(loader),
        rank,
        dist.get_world_size(),
        rank % copies == 0,
        edge.begin,
        config.repeats and edge.judged,
        edge.remarks,
    )


class _Streamed:
    """A DataLoader over a StreamingDataset."""

    def __init__(self, config: IntegrityConfig, loader: Any) -> None:
        self._loader = loader
        self.remarks: list[str] = []
        self.judged = True
        dataset = loader.dataset
        sizes, remotes = dataset.samples_per_shard, [stream.remote for stream in dataset.streams]
        self.dataset = f"{_digest(repr((remotes, np.asarray(sizes).tolist()))):x}"
        self.shuffled = bool(dataset.shuffle)
        cls = type(dataset)
        own = [name for name in _DECIDE if getattr(cls, name) is not getattr(StreamingDataset, name)]
        why = ""
        if own:
            why = f"{cls.__qualname__} has its own {own[0]}, which decides the order"
        elif loader.batch_size != dataset.batch_size:
            sizes = f"{loader.batch_size}, is not the dataset's, {dataset.batch_size}"
            why = f"the DataLoader's batch_size, {sizes}"
        elif dataset.shuffle and dataset.shuffle_algo == "naive" and dataset.epoch_size > _NAIVE:
            why = f"the naive shuffle of {dataset.epoch_size} samples takes too much memory"
        elif self._units() > _MOST_UNITS:
            why = f"an epoch has more than {_MOST_UNITS} batches"
        self._known = not why
        self._said = False
        self._plan = config.plan and not why
        if why and config.plan:
            self.remarks.append(f"the samples are not compared with a plan: {why}")
        samples = np.asarray(dataset.samples_per_stream, np.int64)
        choose = np.array([stream.choose for stream in dataset.streams], np.int64)
        spots = spots_of(loader)
        low, high = allowed(spots, samples, choose)
        exclusive = bool((choose <= samples).all())
        self.sampled: Sampled | None = None
        if not own:
            self.sampled = Sampled(spots.stride, low, high, len(samples), exclusive)

    def begin(self) -> Pass:
        """Ask the dataset where it is; its first batch of the pass has come."""
        dataset, rank = self._loader.dataset, dist.get_global_rank()
        world = LiveWorld.detect()
        ours = World(world.num_nodes, world.ranks_per_node, self._loader.num_workers)
        before = {name: getattr(dataset, name) for name in _RESOLVED_LATE}
        try:
            where = dataset.state_dict(0, from_beginning=False)  # fills in what is resolved late
            epoch, first = int(where["epoch"]), int(where["sample_in_epoch"])
            if not self._known:
                return Pass(epoch, first, None, None, 0, 0)
            try:
                settings = Settings.of_dataset(dataset, ours, drop_last=self._loader.drop_last)
                plan = Plan(settings, ours, epoch, first)
            except MixmonError as error:
                self._say("the samples are not compared with a plan: %s", error)
                return Pass(epoch, first, None, None, 0, 0)
        finally:
            vars(dataset).update(before)
        check = PlanCheck(plan, rank) if self._plan else None
        if check and not plan.affordable:
            self._say("the plan is large: only the first batches of each epoch are compared with it")
        setup = _digest(repr((settings, epoch, first)))
        return Pass(epoch, first, course_of(plan, first), check, plan.global_batch, setup)

    def _say(self, text: str, *details: object) -> None:
        """Tell the user of the plan, on one rank and once in a run."""
        if not self._said and dist.get_global_rank() == 0:
            log.warning(f"mixmon: {text}", *details)
        self._said = True

    def _units(self) -> int:
        """Parts of batches of an epoch."""
        dataset = self._loader.dataset
        parts = dataset.num_streams if dataset.batching_method == "stratified" else 1
        if dataset.batching_method == "device_per_stream":
            return dataset.epoch_size // dataset.batch_size
        ranks = dist.get_world_size() // (dataset.replication or 1)
        return dataset.epoch_size // (dataset.batch_size * ranks) * parts


@dataclass(frozen=True)
class _Sampler:
    """What a sampler that draws each sample once before any comes again gives.

    Attributes:
        length: Samples to each rank.
        ranks: Among how many ranks the dataset is shared out.
        shuffled: Whether it shuffles.
    """

    length: int
    ranks: int
    shuffled: bool


class _MapStyle:
    """A DataLoader over a map-style dataset."""

    def __init__(self, config: IntegrityConfig, loader: Any, state: State) -> None:
        self._loader = loader
        self._state = state
        self.remarks: list[str] = []
        self.dataset = f"{type(loader.dataset).__qualname__} of {len(loader.dataset)}"
        self._sampler = _known_sampler(loader)
        self.shuffled = bool(self._sampler and self._sampler.shuffled)
        self.judged = getattr(state, "tp_config", None) is None
        self.sampled: Sampled | None = None
        known = self._sampler
        if known and self.judged:
            spots, samples = spots_of(loader), len(loader.dataset)
            drawn = known.length * known.ranks
            low, high = (np.full(len(spots), n) for n in (drawn // samples, -(-drawn // samples)))
            if known.ranks > 1:
                high = np.ones_like(high)  # what fills up the ranks is not counted
            self.sampled = Sampled(spots.stride, low, high, 1, bool(high.max() <= 1))
        elif config.repeats:
            why = "tensor parallelism shares them out" if known else "its sampler may repeat or leave out any"
            self.remarks.append(f"repeats and gaps of the dataset's samples are not judged: {why}")

    def begin(self) -> Pass:
        """Where Composer is: the DataLoader begins every epoch from its beginning."""
        epoch, known = int(self._state.timestamp.epoch), self._sampler
        batch = rank_batch_size(self._loader)
        ranks = dist.get_world_size()
        course: Course | None = None
        if known and ranks == known.ranks:
            samples, drop_last = len(self._loader.dataset), self._loader.drop_last
            course = map_course(samples, known.length, batch, ranks, drop_last)
        return Pass(epoch, 0, course, None, batch * ranks, 0)


def _known_sampler(loader: Any) -> _Sampler | None:
    sampler = loader.sampler
    if type(loader.batch_sampler) is not BatchSampler:
        return None
    if type(sampler) is DistributedSampler:
        return _Sampler(len(sampler), sampler.num_replicas, sampler.shuffle)
    if type(sampler) is SequentialSampler or (type(sampler) is RandomSampler and not sampler.replacement):
        return _Sampler(len(sampler), 1, type(sampler) is RandomSampler)
    return None


def _digest(text: str) -> int:
    """56 bits of a hash."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
