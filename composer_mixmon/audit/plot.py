"""An audit, drawn: shares along the epoch with their targets, deviation with its noise floor, alarms."""

from __future__ import annotations

from typing import Any

import numpy as np

from composer_mixmon.audit.along import Along
from composer_mixmon.audit.report import Audit
from composer_mixmon.audit.sweep import BLOCKED
from composer_mixmon.colours import ALARM, GREY, PALETTE, literal
from composer_mixmon.plotting import new_figure, save

__all__ = ["plot_audit"]

_ALARMS_SHOWN = 20
_COLUMNS = 1000  # deviations drawn: of more batches, each column shows the highest


def plot_audit(audit: Audit, file: str) -> None:
    """Draw an audit.

    Args:
        audit: What was found.
        file: Ends in .png, .svg or .pdf.

    Raises:
        ConfigError: The file cannot be written.
    """
    figure = new_figure(10, 6)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_shares(above, audit)
    _draw_deviation(below, audit.along, audit.plan.config.alarm.tolerance)
    for number, alarm in enumerate(audit.along.alarms[:_ALARMS_SHOWN]):
        for panel in (above, below):
            label = "alarm" if number == 0 and panel is below else None
            panel.axvline(alarm.batch, color=ALARM, linewidth=1, linestyle="--", label=label)
    below.legend(
        loc="lower right", bbox_to_anchor=(1, 1), frameon=False, ncols=4, fontsize=9, borderaxespad=0
    )
    below.set_xlabel(f"batch of epoch {audit.plan.epoch}")
    figure.suptitle(_title(audit), fontsize=11)
    save(figure, file)


def _title(audit: Audit) -> str:
    settings = audit.plan.settings
    algo = settings.shuffle_algo if settings.shuffle else "no shuffle"
    block = f", block {settings.shuffle_block_size:,}" if algo in BLOCKED else ""
    verdict = "biased beyond the tolerance" if audit.biased else "fine"
    return (
        f"{algo}{block}, {settings.num_canonical_nodes:,} canonical nodes, "
        f"batches of {audit.plan.global_batch:,}: {verdict}"
    )


def _draw_shares(panel: Any, audit: Audit) -> None:
    """Shares of the labels that stray the most."""
    along = audit.along
    x = along.first + along.points
    full = along.length[along.points] == min(along.window, len(along))
    strays = np.abs(along.shares - along.targets)[full].max(axis=0, initial=0)
    shown: list[int] = sorted(np.argsort(-strays, kind="stable")[: len(PALETTE)].tolist())
    for label, colour in zip(shown, PALETTE, strict=False):
        name = literal(audit.plan.names[label])
        panel.plot(x[full], along.shares[full, label], color=colour, linewidth=1.3, label=name)
        panel.plot(x, along.targets[:, label], color=colour, linewidth=1, linestyle=":")
    more = len(audit.plan.names) - len(shown)
    title = f"window of {along.window} batches, target dotted" + (f"; {more} more labels" if more else "")
    panel.set_ylabel("share")
    panel.set_title(title, loc="left", fontsize=9)
    panel.legend(
        loc="lower right", bbox_to_anchor=(1, 1), frameon=False, ncols=4, fontsize=9, borderaxespad=0
    )
    panel.grid(alpha=0.25)


def _draw_deviation(panel: Any, along: Along, tolerance: float | None) -> None:
    step = -(-len(along) // _COLUMNS)
    edges = np.arange(0, len(along), step)
    highest = np.maximum.reduceat(np.where(np.isfinite(along.excess), along.deviation, np.nan), edges)
    x = along.first + np.minimum(edges + step, len(along)) - 1
    panel.fill_between(
        x, np.maximum.reduceat(along.noise, edges), color=GREY, alpha=0.35, label="noise floor"
    )
    panel.plot(x, highest, color="black", linewidth=1.2, label="deviation")
    if tolerance is not None:
        panel.axhline(tolerance, color=GREY, linewidth=1, linestyle=":", label="tolerance")
    panel.set_ylabel("deviation")
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.25)
