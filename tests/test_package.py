"""What the package promises as a package."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

import composer_mixmon

PURE = [
    "statistics",
    "evidence",
    "shards",
    "labels",
    "label_file",
    "config",
    "resolve",
    "mixture",
    "alarms",
    "monitor",
    "loss_sums",
]
MODULES = [m.name for m in pkgutil.walk_packages(composer_mixmon.__path__, "composer_mixmon.")]


def imported_by(*modules: str) -> set[str]:
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return set(out.stdout.split())


def test_pure_core_needs_neither_torch_nor_composer() -> None:
    """Counting, statistics, alarms and replay run where torch, Composer and wandb are not installed."""
    pure = [f"composer_mixmon.{name}" for name in PURE]
    pure += [m for m in MODULES if m.startswith("composer_mixmon.replay")]
    pure.remove("composer_mixmon.replay.kernels")  # optional: numba imports scipy where there is one
    assert not {"torch", "composer", "streaming", "wandb", "scipy"} & imported_by(*pure)


def test_importing_the_callback_does_not_import_wandb() -> None:
    """Users without wandb can use MixMon."""
    imported = imported_by("composer_mixmon.callback")
    assert "composer" in imported
    assert "wandb" not in imported


@pytest.mark.parametrize("module", MODULES)
def test_public_lists_are_right(module: str) -> None:
    """Everything that a module calls public exists and is documented."""
    loaded = importlib.import_module(module)
    for name in getattr(loaded, "__all__", []):
        value = getattr(loaded, name)
        assert not (inspect.isclass(value) or inspect.isfunction(value)) or value.__doc__


def test_top_level() -> None:
    """The package's own public names; anything else is an AttributeError."""
    assert set(composer_mixmon.__all__) == {"MixMon", "MixmonError", "__version__"}
    assert composer_mixmon.MixMon.__name__ == "MixMon"
    with pytest.raises(AttributeError, match="has no attribute 'Mixmon'"):
        composer_mixmon.Mixmon  # noqa: B018
