"""Each known trap is named where it applies, with figures, and not where it does not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streaming.base.shuffle import get_shuffle_py1br

from .data import JA_EN, audited, run, write_index, write_yaml


def traps(path: str, *arguments: object) -> dict[str, dict[str, Any]]:
    return {trap["name"]: trap for trap in audited(path, *arguments)["traps"]}


@pytest.fixture
def local(tmp_path: Path) -> str:
    """20 shards of 100 samples, ja before en."""
    return write_index(tmp_path / "data", {"ja": 10, "en": 10}, 100)


def test_none(tmp_path: Path, local: str) -> None:
    """A shuffle that mixes everything walks into no trap."""
    path = write_yaml(tmp_path / "a.yaml", {"local": local, "shuffle": True}, 20, mixmon={"labels": JA_EN})
    assert traps(path) == {}


def test_single_label(tmp_path: Path, local: str) -> None:
    """One stream without other labels: the verdict means nothing, and that is said."""
    path = write_yaml(tmp_path / "a.yaml", {"local": local, "shuffle": True}, 20)
    assert list(traps(path)) == ["single_label"]
    assert list(traps(path, "--labels", "position")) == []


def test_shuffle_off(tmp_path: Path, local: str) -> None:
    """Without a shuffle, which is StreamingDataset's default, the written order is fed."""
    assert "shuffle_off" in traps(write_yaml(tmp_path / "a.yaml", {"local": local}, 20))


@pytest.mark.parametrize(("nodes", "epoch"), [(1, 1), (2, 1), (2, 2)])
def test_py1br_end(tmp_path: Path, nodes: int, epoch: int) -> None:
    """The samples in file order at the end of each canonical node are those of streaming's own shuffle."""
    local = write_index(tmp_path / "data", {"ja": 100, "en": 100}, 100)
    settings = {"shuffle": True, "shuffle_algo": "py1br", "shuffle_block_size": 4000}
    dataset = {"local": local, "num_canonical_nodes": nodes, **settings}
    path = write_yaml(tmp_path / "a.yaml", dataset, 20)
    order = get_shuffle_py1br(np.full(200, 100), nodes, 9176, epoch, 4000)
    unshuffled = []
    for part in np.split(order, nodes):  # nodes are cut where shards end
        follows = (np.diff(part) == 1) | (part[:-1] % 100 == 99)
        in_order = len(part) - 1 - int(np.flatnonzero(~follows)[-1])
        unshuffled.append(in_order if in_order > 1 else 0)  # a single sample is always in order
    found = traps(path, "--epoch", epoch)["py1br_end"]
    assert found["figures"]["samples"] == sum(unshuffled)
    assert max(unshuffled) > 100
    assert f"{sum(unshuffled):,} of 20,000 samples" in found["text"]
    assert found["figures"]["batches"] == -(-max(unshuffled) * nodes // 20)
    assert "py1br_end" not in traps(path, "--epoch", epoch, "--batches", "0:500")  # ends before


@pytest.mark.parametrize(("algo", "block", "trapped"), [("py1e", 99, 1), ("py1br", 99, 1), ("py1e", 100, 0)])
def test_small_block(tmp_path: Path, local: str, algo: str, block: int, trapped: int) -> None:
    """A block smaller than the largest shard; one of that size is not."""
    dataset = {"local": local, "shuffle": True, "shuffle_algo": algo, "shuffle_block_size": block}
    found = traps(write_yaml(tmp_path / "a.yaml", dataset, 20)).get("small_block")
    assert (found is not None) == trapped
    if found:
        assert found["figures"] == {"shards": 20, "block": 99, "largest_shard": 100}


def test_small_block_is_each_streams(tmp_path: Path) -> None:
    """Where streams are shuffled apart, each gets its part of the block, and only theirs can be too small."""
    big = write_index(tmp_path / "big", {"a": 9}, 100)
    small = write_index(tmp_path / "small", {"b": 1}, 100)
    dataset = {
        "streams": [{"local": big}, {"local": small}],
        "shuffle": True,
        "shuffle_block_size": 500,
        "batching_method": "stratified",
    }
    assert traps(write_yaml(tmp_path / "a.yaml", dataset, 20))["small_block"]["figures"] == {
        "shards": 1,
        "block": 50,
        "largest_shard": 100,
    }
    dataset["batching_method"] = "random"
    assert "small_block" not in traps(write_yaml(tmp_path / "b.yaml", dataset, 20))


@pytest.mark.parametrize("algo", ["py1s", "py2s"])
def test_ordered_shards(tmp_path: Path, local: str, algo: str) -> None:
    """Shards of one label are a trap for shuffles that mix within shards; shards of many labels are not."""
    dataset = {"local": local, "shuffle": True, "shuffle_algo": algo, "num_canonical_nodes": 2}
    path = write_yaml(tmp_path / "a.yaml", dataset, 20, mixmon={"labels": JA_EN})
    assert traps(path)["ordered_shards"]["figures"] == {"share": 1.0, "shards_at_a_time": 2}
    assert "ordered_shards" not in traps(path, "--labels", "{position: 200}")  # ten labels in each shard
    assert "ordered_shards" not in traps(path, "--labels", "stream")  # one label in all


def test_few_samples(tmp_path: Path) -> None:
    """Fewer samples than canonical nodes: named, or, where StreamingDataset refuses it, said so."""
    local = write_index(tmp_path / "data", {"ja": 2}, 25)
    dataset = {"local": local, "shuffle": True, "shuffle_algo": "py1s"}
    path = write_yaml(tmp_path / "a.yaml", dataset, 10)
    assert traps(path)["few_samples"]["figures"] == {"samples": 50, "canonical_nodes": 64}
    dataset["num_canonical_nodes"] = 50
    assert "few_samples" not in traps(write_yaml(tmp_path / "b.yaml", dataset, 10))
    dataset |= {"shuffle_algo": "py1e", "num_canonical_nodes": 51}
    refused = run("audit", write_yaml(tmp_path / "c.yaml", dataset, 10))
    assert refused.exit_code == 2
    assert "num_canonical_nodes: 51: py1e needs at least as many samples" in refused.stderr


def test_dropped_streams(tmp_path: Path) -> None:
    """A stream whose part rounds down to nothing is named; one that is switched off is meant."""
    big = write_index(tmp_path / "big", {"a": 10}, 100)
    tiny = write_index(tmp_path / "tiny", {"b": 1}, 100)
    streams = [{"local": big, "repeat": 1.0}, {"local": tiny, "repeat": 0.009}]
    path = write_yaml(tmp_path / "a.yaml", {"streams": streams, "shuffle": True}, 20)
    found = traps(path)["dropped_streams"]
    assert found["figures"] == {"streams": 1}
    assert re.search(r"1 of 2 streams .* 0: tiny\.", found["text"])
    streams[1]["repeat"] = 0
    assert traps(write_yaml(tmp_path / "b.yaml", {"streams": streams, "shuffle": True}, 20)) == {}


def test_stratified_portion_of_nothing(tmp_path: Path) -> None:
    """A stream without a sample in a stratified batch is refused by StreamingDataset, and named here."""
    big = write_index(tmp_path / "big", {"a": 99}, 100)
    tiny = write_index(tmp_path / "tiny", {"b": 1}, 100)
    dataset = {"streams": [{"local": big}, {"local": tiny}], "batching_method": "stratified"}
    refused = run("audit", write_yaml(tmp_path / "a.yaml", dataset, 20))
    assert refused.exit_code == 2
    assert "stream 1 gets no sample of a global batch of 20" in refused.stderr
