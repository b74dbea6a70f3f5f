"""Where the first samples of a permutation come from: torch.randperm up to 2.5.1 beside numpy's PCG64DXSM.

    python scripts/experiments/deciles.py [--n 3000000000] [--first 10000] [--plot deciles.png]

Prints how many of the first samples lie in each tenth of the dataset, and whether that is even. At 3e9
samples numpy needs 12 GB and minutes, the old torch.randperm neither.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray

from composer_mixmon.replay.samplers import deciles, first_of_permutation, uniformity

GENERATORS = {"torch-legacy": "torch.randperm ≤ 2.5.1", "pcg64dxsm": "numpy PCG64DXSM"}


def plot(file: str, counts: dict[str, NDArray[np.int64]], title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(counts), figsize=(9, 3.2), sharey=True, layout="constrained")
    panel: Any
    for panel, (generator, heights) in zip(axes, counts.items(), strict=True):
        panel.bar(np.arange(1, 11), heights)
        panel.axhline(heights.sum() / 10, color="black", linewidth=0.8, linestyle="--")
        panel.set(title=GENERATORS[generator], xlabel="tenth of the dataset", xticks=np.arange(1, 11))
    axes[0].set_ylabel("samples")
    figure.suptitle(title)
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--n", type=float, default=3e9, help="samples of the dataset")
    parser.add_argument("--first", type=int, default=10_000, help="samples looked at")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", metavar="FILE", help="write a histogram there")
    options = parser.parse_args()
    n = int(options.n)
    counts: dict[str, NDArray[np.int64]] = {}
    for generator in GENERATORS:
        counts[generator] = deciles(first_of_permutation(generator, n, options.first, options.seed), n)
        found = uniformity(counts[generator])
        numbers = " ".join(f"{count:6d}" for count in counts[generator])
        print(
            f"{generator:13s} {numbers}   chi² {found.chi_square:.1f}, p = 10^{found.log10_p:.1f}", flush=True
        )
    if options.plot:
        plot(options.plot, counts, f"The first {options.first:,} of {n:,} shuffled samples")


if __name__ == "__main__":
    main()
