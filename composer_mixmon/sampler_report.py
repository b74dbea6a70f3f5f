"""``mixmon sampler``: where the first samples of a permutation come from, by tenths of the dataset."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from composer_mixmon.errors import ConfigError
from composer_mixmon.plotting import new_figure, save
from composer_mixmon.printing import say
from composer_mixmon.replay.samplers import Uniformity, deciles, first_of_permutation, uniformity

__all__ = ["Sampled", "look_at_sampler", "plot_sampler", "show_sampler"]

_LOG10_P = -6.0  # biased below: by chance once in a million seeds
_FORMAT = 1


@dataclass(frozen=True)
class Sampled:
    """The first samples of a permutation.

    Attributes:
        generator: One of :data:`~composer_mixmon.replay.samplers.GENERATORS`.
        n: Samples of the dataset.
        first: How many were looked at.
        seed: The generator's.
        deciles: How many of them lie in each tenth of the dataset, int64 (10,).
        test: Of whether they lie evenly.
        seconds: What it took.
    """

    generator: str
    n: int
    first: int
    seed: int
    deciles: npt.NDArray[np.int64]
    test: Uniformity
    seconds: float

    @property
    def biased(self) -> bool:
        """Whether so uneven a spread comes by chance less than once in a million seeds."""
        return self.test.log10_p < _LOG10_P

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain types, for JSON."""
        values = {name: value for name, value in vars(self).items() if name not in ("deciles", "test")}
        return {
            "format": _FORMAT,
            **values,
            "deciles": self.deciles.tolist(),
            **asdict(self.test),
            "biased": self.biased,
        }


def look_at_sampler(generator: str, n: float, first: int, seed: int) -> Sampled:
    """Draw the first samples and test their spread.

    Args:
        generator: One of :data:`~composer_mixmon.replay.samplers.GENERATORS`.
        n: Samples of the dataset, a whole number.
        first: How many to look at.
        seed: The generator's.

    Raises:
        ConfigError: Numbers out of range.
    """
    if not math.isfinite(n) or n != int(n):
        raise ConfigError("--n", n, "write a whole number of samples, such as 1e9")
    began = time.perf_counter()
    counts = deciles(first_of_permutation(generator, int(n), first, seed), int(n))
    seconds = round(time.perf_counter() - began, 3)
    return Sampled(generator, int(n), first, seed, counts, uniformity(counts), seconds)


def show_sampler(sampled: Sampled, console: Console) -> None:
    """Print deciles, test and verdict."""
    expected = sampled.first / len(sampled.deciles)
    table = Table(box=None, pad_edge=False)
    for heading in ("tenth", "samples", "off"):
        table.add_column(heading, justify="right")
    for tenth, count in enumerate(sampled.deciles.tolist(), 1):
        table.add_row(str(tenth), f"{count:,}", f"{count / expected - 1:+.1%}")
    say(
        console,
        f"the first {sampled.first:,} of {sampled.n:,} samples, {sampled.generator}, seed {sampled.seed}\n",
    )
    console.print(table)
    test = sampled.test
    say(
        console,
        f"\nchi² {test.chi_square:.1f} with {test.degrees} degrees of freedom, p = 10^{test.log10_p:.2f}; "
        f"{sampled.seconds:.1f} s",
    )
    verdict = "biased: early samples do not come from everywhere alike" if sampled.biased else "no bias seen"
    say(console, f"verdict: {verdict}", "bold red" if sampled.biased else "bold green")


def plot_sampler(sampled: Sampled, file: str) -> None:
    """Draw the deciles.

    Raises:
        ConfigError: The file cannot be written.
    """
    figure = new_figure(6, 3.6)
    panel = figure.subplots()
    tenths = np.arange(1, len(sampled.deciles) + 1)
    panel.bar(tenths, sampled.deciles, color="#0072B2")
    expected = sampled.first / len(tenths)
    panel.axhline(expected, color="black", linewidth=1, linestyle="--", label="even")
    panel.set(xlabel="tenth of the dataset", ylabel="samples", xticks=tenths)
    panel.set_ylim(0, max(sampled.deciles.max(), expected) * 1.25)
    panel.legend(loc="upper right", frameon=False)
    chance = f"p = 10^{sampled.test.log10_p:.1f}"
    panel.set_title(f"{sampled.generator}: the first {sampled.first:,} of {sampled.n:,}, {chance}")
    save(figure, file)
