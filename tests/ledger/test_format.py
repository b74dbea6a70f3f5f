"""Written and read again: exact, torn at any byte, damaged, or somebody else's."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from composer_mixmon.errors import ConfigError, MixmonError
from composer_mixmon.ledger import read_ledger
from composer_mixmon.ledger.blocks import Table, blocks_of, read_block
from composer_mixmon.ledger.columns import decode, encode, smallest, unpack
from composer_mixmon.ledger.lines import frame, lines
from composer_mixmon.rows import Closed, Rows
from tests.ledger.data import LABELS, SETTINGS, closed, header, same, write

SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 5))
WHOLE = of_numpy.arrays(np.int64, SHAPES, elements=st.integers(0, 2**63 - 1))
TEXT = st.text("a\n\0☃")
REAL = of_numpy.arrays(np.float64, SHAPES)


@given(WHOLE | REAL)
@settings(derandomize=True, deadline=None)
def test_columns_keep_every_bit(values: np.ndarray) -> None:
    """Whole numbers up to 2**63 − 1 and any real numbers come back as they were."""
    kind = smallest(values)
    raw = np.frombuffer(decode(encode([(kind, values)]), values.size * int(kind[1])), np.uint8)
    found = unpack(kind, raw[None]).astype(values.dtype).reshape(values.shape)
    np.testing.assert_array_equal(found, values)


@st.composite
def intervals(draw: st.DrawFn) -> list[Closed]:
    """Ascending batches with gaps between some, of any counts, over epochs, with and without losses."""
    labels, parts, first = draw(st.integers(1, 4)), [], draw(st.integers(0, 10**12))
    for _ in range(draw(st.integers(1, 4))):
        batches = draw(st.integers(1, 6))
        rows = Rows.empty(batches, labels)
        for row in range(batches):
            counts = np.array([draw(st.integers(0, 2**40)) for _ in range(labels)])
            rows.put(row, counts, counts * 3, draw(st.integers(-(2**63), 2**63 - 1)))
        gaps = np.array([draw(st.sampled_from([1, 1, 1, 5])) for _ in range(batches)])
        numbers = first + np.cumsum(gaps)
        epochs = np.array([draw(st.integers(-1, 2)) for _ in range(batches)])
        parts.append(Closed(rows, numbers, epochs, np.array([draw(st.floats()) for _ in range(batches)])))
        first = int(numbers[-1])
    return parts


@given(intervals())
@settings(derandomize=True, deadline=None)
def test_blocks_keep_every_batch(parts: list[Closed]) -> None:
    """Whatever an interval holds comes back, through JSON, in the rows of a table."""
    labels = parts[0].rows.counts.shape[1]
    records = [json.loads(json.dumps(record)) for part in parts for record in blocks_of(part, 5.0)]
    blocks = [read_block(record, labels) for record in records]
    batches = sum(len(part.batch) for part in parts)
    table = Table.empty(batches, labels, True)
    assert table.fill(blocks, 1 << 62, range(labels), 0) == batches
    for name in ("counts", "tokens", "order"):
        np.testing.assert_array_equal(
            getattr(table, name), np.concatenate([getattr(part.rows, name) for part in parts])
        )
    np.testing.assert_array_equal(table.first, np.concatenate([part.batch for part in parts]))
    np.testing.assert_array_equal(table.epoch, np.concatenate([part.epoch for part in parts]))
    np.testing.assert_array_equal(table.loss, np.concatenate([part.loss for part in parts]))
    np.testing.assert_array_equal(table.time, 5.0)


def test_a_ledger_is_read_as_written(tmp_path: Path) -> None:
    """Batches, alarms, targets, labels and settings."""
    parts = [closed(0, 10), closed(10, 10, epoch=[0] * 3 + [1] * 7), closed(20, 3, epoch=1)]
    alarm = {"rule": "deviation above 0.1", "batch": 9, "value": 0.2}
    path = write(tmp_path, header(), *parts[:1], alarms=[alarm])
    write_more(path, parts[1:])
    record = read_ledger(str(path)).record
    same(record, parts)
    assert (record.names, record.settings, record.source) == (LABELS, SETTINGS, "ledger")
    assert record.alarms == (alarm,)
    assert [target.first for target in record.targets] == [0]
    assert record.targets[0].shares.tolist() == [0.5, 0.25, 0.25]
    assert record.remarks == record.resumptions == ()


def write_more(path: Path, parts: list[Closed], target: Any = None) -> None:
    """Add to a segment what its own process would have gone on to write."""
    records = [record for part in parts for record in blocks_of(part, 2000.0)]
    before = [{"from": int(parts[0].batch[0]), "target": target}] if target else []
    with path.open("ab") as file:
        file.write(b"".join(map(frame, [*before, *records])))


def test_a_target_that_changes(tmp_path: Path) -> None:
    """It counts from its first batch on, and comes once."""
    path = write(tmp_path, header(), closed(0, 5))
    write_more(path, [closed(5, 5)], [0.0, 0.5, 0.5])
    targets = read_ledger(str(path)).record.targets
    assert [(target.first, target.shares.tolist()) for target in targets] == [
        (0, [0.5, 0.25, 0.25]),
        (5, [0.0, 0.5, 0.5]),
    ]


def test_lines_are_json(tmp_path: Path) -> None:
    """Each line is a JSON object, and its first key the CRC-32 of what follows."""
    path = write(tmp_path, header(), closed(0, 10))
    for line in path.read_bytes().splitlines():
        record = json.loads(line)
        assert next(iter(record)) == "crc"
        assert int(record["crc"], 16) == zlib.crc32(line[len('{"crc":"00000000",') :])


def test_torn_at_every_byte(tmp_path: Path) -> None:
    """Cut anywhere, a ledger is read up to the last whole record, and says that something is missing."""
    parts = [closed(0, 2), closed(2, 2), closed(4, 2)]
    whole = write(tmp_path, header(settings={}), *parts).read_bytes()
    edges = np.cumsum([len(line) for line in whole.splitlines(keepends=True)]).tolist()
    torn = tmp_path / "torn.jsonl"
    for size in range(len(whole)):
        torn.write_bytes(whole[:size])
        if size < edges[0]:
            with pytest.raises(ConfigError, match="first line"):
                read_ledger(str(torn))
            continue
        record = read_ledger(str(torn)).record
        records = sum(edge <= size for edge in edges) - 1
        assert record.first.tolist() == list(range(2 * records))
        assert any("cut off" in remark for remark in record.remarks) == (size not in edges)


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    """A byte that changes costs the record that it is in, no other, and is said."""
    parts = [closed(0, 2), closed(2, 2), closed(4, 2)]
    whole = bytearray(write(tmp_path, header(settings={}), *parts).read_bytes())
    begin = len(whole.splitlines(keepends=True)[0])
    damaged = tmp_path / "damaged.jsonl"
    for place in range(begin, len(whole)):
        whole[place] ^= 1
        damaged.write_bytes(whole)
        whole[place] ^= 1
        record = read_ledger(str(damaged)).record
        assert len(record.remarks) == 1
        assert len(record.first) >= 2  # a newline that is lost costs two
        np.testing.assert_array_equal(
            record.counts, np.concatenate([p.rows.counts for p in parts])[record.first]
        )


@pytest.mark.parametrize(
    "other",
    [
        {"batch": 5, "n": 2},
        {"batch": 0, "n": 1, "epoch": 0, "time": 0, "as": ["u1", "", "f4"], "data": "-AAAA"},
        {"batch": 0, "n": -1, "epoch": 0, "time": 0, "as": ["u1", "", "f4"], "data": "-"},
        {"batch": 0, "n": 1 << 40, "epoch": 0, "time": 0, "as": ["u1", "", "f4"], "data": "-"},
        {"batch": 1 << 70, "n": 1, "epoch": 0, "time": 0, "as": ["u1", "", "f4"], "data": "-"},
        {"batch": 2, "n": 1, "epoch": 0, "time": 0, "as": ["O8", "", "f4"], "data": "-"},
        {"batch": 2, "n": 1, "epoch": [], "time": 0, "as": ["u1", "", "f4"], "data": "-" + "A" * 20},
        {"batch": 2, "n": 1, "epoch": 0, "time": None, "as": ["u1", "", "f4"], "data": "-" + "A" * 20},
        {"batch": 2, "n": 1, "epoch": 0, "time": 0, "as": 7, "data": "-"},
        {"batch": 2, "n": 1, "epoch": 0, "time": 0, "as": ["u1", "", "f4"], "data": "zAAAA"},
        {"batch": 2, "n": 1, "epoch": 0, "time": 0, "as": ["u1", "", "f4"], "data": "-é"},
        {"alarm": "none"},
        {"alarm": {"batch": "1"}},
        {"from": 0, "target": [1.0]},
        {"from": 0, "target": ["a", "b", "c"]},
        {"something": "else"},
        {"batch": 0, **{k: v for k, v in blocks_of(closed(0, 2), 1.0)[0].items() if k != "batch"}},
    ],
)
def test_records_that_are_whole_but_wrong(tmp_path: Path, other: dict[str, Any]) -> None:
    """They are left out with a remark, and the others are read."""
    path = write(tmp_path, header(), closed(0, 2))
    with path.open("ab") as file:
        file.write(frame(other))
    write_more(path, [closed(2, 2)])
    record = read_ledger(str(path)).record
    assert record.first.tolist() == [0, 1, 2, 3]
    assert len(record.remarks) == 1
    assert "1 records were left out" in record.remarks[0]


@given(st.binary(max_size=300))
@settings(derandomize=True, deadline=None)
def test_any_bytes_are_an_error_of_ours(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """A file that is no ledger is refused with one line."""
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(content)
    with pytest.raises(MixmonError) as caught:
        read_ledger(str(path))
    assert "\n" not in str(caught.value)


@given(
    st.dictionaries(
        st.sampled_from([*header().to_dict(), "x"]),
        st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.lists(TEXT),
    )
)
@settings(derandomize=True, deadline=None)
def test_any_header_is_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, changed: dict[str, Any]
) -> None:
    """Whatever a whole first line holds: it is read, or refused with one line."""
    path = tmp_path_factory.getbasetemp() / "any_header.jsonl"
    path.write_bytes(frame(header().to_dict() | changed))
    said = ""
    try:
        read_ledger(str(path))
    except MixmonError as error:
        said = str(error)
    assert "\n" not in said


def test_a_pickle_is_not_unpickled(tmp_path: Path) -> None:
    """It is refused like any other garbage, and does nothing."""
    marker = tmp_path / "marker"
    path = tmp_path / "segment-1.jsonl"
    path.write_bytes(f"cposix\nsystem\n(S'touch {marker}'\ntR.".encode())
    with pytest.raises(MixmonError):
        read_ledger(str(path))
    assert not marker.exists()


def test_a_deep_or_endless_line(tmp_path: Path) -> None:
    """JSON nested 100,000 deep and a number of 10,000 digits are lines that are not whole."""
    path = tmp_path / "lines"
    deep, digits = b'"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'"a":' + b"9" * 10_000 + b"}"
    path.write_bytes(b"".join(b'{"crc":"%08x",%s\n' % (zlib.crc32(body), body) for body in (deep, digits)))
    with path.open("rb") as file:
        assert list(lines(file)) == [None, None]
