"""A post-mortem as a page: one HTML file that loads nothing, runs nothing and can be sent to anyone."""

from __future__ import annotations

import base64
import importlib.util
import io
import os
import re
import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer_mixmon import __version__
from composer_mixmon.errors import ConfigError
from composer_mixmon.postmortem.charts import Chart, draw, legible
from composer_mixmon.postmortem.findings import Findings
from composer_mixmon.postmortem.sections import brief, sections, settings_section, shortened
from composer_mixmon.printing import printable

if TYPE_CHECKING:
    from markupsafe import Markup

__all__ = ["check_page_file", "write_page"]

_DPI = 160
_NEEDED = ("jinja2", "matplotlib")


def check_page_file(file: str) -> None:
    """Check, before the work is done, that a page can be written to ``file``.

    Raises:
        ConfigError: Another kind of file, a folder that is not there, or a package that is missing.
    """
    path = Path(file)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError("--html", file, "give a file that ends in .html")
    if not path.parent.is_dir():
        raise ConfigError("--html", file, "its folder does not exist: create it")
    for name in _NEEDED:
        if importlib.util.find_spec(name) is None:
            raise ConfigError("--html", file, f'needs {name}: pip install "composer-mixmon[report]"')


def write_page(findings: Findings, file: str) -> None:
    """Write a post-mortem as one HTML file.

    Args:
        findings: What was found.
        file: Where to.

    Raises:
        ConfigError: It cannot be written.
    """
    page = _render(findings).encode()
    path = Path(file)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as beside:
            whole = Path(beside) / "page.html"
            whole.write_bytes(page)
            os.replace(whole, path)  # a page is there whole or not at all
    except OSError as error:
        raise ConfigError("--html", file, f"cannot be written: {error.strerror}") from error


def _render(findings: Findings) -> str:
    """The page.

    What the template is given is plain text, which it escapes, but for the charts. Charts are matplotlib's,
    which draws text as outlines.
    """
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, finalize=_finalize, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    template = environment.from_string(
        resources.files(__package__ or "").joinpath("page.html.j2").read_text("utf-8")
    )
    told = sections(findings)
    settings = settings_section(findings.settings)
    with legible():
        charts = {
            name: {"title": chart.title, "image": _embed(name, chart)}
            for name, chart in draw(findings).items()
        }
    return template.render(
        run=brief(findings.run, 60),
        verdict=shortened(findings.verdict),
        sections=[*told, settings] if settings else told,
        charts=charts,
        version=__version__,
    )


def _finalize(value: Any) -> Any:
    """Text without what cannot be shown: control characters, turns of direction, half characters."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return "\n".join(map(printable, value.split("\n")))
    return value


def _embed(name: str, chart: Chart) -> Markup:
    """A chart as SVG, or as PNG where that is smaller."""
    from markupsafe import Markup

    svg = _svg(name, chart)
    chart.figure.set_layout_engine("none")  # what was laid out once need not be again
    png = base64.b64encode(_saved(chart, "png", dpi=_DPI)).decode()
    if len(svg) <= len(png):
        return Markup(svg)
    image = Markup('<img src="data:image/png;base64,{}" alt="{}">')
    return image.format(png, printable(chart.text))


def _svg(name: str, chart: Chart) -> str:
    """The SVG element alone, without its XML namespaces, and with what it shows in words."""
    from markupsafe import escape

    text = _saved(
        chart, "svg", dpi=_DPI, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
    ).decode()
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)  # matplotlib repeats the names there
    opening, _, rest = text[text.index("<svg ") :].partition(">")
    view = opening[opening.index("viewBox=") :].split('"')[1]
    title, description = escape(printable(chart.title)), escape(printable(chart.text))
    return (
        f'<svg viewBox="{view}" role="img" aria-labelledby="{name}-title {name}-text">'
        f'<title id="{name}-title">{title}</title><desc id="{name}-text">{description}</desc>{rest}'
    )


def _saved(chart: Chart, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    chart.figure.savefig(file, format=kind, **options)
    return file.getvalue()
