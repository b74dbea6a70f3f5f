"""The ``mixmon`` command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from composer_mixmon import __version__
from composer_mixmon.errors import MixmonError

if TYPE_CHECKING:
    from composer_mixmon.check import Checked

__all__ = ["main"]


class _Failure(click.ClickException):
    """Something is wrong with what the user gave: one line, exit status 2."""

    exit_code = 2


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Shows which data a Composer training run is really fed."""


@main.command()
def version() -> None:
    """Print the version."""
    click.echo(__version__)


@main.command()
@click.argument("train_yaml", type=click.Path())
def check(train_yaml: str) -> None:
    """Build labels and target of TRAIN.YAML's dataset from its index files, and print them.

    Reads the index.json of each stream, from its local folder or else from its remote; no shard is opened.
    The monitor's settings are those under callbacks.mixmon; without them, streams are the labels.
    """
    from composer_mixmon.check import check_yaml  # brings streaming and torch: seconds

    try:
        checked = check_yaml(train_yaml)
    except MixmonError as error:
        raise _Failure(str(error)) from error
    _print(checked, Console())


def _print(checked: Checked, console: Console) -> None:
    table = Table("label", box=None, pad_edge=False)
    targets = ["target"] if len(checked.phases) == 1 else [f"target from {start}" for start in checked.phases]
    for heading in ("samples", "own share", *targets):
        table.add_column(heading, justify="right")
    for row in checked.labels:
        # Text, not markup: a label may look like a tag.
        table.add_row(
            Text(row.label), f"{row.samples:,}", f"{row.own:.4%}", *(f"{t:.4%}" for t in row.targets)
        )
    console.print(table)
    console.print(
        f"\n{checked.streams:,} streams, {checked.shards:,} shards, {checked.samples:,} samples; "
        f"{checked.epoch_size:,} samples an epoch",
        highlight=False,
    )
    for heading, distance in zip(targets, checked.deviations, strict=True):
        if distance > 0:
            console.print(f"own shares deviate from the {heading} by {distance:.4f}", highlight=False)
