"""Python in a process of its own, where wandb knows no user, no key and no server but those given."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}


@dataclass(frozen=True)
class Ran:
    """How it ended, and what it said."""

    status: int
    output: str
    errors: str


def run_alone(arguments: Sequence[str], folder: Path, **environment: str) -> Ran:
    """Run Python in ``folder``, which is its home, too."""
    # Files, not pipes: wandb's service inherits them, and a pipe would not end before the service does.
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        ran = subprocess.run(
            [sys.executable, *arguments],
            stdout=out,
            stderr=err,
            timeout=120,
            cwd=folder,
            env=ENVIRONMENT
            | {"HOME": str(folder), "PYTHONPATH": str(Path(__file__).parents[2])}
            | environment,
            check=False,
        )
    return Ran(ran.returncode, (folder / "out").read_text(), (folder / "err").read_text())
