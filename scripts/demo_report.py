"""Draw the demo's chart and print its table from what the runs logged.

    python scripts/demo_report.py runs/demo

reads ``config.yaml`` and ``metrics.jsonl`` of the runs demo-ordered, demo-ordered-full (if there) and
demo-shuffled in that folder, and writes ``demo.png`` there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

RUNS = {
    "demo-ordered": "ordered, alarm stops it",
    "demo-ordered-full": "ordered, alarm only logs",
    "demo-shuffled": "shuffled",
}
LABEL = "ja"
ALARM_COLOUR, TARGET_COLOUR = "#111111", "#777777"
TREND_TERMS = 4
# All English, even, all Japanese: tells them apart in common kinds of colour blindness, and the middle is
# dark enough to be seen on white.
CMAP = LinearSegmentedColormap.from_list("share", ["#0b6fb8", "#7a7188", "#e0561b"])


@dataclass(frozen=True)
class Run:
    """One run's log.

    Attributes:
        loss: Per batch, shape (batches,).
        seen: Batches at which mixmon logged, shape (logs,).
        metrics: What it logged there, each of shape (logs,).
        window: Batches in mixmon's window.
        planned: Batches that the run was to have.
        threshold: The deviation that the first alarm rule names.
        shuffle: Name of StreamingDataset's shuffle.
    """

    loss: np.ndarray
    seen: np.ndarray
    metrics: dict[str, np.ndarray]
    window: int
    planned: int
    threshold: float
    shuffle: str

    @property
    def alarms(self) -> np.ndarray:
        """Batches at which an alarm was first counted."""
        return self.seen[np.diff(self.metrics["mixmon/alarms"], prepend=0) > 0]

    @property
    def full(self) -> np.ndarray:
        """Which logs cover a whole window, shape (logs,)."""
        return self.seen + 1 >= self.window

    @property
    def lengths(self) -> np.ndarray:
        """Batches of each interval, from one log to the next, shape (logs,)."""
        return np.diff(self.seen + 1, prepend=0)

    def interval_share(self) -> np.ndarray:
        """The label's share of each interval, from the run's share at its two ends, shape (logs,)."""
        so_far = self.metrics[f"mixmon/run/ratio/{LABEL}"] * (self.seen + 1)
        return np.diff(so_far, prepend=0) / self.lengths

    def interval_loss(self) -> np.ndarray:
        """Mean loss of each interval, shape (logs,)."""
        return np.add.reduceat(self.loss, self.seen + 1 - self.lengths) / self.lengths

    def explained(self) -> float:
        """R² of the label's share on the loss, interval by interval, after a trend is taken out of both.

        The trend is a cubic in log(batch): a loss curve without its bumps. It takes 16 intervals for each of
        its terms, or it follows the bumps too, and the answer is NaN.
        """
        if len(self.seen) < 16 * TREND_TERMS:
            return float("nan")
        trend = np.vander(np.log(self.seen + 1), TREND_TERMS)
        share, loss = (
            values - trend @ np.linalg.lstsq(trend, values, rcond=None)[0]
            for values in (self.interval_share(), self.interval_loss())
        )
        return float(np.corrcoef(share, loss)[0, 1] ** 2)


def read_run(folder: Path) -> Run:
    """Read one run's folder."""
    cfg: Any = OmegaConf.load(folder / "config.yaml")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    logs = [row for row in rows if "mixmon/window/deviation" in row]
    return Run(
        loss=np.array([row["loss/train/total"] for row in rows if "loss/train/total" in row]),
        seen=np.array([row["batch"] for row in logs]),
        metrics={key: np.array([row[key] for row in logs]) for key in logs[0] if key != "batch"},
        window=_batches(cfg.callbacks.mixmon.window),
        planned=_batches(cfg.max_duration),
        threshold=cfg.callbacks.mixmon.alarm.rules[0].deviation,
        shuffle=cfg.train_loader.dataset.shuffle_algo,
    )


def table(runs: dict[str, Run]) -> Table:
    """The runs side by side."""
    out = Table(title="Same data, model and steps")
    for column in ("", *(RUNS[name] for name in runs)):
        out.add_column(column, justify="right" if column else "left", no_wrap=not column)
    rows: dict[str, Callable[[Run], str]] = {
        "shuffle": lambda run: run.shuffle,
        "batches trained": lambda run: f"{len(run.loss)} of {run.planned}",
        "alarms": lambda run: f"{run.metrics['mixmon/alarms'][-1]:.0f}",
        "first alarm at batch": lambda run: str(run.alarms[0]) if len(run.alarms) else "none",
        "last window's loss": lambda run: f"{run.loss[-run.window :].mean():.2f}",
        "worst window deviation": _worst_deviation,
        "noise floor": lambda run: f"{run.metrics['mixmon/window/noise_floor'][-1]:.3f}",
        "share explains of loss": lambda run: f"{run.explained():.0%}".replace("nan%", "too short"),
    }
    for title, cell in rows.items():
        out.add_row(title, *(cell(run) for run in runs.values()))
    return out


def _worst_deviation(run: Run) -> str:
    deviation = run.metrics["mixmon/window/deviation"][run.full]
    return f"{deviation.max():.3f}" if len(deviation) else "no full window"


def draw(runs: dict[str, Run], path: Path) -> None:
    """Draw the window's ratio over the loss, the ordered run left and the shuffled one right."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    ordered = runs.get("demo-ordered-full", runs["demo-ordered"])
    columns = {"Shards in language order": ordered, "Well shuffled": runs["demo-shuffled"]}
    style: Any = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titleweight": "bold",
    }
    with plt.rc_context(style):
        figure, axes = plt.subplots(
            2, 2, figsize=(10, 5), sharex=True, sharey="row", layout="constrained", squeeze=False
        )
        for (title, run), (upper, lower) in zip(columns.items(), axes.T, strict=True):
            upper.set_title(f"{title} ({run.shuffle})", loc="left")
            _draw_ratio(upper, run)
            _draw_loss(lower, run)
        axes[0, 0].set(ylabel=f"language of the\nlast {ordered.window} batches", ylim=(-0.04, 1.04))
        axes[0, 0].set_yticks([0, 0.5, 1], ["all English", "half", "all Japanese"])
        axes[1, 0].set(ylabel="masked-LM loss")
        axes[0, 1].legend(loc="upper right", frameon=False, ncols=2, fontsize=9)
        _mark_alarm(axes[:, 0], ordered)
        figure.savefig(path, dpi=160)


def _draw_ratio(ax: Axes, run: Run) -> None:
    seen, ratio = run.seen[run.full], run.metrics[f"mixmon/window/ratio/{LABEL}"][run.full]
    floor = run.metrics["mixmon/window/noise_floor"][run.full]
    target = run.metrics[f"mixmon/run/ratio/{LABEL}"][-1] if len(run.loss) == run.planned else 0.5
    ax.fill_between(
        seen, target - floor, target + floor, color=TARGET_COLOUR, alpha=0.3, lw=0, label="noise floor"
    )
    ax.axhline(target, color=TARGET_COLOUR, lw=1, label="target")
    for side in (-1, 1):
        label = "alarm threshold" if side == 1 else None
        ax.axhline(target + side * run.threshold, color=ALARM_COLOUR, lw=0.9, ls=(0, (4, 3)), label=label)
    _coloured_line(ax, seen, ratio, ratio, lw=1.8)


def _draw_loss(ax: Axes, run: Run) -> None:
    ax.plot(run.loss, color="#c8c8c8", lw=0.6)
    _coloured_line(ax, run.seen - (run.lengths - 1) / 2, run.interval_loss(), run.interval_share(), lw=1.6)
    ax.set(xlabel="batch", xlim=(0, run.planned))


def _coloured_line(ax: Axes, x: np.ndarray, y: np.ndarray, shade: np.ndarray, lw: float) -> None:
    """Draw a line whose colour follows the Japanese share."""
    points = np.column_stack([x, y])
    segments = np.stack([points[:-1], points[1:]], axis=1)
    lines = LineCollection(list(segments), cmap=CMAP, norm=Normalize(0, 1), lw=lw, capstyle="round")
    lines.set_array((shade[:-1] + shade[1:]) / 2)
    ax.add_collection(lines)
    ax.autoscale_view()


def _mark_alarm(axes: np.ndarray, run: Run) -> None:
    if not len(run.alarms):
        return
    for ax in axes:
        ax.axvline(run.alarms[0], color=ALARM_COLOUR, lw=1.4)
    axes[1].annotate(
        f"alarm at batch {run.alarms[0]}",
        (run.alarms[0], 1),
        xycoords=("data", "axes fraction"),
        xytext=(5, -4),
        textcoords="offset points",
        va="top",
        color=ALARM_COLOUR,
    )


def _batches(time: str) -> int:
    return int(str(time).removesuffix("ba"))


def main(folder: Path) -> None:
    runs = {name: read_run(folder / name) for name in RUNS if (folder / name / "metrics.jsonl").exists()}
    draw(runs, folder / "demo.png")
    Console().print(table(runs))
    print(f"chart: {folder / 'demo.png'}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
