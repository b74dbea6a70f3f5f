"""Text that comes from data, printed as it is: no markup, and nothing that a terminal acts on."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

__all__ = ["printable", "say"]


def printable(text: str) -> str:
    """Replace what a terminal would act on instead of showing it."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def say(console: Console, text: str, style: str = "") -> None:
    """Print lines, unwrapped and literally."""
    lines = "\n".join(map(printable, text.split("\n")))
    console.print(Text(lines, style), soft_wrap=True)
