"""Label files label this dataset's shards and samples, and refuse another's."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from composer_mixmon.errors import ConfigError, MixmonError
from composer_mixmon.label_file import label_by_file, shard_entry
from composer_mixmon.labels import UNLABELLED
from composer_mixmon.packing import pack_counts
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


def each(path: str) -> str:
    """The first letter of every sample's label."""
    label_map = label_by_file(SHARDS, path)
    return "".join(label_map.names[i][0] for i in label_map(np.arange(18)))


def test_csv_files(tmp_path: Path) -> None:
    """The three tables say the same as the three mappings, with and without a byte order mark."""
    short = f"shard,label\n{NAMES[0]},ja\n{NAMES[3]},en\n"
    complete = "shard,samples,label\n" + "".join(f"{name},{n},{label}\n" for name, n, label in COMPLETE)
    ranges = "begin,end,label\r\n4,6,ja\r\n\r\n0,2,en\r\n"
    for mark in ("", "\ufeff"):
        assert each(write(tmp_path / "s.csv", mark + short)) == "jjj" + "u" * 9 + "e" * 6
        assert each(write(tmp_path / "c.csv", mark + complete)) == "j" * 7 + "e" * 11
        assert each(write(tmp_path / "r.CSV", mark + ranges)) == "eeuujj" + "u" * 12


def test_ranges_of_samples(tmp_path: Path) -> None:
    """Ranges label samples whatever their shards and order; what none covers is unlabelled."""
    ranges = {"samples": [[5, 18, "en"], [0, 3, "ja"], [3, 4, "ja"]]}
    for path in (
        write(tmp_path / "r.json", ranges),
        write(tmp_path / "r.yml", yaml.safe_dump(ranges)),
    ):
        assert each(path) == "jjjju" + "e" * 13


@settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=30), min_size=1, max_size=5))
def test_entries_say_the_label_of_every_sample(tmp_path: Path, shards: list[list[int]]) -> None:
    """What is written of shards, pure or mixed, is read as the very same labels."""
    table = ShardTable.build(
        [f"{i}.mds" for i in range(len(shards))], list(map(len, shards)), [0] * len(shards), ["s"]
    )
    entries = [shard_entry(name, "abcd", np.array(of)) for name, of in zip(table.names, shards, strict=True)]
    assert [len(entry) for entry in entries] == [3 if len(set(of)) == 1 else 4 for of in shards]
    label_map = label_by_file(table, write(tmp_path / "labels.json", {"column": "x", "shards": entries}))
    got = [label_map.names[i] for i in label_map(np.arange(table.total))]
    assert got == ["abcd"[i] for of in shards for i in of]
    assert UNLABELLED not in label_map.names


def test_many_labels_in_one_shard(tmp_path: Path) -> None:
    """A shard may have more labels than a byte can number."""
    names = [f"label{i}" for i in range(1000)]
    order = np.random.default_rng(1).integers(0, 1000, 5000)
    table = ShardTable.build(["a.mds"], [5000], [0], ["s"])
    entry = shard_entry("a.mds", names, order)
    label_map = label_by_file(table, write(tmp_path / "labels.json", {"shards": [entry]}))
    assert [label_map.names[i] for i in label_map(np.arange(5000))] == [names[i] for i in order]


def test_a_mixed_shard_with_another_order_is_refused(tmp_path: Path) -> None:
    """The order must be of as many samples, and of as many of each label, as the entry says."""
    name, samples, counts, order = shard_entry("a.mds", ["ja", "en"], np.array([0, 1, 1, 0, 1]))
    table = ShardTable.build(["a.mds"], [5], [0], ["s"])
    other = shard_entry("a.mds", ["ja", "en"], np.array([0, 1, 1, 0, 0]))[3]
    longer = shard_entry("a.mds", ["ja", "en"], np.array([0, 1, 1, 0, 1, 1]))
    for damaged in (
        [name, samples, counts, order[:-8]],
        [name, samples, counts, other],
        [name, samples, *longer[2:]],
        [name, samples, counts, 3],
        [name, samples, counts, pack_counts(np.array([[1 << 60]], np.uint64))],
        [name, samples, list(counts), order],
        [name, samples, {"ja": "2", "en": 3}, order],
    ):
        with pytest.raises(ConfigError, match=re.escape("has a damaged entry for the shard 'a.mds'")):
            label_by_file(table, write(tmp_path / "labels.json", {"shards": [damaged]}))
    label_by_file(table, write(tmp_path / "labels.json", {"shards": [[name, samples, counts, order]]}))


def test_the_column_it_was_built_from(tmp_path: Path) -> None:
    """A file that was built from another column is refused; for the right one, unlabelled is a label."""
    path = write(tmp_path / "labels.json", {"column": "lang", "shards": COMPLETE})
    assert label_by_file(SHARDS, path).names == ("ja", "en")
    assert label_by_file(SHARDS, path, "lang").names == ("ja", "en", UNLABELLED)
    with pytest.raises(ConfigError, match=r"built from the column 'lang', not from 'source'"):
        label_by_file(SHARDS, path, "source")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("begin,end,label\n0,19,ja\n", "it labels the samples 0 to 19, this one has 18"),
        ("begin,end,label\n0,5,ja\n4,6,en\n", "labels sample 4 twice"),
        ("begin,end,label\n5,5,ja\n", "has the range 5 to 5: the end is exclusive"),
        ("begin,end,label\n-1,5,ja\n", "has the entry [-1, 5, 'ja']"),
        ("begin,end,label\nx,5,ja\n", "invalid literal for int"),
        ("begin,end,label\n1,5\n", "not enough values"),
        ("shard,label\na.mds,ja\na.mds,ja\n", "'a.mds' is there twice"),
        ("name,label\na.mds,ja\n", "the first line must be shard,label or"),
        ("shard,label\n", "a label file is"),
        ("", "the first line must be"),
    ],
)
def test_bad_csv(tmp_path: Path, content: str, message: str) -> None:
    """What is wrong with a table is said with its path."""
    path = write(tmp_path / "labels.csv", content)
    with pytest.raises(MixmonError, match=re.escape(message)) as caught:
        label_by_file(SHARDS, path)
    assert path in str(caught.value)


@pytest.mark.parametrize("name", ["labels.json", "labels.yaml"])
def test_a_key_that_is_there_twice(tmp_path: Path, name: str) -> None:
    """JSON and YAML would take the last one: it is refused."""
    content = f'{{"shards": {{"{NAMES[0]}": "ja", "{NAMES[0]}": "en"}}}}'
    with pytest.raises(ConfigError, match=re.escape(f"'{NAMES[0]}' is there twice")):
        label_by_file(SHARDS, write(tmp_path / name, content))


def test_aliases_that_blow_up(tmp_path: Path) -> None:
    """Nine levels of nine aliases each are refused without being written out."""
    levels = ["b0: &b0 [x]", *(f"b{i}: &b{i} [{', '.join([f'*b{i - 1}'] * 9)}]" for i in range(1, 10))]
    for entries in ("[*b9]", "[[*b9, 1, ja]]", f"[[{NAMES[0]}, 3, *b9]]", f"{{{NAMES[0]}: *b9}}"):
        content = f"column: {{{', '.join(levels)}}}\nshards: {entries}\n"
        path = write(tmp_path / "labels.yaml", content)
        start = time.perf_counter()
        with pytest.raises(MixmonError):
            label_by_file(SHARDS, path, "lang")
        with pytest.raises(MixmonError):
            label_by_file(SHARDS, path)
        assert time.perf_counter() - start < 1


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
@given(st.binary(max_size=60), st.sampled_from(["", "shards: ", "begin,end,label\n", "shard,label\n"]))
def test_any_bytes(tmp_path: Path, content: bytes, begin: str) -> None:
    """Arbitrary bytes raise a MixmonError and nothing else, whatever they are read as."""
    for suffix in ("json", "yaml", "csv"):
        path = tmp_path / f"labels.{suffix}"
        path.write_bytes(begin.encode() + content)
        with pytest.raises(MixmonError):
            label_by_file(SHARDS, str(path))
