"""``mixmon audit`` as a command: exit status, bad input, JSON, what is printed and drawn."""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from composer_mixmon import progress
from composer_mixmon.errors import ConfigError
from composer_mixmon.plotting import check_plot_file

from .data import JA_EN, audited, run, write_index, write_yaml

SHUFFLED: dict[str, Any] = {"shuffle": True, "shuffle_algo": "naive"}


@pytest.fixture
def local(tmp_path: Path) -> str:
    """100 shards of 64 samples, ja before en."""
    return write_index(tmp_path / "data", {"ja": 50, "en": 50}, 64)


def test_exit_status(tmp_path: Path, local: str) -> None:
    """0 where the alarm would not fire; 1 where it would, or where the target is out of reach."""
    fine = run(
        "audit", write_yaml(tmp_path / "a.yaml", {"local": local, **SHUFFLED}, mixmon={"labels": JA_EN})
    )
    assert fine.exit_code == 0
    assert "the alarm would not fire" in fine.stdout
    assert "verdict: fine" in fine.stdout
    assert fine.stderr == ""
    ordered = run("audit", write_yaml(tmp_path / "b.yaml", {"local": local}, mixmon={"labels": JA_EN}))
    assert ordered.exit_code == 1
    assert "the alarm would fire at batch " in ordered.stdout
    assert "trap: shuffle is off" in ordered.stdout
    mixmon = {"labels": JA_EN, "target": {"ja": 0.9, "en": 0.1}}
    unmet = run("audit", write_yaml(tmp_path / "c.yaml", {"local": local, **SHUFFLED}, mixmon=mixmon))
    assert unmet.exit_code == 1
    assert "the alarm would not fire" in unmet.stdout
    assert "the dataset cannot meet the target" in unmet.stdout


def test_rules_alone(tmp_path: Path, local: str) -> None:
    """Without evidence, the YAML's rules alone decide."""
    mixmon = {"labels": JA_EN, "window": 10, "alarm": {"tolerance": None}}
    path = write_yaml(tmp_path / "a.yaml", {"local": local}, mixmon=mixmon)
    assert run("audit", path).exit_code == 0
    mixmon["alarm"]["rules"] = [{"deviation": 0.4, "grace": 20}]
    found = audited(write_yaml(tmp_path / "b.yaml", {"local": local}, mixmon=mixmon))
    assert found["evidence"] is None
    assert found["alarms"]["batches"][0] == 20


def test_json_keys(tmp_path: Path, local: str) -> None:
    """The keys are those that are documented, once with and once without a sweep."""
    path = write_yaml(tmp_path / "a.yaml", {"local": local, **SHUFFLED}, mixmon={"labels": JA_EN})
    found = audited(path)
    assert list(found) == [
        "format", "yaml", "biased", "finding", "epoch", "epoch_batches", "batches", "global_batch", "world",
        "settings", "window", "tolerance", "labels", "parts", "worst_windows", "alarms", "evidence", "traps",
        "ties", "seconds", "sweep",
    ]  # fmt: skip
    assert found["format"] == 1
    assert found["sweep"] is None
    assert found["labels"][0] == {"label": "ja", "samples": 3200, "own": 0.5, "targets": [0.5]}
    assert found["world"] == {"nodes": 1, "ranks_per_node": 1, "workers_per_rank": 1}
    assert found["settings"] == {
        "batch_size": 64, "num_canonical_nodes": 1, "shuffle_block_size": 4_000_000, "shuffle": True,
        "shuffle_algo": "naive", "shuffle_seed": 9176, "sampling_method": "balanced",
        "sampling_granularity": 1, "partition_algo": "relaxed", "batching_method": "random",
        "replication": None, "initial_physical_nodes": None, "drop_last": True, "defaults": "streaming",
        "streams": 1, "shards": 100, "samples": 6400, "epoch_size": 6400,
    }  # fmt: skip
    assert list(found["parts"][0]) == [
        "name", "first", "stop", "batch_deviation", "batch_noise_floor", "dispersion", "window_deviation",
        "window_noise_floor",
    ]  # fmt: skip
    assert found["parts"][0]["window_deviation"] is None  # ten batches hold no window of a hundred
    assert list(found["worst_windows"][0]) == [
        "first", "last", "deviation", "noise_floor", "shares", "shards", "distinct_shards"
    ]  # fmt: skip
    assert list(audited(path, "--sweep")["sweep"]) == ["rows", "yaml", "healthy", "refused"]


@pytest.mark.parametrize("batch", [6400, 3200])
def test_an_epoch_of_one_or_two_batches(tmp_path: Path, local: str, batch: int) -> None:
    """Start, middle and end where there are no three batches: what there is, and the one short window."""
    found = audited(write_yaml(tmp_path / "a.yaml", {"local": local}, batch, mixmon={"labels": JA_EN}))
    assert [part["name"] for part in found["parts"]] == ["start", "end"][: 6400 // batch]
    assert [(w["first"], w["last"]) for w in found["worst_windows"]] == [(0, 6400 // batch - 1)]
    assert run("audit", found["yaml"], "--sweep").exit_code in (0, 1)


@pytest.mark.parametrize(
    ("changes", "flags", "message"),
    [
        ({"batch": 63}, ["--ranks", "2"], "global_train_batch_size: 63: must be divisible by the 2 ranks"),
        ({"batch": None}, [], "global_train_batch_size: None: write it at the top of the YAML"),
        ({"batch": "many"}, [], "global_train_batch_size: 'many': write a whole number"),
        ({"batch": 12800}, [], "the epoch does not fill one batch"),
        ({}, ["--nodes", "0"], "world.nodes: 0: write a whole number of at least 1"),
        ({"dataset": {"num_canonical_nodes": 3}}, ["--nodes", "2"], "num_canonical_nodes: 3: it must divide"),
        ({"dataset": {"shuffle_algo": "py9"}}, [], "shuffle_algo: 'py9': choose one of"),
        ({"dataset": {"shuffle_block_size": "big"}}, [], "shuffle_block_size: 'big': write a whole number"),
        ({"dataset": {"epoch_size": [1]}}, [], "epoch_size: [1]: write a number of samples"),
        ({"dataset": {"shuffle_seed": "x"}}, [], "shuffle_seed: 'x': write a whole number"),
        ({"dataset": {"replication": "2"}}, [], "replication: '2': write a whole number"),
        ({"dataset": {"streaming": False}}, [], "dataset.streaming: False: this data is not read by Str"),
        ({}, ["--epoch", "-1"], "epoch: -1: write a whole number"),
        ({"max_duration": "2ep"}, ["--epoch", "2"], "--epoch: 2: the training ends before, after 200"),
        ({"max_duration": "soon"}, [], "max_duration: 'soon': give a Composer time"),
        ({}, ["--batches", "5"], "--batches: '5': write the first batch and the one after the last"),
        ({}, ["--batches", "50:101"], "--batches: '50:101': the epoch has 100 batches"),
        ({}, ["--batches", "9:9"], "--batches: '9:9': the epoch has 100 batches"),
        ({}, ["--labels", "{shards: {de: de/*}}"], "labels.shards.de: 'de/*': matches none of the 100"),
        ({}, ["--labels", "{"], "--labels: '{': is no YAML"),
        ({}, ["--labels", "colour"], "labels: 'colour': choose one of"),
        ({}, ["--plot", "a.doc"], "--plot: 'a.doc': give a file that ends in .png"),
        ({}, ["--plot", "/nowhere/a.png"], "--plot: '/nowhere/a.png': its folder does not exist"),
        ({"dataset": {"local": "/nowhere"}}, [], "no index.json in '/nowhere'"),
        ({"dataset": {"local": None, "remote": "nope://x"}}, [], "'nope://x/index.json' cannot be fetched"),
    ],
)  # fmt: skip
def test_bad_input(
    tmp_path: Path, local: str, changes: dict[str, Any], flags: list[str], message: str
) -> None:
    """One line that says what is wrong and how to mend it, exit status 2, nothing on stdout."""
    dataset = {"local": local, **changes.pop("dataset", {})}
    out = run("audit", write_yaml(tmp_path / "a.yaml", dataset, **{"batch": 64} | changes), *flags)
    assert out.exit_code == 2
    assert message in out.stderr
    assert len(out.stderr.splitlines()) == 1
    assert out.stdout == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"version": 2, "shards": [', "is empty, truncated or not JSON"),
        ('{"version": 1, "shards": []}', "has version 1"),
        ('{"version": 2, "shards": [{"format": "tar"}]}', "has format 'tar'"),
    ],
)
def test_bad_index(tmp_path: Path, content: str, message: str) -> None:
    """An index.json that is cut off, of another version or of another format."""
    (tmp_path / "index.json").write_text(content)
    out = run("audit", write_yaml(tmp_path / "a.yaml", {"local": str(tmp_path)}))
    assert out.exit_code == 2
    assert message in out.stderr
    assert len(out.stderr.splitlines()) == 1


def test_yaml_without_a_dataset(tmp_path: Path) -> None:
    """A YAML that trains on nothing."""
    (tmp_path / "a.yaml").write_text("model: {name: x}")
    out = run("audit", tmp_path / "a.yaml")
    assert out.exit_code == 2
    assert "has no dataset with local, remote or streams" in out.stderr


def test_device_batch(tmp_path: Path, local: str) -> None:
    """A rank's batch may stand in the YAML instead of the global one, in any of three places."""
    places = [{"device_train_batch_size": 8}, {"loader": {"batch_size": 8}}]
    paths = [write_yaml(tmp_path / f"{i}.yaml", {"local": local}, None, **p) for i, p in enumerate(places)]
    paths.append(write_yaml(tmp_path / "c.yaml", {"local": local, "batch_size": 8}, None))
    assert [audited(path, "--ranks", 2)["global_batch"] for path in paths] == [16, 16, 16]


def test_hostile_names_are_shown_literally(tmp_path: Path) -> None:
    """Labels that look like markup are printed as they are, and escape sequences of shard names are not."""
    local = write_index(tmp_path / "d", {"[red]x[/red]": 2, "\x1b[2J$\\frac$": 2}, 64)
    labels = {"shards": {"[red]x[/red]": "0:2", "_$\\frac{a$": "2:"}}
    path = write_yaml(tmp_path / "a.yaml", {"local": local}, 16, mixmon={"labels": labels, "window": 4})
    out = run("audit", path, "--plot", tmp_path / "a.svg")
    assert "labels: [red]x[/red], _$\\frac{a$" in out.stdout
    assert "\x1b" not in out.stdout
    assert "\N{REPLACEMENT CHARACTER}[2J" in out.stdout
    assert (tmp_path / "a.svg").stat().st_size > 1000
    bad = run("audit", path, "--labels", '{shards: {a: "\\e[2J"}}')
    assert bad.exit_code == 2
    assert "\x1b" not in bad.stderr


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_plot(tmp_path: Path, local: str, kind: str) -> None:
    """A plot of many labels and alarms is written in either format."""
    path = write_yaml(tmp_path / "a.yaml", {"local": local}, mixmon={"labels": {"position": 20}, "window": 9})
    file = tmp_path / f"a.{kind}"
    assert run("audit", path, "--plot", file).exit_code == 1
    assert file.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def test_plot_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where matplotlib is missing, the message says what to install, before anything is computed."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="pip install matplotlib"):
        check_plot_file(str(tmp_path / "a.png"))


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar shows on a terminal once the work has taken long enough, and nowhere else."""
    shown: dict[tuple[bool, float], str] = {}
    for terminal, patience in ((True, 0.0), (False, 0.0), (True, 60.0)):
        monkeypatch.setattr(progress, "_PATIENCE_S", patience)
        file = io.StringIO()
        with progress.bars(Console(file=file, force_terminal=terminal, width=60))("order", 100) as advance:
            advance(50)
            deadline = time.monotonic() + (10 if terminal and not patience else 0)
            while "50%" not in file.getvalue() and time.monotonic() < deadline:
                time.sleep(0.01)
        shown[terminal, patience] = file.getvalue()
    assert "order" in shown[True, 0.0]
    assert "order" not in shown[False, 0.0] + shown[True, 60.0]


def test_no_streaming_for_local_data(tmp_path: Path, local: str) -> None:
    """An audit of local index files imports neither torch nor streaming: it starts in a second."""
    import subprocess

    path = write_yaml(tmp_path / "a.yaml", {"local": local, **SHUFFLED})
    code = (
        "import sys; from composer_mixmon.audit import audit_yaml, Options; "
        f"audit_yaml({path!r}, Options()); print([m for m in ('torch', 'streaming') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.replace("'", '"')) == []
