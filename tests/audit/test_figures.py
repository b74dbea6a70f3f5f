"""The audit's figures against streaming's own order, counted one sample at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from composer_mixmon.evidence import Evidence, EvidenceSettings
from composer_mixmon.statistics import noise_floor
from tests.live.data import SHARD, write_mds

from .data import JA_EN, audited, fed, run, write_index, write_yaml

SAMPLES, BATCH, WINDOW = 1920, 16, 10


@pytest.fixture(scope="module")
def mds(tmp_path_factory: pytest.TempPathFactory) -> str:
    """240 real shards of 8 samples."""
    return write_mds(tmp_path_factory.mktemp("mds") / "data", SAMPLES)


@pytest.mark.parametrize(
    ("settings", "world", "epoch"),
    [
        ({"shuffle": True}, (1, 1, 0), 0),
        ({"shuffle": True, "shuffle_algo": "py1s"}, (2, 2, 3), 1),
        (
            {"shuffle": True, "shuffle_algo": "py1br", "shuffle_block_size": 100, "shuffle_seed": 0},
            (1, 4, 2),
            2,
        ),
        ({"shuffle": True, "shuffle_algo": "py2s", "num_canonical_nodes": 4}, (2, 1, 1), 0),
        ({"shuffle": True, "shuffle_algo": "naive", "epoch_size": 1600}, (1, 2, 1), 1),
        ({"shuffle": False, "replication": 2}, (1, 2, 1), 0),
    ],
)
def test_figures_are_those_of_the_samples_fed(
    tmp_path: Path, mds: str, settings: dict[str, Any], world: tuple[int, int, int], epoch: int
) -> None:
    """Parts, worst windows with their shards, and the first alarm equal a brute count of the ids fed."""
    nodes, ranks, workers = world
    labels = {"shards": {"ja": "0:120", "en": "120:"}}
    mixmon = {"labels": labels, "window": WINDOW, "alarm": {"rules": [{"deviation": 0.3, "for": 3}]}}
    path = write_yaml(tmp_path / "a.yaml", {"local": mds, **settings}, BATCH, mixmon=mixmon)
    found = audited(path, "--nodes", nodes, "--ranks", ranks, "--workers", workers, "--epoch", epoch)
    seen = {name: value for name, value in settings.items() if name != "replication"}
    ids = fed(mds, BATCH, nodes, ranks // settings.get("replication", 1), workers, epoch, **seen)
    ja = (ids < 120 * SHARD).sum(1)
    counts = np.stack([ja, ids.shape[1] - ja], 1)
    off = np.abs(counts[:, 0] / BATCH - 0.5)
    assert found["epoch_batches"] == len(ids)
    assert found["global_batch"] == BATCH
    tenth = len(ids) // 10
    for part, rows in zip(found["parts"], (off[:tenth], off[tenth:-tenth], off[-tenth:]), strict=True):
        assert part["stop"] - part["first"] == len(rows)
        assert part["batch_deviation"] == pytest.approx(rows.mean(), rel=1e-12)
        assert part["batch_noise_floor"] == pytest.approx(noise_floor(BATCH, [0.5, 0.5]), rel=1e-12)
        assert part["dispersion"] == pytest.approx((rows**2 * 4 * BATCH).mean(), rel=1e-9)

    windows = [counts[end - WINDOW : end].sum(0) for end in range(WINDOW, len(ids) + 1)]
    deviations = np.array([abs(w[0] / w.sum() - 0.5) for w in windows])
    worst = found["worst_windows"][0]
    assert worst["deviation"] == pytest.approx(deviations.max(), rel=1e-12)
    assert worst["last"] - worst["first"] + 1 == WINDOW
    assert deviations[worst["first"]] == pytest.approx(deviations.max(), rel=1e-12)
    shards, given = np.unique(ids[worst["first"] : worst["last"] + 1] // SHARD, return_counts=True)
    assert worst["distinct_shards"] == len(shards)
    assert list(worst["shards"].values()) == sorted(given.tolist(), reverse=True)[:5]
    for name, count in worst["shards"].items():
        assert given[shards == int(name.split(".")[1])] == count
    share = counts[worst["first"] : worst["last"] + 1].sum(0) / (WINDOW * BATCH)
    assert list(worst["shares"].values()) == pytest.approx(share.tolist(), rel=1e-12)
    ranges = [set(range(w["first"], w["last"] + 1)) for w in found["worst_windows"]]
    assert len(ranges) == 3
    assert not set.intersection(*ranges[:2]) | set.intersection(*ranges[1:])

    log10 = Evidence(settings_ := EvidenceSettings(np.array([0.5, 0.5]), 0.05)).update(counts)
    above = [b for b in range(len(ids)) if log10[b] > settings_.threshold]
    grace = [
        abs(counts[max(0, b - WINDOW + 1) : b + 1, 0].mean() / BATCH - 0.5) > 0.3 for b in range(len(ids))
    ]
    streak = [b for b in range(WINDOW + 2, len(ids)) if all(grace[b - 2 : b + 1])]
    first = min(above + streak, default=None)
    assert found["biased"] == (first is not None)
    assert (found["alarms"]["batches"] or [None])[0] == first
    assert found["evidence"] == pytest.approx(log10.max(), rel=1e-12)


def test_batches_and_labels_are_chosen(tmp_path: Path, mds: str) -> None:
    """``--batches`` audits these alone, ``--labels`` replaces labels, target and ratio rules."""
    alarm = {"rules": [{"ratio": "ja", "below": 0.1}]}
    mixmon = {"labels": {"shards": {"ja": "0:9"}}, "target": {"ja": 1.0}, "window": WINDOW, "alarm": alarm}
    path = write_yaml(tmp_path / "a.yaml", {"local": mds, "shuffle": True}, BATCH, mixmon=mixmon)
    found = audited(path, "--batches", "20:60", "--labels", "{position: 4}")
    assert found["batches"] == [20, 60]
    assert [label["label"] for label in found["labels"]] == ["part0", "part1", "part2", "part3"]
    ids = fed(mds, BATCH, 1, 1, 1, 0, shuffle=True)[20:60]
    shares = np.stack([np.bincount(row * 4 // SAMPLES, minlength=4) / BATCH for row in ids])
    assert found["parts"][1]["first"] == 24
    assert found["parts"][1]["batch_deviation"] == pytest.approx(
        (np.abs(shares - 0.25).sum(1) / 2)[4:36].mean(), rel=1e-12
    )


@pytest.mark.parametrize(
    ("duration", "epoch", "stop"),
    [("30ba", 0, 30), ("1ep", 0, 120), (2, 1, 120), ("3000sp", 0, 120), ("3000sp", 1, 68), ("9tok", 1, 120)],
)
def test_only_what_training_sees(tmp_path: Path, mds: str, duration: Any, epoch: int, stop: int) -> None:
    """``max_duration`` ends the audit where it ends the run; tokens say nothing about batches."""
    path = write_yaml(tmp_path / "a.yaml", {"local": mds, "shuffle": True}, BATCH, max_duration=duration)
    assert audited(path, "--epoch", epoch)["batches"] == [0, stop]


def test_phases(tmp_path: Path) -> None:
    """From a phase's start on, its target counts: ja comes first, as the phases say, so nothing is biased."""
    local = write_index(tmp_path / "d", {"ja": 50, "en": 50}, 64)
    target = [{"from": "0ba", "target": {"ja": 1.0}}, {"from": "0.5dur", "target": {"en": 1.0}}]
    mixmon = {"labels": JA_EN, "target": target, "window": 10}
    path = write_yaml(tmp_path / "a.yaml", {"local": local}, mixmon=mixmon, max_duration="100ba")
    found = audited(path)
    assert not found["biased"]
    assert [part["batch_deviation"] for part in found["parts"]] == [0, 0, 0]
    mixmon["target"][1]["from"] = "60ba"
    path = write_yaml(tmp_path / "b.yaml", {"local": local}, mixmon=mixmon, max_duration="1ep")
    assert audited(path)["alarms"]["first"]["target"] == {"ja": 1.0, "en": 0.0}
    mixmon["target"][1]["from"] = "60tok"
    path = write_yaml(tmp_path / "c.yaml", {"local": local}, mixmon=mixmon)
    assert "target[1].from: '60tok': cannot be placed" in run("audit", path).stderr
