"""A post-mortem, drawn: shares, loss and deviation over the run, its epochs, its shards, what the labels do.

Charts that have nothing to show are left out.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from composer_mixmon.colours import ALARM, GREY, PALETTE, literal
from composer_mixmon.errors import ConfigError
from composer_mixmon.plotting import new_figure
from composer_mixmon.postmortem.findings import Effect, Findings, Onset, Series
from composer_mixmon.postmortem.sections import brief
from composer_mixmon.sources.order import ShardHeat

__all__ = ["Chart", "check_plot_folder", "draw", "legible", "write_pngs"]

Floats = npt.NDArray[np.float64]

_BLUE = PALETTE[0]
_TALL = 2  # labels up to which each gets a higher panel
_NAME = 24  # characters of a label
_EFFECTS = 20
_ALARMS = 20
_RESUMPTIONS = 50
_NARROWEST = 0.003  # of the run: a shorter window is shaded as wide as this, or nobody would see it
_OUTLIER = 4.0  # a loss this many times as far off as all but a hundredth are is off the chart
_HUGE = 1e100  # losses beyond this would overflow on the way to the axis
_WIDE = 20.0  # dispersion from which on the axis is logarithmic above 1
_DPI = 130
# Fonts with Chinese, Japanese and Korean signs, on Linux, macOS and Windows.
_FONTS = (
    "Noto Sans CJK JP", "Noto Sans JP", "Source Han Sans JP", "IPAexGothic", "IPAGothic", "VL Gothic",
    "WenQuanYi Zen Hei", "Droid Sans Fallback", "Hiragino Sans", "Apple SD Gothic Neo", "Yu Gothic",
    "Microsoft YaHei", "Malgun Gothic",
)  # fmt: skip


@dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes:
        title: What it shows, in a few words.
        text: The same for those who cannot see it.
        figure: matplotlib's.
    """

    title: str
    text: str
    figure: Any


def check_plot_folder(folder: str) -> None:
    """Check, before the work is done, that charts can be written to ``folder``.

    Raises:
        ConfigError: It is a file, or there is no matplotlib.
    """
    if Path(folder).exists() and not Path(folder).is_dir():
        raise ConfigError("--plot", folder, "is no folder: the charts are several files")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot", folder, 'needs matplotlib: pip install "composer-mixmon[report]"')


def write_pngs(findings: Findings, folder: str) -> list[Path]:
    """Write the charts as PNG files, each of the name that :func:`draw` gives it.

    Args:
        findings: What was found.
        folder: Where to; made if it is not there. A link of the same name in it is replaced, not followed.

    Raises:
        ConfigError: They cannot be written.
    """
    written: list[Path] = []
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with legible():
            for name, chart in draw(findings).items():
                file = Path(folder) / f"{name}.png"
                with tempfile.TemporaryDirectory(dir=folder) as beside:
                    chart.figure.savefig(Path(beside) / file.name, dpi=_DPI)
                    os.replace(Path(beside) / file.name, file)
                written.append(file)
    except OSError as error:
        raise ConfigError("--plot", folder, f"cannot be written: {error.strerror}") from error
    return written


@contextmanager
def legible() -> Generator[None]:
    """Draw and save within: signs of other scripts come from fonts that have them, if there are any."""
    import matplotlib as mpl
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    fonts = ["DejaVu Sans", *(name for name in _FONTS if name in installed)]
    settings: Any = {"font.family": fonts, "svg.fonttype": "path"}
    with mpl.rc_context(settings), warnings.catch_warnings():  # pyright: ignore[reportUnknownMemberType]
        # Without such a font a box is drawn for each sign, and the tables have the name.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


def draw(findings: Findings) -> dict[str, Chart]:
    """Draw what there is to see, within :func:`legible`.

    Args:
        findings: What was found.

    Returns:
        ``course``: shares, loss and deviation over the run; ``dispersion``: along the epochs; ``shards``:
        which came when; ``effects``: of the labels on the loss. Those that have something to show.
    """
    charts = {
        "course": _course(findings),
        "dispersion": _dispersion(findings.series.dispersion),
        "shards": _shards(findings.series.heat),
        "effects": _effects(findings.loss.effects if findings.loss else ()),
    }
    return {name: chart for name, chart in charts.items() if chart is not None}


def _course(findings: Findings) -> Chart | None:
    """Shares, loss and deviation, one below the other."""
    series = findings.series
    mixture = findings.mixture is not None and np.isfinite(series.shares).any()
    losses = bool(np.isfinite(series.loss).any())
    if not mixture and not losses:
        return None
    strips = [0.75 if len(series.names) > _TALL else 1.3] * len(series.names) if mixture else []
    heights = [*strips, *[2.2] * losses, *[1.6] * bool(mixture)]
    figure = new_figure(10, 1.2 + sum(heights))
    panels = list(figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0])
    if losses:
        _draw_loss(panels[len(strips)], series)
    if findings.mixture and mixture:
        _draw_shares(panels[: len(strips)], series, findings.mixture.tolerance)
        _draw_deviation(panels[-1], series, findings.mixture.tolerance)
    _mark(panels, findings)
    window = f", windows of {findings.mixture.window:,} batches" if findings.mixture and mixture else ""
    more = f"; {series.more:,} more labels are not drawn" if series.more else ""
    panels[0].set_title(f"lowest to highest shaded, mean as a line{window}{more}", loc="left", fontsize=9)
    panels[-1].set_xlabel("batch")
    _number(panels[-1].xaxis)
    _legend(figure, panels)
    shown = ["shares of the labels"] * bool(mixture) + ["loss"] * losses + ["deviation"] * bool(mixture)
    title = ", ".join(shown)
    title = f"{title[0].upper()}{title[1:]} over the run"
    return Chart(title, f"{title}. {findings.verdict.headline}", figure)


def _draw_shares(panels: list[Any], series: Series, tolerance: float) -> None:
    """A strip for each label, at least as high as the tolerance, so that noise does not look like a swing."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for place, (panel, name) in enumerate(zip(panels, series.names, strict=True)):
        target = series.targets[:, place]
        _band(panel, series.edges, series.shares[:, place], _BLUE)
        _steps(panel, series.edges, target, color="black", linestyle=":", linewidth=1.3, label="target")
        low, high = panel.get_ylim()
        panel.set_ylim(
            max(0.0, min(low, target.min() - tolerance)), min(1.05, max(high, target.max() + tolerance))
        )
        panel.yaxis.set_major_formatter(FuncFormatter(_percent))
        panel.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        panel.tick_params(axis="y", labelsize=8)
        panel.set_ylabel(_name(name), rotation=0, ha="right", va="center", fontsize=9)


def _draw_loss(panel: Any, series: Series) -> None:
    loss = np.clip(series.loss, -_HUGE, _HUGE)
    _band(panel, series.edges, loss, "#555555", "loss")
    if np.isfinite(series.trend).any():
        _steps(panel, series.edges, series.trend, color=PALETTE[3], linewidth=1.5, label="trend")
    panel.set_ylabel("loss")
    _leave_outliers(panel, loss)


def _leave_outliers(panel: Any, loss: Floats) -> None:
    """Set the axis so that single losses do not flatten all others, and say where they are."""
    known = loss[np.isfinite(loss[:, 1])]
    usual_low, usual_high = float(np.quantile(known[:, 0], 0.01)), float(np.quantile(known[:, 2], 0.99))
    lowest, highest = float(known[:, 0].min()), float(known[:, 2].max())
    reach, margin = _OUTLIER * (usual_high - usual_low), 0.1 * (usual_high - usual_low)
    above, below = highest - usual_low > reach > 0, usual_high - lowest > reach > 0
    low, high = usual_low if below else lowest, usual_high if above else highest
    if above or below:
        panel.set_ylim(low - margin, high + margin)
        outside = [f"up to {highest:.3g}"] * above + [f"down to {lowest:.3g}"] * below
        text = f"{', '.join(outside)}: off the chart"
        panel.annotate(text, (0.99, 0.95), xycoords="axes fraction", ha="right", va="top", fontsize=8)


def _draw_deviation(panel: Any, series: Series, tolerance: float) -> None:
    noise = np.append(series.noise, series.noise[-1:])
    panel.fill_between(
        series.edges, noise, step="post", color=GREY, alpha=0.4, linewidth=0, label="noise floor"
    )
    _steps(panel, series.edges, series.deviation, color="black", linewidth=1, label="deviation")
    panel.axhline(tolerance, color=_BLUE, linewidth=1.2, linestyle="-.", label="tolerance")
    panel.set_ylim(0, max(panel.get_ylim()[1], 1.15 * tolerance))
    panel.set_ylabel("deviation")


def _mark(panels: list[Any], findings: Findings) -> None:
    """Show where alarms, resumptions, the onset and the worst window are, in every panel."""
    onset: Onset | None = findings.loss.onset if findings.loss else None
    mixture = findings.mixture
    for panel in panels:
        panel.grid(alpha=0.25)
        panel.set_xlim(*_with_margin(findings.series.edges))
        for worst in mixture.worst[:1] if mixture else ():
            middle = (worst.first + worst.last + 1) / 2
            half = max(worst.last + 1 - worst.first, _NARROWEST * findings.batches) / 2
            panel.axvspan(
                middle - half, middle + half, color=PALETTE[1], alpha=0.45, lw=0, label="worst window"
            )
        for one in findings.order.resumptions[:_RESUMPTIONS]:
            panel.axvline(one.batch, color="#666666", linewidth=1, linestyle=":", label="resumption")
        for alarm in mixture.alarms[:_ALARMS] if mixture else ():
            panel.axvline(alarm.batch, color=ALARM, linewidth=1.2, linestyle="--", label="alarm")
        if onset:
            panel.axvline(onset.batch, color="black", linewidth=1.8, label="the loss leaves its course")


def _with_margin(edges: npt.NDArray[np.int64]) -> tuple[float, float]:
    """From before the first batch to after the last, so that what is marked there is seen."""
    margin = 0.004 * float(edges[-1] - edges[0])
    return float(edges[0]) - margin, float(edges[-1]) + margin


def _legend(figure: Any, panels: list[Any]) -> None:
    """One legend below all panels, each entry once."""
    entries: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(
        entries.values(), entries.keys(), loc="outside lower center", ncols=5, frameon=False, fontsize=9
    )


def _band(panel: Any, edges: Any, values: Floats, colour: str, label: str | None = None) -> None:
    """Lowest to highest shaded, the mean as a line."""
    low, high = (np.append(values[:, side], values[-1:, side]) for side in (0, 2))
    panel.fill_between(edges, low, high, step="post", color=colour, alpha=0.25, linewidth=0)
    _steps(panel, edges, values[:, 1], color=colour, linewidth=1.2, label=label)


def _steps(panel: Any, edges: Any, values: Floats, **style: Any) -> None:
    panel.plot(edges, np.append(values, values[-1:]), drawstyle="steps-post", **style)


def _dispersion(dispersion: Floats) -> Chart | None:
    finite = dispersion[np.isfinite(dispersion)]
    if not len(finite):
        return None
    figure = new_figure(10, 3.4)
    panel = figure.subplots()
    edges = np.linspace(0, 100, dispersion.shape[1] + 1)
    for epoch, (values, colour) in enumerate(zip(dispersion, PALETTE, strict=False)):
        _steps(panel, edges, values, color=colour, linewidth=1.4, label=f"epoch {epoch}")
    panel.axhline(1, color="black", linewidth=1.2, linestyle=":", label="perfect shuffle")
    if finite.max() > _WIDE:
        panel.set_yscale("symlog", linthresh=1)
        panel.yaxis.set_major_formatter("{x:g}")
    panel.set_ylim(bottom=0)
    panel.set_xlim(0, 100)
    panel.xaxis.set_major_formatter("{x:g}%")
    panel.set_xlabel("place in the epoch")
    panel.set_ylabel("dispersion")
    panel.grid(alpha=0.25)
    _legend(figure, [panel])
    text = f"Mean chi² per degree of freedom along the epochs, from {finite.min():.2f} to {finite.max():.2f}."
    return Chart("Dispersion along the epochs", text, figure)


def _shards(heat: ShardHeat | None) -> Chart | None:
    if heat is None or not heat.counts.any():
        return None
    from matplotlib.colors import PowerNorm

    figure = new_figure(10, 4.4)
    panel = figure.subplots()
    area = np.diff(heat.batches)[:, None] * np.diff(heat.shards)
    even = heat.counts.sum() / area.sum()
    density = heat.counts / area / even
    norm = PowerNorm(0.5, 0, max(2.0, float(density.max())))  # half of the colours for the lowest quarter
    image = panel.pcolormesh(
        heat.batches, heat.shards, density.T, cmap="Blues", norm=norm, rasterized=True, shading="flat"
    )
    figure.colorbar(image, ax=panel, label="samples (all shards evenly: 1)", pad=0.01)
    panel.set_xlabel("batch")
    panel.set_ylabel("shard")
    _number(panel.xaxis)
    _number(panel.yaxis)
    text = f"Which of {heat.shards[-1]:,} shards the samples of batches {heat.batches[0]:,} to "
    return Chart("Shards over the run", f"{text}{heat.batches[-1] - 1:,} came from.", figure)


def _effects(effects: tuple[Effect, ...]) -> Chart | None:
    """Of each label a point and its interval."""
    shown = effects[:_EFFECTS]
    if not shown:
        return None
    figure = new_figure(10, 1.3 + 0.3 * len(shown))
    panel = figure.subplots()
    for row, one in enumerate(shown):
        found = one.per_tenth
        clear = found.low > 0 or found.high < 0
        panel.plot(
            [found.low, found.high], [row, row], color=_BLUE if clear else GREY, linewidth=2, marker="|",
            markersize=7, label="95 % interval" if clear else "95 % interval, 0 within",
        )  # fmt: skip
        panel.plot(found.value, row, "o", color=_BLUE if clear else GREY, markersize=6)
    panel.axvline(0, color="black", linewidth=1)
    panel.set_yticks(range(len(shown)), [_name(one.label) for one in shown])
    panel.set_ylim(len(shown) - 0.4, -0.6)
    panel.set_xlabel("change of the loss where the label's share is 10 points higher")
    panel.grid(alpha=0.25)
    _legend(figure, [panel])
    strongest = f"{brief(shown[0].label)} {shown[0].per_tenth.value:+.4f}"
    text = f"Change of the loss where a label's share is 10 points higher; the strongest: {strongest}."
    return Chart("Effects of the labels on the loss", text, figure)


def _percent(share: float, _place: int) -> str:
    return f"{100 * share:.4g}%"


def _name(label: str) -> str:
    return literal(brief(label, _NAME))


def _number(axis: Any) -> None:
    """Whole numbers with thousands apart."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))
    axis.set_major_formatter("{x:,.0f}")
