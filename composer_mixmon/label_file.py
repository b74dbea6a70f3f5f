"""Label files: which label each shard or sample has, written by hand or by ``mixmon labels build``.

A short file maps the shards' names to labels::

    shards: {ja/shard.00000.mds: ja, en/shard.00000.mds: en}

A complete file lists every shard in the dataset's order with its size, so that the file of another
dataset, or of an older version of this one, is refused. A shard of several labels has its samples of each
and, packed by :func:`shard_entry`, which sample has which::

    column: source
    shards:
      - [ja/shard.00000.mds, 256, ja]
      - [en/shard.00000.mds, 256, {en: 250, ja: 6}, "|u1:eNpj…"]

A file of ranges labels sample ids, counted from 0 over the shards in the dataset's order; ends are
exclusive::

    samples: [[0, 1000, ja], [1000, 1500, en]]

What a short file or ranges leave out counts as unlabelled. Each is YAML, or JSON where the name ends in
``.json``. In CSV (``.csv``), the first line says which it is: ``shard,label``, ``shard,samples,label`` or
``begin,end,label``.
"""

from __future__ import annotations

import csv
import json
import reprlib
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any, TextIO, TypeGuard, cast

import numpy as np
import numpy.typing as npt
import yaml

from composer_mixmon.config import label_name
from composer_mixmon.errors import ConfigError, DatasetError
from composer_mixmon.labels import UNLABELLED, LabelMap, with_unlabelled
from composer_mixmon.packing import pack_counts, unpack_counts
from composer_mixmon.shards import ShardTable

__all__ = ["label_by_file", "shard_entry"]

Ints = npt.NDArray[np.int64]

_FIELD = "labels.file"
_SHAPE = (
    "a label file is {shards: {name: label}}, {shards: [[name, samples, label], …]} or "
    "{samples: [[begin, end, label], …]}"
)
_DIFFERENCES_SHOWN = 3
_LEVEL = 6  # two labels at random take level 9 thirty times as long, for 5 % less


def label_by_file(
    shards: ShardTable, path: str, column: str | None = None, in_order: bool = True
) -> LabelMap:
    """Label each sample as a label file says.

    Args:
        shards: The dataset's shards.
        path: A JSON, YAML or CSV file.
        column: The column that the file must have been built from, if it says so. The samples' own values of
            it may be others, so that ``unlabelled`` is a label even where the file leaves out none.
        in_order: Whether it matters which sample of a shard has which label, or how many have it only: that
            takes little memory.

    Raises:
        ConfigError: The file cannot be read, has another shape or was built from another column.
        DatasetError: It describes another dataset.
    """
    content = _read(path)
    built_from = content.pop("column", None)
    if column is not None and built_from not in (None, column):
        mend = f"was built from the column {_brief(built_from)}, not from {column!r}"
        raise ConfigError(_FIELD, path, mend)
    kind, entries = content.popitem() if len(content) == 1 else ("", None)
    runs = _Runs(path)
    if kind == "shards" and _is_dict(entries) and entries:
        _short(shards, runs, entries)
    elif kind == "shards" and _is_list(entries) and entries:
        _complete(shards, runs, entries, in_order)
    elif kind == "samples" and _is_list(entries) and entries:
        _ranges(shards, runs, entries)
    else:
        raise ConfigError(_FIELD, path, _SHAPE)
    if column is not None:
        runs.name(UNLABELLED)
    return runs.label_map()


def shard_entry(name: str, labels: Sequence[str], order: Ints) -> list[Any]:
    """What a complete file says of one shard.

    Args:
        name: The shard's name.
        labels: Labels that its samples may have.
        order: Index into ``labels`` of each of its samples, int64 (samples,), at least one.

    Returns:
        ``[name, samples, label]``, or for several labels ``[name, samples, {label: count}, order]`` with the
        samples' indices into the keys, packed as text.
    """
    found, inside = np.unique(order, return_inverse=True)
    if len(found) == 1:
        return [name, len(order), labels[int(found[0])]]
    counts = np.bincount(inside).tolist()
    return [
        name,
        len(order),
        dict(zip((labels[i] for i in found.tolist()), counts, strict=True)),
        pack_counts(inside.reshape(-1, 1), _LEVEL),
    ]


class _Runs:
    """Labels of sample ids from 0 on, run after run."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._names: dict[str, int] = {}
        self._arrays: list[Ints] = []  # int64 (2, runs): lengths and labels
        self._single: list[tuple[int, int]] = []  # those not in an array yet

    def name(self, label: Any) -> int:
        """Number a label."""
        if not isinstance(label, str):
            raise ConfigError(_FIELD, self.path, f"has the label {_brief(label)}: a label is text; quote it")
        if label not in self._names:
            self._names[label_name(_FIELD, label)] = len(self._names)
        return self._names[label]

    def add(self, length: int, label: int) -> None:
        """Go on with a run of this length, perhaps 0, and label (−1: none)."""
        self._single.append((length, label))

    def add_all(self, lengths: npt.ArrayLike, labels: npt.ArrayLike) -> None:
        """Go on with many, of shape (runs,)."""
        if self._single:
            self._arrays.append(np.array(self._single, np.int64).T)
            self._single = []
        self._arrays.append(np.array([lengths, labels], np.int64))

    def label_map(self) -> LabelMap:
        """The labels of all sample ids."""
        self.add_all([], [])
        lengths, labels = np.concatenate(self._arrays, axis=1)
        filled = lengths > 0
        return with_unlabelled(tuple(self._names), np.cumsum(lengths[filled]), labels[filled])


def _short(shards: ShardTable, runs: _Runs, entries: dict[Any, Any]) -> None:
    known = set(shards.names)
    unknown = [name for name in entries if name not in known]
    if unknown:
        listed = ", ".join(map(_brief, unknown[:_DIFFERENCES_SHOWN]))
        raise DatasetError(
            f"{_FIELD}: {runs.path!r} is of another dataset: it names {len(unknown)} shards that this one "
            f"does not have ({listed}); this one's first is {shards.names[0]!r}"
        )
    label_of = {name: runs.name(label) for name, label in entries.items()}
    runs.add_all(shards.samples, [label_of.get(name, -1) for name in shards.names])


def _complete(shards: ShardTable, runs: _Runs, entries: list[Any], in_order: bool) -> None:
    for entry in entries:
        if not _is_list(entry) or len(entry) not in (3, 4):
            raise ConfigError(_FIELD, runs.path, f"has the entry {_brief(entry)}: {_SHAPE}")
    ours = zip(shards.names, shards.samples.tolist(), strict=True)
    differences = [
        f"shard {i} is {_shard(this)} here and {_shard(that)} in the file"
        for i, (this, that) in enumerate(zip_longest(ours, ((e[0], e[1]) for e in entries)))
        if this != that
    ]
    if differences:
        shown = "; ".join(differences[:_DIFFERENCES_SHOWN])
        raise DatasetError(
            f"{_FIELD}: {runs.path!r} is of another dataset, {len(differences)} shards differ: {shown}"
        )
    for entry in entries:
        if not entry[1]:
            runs.add(0, -1)  # its label is nobody's
        elif len(entry) == 3:
            runs.add(entry[1], runs.name(entry[2]))
        else:
            order = _mixed(runs, *entry)
            if not in_order:
                order = np.sort(order)
            first = np.flatnonzero(np.diff(order, prepend=-1))
            runs.add_all(np.diff(first, append=len(order)), order[first])


def _mixed(runs: _Runs, name: str, samples: int, counts: Any, packed: Any) -> Ints:
    """The label of each sample of a shard of several labels, int64 (samples,)."""
    order = _unpacked(counts, packed)
    if order is None or len(order) != samples:
        raise ConfigError(_FIELD, runs.path, f"has a damaged entry for the shard {name!r}: build it anew")
    return np.array([runs.name(label) for label in counts], np.int64)[order]


def _unpacked(counts: Any, packed: Any) -> Ints | None:
    """What :func:`shard_entry` packed, or ``None`` where it is not that."""
    try:
        order = unpack_counts(packed, 1)[:, 0]
        told: list[Any] = list(counts.values())
        held = np.bincount(order, minlength=len(told)).tolist() if order.max() < len(told) else None
    except (ValueError, TypeError, AttributeError):
        return None
    return order if held == told else None


def _ranges(shards: ShardTable, runs: _Runs, entries: list[Any]) -> None:
    total, at = shards.total, 0
    for entry in entries:
        if not _is_list(entry) or len(entry) != 3 or not all(map(_is_whole, entry[:2])):
            raise ConfigError(_FIELD, runs.path, f"has the entry {_brief(entry)}: {_SHAPE}")
    for begin, end, label in sorted(entries, key=lambda entry: entry[:2]):
        if not begin < end <= total:
            if end > total:
                raise DatasetError(
                    f"{_FIELD}: {runs.path!r} is of another dataset: it labels the samples {begin} to {end}, "
                    f"this one has {total}"
                )
            raise ConfigError(_FIELD, runs.path, f"has the range {begin} to {end}: the end is exclusive")
        if begin < at:
            raise ConfigError(_FIELD, runs.path, f"labels sample {begin} twice: make the ranges disjoint")
        runs.add(begin - at, -1)
        runs.add(end - begin, runs.name(label))
        at = end
    runs.add(total - at, -1)


def _read(path: str) -> dict[Any, Any]:
    """Read a file's content, whatever it holds."""
    suffix = path.rpartition(".")[2].lower()
    kind, read = _READERS.get(suffix, ("YAML", _read_yaml))
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            content = read(file)
    except OSError as error:
        raise ConfigError(_FIELD, path, f"cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, csv.Error, RecursionError, TypeError, ValueError) as error:
        where = " ".join(str(error).split())
        raise ConfigError(_FIELD, path, f"is not {kind} ({where:.200}): {_SHAPE}") from error
    return cast("dict[Any, Any]", content) if isinstance(content, dict) else {}


def _read_json(file: TextIO) -> Any:
    return json.load(file, object_pairs_hook=_unique)


_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):
    """Refuses a key that is there twice, of which YAML would take the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        return _unique(self.construct_pairs(node, deep))


def _read_yaml(file: TextIO) -> Any:
    return yaml.load(file, _Loader)


def _read_csv(file: TextIO) -> Any:
    rows = [row for row in csv.reader(file, strict=True) if row]
    head = tuple(cell.strip() for cell in rows[0]) if rows else ()
    if head == ("shard", "label"):
        return {"shards": _unique(rows[1:])}
    if head == ("shard", "samples", "label"):
        return {"shards": [[name, int(samples), label] for name, samples, label in rows[1:]]}
    if head == ("begin", "end", "label"):
        return {"samples": [[int(begin), int(end), label] for begin, end, label in rows[1:]]}
    raise ValueError("the first line must be shard,label or shard,samples,label or begin,end,label")


_READERS: dict[str, tuple[str, Callable[[TextIO], Any]]] = {
    "json": ("JSON", _read_json),
    "csv": ("CSV", _read_csv),
}


def _unique(pairs: Iterable[Any]) -> dict[Any, Any]:
    mapping: dict[Any, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise ValueError(f"{_brief(key)} is there twice")
        mapping[key] = value
    return mapping


def _is_dict(value: Any) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _shard(entry: tuple[Any, Any] | None) -> str:
    return "missing" if entry is None else f"{_brief(entry[0])} of {_brief(entry[1])} samples"


def _brief(value: object) -> str:
    """Quote what a file holds, which YAML's aliases may have blown up."""
    return _SHORTENED.repr(value)


_SHORTENED = reprlib.Repr()
_SHORTENED.maxstring = _SHORTENED.maxother = 100
_SHORTENED.maxlevel = 2
