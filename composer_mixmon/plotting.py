"""What plots share: matplotlib, asked for only where something is drawn."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from composer_mixmon.errors import ConfigError

__all__ = ["check_plot_file", "new_figure", "save"]

_KINDS = (".png", ".svg", ".pdf")


def check_plot_file(file: str) -> None:
    """Check, before the work is done, that a plot can be written to ``file``.

    Raises:
        ConfigError: Another kind of file, a folder that is not there, or no matplotlib.
    """
    path = Path(file)
    if path.suffix.lower() not in _KINDS:
        raise ConfigError("--plot", file, f"give a file that ends in {', '.join(_KINDS)}")
    if not path.parent.is_dir():
        raise ConfigError("--plot", file, "its folder does not exist: create it")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot", file, "needs matplotlib: pip install matplotlib")


def new_figure(width: float, height: float) -> Any:
    """An empty figure of so many inches, apart from pyplot and its windows."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, file: str) -> None:
    """Write a figure.

    Raises:
        ConfigError: The file cannot be written.
    """
    try:
        figure.savefig(file, dpi=120)
    except OSError as error:
        raise ConfigError("--plot", file, f"cannot be written: {error.strerror}") from error
