"""``mixmon check`` says before a run what the callback will count during it."""

from __future__ import annotations

import json
import re
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from omegaconf import OmegaConf
from streaming import MDSWriter
from streaming.base.util import merge_index

from composer_mixmon import __version__
from composer_mixmon.cli import main
from composer_mixmon.errors import ConfigError
from composer_mixmon.train_yaml import read_train_yaml


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments, env={"COLUMNS": "120"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def save(path: Path, content: Any) -> str:
    path.write_text(content if isinstance(content, str) else OmegaConf.to_yaml(OmegaConf.create(content)))
    return str(path)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three languages of 40, 20 and 20 samples as streams, each with a train split, and merged."""
    root = tmp_path_factory.mktemp("data")
    for name, samples in {"en": 40, "ja": 20, "fr": 20}.items():
        for folder in (root / "streams" / name / "train", root / "merged" / name):
            with MDSWriter(out=str(folder), columns={"x": "int"}, size_limit=200) as out:
                for i in range(samples):
                    out.write({"x": i})
    merge_index(str(root / "merged"))
    return root


def llm_foundry(data: Path) -> dict[str, Any]:
    return {
        "variables": {"data": str(data / "streams"), "split": "train"},
        "train_loader": {
            "name": "text",
            "dataset": {
                "split": "${variables.split}",
                "streams": {
                    name: {"local": f"${{variables.data}}/{name}", "proportion": p}
                    for name, p in {"en": 0.25, "ja": 0.5, "fr": 0.25}.items()
                },
                "tokenizer": "${undefined}",
            },
        },
        "eval_loader": {"dataset": {"local": "/nowhere"}},
    }


def test_streams_of_llm_foundry(tmp_path: Path, data: Path) -> None:
    """Named streams, proportions and interpolations: the streams are labels, with their proportions."""
    out = run("check", save(tmp_path / "train.yaml", llm_foundry(data)))
    assert out.exit_code == 0
    rows = {line.split()[0]: line.split()[1:] for line in out.stdout.splitlines()[1:4]}
    assert rows == {
        "en": ["40", "25.0000%", "25.0000%"],
        "ja": ["20", "50.0000%", "50.0000%"],
        "fr": ["20", "25.0000%", "25.0000%"],
    }
    assert "3 streams" in out.stdout
    assert "80 samples an epoch" in out.stdout


def test_shard_groups_of_modernbert(tmp_path: Path, data: Path) -> None:
    """One merged dataset, labels by glob, a target of the user's: its distance from the data is said."""
    config = {
        "data_local": str(data / "merged"),
        "train_loader": {"dataset": {"local": "${data_local}", "mlm_probability": 0.3}, "num_workers": 8},
        "callbacks": {
            "mixmon": {
                "labels": {"shards": {"en": "en/*", "[b]ja": "ja/*"}},
                "target": {"en": 0.8, "[b]ja": 0.2},
            }
        },
    }
    out = run("check", save(tmp_path / "train.yaml", config))
    assert out.exit_code == 0
    assert [line.split() for line in out.stdout.splitlines()[1:4]] == [
        ["en", "40", "50.0000%", "80.0000%"],
        ["[b]ja", "20", "25.0000%", "20.0000%"],
        ["unlabelled", "20", "25.0000%", "0.0000%"],
    ]
    assert "own shares deviate from the target by 0.3000" in out.stdout


def test_remote_without_local(tmp_path: Path, data: Path) -> None:
    """The index of a remote is read where there is no local copy, and nothing is copied."""
    config = {"train_dataset": {"remote": f"file://{data}/merged", "local": str(tmp_path / "cache")}}
    assert "80 samples" in run("check", save(tmp_path / "train.yaml", config)).stdout
    assert not (tmp_path / "cache").exists()


def changed(data: Path, **mixmon: Any) -> dict[str, Any]:
    return {"train_loader": {"dataset": {"local": str(data / "merged")}}, "callbacks": {"mixmon": mixmon}}


@pytest.mark.parametrize(
    ("mixmon", "message"),
    [
        ({"lables": "stream"}, "callbacks.mixmon.lables: 'stream': is unknown: choose of labels, target,"),
        ({"labels": {"shards": {"de": "de/*"}}}, "labels.shards.de: 'de/*': matches none of the"),
        ({"target": {"de": 1.0}}, "target.de: 1.0: the dataset has no such label: it has merged"),
        (
            {"alarm": {"rules": [{"ratio": "de", "below": 0.1}]}},
            "alarm.rules[0].ratio: 'de': the dataset has no",
        ),
        ({"window": "1ep"}, "window: '1ep': give a number of batches"),
        ({"labels": {"file": "/nowhere.json"}}, "labels.file: '/nowhere.json': cannot be read: No such file"),
    ],
)
def test_bad_settings(tmp_path: Path, data: Path, mixmon: dict[str, Any], message: str) -> None:
    """What the callback would refuse is refused here: one line, status 2."""
    out = run("check", save(tmp_path / "train.yaml", changed(data, **mixmon)))
    assert out.exit_code == 2
    assert out.stderr.startswith(f"Error: {message}")
    assert len(out.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "TRAIN.yaml: "),
        ("- 1", "is no training YAML: it holds no mapping"),
        ("a: 1\na: 2", "TRAIN.yaml: "),
        ("train_loader: {name: text}", "has no dataset with local, remote or streams"),
        ("dataset: {streams: 3}", "dataset.streams: 3: must be a mapping or a list of streams"),
        ("dataset: {streams: [{}]}", "dataset.streams[0]: {}: a stream needs remote or local"),
        ("dataset: {streams: [3]}", "dataset.streams[0]: 3: a stream is a mapping"),
        ("dataset: {local: 3}", "dataset.local: 3: must be text"),
        ("dataset: {local: '${nope}'}", "dataset.local: '${nope}': cannot be resolved"),
        ("dataset: {local: x, proportion: a}", "dataset.proportion: 'a': must be a number"),
        ("dataset: {local: /nowhere}", "no index.json in '/nowhere'"),
        ("dataset: {remote: 'nope://x/y'}", "'nope://x/y/index.json' cannot be fetched: ValueError"),
    ],
)
def test_bad_yaml(tmp_path: Path, content: str, message: str) -> None:
    """A YAML that says nothing usable: one line that quotes the place, status 2."""
    out = run("check", save(tmp_path / "train.yaml", content))
    assert out.exit_code == 2
    assert message in out.stderr
    assert len(out.stderr.splitlines()) == 1


BOMB = "a0: &a0 {x: 1, y: 2}\n" + "".join(
    f"a{i}: &a{i} {{{', '.join(f'k{j}: *a{i - 1}' for j in range(9))}}}\n" for i in range(1, 10)
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (BOMB, "its aliases stand for more than a million values"),
        (re.sub(r"\{(.*)\}", r"[{\1}]", BOMB), "its aliases stand for more than a million values"),
        ("k: 1\n" * 10_000_000, "it is too large to be settings"),
        ("k: " + "[" * 5000, "is no training YAML: "),
        ("k: &k [*k]", "TRAIN.yaml: "),
        ("dataset:\n\tlocal: x", "is no training YAML: "),
        ("k: !!python/object/apply:os.mkdir [pwned]", "is no training YAML: "),
    ],
    ids=["mappings", "lists", "50-MB", "deep", "within-itself", "tabs", "code"],
)
def test_hostile_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, message: str) -> None:
    """What would take a machine's memory, or run code, is refused before it can."""
    monkeypatch.chdir(tmp_path)
    path = save(tmp_path / "train.yaml", content + "\ndataset: {local: x}")
    tracemalloc.start()
    began = time.perf_counter()
    out = run("check", path)
    assert time.perf_counter() - began < 1
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert out.exit_code == 2
    assert message in out.stderr
    assert len(out.stderr.splitlines()) == 1
    assert most < 100 << 20
    assert list(tmp_path.iterdir()) == [tmp_path / "train.yaml"]


def test_byte_order_mark(tmp_path: Path, data: Path) -> None:
    """A YAML that Windows' editors have marked is read as any other."""
    content = f"\ufeffdataset: {{local: '{data / 'streams' / 'ja' / 'train'}'}}"
    out = run("check", save(tmp_path / "train.yaml", content))
    assert out.exit_code == 0, out.stderr


def test_damaged_index(tmp_path: Path) -> None:
    """An index.json that is cut off is said to be so."""
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": []})[:-3])
    out = run("check", save(tmp_path / "train.yaml", {"dataset": {"local": str(tmp_path)}}))
    assert out.exit_code == 2
    assert "index.json: is empty, truncated or not JSON" in out.stderr


def test_training_is_preferred(tmp_path: Path) -> None:
    """Of several datasets in a YAML, the one that is trained on is checked."""
    config = {
        "eval_loader": {"dataset": {"local": "eval"}},
        "dataset": {"local": "plain"},
        "train_loader": {"dataset": {"local": "train", "inner_dataset": {"local": "inner"}}},
    }
    assert read_train_yaml(save(tmp_path / "a.yaml", config)).streams[0].local == "train"
    del config["train_loader"]
    assert read_train_yaml(save(tmp_path / "b.yaml", config)).streams[0].local == "plain"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_train_yaml(str(tmp_path))


def test_version() -> None:
    """``mixmon version`` prints the package's version."""
    assert run("version").stdout.strip() == __version__


def test_keys_that_are_no_text(tmp_path: Path, data: Path) -> None:
    """Numbers and booleans as keys, anywhere in the YAML, are no trouble; as labels they are named."""
    config = changed(data) | {"optimizer": {"milestones": {1000: 0.1}, True: 1}}
    assert run("check", save(tmp_path / "a.yaml", config)).exit_code == 0
    out = run("check", save(tmp_path / "b.yaml", changed(data, labels={"shards": {False: "en/*"}})))
    assert (out.exit_code, "quote words such as" in out.stderr) == (2, True)


@pytest.mark.parametrize("seed", ["abc", -1, "${missing}"])
def test_bad_seed(tmp_path: Path, data: Path, seed: Any) -> None:
    """The seed decides who gets the samples left over: a wrong one is named."""
    config = changed(data)
    config["train_loader"]["dataset"]["shuffle_seed"] = seed
    out = run("check", save(tmp_path / "train.yaml", config))
    assert (out.exit_code, out.stderr.startswith("Error: shuffle_seed: ")) == (2, True)
