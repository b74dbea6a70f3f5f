"""The demo's own scripts, shortened by overrides, in processes of their own as demo.sh runs them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from omegaconf import OmegaConf
from streaming import StreamingDataset

REPO = Path(__file__).parents[2]
YAMLS = sorted((REPO / "yamls").glob("demo-*.yaml"))
BATCHES = 48

# 768 sequences in 6 shards of 128: one shard is 8 batches, and half the run is English.
SHORT = [
    "model.model_config.num_hidden_layers=1",
    "model.model_config.hidden_size=32",
    "model.model_config.intermediate_size=32",
    "model.model_config.num_attention_heads=2",
    "global_train_batch_size=16",
    f"max_duration={BATCHES}ba",
    "callbacks.mixmon.window=8ba",
    "callbacks.mixmon.log_interval=2ba",
    "callbacks.mixmon.alarm.rules=[{deviation: 0.3, for: 4ba, grace: 8ba}]",
    "save_folder=null",
    "progress_bar=false",
]


def script(name: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"WANDB_MODE": "offline", "MPLBACKEND": "agg", "COLUMNS": "160"}
    return subprocess.run(
        [sys.executable, f"scripts/{name}.py", *map(str, args)],
        cwd=REPO,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def module(name: str) -> ModuleType:
    """A script as a module, for what needs no process of its own."""
    spec = importlib.util.spec_from_file_location(name, REPO / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded  # where dataclasses look up their module's names
    spec.loader.exec_module(loaded)
    return loaded


def rows(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def series(run: Path, key: str) -> list[float]:
    return [row[key] for row in rows(run) if key in row]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's folder with data of 768 sequences in 6 shards: three English, then three Japanese."""
    folder = tmp_path_factory.mktemp("demo")
    done = script("demo_data", folder / "data", "--sequences", "768", "--shards", "6")
    assert done.returncode == 0, done.stderr
    assert "GPL-2.0-or-later" in done.stdout
    return folder


@pytest.fixture(scope="module")
def runs(demo: Path) -> dict[str, subprocess.CompletedProcess[str]]:
    """Both runs' processes, the ordered one first."""
    return {
        yaml.stem: script("pretrain", yaml, *SHORT, f"data={demo / 'data'}", f"run_folder={demo / yaml.stem}")
        for yaml in YAMLS
    }


def test_data_is_two_languages_in_shard_order(demo: Path) -> None:
    """The merged index lists the English shards first, then the Japanese ones, of equal size."""
    shards = json.loads((demo / "data" / "index.json").read_text())["shards"]
    names = [shard["raw_data"]["basename"] for shard in shards]
    assert names == [f"{language}/shard.{i:05}.mds" for language in ("en", "ja") for i in range(3)]
    assert {shard["samples"] for shard in shards} == {128}


def test_data_is_real_text_of_its_language(demo: Path) -> None:
    """Decoded, the first half is nearly all ASCII and the second is mostly not."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(demo / "data" / "tokenizer.json"))
    dataset = StreamingDataset(local=str(demo / "data"), batch_size=1, shuffle=False)

    def ascii_share(index: int) -> float:
        text = tokenizer.decode(dataset[index]["input_ids"].tolist())
        return float(np.mean([character.isascii() for character in text]))

    assert np.mean([ascii_share(index) for index in range(0, 384, 16)]) > 0.99
    assert np.mean([ascii_share(index) for index in range(384, 768, 16)]) < 0.6


def test_data_is_written_once(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second call with the same arguments changes no file."""
    data = demo / "data"
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    module("demo_data").main([str(data), "--sequences", "768", "--shards", "6"])
    assert "up to date" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before


@pytest.mark.parametrize("shards", ["5", "10", "0"])
def test_data_of_unequal_shards_is_refused(tmp_path: Path, shards: str) -> None:
    """Shards that cannot be halved between the languages, or not filled evenly, are refused unwritten."""
    with pytest.raises(SystemExit):
        module("demo_data").main([str(tmp_path / "data"), "--sequences", "768", "--shards", shards])
    assert list(tmp_path.iterdir()) == []


def test_ordered_run_alarms_and_stops(demo: Path, runs: dict[str, subprocess.CompletedProcess[str]]) -> None:
    """Fed language by language, the run says so, stops in good order and early."""
    done = runs["demo-ordered"]
    assert done.returncode == 0, done.stderr
    assert "mixmon alarm" in done.stderr
    trained = len(series(demo / "demo-ordered", "loss/train/total"))
    assert 0 < trained < BATCHES
    assert re.search(rf"ended after batch {trained} of {BATCHES}ba", done.stdout)
    assert max(series(demo / "demo-ordered", "mixmon/window/deviation")) > 0.3


def test_shuffled_run_trains_through(demo: Path, runs: dict[str, subprocess.CompletedProcess[str]]) -> None:
    """The same data, shuffled, trains all its batches without an alarm, and the loss falls."""
    done = runs["demo-shuffled"]
    assert done.returncode == 0, done.stderr
    loss = series(demo / "demo-shuffled", "loss/train/total")
    assert len(loss) == BATCHES
    assert np.mean(loss[-8:]) < np.mean(loss[:8])
    assert set(series(demo / "demo-shuffled", "mixmon/alarms")) == {0}
    assert "mixmon alarm" not in done.stderr


def test_wandb_files_lie_in_the_run_folder(
    demo: Path, runs: dict[str, subprocess.CompletedProcess[str]]
) -> None:
    """Each run leaves one W&B offline file."""
    for name in runs:
        assert len(list((demo / name).glob("wandb/offline-run-*/*.wandb"))) == 1


def test_report_draws_and_tabulates(demo: Path, runs: dict[str, subprocess.CompletedProcess[str]]) -> None:
    """The report writes a PNG and a table with both runs' alarms."""
    del runs  # they must have ended
    done = script("demo_report", demo)
    assert done.returncode == 0, done.stderr
    assert (demo / "demo.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    cells = {
        line.split("│")[1].strip(): line.split("│")[2:-1] for line in done.stdout.splitlines() if "│" in line
    }
    assert [cell.strip() for cell in cells["alarms"]] == ["1", "0"]
    assert cells["batches trained"][1].strip() == f"{BATCHES} of {BATCHES}"


def test_report_of_a_run_stopped_before_its_first_window_is_full(
    demo: Path,
    runs: dict[str, subprocess.CompletedProcess[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run cut after four batches is drawn and tabulated, and what it cannot tell is said."""
    for name in runs:
        shutil.copytree(demo / name, tmp_path / name)
    log = tmp_path / "demo-ordered" / "metrics.jsonl"
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows(demo / "demo-ordered") if row["batch"] < 4))
    module("demo_report").main(tmp_path)
    assert "no full window" in capsys.readouterr().out
    assert (tmp_path / "demo.png").stat().st_size > 0


@pytest.mark.parametrize("yaml", YAMLS, ids=lambda path: path.stem)
def test_yaml_has_the_same_run_but_for_the_shuffle(yaml: Path) -> None:
    """The two runs differ in name and shuffle only."""
    cfg, first = (OmegaConf.to_container(OmegaConf.load(path)) for path in (yaml, YAMLS[0]))
    for one in (cfg, first):
        assert isinstance(one, dict)
        assert one["train_loader"]["dataset"].pop("shuffle_algo") in {"py1s", "naive"}
        assert one.pop("run_name") in {path.stem for path in YAMLS}
    assert cfg == first


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("callbacks.mixmom={}", "callbacks.mixmom: unknown; write mixmon"),
        ("loggers.wanb={}", "loggers.wanb: unknown; write wandb"),
        ("optimizer.name=adam", "optimizer.name: 'adam': unknown; write decoupled_adamw"),
        ("scheduler.name=cosine", "scheduler.name: 'cosine': unknown; write linear_decay_with_warmup"),
        ("model.name=bert", "model.name: 'bert': unknown; write modernbert"),
        ("train_loader.name=txt", "train_loader.name: 'txt': unknown; write text"),
        ("tokenizer_file=nowhere.json", "tokenizer_file: 'nowhere.json': no such file"),
    ],
)
def test_unknown_names_are_refused(demo: Path, override: str, message: str) -> None:
    """A name that the script cannot build is refused with the field, the value and what there is."""
    pretrain = module("pretrain")
    cfg = pretrain.load_config(YAMLS[0], [*SHORT, f"data={demo / 'data'}", override])
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(message)):
        pretrain.build_trainer(cfg)
