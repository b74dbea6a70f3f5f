"""What the command line says beside RUN."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from composer_mixmon.sources.checkpoint import Checkpoint, read_checkpoint

__all__ = ["Given"]


@dataclass(frozen=True)
class Given:
    """What the command line says beside RUN.

    Attributes:
        config: The training YAML, or ``None``.
        checkpoints: Paths of checkpoints that the run was resumed from.
        nodes: Physical nodes; ``None``, as for the next two: as was logged, or else as in the YAML, or one.
        ranks: GPUs of each.
        workers: DataLoader workers of each GPU.
        labels: Labels instead of the YAML's, as the YAML would hold them.
        loss: The loss's column or tag, where it is not called as Composer calls it.
    """

    config: str | None = None
    checkpoints: tuple[str, ...] = ()
    nodes: int | None = None
    ranks: int | None = None
    workers: int | None = None
    labels: Any = None
    loss: str | None = None

    @cached_property
    def resumed_from(self) -> tuple[Checkpoint, ...]:
        """The checkpoints, in the order of their batches.

        Raises:
            ConfigError: One of them cannot be read.
        """
        return tuple(sorted(map(read_checkpoint, self.checkpoints), key=lambda saved: saved.batch))
