"""``.wandb`` files are read as wandb itself reads them, and further where it gives up."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from composer_mixmon.errors import ConfigError
from composer_mixmon.sources.logged import LOSS
from composer_mixmon.sources.wandb_file import Damage, wandb_records
from composer_mixmon.sources.wandb_folder import find_wandb_files, read_wandb_files

from .wandb_writer import history, other, write_records

BLOCK = 32 * 1024


def read(path: Path) -> tuple[list[bytes], Damage]:
    """The records, as they were serialised, and what could not be read."""
    damage = Damage()
    return [record.SerializeToString() for record in wandb_records(path, damage)], damage


def by_wandb(path: Path) -> list[bytes]:
    """The same by wandb's own reader."""
    from wandb.sdk.internal.datastore import DataStore

    store = DataStore()
    store.open_for_scan(str(path))
    try:
        return list(iter(store.scan_data, None))
    finally:
        store._fp.close()


@pytest.mark.parametrize("seed", range(4))
def test_records_of_all_lengths(tmp_path: Path, seed: int) -> None:
    """Up to several blocks long, and ending wherever a block does."""
    draw = random.Random(seed)
    lengths = [draw.choice([0, 1, 50, 1000, BLOCK - 30, BLOCK, 3 * BLOCK]) for _ in range(40)]
    lengths += range(BLOCK - 60, BLOCK - 20)  # headers that do and do not fit into the rest of a block
    path = write_records(tmp_path / "run-a.wandb", [other(length) for length in lengths])
    records, damage = read(path)
    assert records == by_wandb(path)
    assert len(records) == len(lengths)
    assert (damage.torn, damage.blocks) == (False, 0)


def test_cut_anywhere(tmp_path: Path) -> None:
    """A file cut at any byte is read to its last whole record, and is torn unless it ends with one."""
    rows = [history(step, {LOSS: step / 2}) for step in range(20)] + [other(BLOCK)]
    path = write_records(tmp_path / "run-a.wandb", rows)
    whole = path.read_bytes()
    ends = [path.stat().st_size]
    for count in range(len(rows)):
        part = write_records(tmp_path / f"run-{count}.wandb", rows[:count])
        ends.append(part.stat().st_size)
    sizes = sorted(ends)
    for size in [*range(7, sizes[-2] + 20), *range(sizes[-1] - 3000, len(whole) + 1, 13), len(whole)]:
        path.write_bytes(whole[:size])
        records, damage = read(path)
        assert len(records) == sum(end <= size for end in sizes) - 1
        assert damage.torn == (size not in sizes)
        assert damage.blocks == 0


def test_damage_costs_a_block(tmp_path: Path) -> None:
    """Where wandb's reader gives up, reading goes on at the next block."""
    rows = [history(step, {LOSS: step / 2, "x": "y" * 100}) for step in range(2000)]
    path = write_records(tmp_path / "run-a.wandb", rows)
    content = bytearray(path.read_bytes())
    content[3 * BLOCK + 500] ^= 1
    path.write_bytes(content)
    with pytest.raises(AssertionError):
        by_wandb(path)
    records, damage = read(path)
    assert (damage.torn, damage.blocks) == (False, 1)
    assert 0 < 2000 - len(records) < BLOCK / 100
    logged = read_wandb_files([path])
    assert len(logged.columns[LOSS].steps) == len(records)
    assert "run-a.wandb is damaged in 1 places: rows are missing there" in logged.remarks


@pytest.mark.parametrize("content", [b"", b":W&", b"{}", b"\0" * 100])
def test_no_wandb_file(tmp_path: Path, content: bytes) -> None:
    """Files of something else are refused."""
    (tmp_path / "run-a.wandb").write_bytes(content)
    with pytest.raises(ConfigError, match="is no W&B file"):
        read(tmp_path / "run-a.wandb")


def test_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    """NaN and infinite losses are read as W&B writes them, quoted or not."""
    values: list[Any] = [1.5, float("nan"), float("inf"), "NaN", "Infinity", "-Infinity", 2]
    rows = [history(step, {LOSS: value}) for step, value in enumerate(values)]
    series = read_wandb_files([write_records(tmp_path / "run-a.wandb", rows)]).columns[LOSS]
    assert list(map(str, series.values)) == ["1.5", "nan", "inf", "nan", "inf", "-inf", "2.0"]


def test_no_loss(tmp_path: Path) -> None:
    """The metrics that are there are named, and one of them can be taken."""
    path = write_records(tmp_path / "run-a.wandb", [history(0, {"train/ce": 2.5, "lr": 0.1})])
    with pytest.raises(ConfigError, match="has no loss/train/total, but lr, train/ce: name the loss"):
        read_wandb_files([path])
    assert read_wandb_files([path], "train/ce").columns[LOSS].values.tolist() == [2.5]


def test_a_run_in_several_folders(tmp_path: Path) -> None:
    """What was trained on last counts; the folders of another run are left alone."""
    first = [history(step, {LOSS: float(step), "time/epoch": 0}) for step in range(10)]
    again = [history(step, {LOSS: 100.0 + step}) for step in range(6, 14)]
    folders = {"offline-run-20260101_000000-abc": first, "run-20260102_000000-abc": again}
    for name, rows in folders.items():
        write_records(tmp_path / "wandb" / name / "run-abc.wandb", rows)
    (tmp_path / "wandb" / "latest-run").symlink_to("run-20260102_000000-abc")
    for run in ("wandb", "wandb/latest-run", "wandb/offline-run-20260101_000000-abc/run-abc.wandb"):
        logged = read_wandb_files(find_wandb_files(tmp_path / run))
        assert logged.columns[LOSS].steps.tolist() == list(range(14))
        assert logged.columns[LOSS].values.tolist() == [0, 1, 2, 3, 4, 5, *range(106, 114)]
        assert logged.starts == ((6, 4),)
        assert "in 2 parts" in logged.remarks[-1]
    write_records(tmp_path / "wandb" / "run-20260103_000000-xyz" / "run-xyz.wandb", first)
    assert len(find_wandb_files(tmp_path / "wandb" / "run-20260103_000000-xyz")) == 1
    with pytest.raises(ConfigError, match="holds 2 runs of W&B"):
        find_wandb_files(tmp_path / "wandb")


def test_how_the_run_ended(tmp_path: Path) -> None:
    """A run without an exit record was killed or goes on, and the record says so."""
    from wandb.proto import wandb_internal_pb2 as pb

    rows = [history(0, {LOSS: 1.0})]
    (remark,) = read_wandb_files([write_records(tmp_path / "run-a.wandb", rows)]).remarks
    assert "no exit record" in remark
    rows.append(pb.Record(exit=pb.RunExitRecord()))
    assert read_wandb_files([write_records(tmp_path / "run-b.wandb", rows)]).remarks == ()
