"""For training loops without Composer's Trainer: bare PyTorch, Lightning, whatever goes over a DataLoader.

::

    from composer_mixmon.loop import tap
    from composer_mixmon.mixture import Mixture

    tapped = tap(loader, labels="stream")
    mixture = Mixture(tapped.target, window=100)
    for step, batch in enumerate(loader):
        train(batch)
        fold = mixture.update(tapped.take(batch).counts)
        if step % 10 == 9:
            log(mixture.metrics(fold, tapped.names))
    tapped.detach()

With several ranks, add the counts up first (``torch.distributed.all_reduce``). What goes wrong is raised:
there is no callback to keep it away from the training.
"""

# Torch is typed only in part: what comes out of it is unknown to pyright.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from composer_mixmon.annotate import Annotation, Annotator
from composer_mixmon.assembly import assemble
from composer_mixmon.config import MonitorConfig
from composer_mixmon.errors import DatasetError
from composer_mixmon.packed import PackedTap, find_packer
from composer_mixmon.tap import Tap, check_loader

__all__ = ["Tapped", "tap"]


class Tapped:
    """A DataLoader whose sample ids are read.

    Args:
        reader: What reads them.
        names: The labels' names.
        target: The shares that the run is meant to see, float64 (labels,).

    Attributes:
        names: As given.
        target: As given.
    """

    def __init__(
        self, reader: Tap | PackedTap, names: tuple[str, ...], target: npt.NDArray[np.float64]
    ) -> None:
        self.names = names
        self.target = target
        self._reader = reader

    def take(self, batch: Any) -> Annotation:
        """What is known of a batch: counts and tokens by label, sample ids. Ask once for each batch.

        Args:
            batch: The batch that the loader has just given.

        Raises:
            DatasetError: Its sample ids are not known.
        """
        known = self._reader.take(batch)
        if known is None:
            raise DatasetError(
                "the ids of this batch are not known: ask once for each batch, with the loader's own"
            )
        return known

    def detach(self) -> None:
        """Take everything off the loader again."""
        self._reader.detach()


def tap(dataloader: Any, labels: Any = "stream", target: Any = "auto") -> Tapped:
    """Read the sample ids of a DataLoader, before it is iterated over.

    Args:
        dataloader: A DataLoader over a ``StreamingDataset`` or a map-style dataset, or a packer of one (see
            :mod:`~composer_mixmon.packed`).
        labels: As for :class:`~composer_mixmon.callback.MixMon`.
        target: As there, without phases.

    Raises:
        MixmonError: The settings are wrong, or do not fit the dataset.
    """
    packer = find_packer(dataloader)
    loader = dataloader if packer is None else packer.src_iterable
    check_loader(loader)
    config = MonitorConfig.read(labels, target)
    parts = assemble(config, loader)
    annotate = Annotator(parts.labels)
    reader = Tap(loader, annotate) if packer is None else PackedTap(dataloader, annotate)
    return Tapped(reader, parts.labels.names, parts.monitor.targets[0])
