"""A post-mortem, printed. Everything that comes from data is plain text, never markup, and printable."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from composer_mixmon.postmortem.findings import Findings
from composer_mixmon.postmortem.sections import Section, Table, sections, shortened
from composer_mixmon.printing import printable, say

__all__ = ["show"]

_WIDTH = 100
_STYLES = {"data": "bold red", "order": "bold red", "not data": "bold green", "unknown": "bold yellow"}


def show(findings: Findings, console: Console) -> None:
    """Print a post-mortem.

    Args:
        findings: What was found.
        console: Where to.
    """
    console.width = max(console.width, _WIDTH)  # a narrow terminal breaks lines, and nothing is cut off
    verdict = shortened(findings.verdict)
    console.print(_text(verdict.headline, _STYLES[verdict.kind]))
    _bullets(verdict.reasons, console)
    for section in sections(findings):
        _section(section, console)


def _section(section: Section, console: Console) -> None:
    console.print()
    say(console, section.title, "bold underline")
    if section.facts:
        grid = Grid.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column()
        for name, figure in section.facts:
            grid.add_row(_text(name, "dim"), _text(figure))
        console.print(grid)
    for table in section.tables:
        console.print()
        console.print(_grid(table))
        if table.note:
            say(console, table.note, "dim")
    _bullets(section.notes, console)
    if section.code:
        console.print()
        say(console, section.code.rstrip("\n"))


def _grid(table: Table) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading, align in zip(table.headings, table.align, strict=True):
        grid.add_column(heading, justify="right" if align == "r" else "left", overflow="fold")
    for row in table.rows:
        grid.add_row(*map(_text, row))
    return grid


def _bullets(sentences: Sequence[str], console: Console) -> None:
    grid = Grid.grid(padding=(0, 1, 0, 0))
    for sentence in sentences:
        grid.add_row("-", _text(sentence))
    if sentences:
        console.print(grid)


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style, overflow="fold")
