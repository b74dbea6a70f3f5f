"""How the files of a ledger are named and found.

::

    FOLDER/                            {save_folder}/mixmon, or what `ledger:` names
      <run name>-<8 digits>/           one run, with all of its segments
        segment-<ms>.jsonl             written by rank 0; milliseconds since 1970
        ids-<ms>-rank<r>.jsonl         with rank_ids: the sample ids of a rank in that segment
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from composer_mixmon.errors import ConfigError

__all__ = ["FOLDER", "ids_name", "name_run", "run_folder", "safe_name", "segment_name", "segment_paths"]

FOLDER = "mixmon"
"""The ledgers' folder in a run's ``save_folder``."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_SEGMENT = re.compile(r"segment-(\d{1,20})\.jsonl")
_LONGEST_NAME = 100


def safe_name(name: str) -> str:
    """A name that stays in its folder: letters, digits, ``.``, ``_`` and ``-``, no dot in front."""
    return _UNSAFE.sub("_", name)[:_LONGEST_NAME].lstrip(".") or "run"


def name_run(run_name: str) -> str:
    """A name for a new run that no other run has, whatever Composer calls both."""
    return f"{safe_name(run_name)}-{secrets.token_hex(4)}"


def segment_name(milliseconds: int) -> str:
    """Name of the file of a segment that begins now."""
    return f"segment-{milliseconds}.jsonl"


def ids_name(segment: str, rank: int | str) -> str:
    """Name of the file with a rank's sample ids.

    Args:
        segment: Name of the segment's file.
        rank: The rank, or a glob.
    """
    return f"ids-{segment.removeprefix('segment-').removesuffix('.jsonl')}-rank{rank}.jsonl"


def segment_paths(run: str) -> tuple[Path, ...]:
    """The segments of a run, in the order of their names.

    Args:
        run: A segment, the folder of a run, the folder of the ledgers, or the ``save_folder`` around it.

    Raises:
        ConfigError: There are none, or those of several runs.
    """
    try:
        if Path(run).is_file():
            return (Path(run),)
        return _segments(run_folder(run))
    except (OSError, ValueError) as error:  # no access, or a NUL in the path
        if isinstance(error, ConfigError):
            raise
        raise ConfigError("RUN", run, f"cannot be read: {error}") from error


def run_folder(run: str) -> Path:
    """The folder of the one run that a path means.

    Raises:
        ConfigError: There is none, or several.
    """
    given = Path(run)
    if not given.is_dir():
        mend = "there is no such folder" + (": copy it here first" if "://" in run else "")
        raise ConfigError("RUN", run, mend)
    for folder in (given, given / FOLDER):
        if _segments(folder):
            return folder
        runs = [inner for inner in _folders(folder) if _segments(inner)]
        if len(runs) == 1:
            return runs[0]
        if runs:
            names = ", ".join(inner.name for inner in runs[-5:])
            mend = f"holds the ledgers of {len(runs)} runs: name one of its folders, such as {names}"
            raise ConfigError("RUN", run, mend)
    raise ConfigError("RUN", run, "holds no ledger: give its folder, such as {save_folder}/mixmon")


def _folders(folder: Path) -> list[Path]:
    return sorted(inner for inner in folder.iterdir() if inner.is_dir()) if folder.is_dir() else []


def _segments(folder: Path) -> tuple[Path, ...]:
    found = folder.iterdir() if folder.is_dir() else ()
    return tuple(sorted(path for path in found if _SEGMENT.fullmatch(path.name) and path.is_file()))
