"""What a Composer checkpoint tells of the data: where it stood, and under which settings.

A checkpoint is a pickle, and Composer 0.32.1's cannot be loaded with ``weights_only=True``. It is read by
:mod:`composer_mixmon.sources.inert`, which runs nothing; weights are never read.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from composer_mixmon.errors import ConfigError
from composer_mixmon.packing import unpack_names
from composer_mixmon.sources.inert import NotPlainError, Opaque, read_pickle

__all__ = ["Checkpoint", "read_checkpoint"]

# Names and shapes of tensors take some hundred bytes each; books of ten thousand labels half a megabyte.
_LARGEST_PICKLE = 64 << 20
_WANTED = (
    "timestamp.",
    "dataset_state.",
    "metadata.",
    "callbacks.MixMon.mixture.run",
    "callbacks.MixMon.labels",
)


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stood when it was saved. −1, or ``None``, where the checkpoint does not tell.

    Attributes:
        path: The file or folder.
        batch: Batches trained on.
        epoch: Composer's epoch of the next batch.
        sample_in_epoch: Samples of that epoch that were trained on.
        order_epoch: The epoch that StreamingDataset goes on with; at an epoch's end this is the one that has
            ended, see :mod:`composer_mixmon.sources.legs`.
        first_sample: The samples of it that StreamingDataset leaves out.
        num_canonical_nodes: Of the dataset, which keeps it over resumptions, as the next two.
        shuffle_seed: Of the dataset.
        initial_physical_nodes: Nodes when the run began.
        world_size: Ranks that trained up to here.
        nodes: Their nodes.
        device_batch: Samples of a batch on each rank.
        labels: The labels' names in mixmon's books.
        run: Their counts up to the last interval that was added up.
    """

    path: str
    batch: int
    epoch: int = -1
    sample_in_epoch: int = -1
    order_epoch: int = -1
    first_sample: int = -1
    num_canonical_nodes: int | None = None
    shuffle_seed: int | None = None
    initial_physical_nodes: int | None = None
    world_size: int | None = None
    nodes: int | None = None
    device_batch: int | None = None
    labels: tuple[str, ...] = ()
    run: tuple[int, ...] = ()


def read_checkpoint(path: str) -> Checkpoint:
    """Read a checkpoint: a ``.pt`` file, or the folder of a sharded one.

    Raises:
        ConfigError: It is none of Composer's, or damaged.
    """
    try:
        state = _sharded(Path(path)) if os.path.isdir(path) else _whole(path)
        return _checkpoint(path, state)
    except OSError as error:
        raise ConfigError("--checkpoint", path, f"cannot be read: {error.strerror or error}") from error
    except (NotPlainError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        mend = (
            f"is no whole checkpoint of Composer's: {error}; give a .pt file or a sharded checkpoint's folder"
        )
        raise ConfigError("--checkpoint", path, mend) from error


def _whole(path: str) -> Mapping[str, Any]:
    with open(path, "rb") as file:
        saved = _torch_saved(file)
    return _mapping(_mapping(saved).get("state"))


def _sharded(folder: Path) -> dict[str, Any]:
    """Put the wanted part of the state together from a sharded checkpoint's entries."""
    metadata = read_pickle(_limited((folder / ".metadata").open("rb")))
    stored = _mapping(_mapping(getattr(metadata, "state", None)).get("storage_data"))
    state: dict[str, Any] = {}
    for index, info in cast("dict[Any, Any]", stored).items():
        name, place = _attributes(index).get("fqn"), _attributes(info)
        if isinstance(name, str) and name.startswith("state.") and name[6:].startswith(_WANTED):
            _put(state, name[6:].split("."), _entry(folder, place))
    return state


def _attributes(value: Any) -> Mapping[str, Any]:
    return _mapping(value.state) if isinstance(value, Opaque) else {}


def _put(state: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        state = state.setdefault(key, {})
    state[keys[-1]] = value


def _entry(folder: Path, place: Mapping[str, Any]) -> Any:
    name, offset, length = (place.get(key) for key in ("relative_path", "offset", "length"))
    if not isinstance(name, str) or not isinstance(offset, int) or not isinstance(length, int):
        raise NotPlainError("its .metadata does not say where the state lies")
    if os.path.basename(name) != name or offset < 0 or not 0 <= length <= _LARGEST_PICKLE:
        raise NotPlainError("its .metadata points outside of the folder")
    with (folder / name).open("rb") as file:
        file.seek(offset)
        return _torch_saved(io.BytesIO(file.read(length)))


def _torch_saved(file: IO[bytes]) -> Any:
    """The plain values of what ``torch.save`` wrote: a zip archive that holds ``data.pkl`` uncompressed."""
    with zipfile.ZipFile(file) as archive:
        pickles = [item for item in archive.infolist() if item.filename.split("/")[1:] == ["data.pkl"]]
        if len(pickles) != 1:
            raise NotPlainError("is a zip archive without a data.pkl")
        if pickles[0].compress_type != zipfile.ZIP_STORED:
            raise NotPlainError("its data.pkl is compressed, which torch.save never does")
        with archive.open(pickles[0]) as content:
            return read_pickle(_limited(content))


def _limited(file: IO[bytes]) -> bytes:
    with file:
        data = file.read(_LARGEST_PICKLE + 1)
    if len(data) > _LARGEST_PICKLE:
        raise NotPlainError(f"its pickle is larger than {_LARGEST_PICKLE >> 20} MiB")
    return data


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _whole_number(values: Mapping[str, Any], key: str) -> int | None:
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _known(values: Mapping[str, Any], key: str) -> int:
    value = _whole_number(values, key)
    return -1 if value is None else value


def _checkpoint(path: str, state: Mapping[str, Any]) -> Checkpoint:
    time = _mapping(_mapping(state.get("timestamp")).get("Timestamp"))
    batch = _whole_number(time, "batch")
    if batch is None:
        raise NotPlainError("it holds no timestamp")
    train = _mapping(_mapping(state.get("dataset_state")).get("train"))
    metadata = _mapping(state.get("metadata"))
    books = _mapping(_mapping(state.get("callbacks")).get("MixMon"))
    labels, run = _labels(books), _counts(books)
    return Checkpoint(
        path=path,
        batch=batch,
        epoch=_known(time, "epoch"),
        sample_in_epoch=_known(time, "sample_in_epoch"),
        order_epoch=_known(train, "epoch"),
        first_sample=_known(train, "sample_in_epoch"),
        num_canonical_nodes=_whole_number(train, "num_canonical_nodes"),
        shuffle_seed=_whole_number(train, "shuffle_seed"),
        initial_physical_nodes=_whole_number(train, "initial_physical_nodes"),
        world_size=_whole_number(metadata, "world_size"),
        nodes=_whole_number(_mapping(metadata.get("composer_env_info")), "num_nodes"),
        device_batch=_whole_number(metadata, "train_dataloader_batch_size"),
        labels=labels if len(labels) == len(run) else (),
        run=run if len(labels) == len(run) else (),
    )


def _labels(books: Mapping[str, Any]) -> tuple[str, ...]:
    with suppress(ValueError, TypeError):
        return unpack_names(books.get("labels", ""))
    return ()


def _counts(books: Mapping[str, Any]) -> tuple[int, ...]:
    run = _mapping(books.get("mixture")).get("run")
    counts = cast("list[Any]", run) if isinstance(run, list) else []
    return tuple(counts) if all(type(count) is int for count in counts) else ()
