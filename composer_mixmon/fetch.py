"""Gets index.json files to read, from wherever streaming reads them."""

# Streaming is typed only in part: what comes out of it is unknown to pyright.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import os
import tempfile
import urllib.parse
from pathlib import Path

from composer_mixmon.errors import DatasetError
from composer_mixmon.replay.index import INDEX_NAME, StreamIndex, parse_index, read_index
from composer_mixmon.train_yaml import StreamSource

__all__ = ["as_path", "fetch_index", "is_local"]

_TIMEOUT_S = 60.0


def fetch_index(source: StreamSource) -> StreamIndex:
    """Read a stream's index.json from its local folder or else from its remote; nothing is left behind.

    Raises:
        DatasetError: It is in neither place, the remote cannot be reached, or it is no index.json.
    """
    below = (source.split,) if source.split else ()
    places = [place for place in (source.local, source.remote) if place]
    folders = [os.path.join(as_path(place), *below) for place in places if is_local(place)]
    for folder in folders:
        if os.path.exists(os.path.join(folder, INDEX_NAME)):
            return read_index(folder)
    if source.remote is None or is_local(source.remote):
        raise DatasetError(
            f"no {INDEX_NAME} in {' or '.join(map(repr, folders))}: is the dataset written there, and is the "
            "split right?"
        )
    return _download(os.path.join(source.remote, *below, INDEX_NAME))


def _download(remote: str) -> StreamIndex:
    from streaming.base.storage import CloudDownloader  # brings torch and transformers: many seconds

    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / INDEX_NAME
        try:
            CloudDownloader.get(remote).download(remote, str(local), _TIMEOUT_S)
        except Exception as error:  # every kind of store has exceptions, and missing packages, of its own
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise DatasetError(f"{remote!r} cannot be fetched: {reason}") from error
        return parse_index(local.read_bytes(), remote)


def is_local(place: str) -> bool:
    """Whether a stream's place is a folder: a path, or ``file://`` and a path."""
    return urllib.parse.urlparse(place).scheme in ("", "file")


def as_path(place: str) -> str:
    """The path of a place that is a folder."""
    return urllib.parse.urlparse(place).path if place.startswith("file://") else place
