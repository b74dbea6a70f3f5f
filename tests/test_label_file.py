"""Label files label this dataset's shards and refuse another's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from composer_mixmon.errors import MixmonError
from composer_mixmon.label_file import label_by_file
from composer_mixmon.shards import ShardTable

NAMES = [f"{group}/shard.0000{i}.mds" for group in ("ja", "en") for i in range(2)]
SHARDS = ShardTable.build(NAMES, [3, 4, 5, 6], [0] * 4, ["data"])
COMPLETE = [[name, n, name[:2]] for name, n in zip(NAMES, [3, 4, 5, 6], strict=True)]


def write(path: Path, content: Any) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


def labels(path: str) -> list[str]:
    label_map = label_by_file(SHARDS, path)
    return [label_map.names[i] for i in label_map(np.array([0, 3, 7, 12]))]


def test_short_and_complete_files(tmp_path: Path) -> None:
    """Both forms label shards by name, in JSON as in YAML; what a short one leaves out is unlabelled."""
    assert labels(write(tmp_path / "c.json", {"shards": COMPLETE})) == ["ja", "ja", "en", "en"]
    assert labels(write(tmp_path / "c.yaml", yaml.safe_dump({"shards": COMPLETE}))) == [
        "ja",
        "ja",
        "en",
        "en",
    ]
    short = {"shards": {NAMES[0]: "ja", NAMES[3]: "en"}}
    assert labels(write(tmp_path / "s.json", short)) == ["ja", "unlabelled", "unlabelled", "en"]


def changed(i: int, entry: list[Any] | None) -> list[list[Any]]:
    entries = [list(e) for e in COMPLETE]
    if entry is None:
        del entries[i]
    else:
        entries[i] = entry
    return entries


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            changed(1, [NAMES[1], 5, "ja"]),
            "1 shards differ: shard 1 is 'ja/shard.00001.mds' of 4 samples here and",
        ),
        (changed(3, None), "shard 3 is 'en/shard.00001.mds' of 6 samples here and missing in the file"),
        ([*COMPLETE, ["x.mds", 1, "x"]], "shard 4 is missing here and 'x.mds' of 1 samples in the file"),
        (COMPLETE[::-1], "4 shards differ: shard 0 is"),
        ({"shard.00000.mds": "ja"}, "it names 1 shards that this one does not have ('shard.00000.mds')"),
    ],
)
def test_file_of_another_dataset(tmp_path: Path, entries: Any, message: str) -> None:
    """A shard more, less, elsewhere, of another size or name: refused with the first differences."""
    path = write(tmp_path / "labels.json", {"shards": entries})
    with pytest.raises(MixmonError, match=re.escape(message)) as caught:
        label_by_file(SHARDS, path)
    assert "is of another dataset" in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "shards: 3",
        "shards: {}",
        "shards: [[a, 1]]",
        "shards: [3]",
        f"shards: {{{NAMES[0]}: 3}}",
        f'shards: {{{NAMES[0]}: "a\\nb"}}',
        "a: &a [x]\nshards: *b",
        "!!python/object/apply:os.system ['true']",
        "\x00",
        "[" * 5000,
    ],
)
def test_no_label_file(tmp_path: Path, content: str) -> None:
    """What is no label file is refused with its path."""
    with pytest.raises(MixmonError, match=r"labels\.file"):
        label_by_file(SHARDS, write(tmp_path / "labels.yaml", content))


def test_no_file(tmp_path: Path) -> None:
    """A file that is not there is said to be so."""
    with pytest.raises(MixmonError, match=r"labels\.file: .*cannot be read: No such file"):
        label_by_file(SHARDS, str(tmp_path / "labels.json"))


@settings(
    derandomize=True,
    deadline=None,
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.binary(max_size=60))
def test_any_bytes(tmp_path: Path, content: bytes) -> None:
    """Arbitrary bytes raise a MixmonError and nothing else."""
    path = tmp_path / "labels.json"
    path.write_bytes(content)
    with pytest.raises(MixmonError):
        label_by_file(SHARDS, str(path))
