"""Several processes joined by gloo.

One launch for each number of ranks runs all scenarios of ``rank_script.py``; the tests read what each rank
wrote down.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from composer_mixmon import MixMon
from composer_mixmon.ledger import read_ledger
from composer_mixmon.run_record import Resumption
from composer_mixmon.show import show_batch
from composer_mixmon.sources import Given
from tests.live.data import mds_loader, streaming_dataset, write_mds
from tests.live.helpers import Witness, books_in, ids_to_rows, rows, trainer

SAMPLES, BATCH, INTERVAL = 96, 4, 4
SCRIPT = Path(__file__).with_name("rank_script.py")


def launch(ranks: int, folder: Path, scenarios: list[str], command: list[str]) -> Any:
    """Run the script on so many ranks; returns the folder and each rank's report."""
    if not (folder / "mds").exists():
        write_mds(folder / "mds", SAMPLES)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "RANKS": str(ranks),
        "TMPDIR": str(folder),  # for streaming's lock files
        "MASTER_PORT": port,
    }
    done = subprocess.run(
        [sys.executable, *command, str(SCRIPT), str(folder), *scenarios],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return folder, [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


EVERYWHERE = ["plain", "without", "uneven", "replicated", "stop", "fault"]
BY_TWO = [
    *EVERYWHERE,
    "map_style",
    "fault_after_the_last_interval",
    "raising",
    "mistake_on_one_rank",
    "saved",
    "same_data",
    "uneven_same_data",
    "other_seed",
]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two ranks under the ``composer`` launcher."""
    launcher = ["-m", "composer.cli.launcher", "-n", "2"]
    return launch(2, tmp_path_factory.mktemp("two"), BY_TWO, launcher)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Four ranks forked by the script, so that Composer is imported once."""
    return launch(4, tmp_path_factory.mktemp("four"), EVERYWHERE, [])


@pytest.fixture(params=["two", "four"])
def reports(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def of(reports: Any, scenario: str) -> list[dict[str, Any]]:
    return [report[scenario] for report in reports[1]]


def fed(ranks: list[dict[str, Any]]) -> Any:
    """The brute force: each global batch's ids over all ranks, counted."""
    return sum(ids_to_rows(rank["fed"], SAMPLES) for rank in ranks)


@pytest.mark.parametrize("scenario", ["plain", "uneven"])
def test_counts_are_exact_and_equal_on_all_ranks(reports: Any, scenario: str) -> None:
    """Also where a rank runs out of data and the others' last batch, already fetched, is dropped."""
    exact(of(reports, scenario))


def integrity(ranks: list[dict[str, Any]]) -> dict[str, float]:
    """The last figures logged of the integrity checks, which are those of every rank."""
    figures = [
        {kind: rank["metrics"][f"mixmon/integrity/{kind}"][-1][1] for kind in NOTHING} for rank in ranks
    ]
    assert all(one == figures[0] for one in figures)
    return figures[0]


NOTHING = {"plan_mismatch": 0.0, "repeats": 0.0, "gaps": 0.0, "rank_overlap": 0.0}


@pytest.mark.parametrize("scenario", ["plain", "map_style", "uneven", "replicated", "saved"])
def test_healthy_ranks_give_no_findings(two: Any, scenario: str) -> None:
    """Over epochs, with replication, and where a rank runs out of data."""
    assert integrity(of(two, scenario)) == NOTHING


def test_ranks_that_get_the_same_data(two: Any) -> None:
    """Each sample comes on both ranks."""
    assert integrity(of(two, "same_data")) == NOTHING | {"rank_overlap": SAMPLES}


def test_ranks_that_get_the_same_data_and_end_apart(two: Any) -> None:
    """Also the samples after the last whole interval come on both ranks."""
    ranks = of(two, "uneven_same_data")
    assert [len(rank["fed"]) for rank in ranks] == [5, 5]
    assert integrity(ranks)["rank_overlap"] == 5 * BATCH


def test_a_rank_that_is_not_fed_as_its_settings_say(two: Any) -> None:
    """All ranks raise the alarm, which names that rank."""
    ranks = of(two, "other_seed")
    assert integrity(ranks) == NOTHING | {"plan_mismatch": SAMPLES / BATCH / 2}
    assert ranks[0]["alarms"] == ranks[1]["alarms"]
    (alarm,) = ranks[0]["alarms"]
    fed = ", ".join(map(str, ranks[1]["fed"][0]))
    assert f"rank 1 in batch 0 was fed the samples {fed}, … where" in alarm


def test_a_distributed_sampler_is_counted_over_the_ranks(two: Any) -> None:
    """A map-style dataset, too, is counted exactly."""
    exact(of(two, "map_style"))


def exact(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        np.testing.assert_array_equal(rank["counts"], fed(ranks))
        assert np.sum(rank["counts"]) == rank["sample"]
        assert rank["warned"] == []
        assert rank["seconds"] < 30


def test_each_rank_has_its_own_part(reports: Any) -> None:
    """The test above would not notice ranks that all feed the same: they do not."""
    ranks = of(reports, "plain")
    assert ranks[0]["fed"][0] != ranks[1]["fed"][0]
    assert len(of(reports, "uneven")[0]["fed"]) == 5


def test_replicated_samples_count_once(reports: Any) -> None:
    """With ``replication=2``, ranks 2i and 2i + 1 are fed the same samples, and one of them counts."""
    ranks = of(reports, "replicated")
    assert [rank["fed"] for rank in ranks[::2]] == [rank["fed"] for rank in ranks[1::2]]
    assert len({str(rank["fed"]) for rank in ranks}) == len(ranks) / 2
    for rank in ranks:
        np.testing.assert_array_equal(rank["counts"], fed(ranks[::2]))
        np.testing.assert_array_equal(np.sum(rank["counts"], axis=0), 1)


def test_one_all_reduce_an_interval(reports: Any) -> None:
    """What we add to the run's all-reduces: one at the start, one an interval, and one at an epoch's end.

    Nothing is gathered or broadcast, and no rank waits for another.
    """
    with_us, without = of(reports, "plain"), of(reports, "without")
    for ours, theirs in zip(with_us, without, strict=True):
        batches = range(1, ours["batch"] + 1)
        sums = [b for b in batches if b % INTERVAL == 0 or b % (ours["batch"] // 2) == 0]
        assert ours["all_reduces"] - theirs["all_reduces"] == 1 + len(sums)
        assert ours["other_collectives"] == theirs["other_collectives"]
        assert ours["fed"] == theirs["fed"]


def test_metrics_are_those_of_the_global_batches(two: Any) -> None:
    """Every rank logs the same figures, which are those of the summed counts."""
    ranks = of(two, "map_style")
    counts = fed(ranks)
    for rank in ranks:
        assert rank["metrics"] == ranks[0]["metrics"]
    for batch, share in ranks[0]["metrics"]["mixmon/run/ratio/part07"]:
        seen = counts[: batch + 1]
        assert share == seen[:, 7].sum() / seen.sum()


def test_stop_ends_all_ranks_at_the_same_batch(reports: Any) -> None:
    """At the first interval's end, which is when the alarm is seen, and with a checkpoint."""
    ranks = of(reports, "stop")
    assert [rank["batch"] for rank in ranks] == [3] * len(ranks)
    assert (reports[0] / "stop" / "ba3.pt").exists()


def test_raise_raises_on_all_ranks(two: Any) -> None:
    """The same error after the same batch."""
    ranks = of(two, "raising")
    assert [rank["error"] for rank in ranks] == ["MixtureAlarm"] * len(ranks)
    assert {rank["batch"] for rank in ranks} == {3}


def test_a_fault_on_one_rank_turns_all_off(reports: Any) -> None:
    """Training goes on to its end, at once, with one warning on each rank."""
    off_and_done(of(reports, "fault"))


def test_a_fault_after_the_last_interval_turns_all_off(two: Any) -> None:
    """It comes out at the end of training."""
    off_and_done(of(two, "fault_after_the_last_interval"))


def off_and_done(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["off"]
        assert len(rank["warned"]) == 1
        assert rank["error"] is None
        assert rank["seconds"] < 30
        assert rank["sample"] == sum(len(ids) for other in ranks for ids in other["fed"])
    assert ranks[0]["batch"] >= 6


def test_a_mistake_that_one_rank_makes_is_raised_on_all(two: Any) -> None:
    """Nobody trains on alone, to wait for the rank that has gone."""
    ranks = of(two, "mistake_on_one_rank")
    assert ranks[-1]["error"] == "ConfigError"
    assert [rank["error"] for rank in ranks[:-1]] == ["MixmonError"] * (len(ranks) - 1)
    assert all(rank["batch"] == 0 for rank in ranks)


@pytest.mark.parametrize("batch", [2, 4])
def test_resumed_on_fewer_ranks_totals_are_not_multiplied(two: Any, batch: int) -> None:
    """Saved by all ranks, between two intervals and at an interval's end, and gone on with by one."""
    folder, _ = two
    ranks = of(two, "saved")
    dataset = streaming_dataset(folder / "mds", BATCH)
    witness = Witness()
    monitor = MixMon(labels={"position": SAMPLES}, window="1000ba", log_interval="4ba")
    settings = {"load_path": str(folder / "saved" / f"ba{batch}.pt"), "duration": "1ep"}
    run = trainer(mds_loader(dataset), witness, monitor, **settings)
    run.fit()
    run.close()
    whole = np.concatenate([fed(ranks)[:batch], ids_to_rows(witness.batches, SAMPLES)])
    np.testing.assert_array_equal(rows(monitor), whole)
    np.testing.assert_array_equal(whole.sum(axis=0), 1)
    assert rows(monitor).sum() == int(run.state.timestamp.sample)


def test_the_ledger_of_two_ranks_is_gone_on_with_by_one(two: Any) -> None:
    """Joined, it is what was trained on last; and each batch is proven to be the replay's of its world."""
    folder, _ = two
    ranks = of(two, "saved")
    witness = Witness()
    monitor = MixMon(
        labels={"position": SAMPLES},
        window="1000ba",
        log_interval="4ba",
        ledger=str(folder / "saved" / "mixmon"),
    )
    settings = {"load_path": str(folder / "saved" / "ba4.pt"), "duration": "1ep"}
    run = trainer(mds_loader(streaming_dataset(folder / "mds", BATCH)), witness, monitor, **settings)
    run.fit()
    run.close()
    record = read_ledger(str(folder / "saved")).record
    whole = np.concatenate([fed(ranks)[:4], ids_to_rows(witness.batches, SAMPLES)])
    np.testing.assert_array_equal(record.counts, whole)
    assert record.resumptions == (Resumption(4, 0, 4 * 2 * BATCH, 2),)
    for batch in (0, 3, 4, len(whole) - 1):
        shown = show_batch(str(folder / "saved"), batch, None, None, Given())
        assert shown.proven
        assert (
            np.bincount([one.id for one in shown.samples], minlength=SAMPLES).tolist()
            == whole[batch].tolist()
        )
        assert {one.rank for one in shown.samples} == ({0, 1} if batch < 4 else {0})


@pytest.fixture(scope="module")
def legs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[dict[str, Any]]]]:
    """The reports of four, then two, then eight ranks, each of which goes on where the last stopped."""
    folder = tmp_path_factory.mktemp("legs")
    launch(2, folder, ["unbroken"], [])
    return folder, [of(launch(n, folder, ["leg"], []), "leg") for n in (4, 2, 8)]


def test_resumed_on_other_ranks_and_workers(legs: tuple[Path, list[list[dict[str, Any]]]]) -> None:
    """Four ranks, then two, then eight: the totals are of the samples fed, and nothing is amiss."""
    folder, parts = legs
    whole = np.concatenate([fed(ranks) for ranks in parts])
    assert [len(ranks[0]["fed"]) for ranks in parts] == [3, 5, 4]
    for ranks, until in zip(parts, (3, 8, 12), strict=True):
        assert integrity(ranks) == NOTHING
        for rank in ranks:
            np.testing.assert_array_equal(rank["counts"], whole[:until])
            assert np.sum(rank["counts"]) == rank["sample"] == until * 16
            assert rank["warned"] == []
    for epoch in (whole[:6], whole[6:]):
        np.testing.assert_array_equal(epoch.sum(axis=0), 1)
    record = read_ledger(str(folder / "legs")).record
    np.testing.assert_array_equal(record.counts, whole)
    assert [(one.batch, one.discarded) for one in record.resumptions] == [(3, 0), (8, 0)]


def test_resumed_on_other_ranks_keeps_the_books(legs: tuple[Path, list[list[dict[str, Any]]]]) -> None:
    """At the end, the same books to the byte as those of two ranks that were never interrupted."""
    folder, _ = legs
    resumed, unbroken = (books_in(folder / name / "ba12.pt") for name in ("legs", "unbroken"))
    assert json.dumps(resumed) == json.dumps(unbroken)
