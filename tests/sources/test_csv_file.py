"""CSV files: W&B's exports, and whatever has a step and a loss."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from composer_mixmon.errors import ConfigError
from composer_mixmon.sources.csv_file import read_csv
from composer_mixmon.sources.logged import LOSS


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def test_an_export_of_wandb(tmp_path: Path) -> None:
    """Columns are headed by the run's name; its least and largest values are not taken for the loss."""
    text = (
        '"Step","my - run - loss/train/total","my - run - loss/train/total__MIN",'
        '"my - run - loss/train/total__MAX","my - run - mixmon/run/ratio/a - b"\n'
        '"0","2.5","2.5","2.5",""\n"1","NaN","NaN","NaN","0.25"\n"3","1.5","1.0","2.0",""\n'
    )
    logged = read_csv(write(tmp_path / "x.csv", text))
    assert logged.columns[LOSS].steps.tolist() == [0, 1, 3]
    assert list(map(str, logged.columns[LOSS].values)) == ["2.5", "nan", "1.5"]
    assert logged.columns["mixmon/run/ratio/a - b"].values.tolist() == [0.25]
    assert logged.remarks == ("1 rows of x.csv are means over several steps: export all points instead",)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_other_tables(tmp_path: Path, encoding: str, delimiter: str) -> None:
    """With a byte order mark or none, and the separators that spreadsheets write."""
    rows = [["batch", "Über", "train_loss"], ["0", "x", "2.5"], ["1", "x", "1e-1"], []]
    text = "\r\n".join(delimiter.join(row) for row in rows)
    logged = read_csv(write(tmp_path / "x.csv", text, encoding))
    assert logged.columns[LOSS].values.tolist() == [2.5, 0.1]
    assert logged.remarks == ()


def test_a_loss_of_another_name(tmp_path: Path) -> None:
    """Is named by its column."""
    path = write(tmp_path / "x.csv", "Step,r - ce,r - z\n0,1.5,3\n")
    with pytest.raises(ConfigError, match=r"no column loss/train/total; its columns are Step, r - ce, r - z"):
        read_csv(path)
    for name in ("ce", "r - ce"):
        assert read_csv(path, name).columns[LOSS].values.tolist() == [1.5]
    with pytest.raises(ConfigError, match="no column nix"):
        read_csv(path, "nix")


def test_a_run_that_went_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Where steps go back, what was trained on last counts."""
    rows = [*range(10), *range(6, 12)]
    text = "Step,loss\n" + "".join(f"{step},{i}\n" for i, step in enumerate(rows))
    logged = read_csv(write(tmp_path / "x.csv", text))
    assert logged.columns[LOSS].values.tolist() == [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]
    assert logged.starts == ((6, 4),)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a,b\n1,2\n", "has no column of steps, such as Step; its columns are a, b"),
        (b"\n\n", "has no column of steps"),
        (b"Step,loss\n", "has no row with a step"),
        (b"Step,loss\nx,1\n1.5,2\n-3,1\n", "has no row with a step"),
        (b"Step,a - loss,b - loss\n0,1,2\n", "has columns of several runs: a, b: export one"),
        ("Step,löss\n0,1\n".encode("latin-1"), "is not in UTF-8"),
        (b'Step,loss\n0,"' + b"x" * 200_000 + b'"\n', "is no CSV file: field larger"),
    ],
)
def test_bad_tables(tmp_path: Path, content: bytes, says: str) -> None:
    """One line that says what is wrong."""
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_csv(tmp_path / "x.csv")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rows_that_are_cut_off(tmp_path: Path) -> None:
    """Steps that are none are left out, and a last row without its loss."""
    logged = read_csv(write(tmp_path / "x.csv", "Step,loss\n0,1\nx,2\n2.0,3\n3"))
    assert logged.columns[LOSS].steps.tolist() == [0, 2]
    assert logged.remarks == ("1 rows of x.csv have no whole number as step and are left out",)


def test_long_tables_are_read_whole(tmp_path: Path) -> None:
    """A hundred thousand rows, all of them there."""
    start = time.monotonic()
    text = "Step,loss\n" + "".join(f"{step},{step / 7}\n" for step in range(100_000))
    series = read_csv(write(tmp_path / "x.csv", text)).columns[LOSS]
    np.testing.assert_array_equal(series.values, np.arange(100_000) / 7)
    assert time.monotonic() - start < 30
