"""Everything that determines StreamingDataset's order, as one plain record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from typing import Any, cast

import numpy as np

from composer_mixmon.errors import ConfigError, DatasetError
from composer_mixmon.replay.sampling import Ints, StreamWeight, apply_weights, parse_epoch_size
from composer_mixmon.replay.world import World, check_whole

__all__ = [
    "BATCHING_METHODS",
    "PARTITION_ALGOS",
    "SHUFFLE_ALGOS",
    "Settings",
    "default_block_size",
    "default_canonical_nodes",
]

SHUFFLE_ALGOS = ("py1e", "py1br", "py1s", "py2s", "naive")
BATCHING_METHODS = ("random", "stratified", "per_stream", "device_per_stream")
PARTITION_ALGOS = ("orig", "relaxed")

_FORMAT = 1
_CHOICES = {
    "sampling_method": ("balanced", "fixed"),
    "partition_algo": PARTITION_ALGOS,
    "shuffle_algo": SHUFFLE_ALGOS,
    "batching_method": BATCHING_METHODS,
}
_AT_LEAST = {
    "sampling_granularity": 1,
    "num_canonical_nodes": 1,
    "shuffle_seed": 0,
    "shuffle_block_size": 1,
    "batch_size": 1,
    "replication": 1,
    "initial_physical_nodes": 1,
}


def default_canonical_nodes(shuffle_algo: str, nodes: int) -> int:
    """Canonical nodes where none are given (``StreamingDataset._resume``): 64 a node for py1s and py2s."""
    return 64 * nodes if shuffle_algo in ("py1s", "py2s") else nodes


def default_block_size(num_canonical_nodes: int) -> int:
    """Shuffle block where none is given (``StreamingDataset._set_shuffle_block_size``)."""
    return max(4_000_000 // num_canonical_nodes, 1 << 18)


@dataclass(frozen=True)
class Settings:
    """The effective settings of a StreamingDataset: with a :class:`World` and an epoch, its order.

    Attributes:
        samples_per_shard: Underlying samples of each shard, stream after stream.
        shards_per_stream: How many of the shards belong to each stream.
        choose: Samples of each stream in an epoch.
        proportion: Each stream's share after normalising, as ``Stream.proportion`` holds it.
        batch_size: Samples of one rank's batch.
        num_canonical_nodes: Parts of the dataset that are shuffled apart.
        shuffle_block_size: Samples that are shuffled together.
        initial_physical_nodes: Nodes when training began; None before anything was resumed.
        drop_last: The DataLoader's: whether the last batch is left out where a rank's part is short.

    Raises:
        ConfigError: A value that StreamingDataset would refuse.
        DatasetError: Shards that do not fit the streams, or a stream without samples.
    """

    samples_per_shard: tuple[int, ...]
    shards_per_stream: tuple[int, ...]
    choose: tuple[int, ...]
    proportion: tuple[float, ...]
    batch_size: int
    num_canonical_nodes: int
    shuffle_block_size: int
    shuffle: bool = False
    shuffle_algo: str = "py1e"
    shuffle_seed: int = 9176
    sampling_method: str = "balanced"
    sampling_granularity: int = 1
    partition_algo: str = "relaxed"
    batching_method: str = "random"
    replication: int | None = None
    initial_physical_nodes: int | None = None
    drop_last: bool = False

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(name, getattr(self, name), f"choose one of {', '.join(allowed)}")
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is not None or name not in ("replication", "initial_physical_nodes"):
                check_whole(name, value, least)
        for name in ("shuffle", "drop_last"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(name, getattr(self, name), "write true or false")
        self._check_streams()

    def _check_streams(self) -> None:
        if len(self.choose) != self.streams or len(self.proportion) != self.streams or not self.streams:
            raise ConfigError("choose", self.choose, f"give one number for each of {self.streams} streams")
        if min(self.choose) < 0 or not any(self.choose):
            raise ConfigError("choose", self.choose, "no stream may be negative, and one must give samples")
        if sum(self.shards_per_stream) != len(self.samples_per_shard):
            raise DatasetError(
                f"{len(self.samples_per_shard)} shards do not fit streams of {list(self.shards_per_stream)}"
            )
        if any(size < 0 for size in self.samples_per_shard):
            raise DatasetError("a shard has a negative number of samples: its index.json is broken")
        empty = [i for i, size in enumerate(self.samples_per_stream) if not size]
        if empty:
            raise DatasetError(f"stream {empty[0]} has no samples: check its index.json")

    @property
    def streams(self) -> int:
        """Number of streams."""
        return len(self.shards_per_stream)

    @property
    def stream_shards(self) -> tuple[slice, ...]:
        """The shards of each stream."""
        ends = list(accumulate(self.shards_per_stream))
        return tuple(slice(e - n, e) for e, n in zip(ends, self.shards_per_stream, strict=True))

    @property
    def samples_per_stream(self) -> tuple[int, ...]:
        """Underlying samples of each stream."""
        return tuple(sum(self.samples_per_shard[part]) for part in self.stream_shards)

    @property
    def epoch_size(self) -> int:
        """Samples in an epoch, before any padding."""
        return sum(self.choose)

    @classmethod
    def resolve(
        cls,
        world: World,
        shards: Sequence[Iterable[int]],
        weights: Sequence[StreamWeight] | None = None,
        *,
        batch_size: int,
        epoch_size: int | str | None = None,
        num_canonical_nodes: int | None = None,
        shuffle_block_size: int | None = None,
        shuffle_algo: str = "py1e",
        shuffle_seed: int = 9176,
        replication: int | None = None,
        **others: Any,
    ) -> Settings:
        """Fill in what StreamingDataset fills in for what a YAML leaves out.

        Args:
            world: The initial run's processes, before replication.
            shards: For each stream, the samples of each of its shards.
            weights: For each stream; None where no stream has any.
            batch_size: A rank's.
            epoch_size: As in the YAML.
            num_canonical_nodes: None or 0: from the shuffle algorithm and the nodes.
            shuffle_block_size: None: from the canonical nodes.
            shuffle_algo: See the class.
            shuffle_seed: See the class.
            replication: See the class.
            **others: Further fields of the class.

        Raises:
            ConfigError: A setting is wrong or unknown.
            DatasetError: A stream without samples.
        """
        unknown = others.keys() - {field.name for field in fields(cls)}
        if unknown:
            raise ConfigError(sorted(unknown)[0], others[sorted(unknown)[0]], "no such setting")
        check_whole("shuffle_seed", shuffle_seed, 0)
        if replication is not None:
            check_whole("replication", replication, 1)
        per_stream = [tuple(int(size) for size in stream) for stream in shards]
        totals = np.array([sum(stream) for stream in per_stream], np.int64)
        weights = [StreamWeight()] * len(per_stream) if weights is None else weights
        weighted = apply_weights(weights, totals, parse_epoch_size(epoch_size), shuffle_seed)
        nodes = world.replicate(replication).nodes
        canonical = num_canonical_nodes or default_canonical_nodes(shuffle_algo, nodes)
        check_whole("num_canonical_nodes", canonical, 1)
        block = default_block_size(canonical) if shuffle_block_size is None else shuffle_block_size
        return cls(
            samples_per_shard=tuple(size for stream in per_stream for size in stream),
            shards_per_stream=tuple(map(len, per_stream)),
            choose=tuple(weighted.choose.tolist()),
            proportion=tuple(weighted.proportion.tolist()),
            batch_size=batch_size,
            num_canonical_nodes=canonical,
            shuffle_block_size=block,
            shuffle_algo=shuffle_algo,
            shuffle_seed=shuffle_seed,
            replication=replication,
            **others,
        )

    @classmethod
    def of_dataset(cls, dataset: Any, world: World, *, drop_last: bool = False) -> Settings:
        """Read the effective settings off a StreamingDataset, without importing streaming.

        Args:
            dataset: A ``StreamingDataset``; what it has not resolved yet is resolved for ``world``.
            world: The run's processes, before replication.
            drop_last: The DataLoader's.
        """
        nodes = world.replicate(dataset.replication).nodes
        canonical = dataset.num_canonical_nodes or default_canonical_nodes(dataset.shuffle_algo, nodes)
        block = dataset.shuffle_block_size
        plain = (
            "batch_size shuffle shuffle_algo shuffle_seed sampling_method sampling_granularity "
            "partition_algo batching_method replication initial_physical_nodes"
        )
        return cls(
            samples_per_shard=tuple(np.asarray(dataset.samples_per_shard).tolist()),
            shards_per_stream=tuple(np.asarray(dataset.shards_per_stream).tolist()),
            choose=tuple(int(stream.choose) for stream in dataset.streams),
            proportion=tuple(float(stream.proportion) for stream in dataset.streams),
            num_canonical_nodes=canonical,
            shuffle_block_size=default_block_size(canonical) if block is None else block,
            drop_last=drop_last,
            **{name: getattr(dataset, name) for name in plain.split()},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain ints, floats, strings and lists, with the format's version."""
        record: dict[str, Any] = {"format": _FORMAT}
        for name, value in asdict(self).items():
            record[name] = list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Settings:
        """Read what :meth:`to_dict` wrote.

        Raises:
            ConfigError: Another format, or a key that is missing or unknown.
        """
        known = {field.name for field in fields(cls)}
        if record.get("format") != _FORMAT:
            raise ConfigError("settings.format", record.get("format"), f"this version reads {_FORMAT}")
        given = {name: value for name, value in record.items() if name != "format"}
        for name in sorted(given.keys() ^ known):
            problem = "no such setting" if name in given else "missing: write every setting"
            raise ConfigError(f"settings.{name}", given.get(name), problem)
        for name in ("samples_per_shard", "shards_per_stream", "choose", "proportion"):
            if not isinstance(given[name], (list, tuple)):
                raise ConfigError(f"settings.{name}", given[name], "write a list of numbers")
            given[name] = tuple(given[name])
        return cls(**given)

    def shard_sizes(self) -> Ints:
        """Underlying samples of each shard: int64 (shards,)."""
        return np.array(self.samples_per_shard, np.int64)
