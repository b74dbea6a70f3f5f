"""What a column's value counts as, and which columns hold labels."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from composer_mixmon.columns import MISSING, ColumnLabels, find_column, label_of, value_in
from composer_mixmon.config import Column, Phase, parse_labels
from composer_mixmon.errors import ConfigError, DatasetError
from composer_mixmon.resolve import labels_in_targets, resolve_labels
from composer_mixmon.shards import ShardTable

MDS = {"column_names": ["n", "raw", "source"], "column_encodings": ["int64", "bytes", "str"]}


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("ja", "ja"),
        ("日本語 ", "日本語 "),
        (np.str_("ja"), "ja"),
        (3, "3"),
        (np.uint8(3), "3"),
        (torch.tensor(3), "3"),
        (-1, "-1"),
        (True, "True"),
        (np.bool_(False), "False"),
        ("", None),
        ("a\nb", None),
        ("\x1b[2J", None),
        ("x" * 200, "x" * 200),
        ("x" * 201, None),
        (3.0, None),
        (b"ja", None),
        (None, None),
        (["ja"], None),
        (np.arange(2), None),
        (MISSING, None),
    ],
)
def test_labels_of_values(value: Any, label: str | None) -> None:
    """Text and whole numbers are labels; what cannot be printed, or is anything else, is none."""
    assert label_of(value) == label


def test_a_number_of_thousands_of_digits() -> None:
    """Python refuses to write it out."""
    assert label_of(10**4999) is None


def test_values_to_indices() -> None:
    """Values that are none of the names count as unlabelled, which is always there, once."""
    labels = ColumnLabels("source", ["ja", "3"], 10, everywhere=True)
    assert labels.names == ("ja", "3", "unlabelled")
    assert labels(["ja", 3, np.int64(3), "en", MISSING, None, "unlabelled"]).tolist() == [0, 1, 1, 2, 2, 2, 2]
    assert ColumnLabels("source", ["unlabelled", "ja"], 10, True).names == ("unlabelled", "ja")


def test_no_sample_with_the_column() -> None:
    """Refused where every sample is to have it; a stream without it is unlabelled."""
    with pytest.raises(DatasetError, match=re.escape("no sample of a batch has a column 'source'")):
        ColumnLabels("source", ["ja"], 10, everywhere=True)([MISSING, MISSING])
    assert ColumnLabels("source", ["ja"], 10, everywhere=False)([MISSING, MISSING]).tolist() == [1, 1]


def test_value_in() -> None:
    """Whatever a sample is, looking for the column raises nothing."""
    assert value_in({"source": "ja"}, "source") == "ja"
    for sample in ({}, (1, 2), torch.zeros(3), None, 3, "text"):
        assert value_in(sample, "source") is MISSING


def test_find_column() -> None:
    """The encoding in each shard, of whichever format."""
    json = {"columns": {"source": "str"}}
    bare = {"column_names": ["n"], "column_encodings": ["int64"]}
    assert find_column("source", [MDS, json, bare]) == ["str", "str", None]
    assert find_column("n", [MDS, bare]) == ["int64", "int64"]


@pytest.mark.parametrize("encoding", ["pkl", "bytes", "ndarray:int64", "float32", "jpeg", "pkl:x"])
def test_columns_that_hold_no_labels(encoding: str) -> None:
    """Pickles, bytes, arrays and floats are refused before any of them is read."""
    with pytest.raises(ConfigError, match=re.escape(f"the column is encoded as {encoding}")):
        find_column("source", [MDS, {"column_names": ["source"], "column_encodings": [encoding]}])


def test_no_such_column() -> None:
    """The columns that there are are named."""
    with pytest.raises(ConfigError, match="no such column: it has n, raw, source"):
        find_column("lang", [MDS])


def test_settings() -> None:
    """A column, with or without the label file that was built from it."""
    assert parse_labels({"column": "source"}) == ("column", Column("source"))
    assert parse_labels({"column": "source", "file": "l.json"}) == ("column", Column("source", "l.json"))
    for wrong, message in (
        ({"column": 3}, "labels.column: 3: give the column's name"),
        ({"column": "source", "file": 3}, "labels.file: 3: give the path"),
        ({"column": "source", "position": 3}, "labels.position: 3: is unknown: choose of column, file"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            parse_labels(wrong)


def test_labels_are_those_of_the_target() -> None:
    """Of all phases, in their order; the dataset's own shares are not known."""
    phases = [Phase("0ba", {"ja": 0.5, "en": 0.5}), Phase("9ba", {"fr": 1.0})]
    assert labels_in_targets(Column("source"), phases) == ("ja", "en", "fr")
    with pytest.raises(ConfigError, match=r"labels: {column: source, file: labels\.json}"):
        labels_in_targets(Column("source"), [*phases, Phase("99ba", None)])


def test_index_files_tell_no_column() -> None:
    """Before a run, a column needs its label file."""
    shards = ShardTable.build(["a.mds"], [3], [0], ["s"])
    with pytest.raises(ConfigError, match=r"mixmon labels build DATASET --column source"):
        resolve_labels(("column", Column("source")), shards)
