"""``mixmon labels build`` reads one column of every sample, exactly, once, and touches nothing else."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streaming import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter
from streaming.base.format import reader_from_json

from composer_mixmon.cli import main
from composer_mixmon.columns import label_of
from composer_mixmon.errors import MixmonError
from composer_mixmon.label_file import label_by_file
from composer_mixmon.label_scan import Built, build_labels
from composer_mixmon.label_scan.streams import plan_scan
from composer_mixmon.labels import UNLABELLED
from composer_mixmon.shards import ShardTable

SOURCES = ["ja", "en", "日本", "", "web", "a\tb", "x" * 199, "x" * 900, "en "]
fixed = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@contextmanager
def quiet(what: str, total: int | None) -> Generator[Callable[[int], object], None, None]:
    yield lambda done: None


def build(dataset: Path | str, out: Path, column: str = "source", workers: int | None = None) -> Built:
    return build_labels(str(dataset), column, str(out), workers, quiet)


def run(*arguments: Any) -> Result:
    result = CliRunner().invoke(main, ["labels", "build", *map(str, arguments)], env={"COLUMNS": "120"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def table_of(*folders: Path) -> ShardTable:
    indices = [json.loads((folder / "index.json").read_text())["shards"] for folder in folders]
    return ShardTable.build(
        [info["raw_data"]["basename"] for infos in indices for info in infos],
        [info["samples"] for infos in indices for info in infos],
        [stream for stream, infos in enumerate(indices) for _ in infos],
        [str(folder) for folder in folders],
    )


def labels_in(out: Path, *folders: Path) -> list[str]:
    """The label of every sample, as the label file is read; streams have the name of the folder above."""
    table = table_of(*folders)
    if len(folders) > 1:
        names = [name.split("/")[-3] + "/" + name.split("/")[-1] for name in table.names]
        table = replace(table, names=tuple(names))
    label_map = label_by_file(table, str(out))
    return [label_map.names[i] for i in label_map(np.arange(table.total))]


def sources(samples: int, seed: int = 0) -> list[str]:
    """Runs of sources, so that some shards have one and some several."""
    rng = np.random.default_rng(seed)
    runs = [
        [SOURCES[i]] * int(n)
        for i, n in zip(rng.integers(0, 9, samples), rng.integers(1, 40, samples), strict=True)
    ]
    return [source for run in runs for source in run][:samples]


def write(folder: Path, values: list[Any], kind: str = "str", **options: Any) -> Path:
    columns = {"id": "int64", "source": kind, "raw": "bytes", "text": "str"}
    with MDSWriter(out=str(folder), columns=columns, **{"size_limit": 1500, **options}) as writer:
        for i, value in enumerate(values):
            writer.write({"id": np.int64(i), "source": value, "raw": b"\0" * (i % 5), "text": "t" * (i % 7)})
    return folder


def expected(values: list[Any]) -> list[str]:
    return [label_of(value) or UNLABELLED for value in values]


@pytest.mark.parametrize("compression", [None, "zstd", "zstd:7", "gz", "bz2:1", "br:3", "snappy"])
def test_mds(tmp_path: Path, compression: str | None) -> None:
    """Every sample has the label it was written with, in compressed shards as in others."""
    values = sources(400)
    folder = write(tmp_path / "data", values, compression=compression)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    built = build(folder, tmp_path / "labels.json")
    assert labels_in(tmp_path / "labels.json", folder) == expected(values)
    assert built.labels == dict(Counter(expected(values)))
    sizes = table_of(folder).samples
    of_shard = np.split(np.array(expected(values)), np.cumsum(sizes)[:-1])
    mixed = [len(labels) for labels in of_shard if len(set(labels)) > 1]
    assert (built.shards, built.samples) == (len(sizes), 400)
    assert (built.mixed_shards, built.mixed_samples) == (len(mixed), sum(mixed))
    assert 0 < len(mixed) < len(sizes)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "labels.json"]


WRITERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "json": (JSONWriter, {}),
    "csv": (CSVWriter, {}),
    "tsv": (TSVWriter, {"newline": "\r\n"}),
    "xsv": (XSVWriter, {"separator": "::"}),
}


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("kind", WRITERS)
def test_other_formats(tmp_path: Path, kind: str, compression: str | None) -> None:
    """Formats of a line a sample, with text and whole numbers."""
    writer_class, options = WRITERS[kind]
    values = [source.replace("\t", " ") for source in sources(200)]
    columns = {"a": "str", "number": "int", "source": "str", "weight": "float"}
    out = str(tmp_path / "data")
    with writer_class(
        columns=columns, out=out, size_limit=1500, compression=compression, **options
    ) as writer:
        for i, value in enumerate(values):
            writer.write({"a": "ü" * (i % 3), "number": i % 4, "source": value, "weight": 0.5})
    build(tmp_path / "data", tmp_path / "labels.json")
    assert len(table_of(tmp_path / "data")) > 3
    assert labels_in(tmp_path / "labels.json", tmp_path / "data") == expected(values)
    build(tmp_path / "data", tmp_path / "numbers.json", "number")
    assert labels_in(tmp_path / "numbers.json", tmp_path / "data") == [str(i % 4) for i in range(200)]
    refused = run(tmp_path / "data", "--column", "weight", "--out", tmp_path / "weight.json")
    assert (refused.exit_code, "encoded as float" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("int", [-1, 2**62, 7]),
        ("int8", [-128, 127, 0]),
        ("uint16", [0, 65535, 256]),
        ("uint64", [2**64 - 1, 0, 1]),
        ("str_int", [10**30, -3, 0]),
        ("json", ["ja", 3, True, None, ["ja"], 0.5, "日本"]),
    ],
)
def test_encodings(tmp_path: Path, kind: str, values: list[Any]) -> None:
    """Values are what streaming's own reader decodes."""
    folder = write(tmp_path / "data", values * 20, kind)
    build(folder, tmp_path / "labels.json")
    infos = json.loads((folder / "index.json").read_text())["shards"]
    decoded = [sample["source"] for i in infos for sample in reader_from_json(str(folder), None, i)]
    assert labels_in(tmp_path / "labels.json", folder) == expected(decoded)
    assert len(decoded) == 20 * len(values)


texts = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["a\0", "a", "\0", "a\0\0", "x" * 801]
)


@fixed
@given(st.lists(texts, min_size=1, max_size=40), st.sampled_from([80, 10_000]))
def test_any_text(tmp_path: Path, values: list[str], size_limit: int) -> None:
    """Whatever text is a sample's value, zero bytes at its end and other lengths beside it included."""
    folder = tmp_path / "data"
    shutil.rmtree(folder, ignore_errors=True)
    (tmp_path / "labels.json").unlink(missing_ok=True)
    write(folder, [*values, "ja"], size_limit=size_limit)
    build(folder, tmp_path / "labels.json")
    assert labels_in(tmp_path / "labels.json", folder) == expected([*values, "ja"])


def test_processes(tmp_path: Path) -> None:
    """Several processes write the very same file as one."""
    folder = write(tmp_path / "data", sources(300))
    one = build(folder, tmp_path / "one.json", workers=1)
    two = build(folder, tmp_path / "two.json", workers=2)
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert one.labels == two.labels


class _Interrupted(Exception):
    pass


def interrupted(folder: Path, out: Path, after: int) -> None:
    """A scan that is stopped after so many shards."""
    left = [after]

    @contextmanager
    def stage(what: str, total: int | None) -> Generator[Callable[[int], object], None, None]:
        def advance(done: int) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise _Interrupted

        yield advance

    with pytest.raises(_Interrupted):
        build_labels(str(folder), "source", str(out), None, stage)


def test_an_interrupted_scan_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the shards that are left, and the file is that of a scan that was not interrupted."""
    folder, out = write(tmp_path / "data", sources(300)), tmp_path / "labels.json"
    whole = build(folder, tmp_path / "whole.json")
    assert (whole.resumed, whole.shards > 6) == (0, True)
    interrupted(folder, out, 2)
    interrupted(folder, out, 5)
    assert not out.exists()
    read: list[int] = []
    from composer_mixmon.label_scan import build as module

    original = module.read_column
    monkeypatch.setattr(module, "read_column", lambda s, c: read.append(s.number) or original(s, c))
    built = build(folder, out)
    assert built.resumed == 5
    assert read == list(range(5, whole.shards))
    assert out.read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert (built.labels, built.mixed_samples) == (whole.labels, whole.mixed_samples)
    assert not list(tmp_path.glob("*.partial"))


def test_a_scan_that_was_killed_while_writing(tmp_path: Path) -> None:
    """Wherever what it keeps is cut off, it goes on from the last whole line."""
    folder, out = write(tmp_path / "data", sources(300)[-80:]), tmp_path / "labels.json"
    build(folder, tmp_path / "whole.json")
    assert len(table_of(folder)) > 2
    interrupted(folder, out, 2)
    partial = tmp_path / "labels.json.partial"
    kept = partial.read_bytes()
    lines = kept.splitlines(keepends=True)
    for cut in [*range(0, len(kept), 31), len(kept) - 2, len(kept) - 1, len(kept)]:
        partial.write_bytes(kept[:cut])
        built = build(folder, out)
        whole = [sum(map(len, lines[: i + 1])) <= cut for i in range(len(lines))]
        assert built.resumed == sum(whole[1:])
        assert out.read_bytes() == (tmp_path / "whole.json").read_bytes()
        out.unlink()


def test_what_was_kept_of_another_scan(tmp_path: Path) -> None:
    """Another column or dataset is refused, and what was kept stays; so is a second scan at the same time."""
    folder, out = write(tmp_path / "data", sources(100)), tmp_path / "labels.json"
    interrupted(folder, out, 2)
    kept = (tmp_path / "labels.json.partial").read_bytes()
    other = write(tmp_path / "other", sources(101))
    for dataset, column in ((folder, "id"), (other, "source")):
        with pytest.raises(MixmonError, match=r"labels\.json\.partial' is of another column or dataset"):
            build(dataset, out, column)
        assert (tmp_path / "labels.json.partial").read_bytes() == kept

    @contextmanager
    def stage(what: str, total: int | None) -> Generator[Callable[[int], object], None, None]:
        with pytest.raises(MixmonError, match="another process is building it"):
            build(folder, out)
        yield lambda done: None

    build_labels(str(folder), "source", str(out), None, stage)
    assert labels_in(out, folder) == expected(sources(100))


def test_streams_of_a_yaml(tmp_path: Path) -> None:
    """Shards are named as those of the live dataset; a stream without the column is unlabelled."""
    values = sources(150)
    write(tmp_path / "ja" / "train", values[:90])
    write(tmp_path / "en" / "train", values[90:], compression="zstd")
    with MDSWriter(out=str(tmp_path / "bare" / "train"), columns={"x": "int"}) as writer:
        for i in range(30):
            writer.write({"x": i})
    config: dict[str, Any] = {
        "train_loader": {
            "dataset": {
                "split": "train",
                "streams": {
                    "ja": {"local": str(tmp_path / "cache"), "remote": str(tmp_path / "ja")},
                    "en": {"local": str(tmp_path / "en")},
                    "bare": {"local": f"file://{tmp_path / 'bare'}"},
                },
            }
        },
        "callbacks": {"mixmon": {"labels": {"file": str(tmp_path / "labels.json")}}},
    }
    train = tmp_path / "train.yaml"
    train.write_text(yaml.safe_dump(config, sort_keys=False))
    built = json.loads(run(train, "--column", "source", "--out", tmp_path / "labels.json", "--json").stdout)
    assert built["lacking"] == ["bare"]
    wanted = expected(values) + [UNLABELLED] * 30
    assert built["labels"] == dict(Counter(wanted))
    assert (
        labels_in(tmp_path / "labels.json", *(tmp_path / n / "train" for n in ("ja", "en", "bare"))) == wanted
    )
    for labels in ({"file": "labels.json"}, {"column": "source", "file": "labels.json"}):
        config["callbacks"]["mixmon"]["labels"] = labels | {"file": str(tmp_path / "labels.json")}
        train.write_text(yaml.safe_dump(config, sort_keys=False))
        checked = CliRunner().invoke(main, ["check", str(train)], env={"COLUMNS": "300"})
        assert checked.exit_code == 0, checked.output
        rows = {
            line.split()[0]: line.split()[1]
            for line in checked.stdout.splitlines()[1:]
            if line[:2] in ("ja", "un")
        }
        assert rows == {name: str(wanted.count(name)) for name in ("ja", UNLABELLED)}


def test_what_is_printed(tmp_path: Path) -> None:
    """Labels with their shares, mixed shards, and what to write in the YAML."""
    values = ["ja"] * 60 + ["[red]", "ja"] * 20
    folder = write(tmp_path / "data", values)
    out = run(folder, "--column", "source", "--out", tmp_path / "labels.json")
    assert out.exit_code == 0
    lines = out.stdout.splitlines()
    assert lines[1].split() == ["ja", "80", "80.0000%"]
    assert lines[2].split() == ["[red]", "20", "20.0000%"]
    built = table_of(folder)
    assert f"{len(built)} shards, 100 samples, 2 labels" in out.stdout
    assert re.search(r"note: \d of \d shards hold several labels", out.stdout)
    assert f"labels: {{file: {tmp_path / 'labels.json'}}}" in "".join(lines)


def unreadable(tmp_path: Path) -> dict[str, tuple[list[Any], str]]:
    folder = write(tmp_path / "data", sources(50))
    out = tmp_path / "labels.json"
    gone = Path(shutil.copytree(folder, tmp_path / "gone"))
    (gone / "shard.00001.mds").unlink()
    cloud = {"dataset": {"streams": [{"remote": "s3://bucket/data"}]}}
    cached = {"dataset": {"streams": [{"remote": "s3://bucket/data", "local": str(gone)}]}}
    (tmp_path / "cloud.yaml").write_text(yaml.safe_dump(cloud))
    (tmp_path / "cached.yaml").write_text(yaml.safe_dump(cached))
    numbers = tmp_path / "many"
    with MDSWriter(out=str(numbers), columns={"source": "str"}) as writer:
        for i in range(10_001):
            writer.write({"source": str(i)})
    none = write(tmp_path / "none", ["", "\n"] * 5)
    (tmp_path / "empty").mkdir()
    (tmp_path / "there.json").write_text("{}")
    source = ["--column", "source"]
    return {
        "column": (
            [folder, "--column", "lang", "--out", out],
            "has no such column: it has id, raw, source, text",
        ),
        "bytes": ([folder, "--column", "raw", "--out", out], "the column is encoded as bytes"),
        "folder": (
            [tmp_path / "empty", *source, "--out", out],
            "there is no such file; give a folder with an",
        ),
        "nothing": (
            [tmp_path / "nothing", *source, "--out", out],
            "cannot be read: No such file or directory",
        ),
        "remote": (["s3://bucket/data", *source, "--out", out], "is not on this machine: copy or mount it"),
        "cloud": (
            [tmp_path / "cloud.yaml", *source, "--out", out],
            "'s3://bucket/data' is not on this machine",
        ),
        "cached": (
            [tmp_path / "cached.yaml", *source, "--out", out],
            f"1 of {len(table_of(folder))} shards are not on this machine, only at 's3://bucket/data'",
        ),
        "gone": ([gone, *source, "--out", out], "(the first, 'shard.00001.mds', is not in"),
        "many": ([numbers, *source, "--out", out], "--column: 'source': has more than 10,000 values"),
        "none": ([none, *source, "--out", out], "no sample has a label there"),
        "suffix": ([folder, *source, "--out", tmp_path / "labels.csv"], "name a file that ends in .json"),
        "there": ([folder, *source, "--out", tmp_path / "there.json"], "is there already"),
        "nowhere": ([folder, *source, "--out", tmp_path / "no" / "l.json"], "nothing can be written to"),
        "workers": ([folder, *source, "--out", out, "--workers", 0], "give at least 1"),
    }


def test_bad_input(tmp_path: Path) -> None:
    """One line and exit status 2; no output, and nothing left over."""
    for name, (arguments, message) in unreadable(tmp_path).items():
        failed = run(*arguments)
        assert failed.exit_code == 2, name
        assert len(failed.stderr.splitlines()) == 1, name
        assert message in failed.stderr, (name, failed.stderr)
        assert not list(tmp_path.glob("labels.json*")), name


def test_values_over_all_shards_are_counted(tmp_path: Path) -> None:
    """Ten thousand values are few enough, one more is too many, wherever they lie."""
    for samples in (10_000, 10_001):
        folder = tmp_path / str(samples)
        with MDSWriter(out=str(folder), columns={"source": "int32"}, size_limit=40_000) as writer:
            for i in range(samples):
                writer.write({"source": i})
        assert len(table_of(folder)) > 1
        if samples == 10_000:
            assert len(build(folder, tmp_path / "few.json").labels) == 10_000
        else:
            with pytest.raises(MixmonError, match="has more than 10,000 values"):
                build(folder, tmp_path / "many.json")


class _Bomb:
    """Unpickling it creates a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    """A pickled column is refused, and one beside the labels is not looked at."""
    marker = tmp_path / "marker"
    folder = tmp_path / "data"
    with MDSWriter(out=str(folder), columns={"a": "pkl", "source": "str", "z": "pkl"}) as writer:
        for i in range(10):
            writer.write(
                {"a": _Bomb(str(marker)), "source": "ja" if i < 5 else "en", "z": _Bomb(str(marker))}
            )
    build(folder, tmp_path / "labels.json")
    assert labels_in(tmp_path / "labels.json", folder) == ["ja"] * 5 + ["en"] * 5
    with pytest.raises(MixmonError, match="the column is encoded as pkl"):
        build(folder, tmp_path / "pickled.json", "a")
    assert not marker.exists()
    pickle.loads(pickle.dumps(_Bomb(str(marker)))).close()
    assert marker.exists()


def test_files_outside_the_dataset_are_not_read(tmp_path: Path) -> None:
    """An index.json cannot make us read what does not lie below it; a link that the user has set can."""
    folder = write(tmp_path / "data", ["ja"] * 5)
    index = (folder / "index.json").read_text()
    (folder / "shard.00000.mds").rename(tmp_path / "shard.00000.mds")
    for place in ("../shard.00000.mds", str(tmp_path / "shard.00000.mds")):
        (folder / "index.json").write_text(index.replace("shard.00000.mds", place))
        with pytest.raises(MixmonError, match="1 of 1 shards are not on this machine"):
            build(folder, tmp_path / "labels.json")
    (folder / "index.json").write_text(index)
    (folder / "shard.00000.mds").symlink_to(tmp_path / "shard.00000.mds")
    build(folder, tmp_path / "labels.json")
    assert labels_in(tmp_path / "labels.json", folder) == ["ja"] * 5


@fixed
@given(st.binary(max_size=40), st.integers(0, 400), st.integers(0, 1))
def test_damaged_shards(tmp_path: Path, damage: bytes, at: int, missing: int) -> None:
    """Whatever bytes a shard has, it is read to the end or refused by its name."""
    folder = tmp_path / "data"
    if not folder.exists():
        write(folder, ["ja", "en"] * 4, size_limit=10_000)
        shutil.copy(folder / "shard.00000.mds", tmp_path / "whole.mds")
    content = bytearray((tmp_path / "whole.mds").read_bytes())
    content[at : at + len(damage)] = damage
    (folder / "shard.00000.mds").write_bytes(content[: len(content) - missing])
    (tmp_path / "labels.json").unlink(missing_ok=True)
    (tmp_path / "labels.json.partial").unlink(missing_ok=True)
    try:
        built = build(folder, tmp_path / "labels.json")
    except MixmonError as error:
        told = str(error)
        assert "shard.00000.mds" in told or "no sample has a label there" in told
    else:
        assert not missing
        assert sum(built.labels.values()) == 8


def test_a_damaged_index(tmp_path: Path) -> None:
    """An index.json of another shape is refused."""
    folder = write(tmp_path / "data", ["ja"] * 5)
    index = json.loads((folder / "index.json").read_text())
    for key, value in (
        ("column_names", 3),
        ("column_encodings", [[]] * 4),
        ("raw_data", {"basename": "x", "bytes": 1}),
    ):
        changed = json.loads(json.dumps(index))
        changed["shards"][0][key] = value
        (folder / "index.json").write_text(json.dumps(changed))
        with pytest.raises(MixmonError):
            build(folder, tmp_path / "labels.json")
    for key, value in (
        ("column_sizes", [8, None, 3, None]),
        ("column_sizes", None),
        ("column_names", ["source"]),
    ):
        changed = json.loads(json.dumps(index))
        changed["shards"][0][key] = value
        (folder / "index.json").write_text(json.dumps(changed))
        with pytest.raises(MixmonError, match=r"shard\.00000\.mds|index\.json"):
            build(folder, tmp_path / "labels.json")
        (tmp_path / "labels.json.partial").unlink(missing_ok=True)


def test_what_is_planned(tmp_path: Path) -> None:
    """Two datasets of other index files are told apart."""
    one, two = write(tmp_path / "one", ["ja"] * 5), write(tmp_path / "two", ["ja"] * 6)
    assert plan_scan(str(one), "source").sha256 != plan_scan(str(two), "source").sha256
    assert plan_scan(str(one), "source").sha256 == plan_scan(str(one), "id").sha256
