"""Finds the training dataset in the YAMLs that people train with.

ModernBERT's and llm-foundry's (``train_loader.dataset``), and any other in which a key ``…dataset`` holds
``local``, ``remote`` or ``streams``. Interpolations (``${data_local}``, ``${variables.split}``,
``${oc.env:DATA}``) are resolved where the dataset needs them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from composer_mixmon.config import plain
from composer_mixmon.errors import ConfigError
from composer_mixmon.replay.sampling import StreamWeight

__all__ = ["StreamSource", "TrainYaml", "read_train_yaml"]

_LARGEST = 1 << 20  # characters, and values with aliases written out
_PLACES = ("local", "remote", "streams")


@dataclass(frozen=True)
class StreamSource:
    """Where a stream lies and what it weighs; at least one of ``remote`` and ``local`` is set."""

    remote: str | None
    local: str | None
    split: str | None
    weight: StreamWeight


@dataclass(frozen=True)
class TrainYaml:
    """What a training YAML says about its data.

    Attributes:
        streams: The training dataset's streams.
        dataset: All settings of the dataset.
        mixmon: The arguments of MixMon, empty where the YAML has no such callback.
        loader: The plain values beside the dataset, such as ``num_workers``.
        run: The YAML's plain values at its top, such as ``global_train_batch_size``, and ``model.name``.
    """

    streams: tuple[StreamSource, ...]
    dataset: dict[str, Any]
    mixmon: dict[str, Any]
    loader: dict[str, Any]
    run: dict[str, Any]


def read_train_yaml(path: str) -> TrainYaml:
    """Read a training YAML.

    Raises:
        ConfigError: It cannot be read, has no dataset, or the dataset's place cannot be resolved.
    """
    root = _load(path)
    datasets = list(_datasets(root))
    if not datasets:
        mend = "has no dataset with local, remote or streams: write one under train_loader.dataset"
        raise ConfigError("TRAIN.yaml", path, mend)
    where = min(datasets, key=_preference)
    dataset = _resolved(root, where)
    callbacks = root.get("callbacks")
    has_mixmon = isinstance(callbacks, DictConfig) and callbacks.get("mixmon") is not None
    mixmon = _resolved(root, "callbacks.mixmon") if has_mixmon else {}
    parent, _, _ = where.rpartition(".")
    loader = OmegaConf.select(root, parent) if parent else root
    model = root.get("model") if not OmegaConf.is_missing(root, "model") else None
    names = {f"model.{k}": v for k, v in _scalars(model).items()} if isinstance(model, DictConfig) else {}
    return TrainYaml(
        tuple(_streams(where, dataset)), dataset, mixmon, _scalars(loader), _scalars(root) | names
    )


def _load(path: str) -> DictConfig:
    try:
        root = OmegaConf.load(io.StringIO(_text(path)))
    except OSError as error:
        raise ConfigError("TRAIN.yaml", path, f"cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, RecursionError) as error:
        reason = re.sub(r'in "<[\w ]+>", ', "at ", " ".join(str(error).split()))
        raise ConfigError("TRAIN.yaml", path, f"is no training YAML: {reason}") from error
    if not isinstance(root, DictConfig):
        raise ConfigError("TRAIN.yaml", path, "is no training YAML: it holds no mapping")
    return root


def _text(path: str) -> str:
    """A file's text, unless to read it as YAML would take more memory than any settings do."""
    with open(path, encoding="utf-8-sig") as file:
        text = file.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise ValueError("it is too large to be settings")
    compose: Callable[..., Any] = yaml.compose  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    tree = compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    # OmegaConf writes every alias out; before 2.4, without a limit.
    if _size(tree, {}) > _LARGEST:
        raise ValueError("its aliases stand for more than a million values")
    return text


def _size(node: Any, known: dict[int, int]) -> int:
    """How many values a YAML node holds with its aliases written out; those within themselves count once."""
    if id(node) not in known:
        known[id(node)] = 1
        inner: Any = [] if node is None or isinstance(node, yaml.ScalarNode) else node.value
        parts: Any = chain.from_iterable(inner) if isinstance(node, yaml.MappingNode) else inner
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]


def _datasets(node: DictConfig, where: str = "") -> Iterator[str]:
    """Dotted names of everything that looks like a dataset."""
    for key in map(str, filter(_is_text, node)):  # a dataset's key is text; others may be numbers
        if OmegaConf.is_missing(node, key) or OmegaConf.is_interpolation(node, key):
            continue
        child = node[key]
        if isinstance(child, DictConfig):
            name = f"{where}.{key}" if where else key
            if key.endswith("dataset") and any(place in child for place in _PLACES):
                yield name
            yield from _datasets(child, name)


def _is_text(key: object) -> bool:
    return isinstance(key, str)


def _preference(where: str) -> tuple[bool, bool, int]:
    """Rank training before anything else, evaluation last, and outer before inner ones."""
    return "train" not in where, "eval" in where, where.count(".")


def _resolved(root: DictConfig, where: str) -> dict[str, Any]:
    """A part of the YAML as plain values; what cannot be resolved and is not needed stays as text."""
    node = OmegaConf.select(root, where)
    if not isinstance(node, DictConfig):
        raise ConfigError(where, plain(node), "must be a mapping")
    values: dict[str, Any] = {}
    for key in map(str, filter(_is_text, node)):
        try:
            value = node[key]
            values[key] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        except OmegaConfBaseException as error:
            if key in _PLACES or key == "split" or where.startswith("callbacks"):
                reason = str(error).splitlines()[0]
                raise ConfigError(
                    f"{where}.{key}", _raw(node, key), f"cannot be resolved: {reason}"
                ) from error
            values[key] = _raw(node, key)
    return values


def _scalars(node: DictConfig) -> dict[str, Any]:
    """A mapping's plain values; what cannot be resolved is left out, for it may not be needed."""
    values: dict[str, Any] = {}
    for key in map(str, filter(_is_text, node)):
        with suppress(OmegaConfBaseException):
            if not OmegaConf.is_config(node[key]):
                values[key] = node[key]
    return values


def _raw(node: DictConfig, key: str) -> Any:
    return cast("dict[str, Any]", OmegaConf.to_container(node, resolve=False))[key]


def _streams(where: str, dataset: dict[str, Any]) -> Iterator[StreamSource]:
    streams = dataset.get("streams")
    if not streams:
        yield _stream(where, dataset, {})
        return
    named: list[tuple[str, Any]]
    if isinstance(streams, Mapping):
        named = [(f"{where}.streams.{k}", v) for k, v in cast("dict[str, Any]", streams).items()]
    elif isinstance(streams, Sequence) and not isinstance(streams, str):
        named = [(f"{where}.streams[{i}]", v) for i, v in enumerate(cast("list[Any]", streams))]
    else:
        raise ConfigError(f"{where}.streams", streams, "must be a mapping or a list of streams")
    for name, stream in named:
        if not isinstance(stream, dict):
            raise ConfigError(name, stream, "a stream is a mapping with remote or local")
        yield _stream(name, cast("dict[str, Any]", stream), dataset)


def _stream(field: str, stream: dict[str, Any], default: dict[str, Any]) -> StreamSource:
    """One stream; what it does not say itself, the dataset says for it (``Stream.apply_default``)."""
    places = {key: stream.get(key) or default.get(key) for key in ("split",)}
    for key in ("remote", "local"):
        places[key] = stream.get(key)
    for key, value in places.items():
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{field}.{key}", value, "must be text")
    if not places["remote"] and not places["local"]:
        raise ConfigError(field, stream, "a stream needs remote or local")
    weights = {key: stream.get(key) for key in ("proportion", "repeat", "choose")}
    for key, value in weights.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ConfigError(f"{field}.{key}", value, "must be a number")
    return StreamSource(places["remote"], places["local"], places["split"], StreamWeight(**weights))
