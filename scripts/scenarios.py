"""Runs that went wrong, each for a known reason, and what ``mixmon postmortem`` says of what they left.

    python scripts/scenarios.py [FOLDER] [--only NAME ...] [--first-job BATCHES] [--set KEY.SUB=VALUE ...]

Trains a small ModernBERT on the demo's data, which are in FOLDER/data (``scripts/demo_data.py``):

- ``see-saw``: shards of one language each, and a shuffle (py1s) that does not mix them.
- ``divergence``: the same data, well shuffled, and a learning rate that is far too high.
- ``repeat``: well shuffled too, but resumed at the epoch's start (``yamls/scenario-repeat.yaml``).
- ``leftovers``: the see-saw, of which the training YAML, index.json and W&B's offline folder are left.
- ``unmonitored``: the same of a see-saw that was trained without mixmon; W&B has its loss and no mixture.

Prints what was found beside the truth, as streaming's own functions and the logged losses tell it, and writes
each post-mortem to FOLDER, as NAME.json and NAME.html. Exit status 1: something that was found is not true.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pretrain
import wandb
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table
from rich.text import Text
from streaming import StreamingDataset
from streaming.base.batching import generate_work
from streaming.base.world import World

YAMLS = Path(__file__).parents[1] / "yamls"
MIXMON = Path(sys.executable).with_name("mixmon")
TREND_TERMS = 5
START = 8  # batches


@dataclass(frozen=True)
class Check:
    """One thing that a post-mortem finds, beside the truth."""

    what: str
    truth: str
    found: str
    right: bool


@dataclass(frozen=True)
class SeeSaw:
    """An epoch of shards of one language each.

    Attributes:
        japanese: Each batch's share, shape (batches,).
        loss: Each batch's, shape (batches,).
        per_shard: Batches of a shard.
    """

    japanese: np.ndarray
    loss: np.ndarray
    per_shard: float

    @property
    def period(self) -> float:
        """Mean batches from one turn to Japanese to the next."""
        ups = np.flatnonzero((self.japanese[1:] > 0.5) & (self.japanese[:-1] < 0.5))
        return float(np.diff(ups).mean())

    @property
    def explained(self) -> float:
        """R² of the language on the loss, after a polynomial in log(batch) is taken out of both."""
        trend = np.vander(np.log(np.arange(len(self.loss)) + 1), TREND_TERMS)
        share, loss = (
            values - trend @ np.linalg.lstsq(trend, values, rcond=None)[0]
            for values in (self.japanese, self.loss)
        )
        return float(np.corrcoef(share, loss)[0, 1] ** 2)


@dataclass(frozen=True)
class Scenarios:
    """The scenarios of a folder; each trains, has mixmon look at what is left, and returns the checks.

    Attributes:
        folder: Of data, runs and reports.
        first_job: Batches after which ``repeat`` is interrupted.
        overrides: ``key.sub=value`` for every training.
    """

    folder: Path
    first_job: int
    overrides: tuple[str, ...] = ()

    def see_saw(self) -> list[Check]:
        """Shards of one language each, and a shuffle that does not mix them."""
        run = self.train("see-saw", "demo-ordered")
        found = self.post_mortem("see-saw", run / "checkpoints")
        return [*check_see_saw(found, self.truth(run)), check_kept(found)]

    def divergence(self) -> list[Check]:
        """A learning rate that is too high."""
        run = self.train("divergence", "demo-shuffled", "scenario-divergence")
        found = self.post_mortem("divergence", run / "checkpoints")
        return [*check_divergence(found, losses(run)), check_kept(found)]

    def repeat(self) -> list[Check]:
        """A resumption that begins the epoch afresh."""
        until = f"max_duration={self.first_job}ba"
        self.train("repeat", "demo-shuffled", "scenario-repeat", until, "load_path=null")
        run = self.train("repeat", "demo-shuffled", "scenario-repeat", afresh=False)
        return check_repeat(self.post_mortem("repeat", run / "checkpoints"), self.first_job)

    def leftovers(self) -> list[Check]:
        """The see-saw's run, of which little is left."""
        return self.check_left("leftovers", self.folder / "see-saw")

    def unmonitored(self) -> list[Check]:
        """A see-saw without mixmon."""
        run = self.train("unmonitored", "demo-ordered", "callbacks.mixmon=null")
        return self.check_left("unmonitored", run)

    def train(self, name: str, *parts: str, afresh: bool = True) -> Path:
        """Train in this process: another one would spend half a minute on its imports.

        Args:
            name: Of the run.
            parts: Names of YAMLs, the demo's first, and overrides.
            afresh: Whether to delete what an earlier run of this name has left.
        """
        run = self.folder / name
        if afresh:
            shutil.rmtree(run, ignore_errors=True)
        pretrain.main(self.arguments(name, *parts))
        wandb.teardown()  # a finished run's last rows are not in its file before
        return run

    def arguments(self, name: str, demo: str, *parts: str) -> list[str]:
        """The arguments of pretrain.py."""
        yamls = [demo, "scenario", *(part for part in parts if "=" not in part)]
        places = f"run_name={name}", f"run_folder={self.folder / name}", f"data={self.folder / 'data'}"
        own = (part for part in parts if "=" in part)
        return [*(str(YAMLS / f"{yaml}.yaml") for yaml in yamls), *places, *self.overrides, *own]

    @cached_property
    def config(self) -> DictConfig:
        """The see-saw's training YAML."""
        yaml, *overrides = self.arguments("see-saw", "demo-ordered")
        return pretrain.load_config(yaml, overrides)

    def truth(self, run: Path) -> SeeSaw:
        """What a see-saw's run was fed, by streaming's own order of the epoch, and its loss."""
        ids, dataset = epoch_order(self.config)
        shards = np.searchsorted(np.cumsum(dataset.samples_per_shard), ids, "right")
        japanese = np.array([shard.raw_data.basename.startswith("ja/") for shard in dataset.shards])
        loss, per_shard = losses(run), float(dataset.samples_per_shard[0] / ids.shape[1])
        return SeeSaw(japanese[shards].mean(axis=1)[: len(loss)], loss, per_shard)

    def check_left(self, name: str, run: Path) -> list[Check]:
        """Copy what is left of a see-saw's run, and have mixmon look at that."""
        left = self.folder / name / "left"
        shutil.rmtree(left, ignore_errors=True)
        shutil.copytree(run / "wandb", left / "wandb", symlinks=True)
        (left / "data").mkdir()
        shutil.copy(self.folder / "data" / "index.json", left / "data")
        moved = OmegaConf.merge(self.config, {"data": str(left / "data")})
        OmegaConf.save(moved, left / "train.yaml", resolve=True)
        found = self.post_mortem(name, left / "wandb", "--config", left / "train.yaml")
        return check_see_saw(found, self.truth(run))

    def post_mortem(self, name: str, *arguments: str | Path) -> dict[str, Any]:
        """Have mixmon look at a run."""
        command = [MIXMON, "postmortem", *arguments, "--json", "--html", self.folder / f"{name}.html"]
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode not in (0, 1):
            sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}")
        (self.folder / f"{name}.json").write_text(done.stdout, encoding="utf-8")
        return json.loads(done.stdout) | {"status": done.returncode}


def epoch_order(cfg: DictConfig) -> tuple[np.ndarray, StreamingDataset]:
    """The sample ids of epoch 0 as streaming orders them, of shape (batches, batch), and its dataset."""
    settings, batch = cfg.train_loader, cfg.global_train_batch_size
    dataset = StreamingDataset(batch_size=batch, **pretrain.as_dict(settings.dataset))
    dataset.state_dict(0, from_beginning=True)  # fills in the settings that were left to it
    work = generate_work(dataset.batching_method, dataset, World(1, 1, settings.num_workers, 0), 0, 0)
    return work.transpose(3, 2, 0, 1, 4).reshape(-1, batch), dataset  # workers take turns


def losses(run: Path) -> np.ndarray:
    """The loss of each batch as the run logged it."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return np.array([row["loss/train/total"] for row in rows if "loss/train/total" in row])


def check_verdict(found: dict[str, Any], kind: str, status: int) -> Check:
    seen = f"{found['verdict']['kind']}, exit status {found['status']}"
    truth = f"{kind}, exit status {status}"
    return Check("verdict", truth, seen, seen == truth)


def check_see_saw(found: dict[str, Any], truth: SeeSaw) -> list[Check]:
    swing, explained = found["mixture"]["see_saw"] or {}, found["loss"]["explained"] or {}
    period, stay = swing.get("period", 0), swing.get("stay", 0)
    value, low, high = (explained.get(key, 0) for key in ("value", "low", "high"))
    return [
        check_verdict(found, "data", 1),
        Check("batches a swing", f"{truth.period:.1f}", f"{period:.1f}", near(period, truth.period)),
        Check("batches a shard", f"{truth.per_shard:.1f}", f"{stay:.1f}", near(stay, truth.per_shard, 0.15)),
        Check(
            "explained of the loss",
            f"{truth.explained:.0%}",
            f"{value:.0%} ({low:.0%} to {high:.0%})",
            low <= truth.explained <= high and abs(value - truth.explained) < 0.1,
        ),
    ]


def check_divergence(found: dict[str, Any], loss: np.ndarray) -> list[Check]:
    """The course is left where no later loss is as low as those that it began with."""
    truth = int(np.flatnonzero(loss <= loss[:START].max())[-1]) + 1
    batch = (found["loss"]["onset"] or {"batch": -1})["batch"]
    right = abs(batch - truth) <= len(loss) / 20
    left = Check("left its course at", f"batch {truth}", f"batch {batch}", right)
    return [check_verdict(found, "not data", 0), left]


def check_kept(found: dict[str, Any]) -> Check:
    return check_order(found, f"kept in {found['batches']} batches")


def check_repeat(found: dict[str, Any], batches: int) -> list[Check]:
    truth = f"repeat of {batches} batches, {batches} to {2 * batches - 1}"
    return [check_verdict(found, "order", 1), check_order(found, truth)]


def check_order(found: dict[str, Any], truth: str) -> Check:
    order = found["order"]
    breaks = [
        f"{one['kind']} of {one['batches']} batches, {one['first']} to {one['last']}"
        for one in order["breaks"]
    ]
    seen = "; ".join(breaks) or f"kept in {order['checked']} batches"
    return Check("order", truth, seen, seen == truth)


def near(value: float, truth: float, tolerance: float = 0.05) -> bool:
    return abs(value / truth - 1) <= tolerance


def show(name: str, findings: Path, checks: list[Check], console: Console) -> None:
    """Print a verdict, and a table of what was found beside the truth."""
    verdict = json.loads(findings.read_text(encoding="utf-8"))["verdict"]
    console.print(Text(f"\n{name}: {verdict['headline']}", style="bold"))
    for reason in verdict["reasons"]:
        console.print(Text(f"- {reason}"))
    table = Table("", "truth", "found", "")
    for check in checks:
        table.add_row(check.what, check.truth, check.found, "right" if check.right else "WRONG")
    console.print(table)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = "see-saw", "divergence", "repeat", "leftovers", "unmonitored"
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/scenarios"))
    parser.add_argument("--only", nargs="*", choices=names, default=names, metavar="NAME")
    parser.add_argument("--first-job", type=int, default=200, metavar="BATCHES")
    parser.add_argument("--set", nargs="*", default=[], dest="overrides", metavar="KEY.SUB=VALUE")
    args = parser.parse_args(argv)

    scenarios = Scenarios(args.folder, args.first_job, tuple(args.overrides))
    results = {name: getattr(scenarios, name.replace("-", "_"))() for name in names if name in args.only}
    console = Console()
    for name, checks in results.items():
        show(name, args.folder / f"{name}.json", checks, console)
    sys.exit(int(not all(check.right for checks in results.values() for check in checks)))


if __name__ == "__main__":
    main()
