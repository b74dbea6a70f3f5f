"""The charts of a post-mortem: what is drawn is what was found, and whatever was found can be drawn."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection, QuadMesh
from matplotlib.colors import to_hex

from composer_mixmon.colours import ALARM
from composer_mixmon.errors import ConfigError
from composer_mixmon.postmortem.charts import check_plot_folder, draw, legible, write_pngs
from composer_mixmon.postmortem.findings import Findings

from . import data


@pytest.fixture(autouse=True)
def _legible() -> Iterator[None]:
    with legible():
        yield


def panels(findings: Findings, chart: str) -> list[Any]:
    return draw(findings)[chart].figure.axes


def line(panel: Any, label: str) -> Any:
    return next(one for one in panel.lines if one.get_label() == label)


@pytest.mark.parametrize(("made", "charts"), [
    (data.see_saw, ["course", "dispersion", "shards", "effects"]),
    (data.diverged, ["course", "dispersion", "shards", "effects"]),
    (data.loss_only, ["course"]),
    (data.no_loss, ["course", "dispersion", "shards"]),
    (data.broken_order, ["course", "dispersion", "shards", "effects"]),
    (data.one_label, ["course", "dispersion", "shards"]),
    (data.one_batch, ["course", "dispersion", "shards"]),
    (data.nothing, []),
    (data.hostile, ["course", "dispersion", "shards", "effects"]),
])  # fmt: skip
def test_what_there_is_to_see(made: Callable[[], Findings], charts: list[str], tmp_path: Path) -> None:
    """Charts with nothing to show are left out; the others are written, each as a picture of many colours."""
    written = write_pngs(made(), str(tmp_path / "charts"))
    assert [file.name for file in written] == [f"{name}.png" for name in charts]
    assert sorted((tmp_path / "charts").iterdir()) == sorted(written)
    for file in written:
        pixels = np.round(255 * matplotlib.image.imread(file)[:, :, :3]).astype(np.int64)
        colours = pixels @ [1 << 16, 1 << 8, 1]
        assert len(np.unique(colours)) > 20
        assert 0.01 < (colours != 0xFFFFFF).mean() < 0.9


def test_the_course() -> None:
    """Each label has a strip with its mean, band and target; loss and deviation follow on one axis."""
    findings = data.see_saw()
    series = findings.series
    *strips, loss, deviation = panels(findings, "course")
    assert [strip.get_ylabel() for strip in strips] == list(series.names)
    for place, strip in enumerate(strips):
        mean = strip.lines[0]
        np.testing.assert_array_equal(mean.get_xdata(), series.edges)
        np.testing.assert_array_equal(mean.get_ydata()[:-1], series.shares[:, place, 1])
        np.testing.assert_array_equal(line(strip, "target").get_ydata()[:-1], series.targets[:, place])
        band = next(one for one in strip.collections if isinstance(one, PolyCollection)).get_paths()[0]
        assert band.vertices[:, 1].min() == pytest.approx(series.shares[:, place, 0].min())
        assert band.vertices[:, 1].max() == pytest.approx(series.shares[:, place, 2].max())
    np.testing.assert_array_equal(line(loss, "loss").get_ydata()[:-1], series.loss[:, 1])
    np.testing.assert_array_equal(line(loss, "trend").get_ydata()[:-1], series.trend)
    np.testing.assert_array_equal(line(deviation, "deviation").get_ydata()[:-1], series.deviation)
    assert line(deviation, "tolerance").get_ydata()[0] == 0.05
    assert {panel.get_xlim() for panel in (*strips, loss, deviation)} == {(-4_000, 1_004_000)}
    assert "12 more labels" in strips[0].get_title(loc="left")


def test_the_marks() -> None:
    """Alarms, resumptions, the onset and the worst window stand where they were, in every panel."""
    findings = data.see_saw()
    assert findings.mixture is not None
    diverged = data.diverged()
    for panel in panels(findings, "course"):
        alarms = [one.get_xdata()[0] for one in panel.lines if to_hex(one.get_color()).upper() == ALARM]
        assert alarms == [alarm.batch for alarm in findings.mixture.alarms]
        resumed = [one.get_xdata()[0] for one in panel.lines if one.get_label() == "resumption"]
        assert resumed == [250_000, 700_000]
        window = next(patch for patch in panel.patches if patch.get_label() == "worst window")
        worst = findings.mixture.worst[0]
        assert window.get_x() <= worst.first
        assert worst.last < window.get_x() + window.get_width() < worst.last + 0.01 * findings.batches
    for panel in panels(diverged, "course"):
        assert line(panel, "the loss leaves its course").get_xdata()[0] == 28_000


def test_noise_does_not_look_like_a_swing() -> None:
    """A strip shows at least the target and the tolerance around it."""
    for strip in panels(data.diverged(), "course")[:3]:
        low, high = strip.get_ylim()
        assert low <= 1 / 3 - 0.05
        assert high >= 1 / 3 + 0.05


def test_one_loss_does_not_flatten_the_others() -> None:
    """Single losses far off are off the chart, which says so; a loss that stays high is on it."""
    findings = data.findings()
    usual = findings.series.loss
    for huge, text in ((1e30, "up to 1e+30: off"), (-1e30, "down to -1e+30: off")):
        loss = usual.copy()
        loss[500] = huge
        panel = panels(replace(findings, series=replace(findings.series, loss=loss)), "course")[-2]
        low, high = panel.get_ylim()
        assert -3 < low <= usual.min()
        assert usual[20:].max() <= high < 6
        assert text in panel.texts[0].get_text()
    diverged = data.diverged()
    panel = panels(diverged, "course")[-2]
    assert panel.get_ylim()[1] > np.nanmax(diverged.series.loss)


def test_the_shards() -> None:
    """Colours are samples of a batch and shard, relative to an even spread, which is 1 on average."""
    findings = data.see_saw()
    heat = findings.series.heat
    assert heat is not None
    mesh = next(one for one in panels(findings, "shards")[0].collections if isinstance(one, QuadMesh))
    shown = np.asarray(mesh.get_array())
    assert shown.shape == heat.counts.T.shape
    area = np.outer(np.diff(heat.shards), np.diff(heat.batches))
    assert (shown * area).sum() / area.sum() == pytest.approx(1)
    ratio = shown * area / heat.counts.T
    np.testing.assert_allclose(ratio, ratio[0, 0])


def test_the_effects() -> None:
    """Each label's effect and interval, the first on top; those around 0 are grey."""
    findings = data.see_saw()
    assert findings.loss is not None
    panel = panels(findings, "effects")[0]
    names = [tick.get_text() for tick in panel.get_yticklabels()]
    assert names == [effect.label for effect in findings.loss.effects]
    assert panel.get_ylim()[0] > panel.get_ylim()[1]
    for row, effect in enumerate(findings.loss.effects):
        interval, point = panel.lines[2 * row : 2 * row + 2]
        assert {*interval.get_ydata(), *point.get_ydata()} == {row}
        assert list(interval.get_xdata()) == [effect.per_tenth.low, effect.per_tenth.high]
        assert list(point.get_xdata()) == [effect.per_tenth.value]
        around = effect.per_tenth.low <= 0 <= effect.per_tenth.high
        assert (to_hex(point.get_color()) == "#999999") == around


def test_dispersion() -> None:
    """A line for each epoch; the axis is logarithmic where the figures are far apart."""
    wide, narrow = panels(data.see_saw(), "dispersion")[0], panels(data.diverged(), "dispersion")[0]
    assert [one.get_label() for one in wide.lines] == ["epoch 0", "epoch 1", "epoch 2", "perfect shuffle"]
    assert (wide.get_yscale(), narrow.get_yscale()) == ("symlog", "linear")
    np.testing.assert_array_equal(wide.lines[1].get_ydata()[:-1], data.see_saw().series.dispersion[1])


def test_hostile_names_are_drawn_literally() -> None:
    """No mathematics, nothing that a renderer acts on, nothing hidden, and no name wider than the chart."""
    texts = [strip.get_ylabel() for strip in panels(data.hostile(), "course")[:-2]]
    assert len(texts) == 8
    for shown, name in zip(texts, data.hostile().series.names, strict=True):
        assert len(shown) < 30
        assert shown.isprintable()
        plain = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
        assert shown.strip().replace("\\$", "$")[:20] == plain[:20]
    assert any(r"\$" in text for text in texts)


def test_signs_of_other_scripts(tmp_path: Path) -> None:
    """Labels in any script are drawn without a warning, as a box where no font has the sign."""
    names = ("日本語", "한국어", "العربية", "\U0001f600", "\U000e0041")
    findings = data.findings(
        mixture=data.mixture(names), loss=data.loss(names), series=data.series(100, names)
    )
    assert len(write_pngs(findings, str(tmp_path))) == 4


@settings(derandomize=True, deadline=None, max_examples=15)
@given(
    st.integers(1, 6), st.integers(0, 3), st.integers(0, 2**32), st.floats(0, 1), st.sampled_from([0.0, 0.05])
)
def test_anything_can_be_drawn(batches: int, labels: int, seed: int, known: float, tolerance: float) -> None:
    """Unknown figures anywhere, huge losses, no labels, few batches: there are charts, and no warning."""
    rng = np.random.default_rng(seed)
    names = data.labels(labels)
    series = data.series(batches, names or ("a",))

    def some(values: Any) -> Any:
        """Lowest, mean and highest are known together, or none of them."""
        here = rng.random(values.shape[:-1] if values.shape[-1:] == (3,) else values.shape) < known
        return np.where(here[..., None] if here.ndim < values.ndim else here, values, np.nan)

    loss = some(series.loss)
    loss[rng.integers(batches)] = rng.choice([-1e308, 1e308, np.nan, 0.0])
    series = replace(
        series, names=names, shares=some(series.shares[:, :labels]), targets=series.targets[:, :labels],
        deviation=some(series.deviation), loss=loss, trend=some(series.trend),
        dispersion=some(series.dispersion), heat=series.heat if rng.random() < known else None,
    )  # fmt: skip
    mixture = data.mixture(names, batches, tolerance=tolerance, worst=()) if names else None
    findings = data.findings(batches=batches, mixture=mixture, series=series)
    for chart in draw(findings).values():
        chart.figure.canvas.draw()
        assert chart.title
        assert chart.text


def test_files_stay_in_the_folder(tmp_path: Path) -> None:
    """A link that lies in the folder is replaced; what it leads to is left as it was."""
    outside = tmp_path / "outside.png"
    outside.write_text("mine")
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "course.png").symlink_to(outside)
    write_pngs(data.loss_only(), str(tmp_path / "charts"))
    assert outside.read_text() == "mine"
    assert not (tmp_path / "charts" / "course.png").is_symlink()


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    """One error that quotes the folder, before the work where that can be known, or else after it."""
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match=r"--plot: '.*file': is no folder"):
        check_plot_folder(str(file))
    check_plot_folder(str(tmp_path / "new"))
    with pytest.raises(ConfigError, match="cannot be written: Not a directory"):
        write_pngs(data.loss_only(), str(file / "folder"))


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where matplotlib is missing, the message says what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r'pip install "composer-mixmon\[report\]"'):
        check_plot_folder(str(tmp_path))


def test_what_draws_is_imported_only_where_it_draws() -> None:
    """A printed post-mortem needs neither matplotlib nor jinja2 nor torch."""
    code = "import sys, composer_mixmon.postmortem.page, composer_mixmon.postmortem.show; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=300
    )
    assert not {"matplotlib", "jinja2", "torch"} & set(done.stdout.split())
