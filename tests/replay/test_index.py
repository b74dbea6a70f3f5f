"""index.json files, as streaming writes them and as accidents leave them."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streaming import CSVWriter, JSONWriter, MDSWriter

from composer_mixmon.errors import DatasetError
from composer_mixmon.replay.index import parse_index, read_index


def write(writer, folder, **options):
    with writer(out=str(folder), columns={"text": "str"}, size_limit=600, **options) as out:
        for number in range(50):
            out.write({"text": f"sample number {number:03d}"})


@pytest.mark.parametrize("writer", [MDSWriter, JSONWriter, CSVWriter])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_every_format_is_read(writer, compression, tmp_path):
    """Names, samples and bytes are those that streaming wrote, compressed or not."""
    write(writer, tmp_path, compression=compression)
    index = read_index(tmp_path)
    assert len(set(index.shards)) >= (1 if writer is CSVWriter else 2)
    assert sum(index.samples) == 50
    assert index.sha256 == hashlib.sha256((tmp_path / "index.json").read_bytes()).hexdigest()
    if compression is None:
        assert sum(index.bytes) == sum(f.stat().st_size for f in tmp_path.iterdir() if f.name != "index.json")


def test_a_folder_without_an_index_is_named(tmp_path):
    """The message says which file is missing."""
    with pytest.raises(DatasetError, match="no such file"):
        read_index(tmp_path / "nowhere")


def test_every_truncation_is_refused(tmp_path):
    """An index cut at any byte gives one clear error."""
    write(MDSWriter, tmp_path)
    content = (tmp_path / "index.json").read_bytes()
    for stop in range(0, len(content.rstrip()), 7):
        with pytest.raises(DatasetError, match="truncated"):
            parse_index(content[:stop], "index.json")


GOOD = {"format": "mds", "samples": 3, "raw_data": {"basename": "a.mds", "bytes": 9}}


@pytest.mark.parametrize(
    ("shard", "says"),
    [
        (GOOD | {"samples": -1}, "samples"),
        (GOOD | {"samples": True}, "samples"),
        (GOOD | {"samples": 2**63}, "samples"),
        (GOOD | {"samples": "3"}, "samples"),
        (GOOD | {"samples": 0}, "no samples"),
        (GOOD | {"format": "parquet"}, "parquet"),
        (GOOD | {"raw_data": None}, "raw_data"),
        ("a.mds", "format"),
    ],
)
def test_a_shard_that_makes_no_sense_is_refused(shard, says):
    """Each broken entry is named."""
    with pytest.raises(DatasetError, match=says):
        parse_index(json.dumps({"version": 2, "shards": [shard]}).encode(), "x")


@pytest.mark.parametrize("index", [[], {}, {"shards": []}, {"version": 1, "shards": [GOOD]}, None, 3])
def test_other_json_is_refused(index):
    """JSON of another kind is no index."""
    with pytest.raises(DatasetError, match="x: "):
        parse_index(json.dumps(index).encode(), "x")


@given(st.binary(max_size=60))
@settings(derandomize=True, deadline=None, max_examples=300)
def test_any_bytes_give_a_dataset_error(content):
    """Nothing but DatasetError comes out of garbage."""
    with pytest.raises(DatasetError):
        parse_index(content, "x")


def test_deep_nesting_is_refused():
    """A file built to exhaust the parser's stack is an error like any other."""
    with pytest.raises(DatasetError):
        parse_index(b"[" * 200_000, "x")
