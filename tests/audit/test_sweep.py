"""The sweep: its figures are those of an audit of each setting, its marks those of its own rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from composer_mixmon.audit import Options
from composer_mixmon.audit.plan import make_plan
from composer_mixmon.audit.sweep import grid

from .data import JA_EN, audited, run, write_index, write_yaml

MIXMON: dict[str, Any] = {"labels": JA_EN, "window": 5}
BYTES = 1000


@pytest.fixture
def path(tmp_path: Path) -> str:
    """py1s over 40 shards of 100 samples, ja before en: biased."""
    local = write_index(tmp_path / "data", {"ja": 20, "en": 20}, 100, BYTES)
    dataset = {"local": local, "shuffle": True, "shuffle_algo": "py1s", "num_canonical_nodes": 2}
    return write_yaml(tmp_path / "train.yaml", dataset, 40, mixmon=MIXMON)


def test_rows_are_audits(tmp_path: Path, path: str) -> None:
    """Every row has the figures that an audit of its settings has, and the shards its batches really need."""
    found = audited(path, "--sweep", "--nodes", 2)
    rows = found["sweep"]["rows"]
    assert [row["current"] for row in rows].count(True) == 1
    algos = {(row["shuffle_algo"], row["num_canonical_nodes"]) for row in rows}
    every = {(algo, nodes) for algo in ("py1e", "py1br", "py1s", "py2s") for nodes in (2, 16, 128)}
    assert algos == every | {("naive", 2)}
    original = yaml.safe_load(Path(path).read_text())
    for number, row in enumerate(rows[:: len(rows) // 5]):
        settings = {name: row[name] for name in ("shuffle_algo", "shuffle_block_size", "num_canonical_nodes")}
        dataset = original["train_loader"]["dataset"] | settings
        alone_path = write_yaml(tmp_path / f"{number}.yaml", dataset, 40, mixmon=MIXMON)
        alone = audited(alone_path, "--nodes", 2)
        assert row["alarm"] == (alone["alarms"]["batches"] or [None])[0]
        windows = alone["worst_windows"]
        assert row["excess"] == max(0, *(w["deviation"] - w["noise_floor"] for w in windows))
        weights = [(part["stop"] - part["first"]) / alone["epoch_batches"] for part in alone["parts"]]
        mean = np.dot(weights, [part["batch_deviation"] for part in alone["parts"]])
        assert row["batch_deviation"] == pytest.approx(mean, rel=1e-12)
        plan = make_plan(alone_path, Options(nodes=2))
        middle = (plan.epoch_batches - 5) // 2
        for key, batches in (("first", slice(0, 1)), ("resident", slice(middle, middle + 5))):
            by_rank = plan.replay().rank_ids(batches)
            by_rank = np.where(by_rank < 0, by_rank.max(), by_rank)
            most = max(len(np.unique(by_rank[:, node] // 100)) for node in range(2))
            assert row[f"{key}_shards"] == most
            assert row[f"{key}_bytes"] == most * BYTES


def test_pareto_and_recommended(path: str) -> None:
    """A Pareto-best row is beaten by none; the recommended one is healthy, and the cheapest that is."""
    swept = audited(path, "--sweep")["sweep"]
    rows = swept["rows"]
    keys = ("excess", "resident_bytes", "first_bytes")
    for row in rows:
        beaten = any(
            all(other[key] <= row[key] for key in keys) and any(other[key] < row[key] for key in keys)
            for other in rows
        )
        assert row["pareto"] != beaten
    (best,) = [row for row in rows if row["recommended"]]
    healthy = [r for r in rows if r["alarm"] is None and r["excess"] <= 0.025 and r["pareto"]]
    assert best["resident_bytes"] == min(row["resident_bytes"] for row in healthy)
    assert swept["healthy"]
    pasted = yaml.safe_load(swept["yaml"])["train_loader"]["dataset"]
    assert pasted["shuffle_algo"] == best["shuffle_algo"]
    assert pasted["num_canonical_nodes"] == best["num_canonical_nodes"]


def test_pasted_yaml_is_fine(tmp_path: Path, path: str) -> None:
    """What is recommended, pasted into the YAML, passes the audit that the original failed."""
    found = run("audit", path, "--sweep")
    assert found.exit_code == 1
    assert "recommended:" in found.stdout
    advice = yaml.safe_load(found.stdout[found.stdout.index("train_loader:") : found.stdout.index("verdict")])
    dataset = yaml.safe_load(Path(path).read_text())["train_loader"]["dataset"]
    dataset |= advice["train_loader"]["dataset"]
    assert run("audit", write_yaml(tmp_path / "b.yaml", dataset, 40, mixmon=MIXMON)).exit_code == 0


def test_no_setting_helps(tmp_path: Path, path: str) -> None:
    """Where every setting alarms, as with a target nobody can meet in phases, the best is called so."""
    alarm = {"rules": [{"ratio": "ja", "below": 0.9, "grace": 0}]}
    config = yaml.safe_load(Path(path).read_text())
    hopeless = write_yaml(
        tmp_path / "c.yaml", config["train_loader"]["dataset"], 40, mixmon=MIXMON | {"alarm": alarm}
    )
    found = run("audit", hopeless, "--sweep")
    assert "none stays free of alarms; the best is" in found.stdout


def test_grid_of_blocks(tmp_path: Path) -> None:
    """Blocks go up to the first that holds a canonical node; ModernBERT's code sets none, so it has one."""
    local = write_index(tmp_path / "data", {"ja": 30, "en": 30}, 100_000)
    path = write_yaml(tmp_path / "a.yaml", {"local": local, "shuffle": True}, 1000)
    blocks = {s.shuffle_block_size for s in grid(make_plan(path, Options())) if s.num_canonical_nodes == 1}
    assert blocks == {1 << 18, 1 << 20, 1 << 22, 4_000_000}  # the last is the YAML's own
    sizes = {s.shuffle_block_size for s in grid(make_plan(path, Options())) if s.num_canonical_nodes == 64}
    assert sizes == {1 << 18}
    model = {"model": {"name": "flex_bert"}}
    path = write_yaml(tmp_path / "b.yaml", {"local": local, "shuffle": True}, 1000, **model)
    plan = make_plan(path, Options())
    assert (plan.settings.shuffle_algo, plan.settings.num_canonical_nodes) == ("py1s", 128)
    assert plan.settings.partition_algo == "orig"
    assert {s.shuffle_block_size for s in grid(plan) if s.num_canonical_nodes == 1} == {4_000_000}
