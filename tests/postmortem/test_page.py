"""A post-mortem as a page: whole, harmless, small, and drawn by a real browser that asks for nothing."""

from __future__ import annotations

import functools
import re
import stat
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from composer_mixmon.errors import ConfigError
from composer_mixmon.postmortem.findings import Findings
from composer_mixmon.postmortem.page import check_page_file, write_page

from . import data
from .browser import browser, dom, look

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
HTML = {
    "html", "head", "meta", "title", "style", "body", "header", "main", "section", "footer", "h1", "h2",
    "p", "ul", "li", "dl", "dt", "dd", "div", "table", "thead", "tbody", "tr", "th", "td", "figure",
    "figcaption", "pre", "img",
}  # fmt: skip
SVG = {"svg", "title", "desc", "defs", "style", "g", "path", "use", "clippath", "image", "rect"}
ADDRESSES = {"src", "href", "xlink:href"}

needs_browser = pytest.mark.skipif(browser() is None, reason="no Chromium (Debian: apt-get install chromium)")


class Reader(HTMLParser):
    """Collects the elements of a page and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words = ""
        self.comments: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.words += data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


def written(findings: Findings, folder: Path) -> Path:
    file = folder / "report.html"
    write_page(findings, str(file))
    return file


@functools.cache
def page_of(made: Callable[[], Findings]) -> str:
    """The page of what was made up, made once."""
    with tempfile.TemporaryDirectory() as folder:
        return written(made(), Path(folder)).read_text("utf-8")


def put(text: str, file: Path) -> Path:
    file.write_text(text, "utf-8")
    return file


def check_harmless(text: str) -> None:
    """Nothing runs, and nothing is asked for."""
    page = Reader(text)
    assert {tag for tag, _ in page.elements} <= HTML | SVG
    assert not page.comments
    assert ("meta", {"http-equiv": "Content-Security-Policy", "content": POLICY}) in page.elements
    for tag, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ADDRESSES:
                assert re.fullmatch(r"#[\w-]+|data:image/png;base64,[A-Za-z0-9+/=\s]+", value), (
                    tag,
                    value[:80],
                )
            if name not in ADDRESSES | {"alt", "content"}:
                assert not re.search(r"url\((?!#\w+\))|//|script|expression|@import", value), (
                    tag,
                    name,
                    value,
                )
    for sheet in re.findall(r"<style.*?</style>", text, re.DOTALL):
        assert not re.search(r"url|import|//|script", sheet)


@pytest.mark.parametrize("made", data.ALL)
def test_a_page(made: Callable[[], Findings]) -> None:
    """Whatever was found: headline, reasons and figures are there, nothing is harmful, and it is small."""
    findings = made()
    text = page_of(made)
    assert len(text.encode()) < 1_500_000
    check_harmless(text)
    page = Reader(text)
    words = re.sub(r"\s+", " ", page.words)
    if made is not data.hostile:
        assert findings.verdict.headline in words
        for said in (*findings.verdict.reasons, *findings.advice, *findings.remarks):
            assert said in words
        assert re.sub(r"\s+", " ", findings.yaml) in words
    titles = [found for found, known in (("Mixture", findings.mixture), ("Loss", findings.loss)) if known]
    assert re.findall("<h2>(Mixture|Loss)</h2>", text) == titles


def test_charts_are_described() -> None:
    """Each chart says in words what it shows: an image by its alt text, an SVG by title and desc."""
    page = Reader(page_of(data.see_saw))
    charts = [(tag, attributes) for tag, attributes in page.elements if tag in ("svg", "img")]
    assert len(charts) == 4
    assert {tag for tag, _ in charts} == {"svg", "img"}  # whichever is smaller
    identities = {
        attributes["id"] for tag, attributes in page.elements if tag in ("title", "desc") and attributes
    }
    for tag, attributes in charts:
        if tag == "img":
            assert data.see_saw().verdict.headline in attributes["alt"]
        else:
            assert set(attributes["aria-labelledby"].split()) <= identities
            assert attributes["role"] == "img"
    assert "the strongest: ja +0.0600" in page.words


def test_text_is_drawn_as_outlines() -> None:
    """An SVG has no text but its title and description: no name can be anything else than a shape."""
    text = page_of(data.hostile)
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert drawings
    for drawing in drawings:
        assert "<text" not in drawing
        bare = re.sub(r"<(title|desc|style).*?</\1>", "", drawing, flags=re.DOTALL)
        assert not Reader(bare).words.strip()
        assert "<use" in bare


def test_hostile_text() -> None:
    """Markup and templates are words on the page, what cannot be shown is replaced, long names are cut."""
    text = page_of(data.hostile)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\ufffe\uffff]", text)
    words = re.sub(r"\s+", " ", Reader(text).words)
    for shown in (
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "{{ 7 * 7 }}{% raw %}",
        "&lt;b&gt;",
    ):
        assert shown in words
    pre = text.index("<pre>")
    outside = text[:pre] + text[text.index("</pre>") :]
    assert "x" * 1200 not in outside
    assert "x" * 1000 in outside


def test_always_below_five_megabytes(tmp_path: Path) -> None:
    """Charts of pure noise, a thousand long names and a hundred thousand settings do not make it large."""
    rng = np.random.default_rng(1)
    names = tuple(f"{number}{data.LONG}" for number in range(1000))
    made = data.series(1_000_000, data.labels(8))
    noise = np.sort(rng.random(made.shares.shape))
    heat = replace(data.heat(1_000_000, 200), counts=rng.integers(0, 1000, (200, 200)))
    series = replace(
        made, names=names[:8], shares=noise, targets=rng.random(made.targets.shape),
        loss=np.sort(rng.random((1000, 3))), trend=rng.random(1000), deviation=rng.random(1000),
        noise=rng.random(1000), dispersion=rng.random((8, 100)), heat=heat,
    )  # fmt: skip
    findings = replace(
        data.hostile(), mixture=data.mixture(names), loss=data.loss(names), series=series,
        settings={str(number): data.LONG for number in range(100_000)}, remarks=names, advice=names,
        yaml=data.LONG * 100,
    )  # fmt: skip
    file = written(findings, tmp_path)
    assert file.stat().st_size < 5_000_000
    check_harmless(file.read_text("utf-8"))


def test_a_page_is_written_whole(tmp_path: Path) -> None:
    """An older page and a link are replaced; what the link leads to is left as it was."""
    (tmp_path / "other").write_text("mine")
    (tmp_path / "report.html").symlink_to(tmp_path / "other")
    file = written(data.nothing(), tmp_path)
    assert (tmp_path / "other").read_text() == "mine"
    first = file.read_bytes()
    assert written(data.nothing(), tmp_path).read_bytes() == first
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "report.html"]


@pytest.mark.parametrize(("name", "message"), [
    ("report.pdf", r"give a file that ends in \.html"),
    ("nowhere/report.html", "its folder does not exist"),
])  # fmt: skip
def test_files_that_cannot_be_a_page(tmp_path: Path, name: str, message: str) -> None:
    """Before the work is done, the message says what is wrong with the file."""
    with pytest.raises(ConfigError, match=message):
        check_page_file(str(tmp_path / name))


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """A page that cannot be written is one error that quotes its name."""
    check_page_file(str(tmp_path / "report.html"))
    (tmp_path / "report.html").mkdir()
    with pytest.raises(ConfigError, match=r"--html: '.*report\.html': cannot be written: "):
        written(data.nothing(), tmp_path)


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_without_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """Where a package is missing, the message names it and says what to install."""
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=rf'needs {missing}: pip install "composer-mixmon\[report\]"'):
        check_page_file(str(tmp_path / "report.html"))


@needs_browser
def test_the_browser_test_can_fail(tmp_path: Path) -> None:
    """A page that asks for a picture and speaks on the console is found out."""
    page = tmp_path / "bad.html"
    page.write_text('<img src="http://fetched.invalid/x.png"><script>console.log("spoken")</script>')
    opened = look(page)
    assert opened.asked == ["http://fetched.invalid/x.png"]
    assert "spoken" in opened.console[0]


@needs_browser
@pytest.mark.parametrize("made", [data.see_saw, data.hostile])
def test_in_a_browser(made: Callable[[], Findings], tmp_path: Path) -> None:
    """The page asks for nothing and the console stays clean; what the browser understood is as harmless."""
    page = put(page_of(made), tmp_path / "page.html")
    opened = look(page, height=6000)
    assert opened.asked == []
    assert opened.console == []
    understood = dom(page)
    check_harmless(understood)
    assert understood.count("<figure>") == 4


@needs_browser
def test_every_chart_is_drawn(tmp_path: Path) -> None:
    """Alone on the page under the page's own rules, each chart fills its place with lines in its colours."""
    text = page_of(data.see_saw)
    head = text[: text.index("<header>")]
    figures = re.findall(r"<figure>.*?</figure>", text, re.DOTALL)
    share = effect = (0, 114, 178)
    epoch, many_samples = (230, 159, 0), (8, 48, 107)
    empty = look(put(f"{head}</body></html>", tmp_path / "empty.html"), height=1400).pixels
    assert (empty == 255).all()
    for figure, colour in zip(figures, (share, epoch, many_samples, effect), strict=True):
        pixels = look(put(f"{head}{figure}</body></html>", tmp_path / "chart.html"), height=1400).pixels
        assert (np.abs(pixels - colour).max(axis=2) < 12).sum() > 300
        rows, columns = np.nonzero((pixels != 255).any(axis=2))
        assert columns.max() - columns.min() > 900
        assert rows.max() - rows.min() > 250


@needs_browser
def test_dark(tmp_path: Path) -> None:
    """Where the reader prefers it dark, the page and its charts are."""
    page = put(page_of(data.diverged), tmp_path / "page.html")
    light, dark = (
        look(page, 1000, 3000, f"--blink-settings=preferredColorScheme={n}").pixels for n in (1, 0)
    )
    assert np.median(light) > 240
    assert np.median(dark) < 40
    assert (dark > 200).mean() < 0.1


@needs_browser
def test_on_a_phone(tmp_path: Path) -> None:
    """Nothing but charts and tables, which scroll in their place, is wider than a narrow window."""
    page = put(page_of(data.hostile), tmp_path / "page.html")
    wide = look(page, 500, 9000).pixels
    assert (wide[:, -8:] == 255).all()
