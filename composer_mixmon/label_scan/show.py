"""What ``mixmon labels build`` says of the file that it has written."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from composer_mixmon.label_scan.build import Built
from composer_mixmon.printing import printable, say

__all__ = ["print_built"]

_SHOWN = 50


def print_built(built: Built, console: Console) -> None:
    """Print the labels and their samples, and what is worth knowing of the shards."""
    table = Table("label", box=None, pad_edge=False)
    for heading in ("samples", "share"):
        table.add_column(heading, justify="right")
    for label, samples in list(built.labels.items())[:_SHOWN]:
        table.add_row(Text(printable(label)), f"{samples:,}", f"{samples / built.samples:.4%}")
    console.print(table)
    if len(built.labels) > _SHOWN:
        say(console, f"and {len(built.labels) - _SHOWN:,} more")
    say(console, f"\n{built.shards:,} shards, {built.samples:,} samples, {len(built.labels):,} labels")
    if built.mixed_shards:
        share = built.mixed_samples / built.samples
        say(
            console,
            f"note: {built.mixed_shards:,} of {built.shards:,} shards hold several labels, {share:.1%} of "
            "the samples lie in them: they are labelled sample by sample",
        )
    if built.lacking:
        say(console, f"note: no column {built.column!r}, thus unlabelled: {', '.join(built.lacking)}")
    if built.resumed:
        say(console, f"note: {built.resumed:,} of the shards had been read before, by an interrupted scan")
    say(console, f"written to {built.out}; in the YAML, labels: {{file: {built.out}}}")
