"""The ``mixmon`` command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from composer_mixmon import __version__
from composer_mixmon.errors import ConfigError, MixmonError
from composer_mixmon.plotting import check_plot_file
from composer_mixmon.printing import printable
from composer_mixmon.progress import bars
from composer_mixmon.replay.samplers import GENERATORS

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
    from composer_mixmon.check import check_yaml

    with _one_line():
        checked = check_yaml(train_yaml)
    _print(checked, Console())


@main.command()
@click.argument("train_yaml", type=click.Path())
@click.option("--nodes", default=1, show_default=True, help="Physical nodes.")
@click.option("--ranks", default=1, show_default=True, help="GPUs of each node.")
@click.option(
    "--workers", type=int, help="DataLoader workers of each GPU.  [default: the YAML's num_workers]"
)
@click.option("--epoch", default=0, show_default=True, help="Epoch, from 0.")
@click.option(
    "--batches",
    metavar="A:B",
    help="Batches of the epoch.  [default: all that max_duration lets the run see]",
)
@click.option(
    "--labels", metavar="SPEC", help='Other labels, as in YAML: position, "{shards: {ja: ja/*}}", …'
)
@click.option(
    "--sweep", is_flag=True, help="Try other shuffles, blocks and canonical nodes, with their cost."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--plot", type=click.Path(dir_okay=False), metavar="FILE", help="Draw the epoch: .png or .svg.")
def audit(
    train_yaml: str,
    nodes: int,
    ranks: int,
    workers: int | None,
    epoch: int,
    batches: str | None,
    labels: str | None,
    sweep: bool,
    as_json: bool,
    plot: str | None,
) -> None:
    """Compute what TRAIN.YAML's shuffle will feed the model, before anything is trained.

    Reads index.json files only. The same figures as the callback's are kept over the epoch, and its alarm is
    asked whether it would fire.

    Exit status: 0 fine, 1 biased beyond the tolerance (the alarm would fire, or the dataset cannot meet the
    target), 2 bad input.
    """
    from composer_mixmon.audit import Options, audit_yaml
    from composer_mixmon.audit.show import show

    with _one_line():
        if plot:
            check_plot_file(plot)
        options = Options(nodes, ranks, workers, epoch, batches, _yaml_option("--labels", labels))
        found = audit_yaml(train_yaml, options, sweep, bars(Console(stderr=True, quiet=as_json)))
        if plot:
            from composer_mixmon.audit.plot import plot_audit

            plot_audit(found, plot)
    _end(found, as_json, show)


@main.command()
@click.option("--n", type=float, required=True, help="Samples of the dataset, such as 1e9.")
@click.option("--generator", type=click.Choice(GENERATORS), default="torch", show_default=True)
@click.option("--first", default=10_000, show_default=True, help="How many of the first samples to look at.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--plot", type=click.Path(dir_okay=False), metavar="FILE", help="Draw a histogram: .png or .svg."
)
def sampler(n: float, generator: str, first: int, seed: int, as_json: bool, plot: str | None) -> None:
    """Show whether the first samples of a random permutation come from everywhere alike.

    torch: torch.randperm on a CPU from 2.6.0 on. torch-legacy: up to 2.5.1. pcg64dxsm: numpy's, as ModernBERT
    takes it; it needs 4 bytes of memory a sample up to 2**32 samples.

    Exit status: 0 even, 1 biased (p < 1e-6), 2 bad input.
    """
    from composer_mixmon.sampler_report import look_at_sampler, plot_sampler, show_sampler

    with _one_line():
        if plot:
            check_plot_file(plot)
        with bars(Console(stderr=True, quiet=as_json))(f"permuting {n:,.0f}", None):
            found = look_at_sampler(generator, n, first, seed)
        if plot:
            plot_sampler(found, plot)
    _end(found, as_json, show_sampler)


@main.command()
@click.argument("run", type=click.Path())
@click.option("--batch", type=int, required=True, help="Number of the batch, from 0 over the run.")
@click.option("--rank", type=int, help="One rank only.  [default: all]")
@click.option("--decode", metavar="TOKENIZER", help="Decode token ids: a folder or a name on the Hub.")
@click.option("--config", type=click.Path(), metavar="TRAIN.yaml", help="Labels and places of the data.")
@click.option("--nodes", type=int, help="Physical nodes, where RUN is a YAML.  [default: 1]")
@click.option("--ranks", type=int, help="GPUs of each node, where RUN is a YAML.  [default: 1]")
@click.option("--workers", type=int, help="DataLoader workers of each GPU, where RUN is a YAML.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(
    run: str,
    batch: int,
    rank: int | None,
    decode: str | None,
    config: str | None,
    nodes: int | None,
    ranks: int | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Show a batch of RUN as it was: sample ids, shards, labels and what the samples say.

    RUN is a ledger (the save_folder with one, its folder in there, or a segment) or a training YAML. The
    ids are those that the ledger keeps (rank_ids) or else a replay's, and the ledger's order hash proves
    them. Shards are read where they lie on this machine; nothing is downloaded or unpickled.

    Exit status: 0 shown, 1 the order hash says that the run was fed something else, 2 bad input.
    """
    from composer_mixmon.show import print_shown, show_batch
    from composer_mixmon.sources import Given

    with _one_line():
        given = Given(config=config, nodes=nodes, ranks=ranks, workers=workers)
        shown = show_batch(run, batch, rank, decode, given)
    _end(shown, as_json, print_shown)


@main.command()
@click.argument("run_a", type=click.Path())
@click.argument("run_b", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(run_a: str, run_b: str, as_json: bool) -> None:
    """Find where the orders of two runs part, and which settings and data differ.

    Each is a ledger, or whatever else a run has left: W&B's files, a CSV file, TensorBoard's files.

    Exit status: 0 the same as far as both go, 1 different, 2 bad input.
    """
    from composer_mixmon.compare import compare_runs, print_compared

    with _one_line():
        compared = compare_runs(run_a, run_b)
    _end(compared, as_json, print_compared)


@main.command()
@click.argument("run", type=click.Path(), required=False)
@click.option("--config", type=click.Path(), metavar="TRAIN.yaml", help="Replay the mixture from this YAML.")
@click.option(
    "--checkpoint", "checkpoints", type=click.Path(), multiple=True, help="One that the run was resumed from."
)
@click.option("--nodes", type=int, help="Physical nodes.  [default: as recorded, or 1]")
@click.option("--ranks", type=int, help="GPUs of each node.  [default: as recorded, or 1]")
@click.option("--workers", type=int, help="DataLoader workers of each GPU.  [default: as recorded]")
@click.option("--labels", metavar="SPEC", help="Other labels, as in YAML.")
@click.option("--loss", metavar="KEY", help="The loss's column or tag.  [default: loss/train/total]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--plot", type=click.Path(file_okay=False), metavar="DIR", help="Write the charts there: PNG.")
@click.option(
    "--html", type=click.Path(dir_okay=False), metavar="FILE", help="Write one self-contained page."
)
def postmortem(
    run: str | None,
    config: str | None,
    checkpoints: tuple[str, ...],
    nodes: int | None,
    ranks: int | None,
    workers: int | None,
    labels: str | None,
    loss: str | None,
    as_json: bool,
    plot: str | None,
    html: str | None,
) -> None:
    """Prove or rule out the data as the cause of a loss that swings or diverges.

    RUN is a ledger (the save_folder with one, its folder in there, or a segment), W&B's offline folder or
    .wandb file, a run on W&B (entity/project/run_id), a CSV export, or TensorBoard's files. Where no mixture
    was logged, --config computes it by replay.

    Exit status: 0 the data are not to blame, or nothing can be said; 1 they are; 2 bad input.
    """
    from composer_mixmon.postmortem.charts import check_plot_folder, write_pngs
    from composer_mixmon.postmortem.diagnose import diagnose
    from composer_mixmon.postmortem.page import check_page_file, write_page
    from composer_mixmon.postmortem.show import show as show_findings
    from composer_mixmon.sources import Given

    with _one_line():
        if plot:
            check_plot_folder(plot)
        if html:
            check_page_file(html)
        given = Given(config, checkpoints, nodes, ranks, workers, _yaml_option("--labels", labels), loss)
        found = diagnose(run, given, bars(Console(stderr=True, quiet=as_json)))
        if plot:
            write_pngs(found, plot)
        if html:
            write_page(found, html)
    _end(found, as_json, show_findings)


@main.group()
def labels() -> None:
    """Label files: which label each shard or sample of a dataset has."""


@labels.command()
@click.argument("dataset", type=click.Path())
@click.option("--column", required=True, metavar="NAME", help="The column whose values are the labels.")
@click.option("--out", type=click.Path(), required=True, metavar="FILE", help="The label file: .json.")
@click.option("--workers", type=int, help="Processes that read.  [default: the cores, at most 8]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def build(dataset: str, column: str, out: str, workers: int | None, as_json: bool) -> None:
    """Read one column of DATASET's samples, once, and write a label file.

    DATASET is a folder with an index.json, or a training YAML whose streams lie on this machine. Shards are
    read where they lie, compressed ones too; nothing is downloaded, unpacked to disk or unpickled. A scan
    that was interrupted goes on where it was when the same command is given again.

    Exit status: 0 written, 2 bad input.
    """
    from composer_mixmon.label_scan import build_labels, print_built

    with _one_line():
        built = build_labels(dataset, column, out, workers, bars(Console(stderr=True, quiet=as_json)))
    if as_json:
        click.echo(json.dumps(built.to_dict(), allow_nan=False))
    else:
        print_built(built, Console())


@main.group()
def wandb() -> None:
    """What is on W&B."""


@wandb.command()
@click.argument("project", metavar="ENTITY/PROJECT")
def workspace(project: str) -> None:
    """Add a view to a W&B project with the panels that matter, and print its address.

    The shares, their deviation and evidence, alarms, tokens, integrity and the loss by label beside the loss,
    for all of the project's runs; and a panel for each label of the newest run that mixmon watched, with its
    target. Views that are there are left alone.

    Exit status: 0 saved, 2 bad input, or W&B cannot be reached.
    """
    from composer_mixmon.workspace import save_workspace

    with _one_line():
        click.echo(printable(save_workspace(project)))


def _end(found: Any, as_json: bool, show: Callable[[Any, Console], None]) -> None:
    """Print what was found, and exit with 1 where it is biased."""
    if as_json:
        click.echo(json.dumps(found.to_dict(), allow_nan=False))
    else:
        show(found, Console())
    sys.exit(int(found.biased))  # wandb's exit hook sends the code on, and cannot send a bool


@contextmanager
def _one_line() -> Generator[None]:
    """Turn what is wrong with the input into one line and exit status 2."""
    try:
        yield
    except MixmonError as error:
        raise _Failure(printable(str(error))) from error


def _yaml_option(name: str, text: str | None) -> Any:
    try:
        return None if text is None else yaml.safe_load(text)
    except yaml.YAMLError as error:
        mend = f"is no YAML: {' '.join(str(error).split())}"
        raise ConfigError(name, text, mend) from error


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
