"""Segments of one run joined: what was trained on last."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_mixmon.errors import ConfigError
from composer_mixmon.ledger import read_ledger
from composer_mixmon.ledger.blocks import blocks_of
from composer_mixmon.ledger.places import name_run, safe_name
from composer_mixmon.ledger.writer import Appender
from composer_mixmon.run_record import Resumption
from tests.ledger.data import closed, header, same, write


def resumed(batch: int, started: float, **other: object) -> object:
    return header(batch=batch, started=started, resumed=True, first_sample=batch * 300, **other)


def test_a_resumed_run(tmp_path: Path) -> None:
    """What was done again is what was done last, and is counted as discarded."""
    old, new = [closed(0, 10), closed(10, 10)], [closed(13, 7, seed=1), closed(20, 10, seed=1)]
    write(tmp_path, header(), *old, at=1)
    write(tmp_path, resumed(13, 9e9), *new, at=2)
    record = read_ledger(str(tmp_path)).record
    same(record, [old[0], closed(10, 3), *new])
    assert record.resumptions == (Resumption(13, 0, 3900, 7),)
    assert record.remarks == ()


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(1, 5)), min_size=1, max_size=6))
@settings(derandomize=True, deadline=None)
def test_any_resumptions(tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[int, int, int]]) -> None:
    """Against a dictionary that each segment overwrites from its first batch on."""
    folder = tmp_path_factory.mktemp("any")
    expected: dict[int, int] = {}
    discarded = 0
    for number, (first, batches, interval) in enumerate(parts):
        edges = [*range(first, first + batches, interval), first + batches]
        intervals = [closed(a, b - a, seed=number) for a, b in pairwise(edges)]
        write(folder, resumed(first, 1e10 + number), *intervals, at=number)
        if not batches:
            continue
        discarded += sum(batch >= first for batch in expected)
        expected = {batch: seed for batch, seed in expected.items() if batch < first}
        expected |= dict.fromkeys(range(first, first + batches), number)
    ledger = read_ledger(str(folder))
    record = ledger.record
    assert record.first.tolist() == sorted(expected)
    for row, batch in enumerate(record.first.tolist()):
        rows = closed(batch, 1, seed=expected[batch]).rows
        np.testing.assert_array_equal(record.counts[row], rows.counts[0])
        assert record.order[row] == rows.order[0]
        assert ledger.part_of(batch).header.started == 1e10 + expected[batch]
    assert sum(resumption.discarded for resumption in record.resumptions) == discarded


def test_alarms_and_targets_of_discarded_batches_are_left_out(tmp_path: Path) -> None:
    """They speak of what was done again."""
    alarms = [{"rule": "r", "batch": 4}, {"rule": "r", "batch": 8}]
    write(tmp_path, header(), closed(0, 10), at=1, alarms=alarms)
    write(tmp_path, resumed(6, 9e9, target=(1.0, 0.0, 0.0)), closed(6, 2), at=2)
    record = read_ledger(str(tmp_path)).record
    assert record.alarms == (alarms[0],)
    assert [(t.first, t.shares.tolist()) for t in record.targets] == [(0, [0.5, 0.25, 0.25]), (6, [1, 0, 0])]


def test_labels_that_change(tmp_path: Path) -> None:
    """Each keeps its column; where one was not counted, it has 0."""
    write(tmp_path, header(), closed(0, 3), at=1)
    other = {"labels": ("en", "fr"), "target": (0.5, 0.5)}
    write(tmp_path, resumed(3, 9e9, **other), closed(3, 2, labels=2), at=2)
    record = read_ledger(str(tmp_path)).record
    assert record.names == ("ja", "en", "<script>", "fr")
    expected = np.zeros((5, 4), np.int64)
    expected[:3, :3] = closed(0, 3).rows.counts
    expected[3:, [1, 3]] = closed(3, 2, labels=2).rows.counts
    np.testing.assert_array_equal(record.counts, expected)
    assert record.targets[1].shares.tolist() == [0, 0.5, 0, 0.5]
    assert "labels changed" in record.remarks[0]


def test_tokens_that_not_all_batches_tell(tmp_path: Path) -> None:
    """They are left out as a whole, and it is said."""
    write(tmp_path, header(), closed(0, 3), closed(3, 3, told=False))
    record = read_ledger(str(tmp_path)).record
    assert record.tokens is None
    assert "tokens" in record.remarks[0]


def test_no_batch_tells_tokens(tmp_path: Path) -> None:
    """Then there is nothing to say."""
    write(tmp_path, header(), closed(0, 3, told=False))
    record = read_ledger(str(tmp_path)).record
    assert record.tokens is None
    assert record.remarks == ()


def test_a_segment_of_another_run(tmp_path: Path) -> None:
    """It is left out, with a remark."""
    write(tmp_path, header(), closed(0, 3), at=1)
    write(tmp_path, header(run="run-2", started=9e9), closed(0, 3, seed=1), at=2)
    record = read_ledger(str(tmp_path)).record
    same(record, [closed(0, 3)])
    assert "another run, run-2" in record.remarks[0]


def test_a_segment_that_cannot_be_read(tmp_path: Path) -> None:
    """It is left out, with a remark; the rest is read."""
    write(tmp_path, header(), closed(0, 3), at=1)
    (tmp_path / "segment-2.jsonl").write_bytes(b"")
    (tmp_path / "segment-3.jsonl").write_bytes(os.urandom(1000))
    record = read_ledger(str(tmp_path)).record
    same(record, [closed(0, 3)])
    assert len(record.remarks) == 2


def test_a_resumption_without_a_batch_discards_nothing(tmp_path: Path) -> None:
    """What happened before it is all that is known."""
    write(tmp_path, header(), closed(0, 9), at=1)
    write(tmp_path, resumed(5, 9e9), at=2)
    record = read_ledger(str(tmp_path)).record
    same(record, [closed(0, 9)])
    assert "segment-2.jsonl holds no batch" in record.remarks[0]


def test_two_processes_at_the_same_time(tmp_path: Path) -> None:
    """The later one counts, and it is said."""
    write(tmp_path, header(), closed(0, 9), at=1)  # written now
    write(tmp_path, resumed(5, 1e9), closed(5, 9, seed=1), at=2)  # said to have begun in 2001
    record = read_ledger(str(tmp_path)).record
    same(record, [closed(0, 5), closed(5, 9, seed=1)])
    assert "two processes" in record.remarks[0]


def test_a_ledger_that_begins_late(tmp_path: Path) -> None:
    """Its beginning is elsewhere."""
    write(tmp_path, resumed(40, 1e9), closed(40, 2))
    record = read_ledger(str(tmp_path)).record
    assert record.first.tolist() == [40, 41]
    assert "the batches before 40" in record.remarks[0]


def test_where_a_run_is_found(tmp_path: Path) -> None:
    """By its segment, its folder, the ledgers' folder or the save_folder; two runs must be told apart."""
    path = write(tmp_path / "save" / "mixmon" / "one", header(), closed(0, 3))
    for place in (path, path.parent, path.parent.parent, path.parent.parent.parent):
        assert len(read_ledger(str(place)).record.first) == 3
    write(tmp_path / "save" / "mixmon" / "two", header(run="two"), closed(0, 3))
    with pytest.raises(ConfigError, match="2 runs: name one of its folders, such as one, two"):
        read_ledger(str(tmp_path / "save"))


@pytest.mark.parametrize("run", ["", "nowhere", "s3://bucket/run", "a\0b", "a" * 5000])
def test_nothing_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str) -> None:
    """One line of ours."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        read_ledger(run)


@given(st.text())
@settings(derandomize=True, deadline=None)
def test_names_stay_in_their_folder(name: str) -> None:
    """Whatever a run is called."""
    for safe in (safe_name(name), name_run(name)):
        assert len(safe) < 120
        assert not set(safe) & set("/\\\0 \n")
        assert safe not in ("", ".", "..")
        assert not safe.startswith(".")


KILLED = """
import sys
from itertools import pairwise
from pathlib import Path
from tests.ledger.data import closed, header
from composer_mixmon.ledger import Writer
head = header(labels=tuple("abc"))
writer = Writer(Path(sys.argv[1]), head)
for first in range(0, 10**9, 10):
    writer.write([closed(first, 10)], head.target, [])
    print(first, flush=True)
"""


def test_killed_while_it_writes(tmp_path: Path) -> None:
    """After kill -9, all that had been written is there, up to the last whole record."""
    path = tmp_path / "segment-1.jsonl"
    command = [sys.executable, "-c", KILLED, str(path)]
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        said = [int(process.stdout.readline()) for _ in range(50)]
        growing = read_ledger(str(path)).record  # another process is writing it now
        process.send_signal(signal.SIGKILL)
        said += [int(line) for line in process.stdout if line.endswith("\n")]
    record = read_ledger(str(path)).record
    assert len(growing.first) >= 500
    assert len(record.first) >= said[-1] + 10
    same(record, [closed(first, 10) for first in range(0, len(record.first), 10)])


def test_a_full_disk(tmp_path: Path) -> None:
    """What does not fit is an OSError, and what was written before can be read."""
    with pytest.raises(OSError, match="No space left") as caught:
        limited(tmp_path / "segment-1.jsonl")
    assert caught.value.errno == 28
    record = read_ledger(str(tmp_path)).record
    assert len(record.first) > 10
    same(record, [closed(first, 10) for first in range(0, len(record.first), 10)])
    assert "cut off" in record.remarks[0]


def limited(path: Path) -> None:
    """Write until 4,000 bytes are full; the system takes what fits of the record that does not."""
    appender = Appender(path, header().to_dict())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
    try:
        for first in range(0, 1000, 10):
            appender.add(blocks_of(closed(first, 10), 1.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        appender.close()
