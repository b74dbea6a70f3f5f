"""A run's scalars as TensorBoard's event files hold them. tensorboard is imported here alone."""

# tensorboard has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingImports=false, reportMissingTypeStubs=false
from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from composer_mixmon.errors import ConfigError, MixmonError
from composer_mixmon.sources.logged import LOSS, TIME, Logged, Part, is_wanted

__all__ = ["find_event_files", "read_event_files"]

_FILE = "*.tfevents.*"
_FLOAT32 = 2.0**-24


def find_event_files(run: Path) -> list[Path]:
    """Find the event files of a run, in the order in which they were begun.

    Raises:
        ConfigError: They lie in several folders, which TensorBoard takes for several runs.
    """
    if run.is_file():
        return [run]
    found = sorted(run.rglob(_FILE), key=lambda path: path.name)  # the name holds the time
    folders = sorted({str(path.parent) for path in found})
    if len(folders) > 1:
        raise ConfigError(
            "RUN", str(run), f"holds {len(folders)} runs of TensorBoard: give one, of {folders[:5]}"
        )
    return found


def read_event_files(paths: Sequence[Path], loss: str | None = None) -> Logged:
    """Read a run's scalars.

    Args:
        paths: The run's files, in the order in which they were begun.
        loss: The loss's tag; ``None``: ``loss/train/total``.

    Raises:
        MixmonError: tensorboard is not installed, or no file has the loss.
    """
    parts: list[Part] = []
    tags: set[str] = set()
    for path in paths:
        part = Part()
        for event in _events(path):
            for value in event.summary.value:
                tags.add(value.tag)
                _put(part, event, value, loss or LOSS)
        parts.append(part)
    if not any(LOSS in part.keys for part in parts):
        listed = ", ".join(sorted(tags)[:12]) or "none"
        mend = f"has no scalar {loss or LOSS}; its tags are {listed}: name the loss with --loss"
        raise ConfigError("RUN", str(paths[0].parent), mend)
    return Logged.join("TensorBoard", parts, precision=_FLOAT32)


def _put(part: Part, event: Any, value: Any, loss: str) -> None:
    is_loss = value.tag == loss
    if not is_loss and not is_wanted(value.tag):
        return
    scalar = _scalar(value)
    if scalar is not None:
        part.put(LOSS if is_loss else value.tag, event.step, scalar)
        if is_loss:
            part.put(TIME, event.step, event.wall_time)


def _scalar(value: Any) -> float | None:
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor"):
        return None
    from tensorboard.util.tensor_util import make_ndarray

    tensor = make_ndarray(value.tensor)
    return float(tensor.item()) if tensor.size == 1 and tensor.dtype.kind in "fiu" else None


def _events(path: Path) -> Iterator[Any]:
    """The events of a file, up to where it is torn."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    except ImportError as error:
        raise MixmonError(
            "TensorBoard's files are read with tensorboard: run pip install tensorboard"
        ) from error
    from google.protobuf.message import DecodeError

    try:
        yield from LegacyEventFileLoader(str(path)).Load()
    except DecodeError as error:
        raise ConfigError("RUN", str(path), "is damaged: it is no event file of TensorBoard") from error
    except OSError as error:
        raise ConfigError("RUN", str(path), f"cannot be read: {error.strerror or error}") from error
