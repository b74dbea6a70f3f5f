"""``mixmon show`` and ``mixmon compare`` on the ledgers of real runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from streaming import MDSWriter

from composer_mixmon import MixMon
from composer_mixmon.cli import main
from composer_mixmon.ledger import read_ledger
from tests.live.data import mds_loader, two_streams
from tests.live.helpers import Witness, fit

BATCH = 6
ORDER = {"shuffle": True, "shuffle_block_size": 64, "num_canonical_nodes": 1}


def mixmon(*arguments: object) -> Result:
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def run(tmp_path: Path, name: str, duration: str = "2ep", ledger: Any = None, **order: Any) -> Witness:
    """Train with a ledger in a folder of this name."""
    witness, spec = Witness(), {"folder": str(tmp_path / name)} | (ledger or {})
    data = mds_loader(two_streams(tmp_path, BATCH, **ORDER | order))
    fit(data, witness, MixMon(log_interval="4ba", ledger=spec), duration=duration)
    return witness


def shown(*arguments: object, status: int = 0) -> dict[str, Any]:
    result = mixmon("show", *arguments, "--json")
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(("source", "ledger"), [("replay", {}), ("rank_ids", {"rank_ids": True})])
def test_a_batch_as_it_was(tmp_path: Path, source: str, ledger: dict[str, Any]) -> None:
    """Ids, labels, shards and columns are those of what was fed, and the order hash proves it."""
    witness = run(tmp_path, "books", ledger=ledger)
    for batch in (0, 7, 10, 21):
        found = shown(tmp_path / "books", "--batch", batch)
        assert (found["source"], found["proven"], found["epoch"]) == (source, True, batch // 11)
        assert [one["id"] for one in found["samples"]] == witness.batches[batch]
        for one in found["samples"]:
            assert one["label"] == "ab"[one["id"] >= 40]
            assert one["shard"].startswith(f"{one['label']}/shard.0000{one['id'] % 40 // 8}")
            assert f"id={one['id']}" in one["text"].replace("np.int64(", "").replace(")", "")


def test_a_batch_of_a_yaml(tmp_path: Path) -> None:
    """Nothing proves it, but it is what a run with these settings is fed."""
    witness = run(tmp_path, "books", duration="1ep")
    streams = "\n".join(f"      {name}: {{local: {tmp_path / name}}}" for name in "ab")
    path = tmp_path / "train.yaml"
    path.write_text(
        f"max_duration: 1ep\nglobal_train_batch_size: {BATCH}\ntrain_loader:\n  dataset:\n    shuffle: true\n"
        f"    shuffle_block_size: 64\n    num_canonical_nodes: 1\n    streams:\n{streams}\n"
    )
    found = shown(path, "--batch", 3)
    assert [one["id"] for one in found["samples"]] == witness.batches[3]
    assert found["proven"] is None
    assert found["samples"][0]["text"]


def test_a_run_that_was_fed_something_else(tmp_path: Path) -> None:
    """Where the settings in the ledger do not lead to its order hashes, exit status 1 says so."""
    run(tmp_path, "books", duration="4ba")
    (path,) = (tmp_path / "books").glob("*/segment-*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    from composer_mixmon.ledger.lines import frame

    header = json.loads(lines[0])
    header.pop("crc")
    header["settings"]["dataset"]["shuffle_seed"] += 1
    path.write_bytes(frame(header) + b"".join(lines[1:]))
    result = mixmon("show", path, "--batch", 1)
    assert result.exit_code == 1
    assert "something else" in result.stdout
    assert shown(path, "--batch", 1, status=1)["proven"] is False


def test_shards_that_are_gone(tmp_path: Path) -> None:
    """The ids are shown without their text, and it is said which shard is missing."""
    witness = run(tmp_path, "books", duration="4ba")
    for shard in (tmp_path / "a").glob("*.mds"):
        shard.unlink()
    found = shown(tmp_path / "books", "--batch", 0)
    assert [one["id"] for one in found["samples"]] == witness.batches[0]
    assert [one["text"] is None for one in found["samples"]] == [one["id"] < 40 for one in found["samples"]]
    assert all("is not in" in remark for remark in found["remarks"])


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    """A column that is a pickle is refused by name."""
    witness = run(tmp_path, "books", duration="4ba")
    shutil.rmtree(tmp_path / "a")
    shutil.rmtree(tmp_path / "b")
    sizes = {"a": 40, "b": 24}
    for name, samples in sizes.items():
        with MDSWriter(out=str(tmp_path / name), columns={"id": "pkl"}) as writer:
            for i in range(samples):
                writer.write({"id": i})
    (path,) = (tmp_path / "books").glob("*/segment-*.jsonl")
    repoint(path, tmp_path)
    result = mixmon("show", path, "--batch", 0, "--json")
    found = json.loads(result.stdout)
    assert len(found["samples"]) == len(witness.batches[0])
    assert all(one["text"] is None for one in found["samples"])
    assert any("unsafe type" in remark for remark in found["remarks"])


def repoint(path: Path, data: Path) -> None:
    """Let a ledger's settings name the index files that are there now."""
    import hashlib

    from composer_mixmon.ledger.lines import frame

    lines = path.read_bytes().splitlines(keepends=True)
    header = json.loads(lines[0])
    header.pop("crc")
    for stream in header["settings"]["dataset"]["streams"]:
        index = data / stream["name"] / "index.json"
        stream["index_sha256"] = hashlib.sha256(index.read_bytes()).hexdigest()
    path.write_bytes(frame(header) + b"".join(lines[1:]))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--batch", -1), "--batch: -1"),
        (("--batch", 99), "is not in the ledger, which has 0 to 3"),
        (("--batch", 0, "--rank", 5), "there are the ranks 0"),
        (("--batch", 0, "--decode", "./no/such"), "--decode"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: tuple[Any, ...], said: str) -> None:
    """And exit status 2."""
    run(tmp_path, "books", duration="4ba")
    result = mixmon("show", tmp_path / "books", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def compared(*arguments: object, status: int) -> dict[str, Any]:
    result = mixmon("compare", *arguments, "--json")
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


def test_where_two_runs_part(tmp_path: Path) -> None:
    """Runs of one seed do not; of two seeds they do at the first batch, and the seed is named."""
    run(tmp_path, "one", duration="8ba")
    run(tmp_path, "same", duration="6ba")
    run(tmp_path, "other", duration="8ba", shuffle_seed=1)
    same = compared(tmp_path / "one", tmp_path / "same", status=0)
    assert (same["by"], same["rows"], same["first"], same["settings"]) == ("order hashes", 6, None, [])
    other = compared(tmp_path / "one", tmp_path / "other", status=1)
    a, b = (read_ledger(str(tmp_path / name)).record.order for name in ("one", "other"))
    assert a is not None
    assert b is not None
    assert other["first"] == int(np.flatnonzero(a != b)[0])
    assert other["differ"] == int((a != b).sum())
    seed = {"name": "dataset.shuffle_seed", "first": 9176, "second": 1}
    assert other["settings"] == [seed]
    printed = mixmon("compare", tmp_path / "one", tmp_path / "other").stdout
    assert "dataset.shuffle_seed: 9176 → 1" in printed
    assert "part at batch 0" in printed


def test_a_seed_without_effect(tmp_path: Path) -> None:
    """Runs of two seeds that were fed the same are told so."""
    for seed in (1, 2):
        run(tmp_path, f"seed{seed}", duration="4ba", shuffle=False, shuffle_seed=seed)
    assert compared(tmp_path / "seed1", tmp_path / "seed2", status=0)["seeds_without_effect"]
    printed = mixmon("compare", tmp_path / "seed1", tmp_path / "seed2").stdout
    assert "the same order in 4 rows although the seeds differ" in printed


def test_runs_of_other_batches(tmp_path: Path) -> None:
    """What has no batch in common cannot be compared: one line, exit status 2."""
    run(tmp_path, "one", duration="4ba")
    (tmp_path / "two.csv").write_text(
        "Step,loss/train/total\n" + "".join(f"{i},{i}\n" for i in range(100, 140))
    )
    result = mixmon("compare", tmp_path / "one", tmp_path / "two.csv")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "no record of the same batches" in result.stderr


def test_comparing_what_is_not_there(tmp_path: Path) -> None:
    """One line, exit status 2."""
    result = mixmon("compare", tmp_path / "a", tmp_path / "b")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
