"""Writes ``.wandb`` files by wandb's own writer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2 as pb
from wandb.sdk.internal.datastore import DataStore


def write_records(path: Path, records: Sequence[Any]) -> Path:
    """Write a file anew."""
    path.parent.mkdir(parents=True, exist_ok=True)
    store = DataStore()
    store.open_for_write(str(path))
    for record in records:
        store.write(record)
    store.close()
    return path


def history(step: int, values: dict[str, Any]) -> Any:
    """A row, as wandb's own process writes it."""
    record = pb.Record()
    for key, value in {**values, "_step": step}.items():
        record.history.item.add(nested_key=[key], value_json=json.dumps(value))
    record.history.step.num = step
    return record


def config(values: dict[str, Any]) -> Any:
    """A part of the run's config."""
    record = pb.Record()
    for key, value in values.items():
        record.config.update.add(key=key, value_json=json.dumps(value))
    return record


def other(length: int) -> Any:
    """A record of so many bytes, or some more, that no run is made of."""
    return pb.Record(output_raw=pb.OutputRawRecord(line="x" * length))
