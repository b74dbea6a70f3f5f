"""What a run's config says under ``mixmon``: the settings of the order, the processes and the targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np

from composer_mixmon.audit.times import first_batch, read_duration
from composer_mixmon.config import is_label
from composer_mixmon.errors import ConfigError, MixmonError
from composer_mixmon.logged_labels import LoggedLabels, choose_labels
from composer_mixmon.replay import Settings, StreamIndex, StreamWeight, World
from composer_mixmon.run_record import Target
from composer_mixmon.train_yaml import StreamSource

__all__ = [
    "check_indices",
    "differences",
    "global_batch",
    "logged_labels",
    "logged_world",
    "order_settings",
    "read_targets",
    "replicas",
    "stream_sources",
]

_ORDER = (
    "batch_size",
    "num_canonical_nodes",
    "shuffle_block_size",
    "shuffle",
    "shuffle_algo",
    "shuffle_seed",
    "sampling_method",
    "sampling_granularity",
    "partition_algo",
    "batching_method",
    "replication",
    "initial_physical_nodes",
)
# A resumed dataset has taken this one from its checkpoint, and a YAML cannot say it.
_NOT_IN_YAML = ("initial_physical_nodes",)


def _part(settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = settings.get(key)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _streams(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", _part(settings, "dataset").get("streams") or [])


def logged_world(settings: Mapping[str, Any]) -> World | None:
    """The processes that a run's config tells of, or ``None``."""
    world, loader = _part(settings, "world"), _part(settings, "loader")
    if not world:
        return None
    return World(world["nodes"], world["ranks_per_node"], loader.get("num_workers") or 0)


def replicas(settings: Mapping[str, Any]) -> int:
    """How many ranks get the same samples."""
    return _part(settings, "dataset").get("replication") or 1


def global_batch(settings: Mapping[str, Any]) -> int | None:
    """Samples of a global batch, replicated ones counted once, or ``None``."""
    world = logged_world(settings)
    size = _part(settings, "dataset").get("batch_size") or _part(settings, "loader").get("batch_size")
    return size * world.ranks // replicas(settings) if world and isinstance(size, int) else None


def logged_labels(settings: Mapping[str, Any]) -> LoggedLabels | None:
    """What mixmon logged one by one, or ``None`` where the run's config does not tell."""
    value = settings.get("labels")
    told = cast("list[str]", value) if isinstance(value, list) else []
    if not told or not all(map(is_label, told)):
        return None
    target = np.zeros(len(told))
    with suppress(TypeError, ValueError, LookupError):
        target[:] = settings["target"][0]["shares"]
    return choose_labels(tuple(told), target)


def read_targets(
    settings: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[tuple[Target, ...], tuple[str, ...]]:
    """The targets that a run's config tells of, and remarks on those that cannot be placed in the run.

    Args:
        settings: What it says under ``mixmon``.
        config: All of it; ``max_duration`` places a phase that begins at a part of the run (``0.9dur``).
    """
    targets: list[Target] = []
    remarks: list[str] = []
    for phase in cast("list[dict[str, Any]]", settings.get("target") or []):
        first = _first_batch(phase["from"], settings, config)
        if first is None:
            remarks.append(f"the target from {phase['from']} on is left out: max_duration is not known")
        else:
            targets.append(Target(first, np.array(phase["shares"], np.float64)))
    return tuple(targets), tuple(remarks)


def _first_batch(start: str, settings: Mapping[str, Any], config: Mapping[str, Any]) -> int | None:
    begin, whole = read_duration(start), None
    with suppress(MixmonError):  # what a user's config says there may be anything
        whole = read_duration(config.get("max_duration"))
    time = begin.of(whole) if begin else None
    if time is None:
        return None
    batch = global_batch(settings)
    if time.unit == "ba":
        return first_batch(time, 0, 0)
    samples = _part(settings, "dataset").get("epoch_size")
    if batch is None or not samples:
        return None
    short = 0 if _part(settings, "loader").get("drop_last") else batch - 1
    return first_batch(time, (samples + short) // batch, batch)


def stream_sources(settings: Mapping[str, Any]) -> list[StreamSource]:
    """Where a run's config says that its streams lie."""
    return [
        StreamSource(stream.get("remote"), stream.get("local"), stream.get("split"), StreamWeight())
        for stream in _streams(settings)
    ]


def order_settings(settings: Mapping[str, Any], indices: Sequence[StreamIndex]) -> Settings:
    """The settings of the order, as a run's config tells them.

    Args:
        settings: What it says under ``mixmon``.
        indices: Each stream's index.json.

    Raises:
        ConfigError: A setting is missing or wrong.
        DatasetError: The index files do not fit.
    """
    dataset, streams = _part(settings, "dataset"), _streams(settings)
    missing = [name for name in _ORDER if name not in dataset]
    if missing or not streams:
        mend = "is not in the run's config, so the order cannot be computed again: give --config TRAIN.yaml"
        raise ConfigError(f"mixmon.dataset.{(missing or ['streams'])[0]}", None, mend)
    return Settings(
        samples_per_shard=tuple(samples for index in indices for samples in index.samples),
        shards_per_stream=tuple(len(index.samples) for index in indices),
        choose=tuple(stream["choose"] for stream in streams),
        proportion=tuple(stream["proportion"] for stream in streams),
        drop_last=bool(_part(settings, "loader").get("drop_last")),
        **{name: dataset[name] for name in _ORDER},
    )


def check_indices(settings: Mapping[str, Any], indices: Sequence[StreamIndex], where: str) -> None:
    """Check that index files are those that the run read.

    Args:
        settings: What its config says under ``mixmon``.
        indices: The index files.
        where: Where these come from, in words.

    Raises:
        ConfigError: One is another.
    """
    streams = _streams(settings)
    if len(streams) != len(indices):
        mend = f"{where} has {len(indices)} streams: give the YAML that the run was started with"
        raise ConfigError("dataset.streams", f"{len(streams)} logged", mend)
    for stream, index in zip(streams, indices, strict=True):
        logged = stream.get("index_sha256")
        if logged is not None and logged != index.sha256:
            mend = f"{where} leads to {index.sha256[:16]}…: give the index.json that the run read"
            raise ConfigError(f"index_sha256 of {stream.get('name')}", f"{logged[:16]}…", mend)


def differences(logged: Settings, other: Settings) -> str:
    """Say which settings differ, as ``field: logged → other``; empty if none does."""
    return "; ".join(_differences(logged, other))


def _differences(logged: Settings, other: Settings) -> Iterator[str]:
    names = [name for name in _ORDER if name not in _NOT_IN_YAML]
    for name in (*names, "drop_last", "choose", "proportion"):
        ours, theirs = getattr(logged, name), getattr(other, name)
        same = np.allclose(ours, theirs, rtol=1e-12, atol=0) if name == "proportion" else ours == theirs
        if not same and not (name == "replication" and {ours, theirs} <= {None, 1}):
            yield f"{name}: {ours} → {theirs}"
