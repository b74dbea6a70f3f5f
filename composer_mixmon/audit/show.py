"""An audit, printed. Everything that comes from data is plain text, never markup, and printable."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from composer_mixmon.audit.along import Part
from composer_mixmon.audit.plan import Plan
from composer_mixmon.audit.report import Audit, WorstWindow
from composer_mixmon.audit.sweep import BLOCKED, Sweep, SweepRow
from composer_mixmon.printing import say

__all__ = ["show"]

_LABELS_SHOWN = 3
_TABLE_WIDTH = 160


def show(audit: Audit, console: Console) -> None:
    """Print an audit.

    Args:
        audit: What was found.
        console: Where to.
    """
    console.width = max(console.width, _TABLE_WIDTH)  # a narrow terminal breaks lines, and nothing is cut off
    say(console, _headline(audit.plan))
    console.print()
    console.print(_parts(audit.parts))
    say(
        console,
        "start and end are the first and the last tenth; deviation and dispersion: mean of the batches;\n"
        f"window: the worst of {audit.plan.config.window} batches; floor: what a perfect shuffle shows\n",
    )
    for worst in audit.worst:
        say(console, _worst(audit.plan, worst))
    console.print()
    say(console, _alarm(audit), "bold red" if audit.along.alarms else "")
    if audit.plan.finding:
        say(console, audit.plan.finding, "bold red")
    for trap in audit.traps:
        say(console, f"trap: {trap.text}", "yellow")
    if audit.ties:
        say(console, f"{audit.ties:,} places of py1e's order depend on the CPU and numpy's build (ties)")
    if audit.sweep:
        console.print()
        _sweep(audit.sweep, console)
    verdict = "biased beyond the tolerance" if audit.biased else "fine"
    console.print()
    say(console, f"verdict: {verdict}", "bold red" if audit.biased else "bold green")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _headline(plan: Plan) -> str:
    settings, world = plan.settings, plan.world
    shuffle = "no shuffle"
    if settings.shuffle:
        block = f", block {settings.shuffle_block_size:,}" if settings.shuffle_algo in BLOCKED else ""
        shuffle = f"{settings.shuffle_algo}{block}, seed {settings.shuffle_seed}"
    defaults = " (ModernBERT's defaults)" if plan.modernbert else ""
    part = "" if len(plan.chosen) == plan.epoch_batches else f" of {plan.epoch_batches:,}"
    labels = ", ".join(plan.names[:10]) + (", …" if len(plan.names) > 10 else "")
    return (
        f"{_count(plan.shards.total, 'sample')} in {_count(len(plan.shards), 'shard')}, "
        f"{_count(len(plan.shards.streams), 'stream')}; "
        f"epoch {plan.epoch} of {settings.epoch_size:,} samples\n"
        f"{shuffle}, {_count(settings.num_canonical_nodes, 'canonical node')}{defaults}; "
        f"{_count(world.nodes, 'node')} of {_count(world.ranks_per_node, 'rank')}, "
        f"batches of {plan.global_batch:,}\n"
        f"batches {plan.chosen.start:,} to {plan.chosen.stop - 1:,}{part}; "
        f"{_count(len(plan.names), 'label')}: {labels}"
    )


def _parts(parts: list[Part]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("part")
    for heading in ("batches", "deviation", "floor", "dispersion", "window", "floor"):
        table.add_column(heading, justify="right")
    for part in parts:
        window = [part.window_deviation, part.window_noise_floor]
        table.add_row(
            part.name,
            f"{part.first:,} to {part.stop - 1:,}",
            f"{part.batch_deviation:.4f}",
            f"{part.batch_noise_floor:.4f}",
            f"{part.dispersion:.2f}",
            *("–" if figure is None else f"{figure:.4f}" for figure in window),
        )
    return table


def _worst(plan: Plan, worst: WorstWindow) -> str:
    window, target = worst.window, plan.target_at(worst.window.first)
    off = worst.shares - target
    most = sorted(range(len(off)), key=lambda label: -abs(off[label]))[:_LABELS_SHOWN]
    labels = ", ".join(f"{plan.names[k]} {worst.shares[k]:.1%} ({off[k]:+.1%})" for k in most)
    shards = ", ".join(f"{name} ({count:,})" for name, count in worst.shards.items())
    return (
        f"batches {window.first:,} to {window.last:,} are {window.deviation:.4f} off (noise floor "
        f"{window.noise_floor:.4f}): {labels}; {worst.distinct_shards:,} shards, most from {shards}"
    )


def _alarm(audit: Audit) -> str:
    alarms = list(audit.along.alarms)
    if not alarms:
        return "the alarm would not fire"
    more = f" (and {len(alarms) - 1:,} more)" if len(alarms) > 1 else ""
    return f"the alarm would fire at batch {alarms[0].batch:,}{more}: {alarms[0]}"


def _sweep(sweep: Sweep, console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("shuffle")
    headings = (
        "block", "canonical nodes", "deviation", "worst over noise", "dispersion", "alarm at", "seconds",
        "resident shards", "bytes", "first shards", "bytes",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in sweep.rows:
        table.add_row(_marks(row), *_cells(row), style="bold green" if row.recommended else "")
    console.print(table)
    say(
        console,
        "* Pareto-best of worst window, resident and first bytes   ► recommended   = as configured\n"
        "resident: read within one window, on the node that needs the most; first: for the first batch",
    )
    if sweep.refused:
        say(console, f"{sweep.refused} settings are left out: StreamingDataset refuses them here")
    advice = "recommended" if sweep.healthy else "none stays free of alarms; the best is"
    say(console, f"\n{advice}:\n\n{sweep.yaml}")


def _marks(row: SweepRow) -> str:
    return "*" * row.pareto + "►" * row.recommended + "=" * row.current


def _cells(row: SweepRow) -> list[str]:
    return [
        row.shuffle_algo,
        f"{row.shuffle_block_size:,}" if row.has_block else "",
        f"{row.num_canonical_nodes:,}",
        f"{row.batch_deviation:.4f}",
        f"{row.excess:.4f}",
        f"{row.dispersion:.2f}",
        "" if row.alarm is None else f"{row.alarm:,}",
        f"{row.seconds:.1f}",
        f"{row.resident_shards:,}",
        _bytes(row.resident_bytes),
        f"{row.first_shards:,}",
        _bytes(row.first_bytes),
    ]


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"
