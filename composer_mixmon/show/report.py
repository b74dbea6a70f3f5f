"""What ``mixmon show`` says of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from composer_mixmon.errors import ConfigError, DatasetError
from composer_mixmon.printing import say
from composer_mixmon.show.fed import Fed, fed
from composer_mixmon.show.samples import Samples, load_tokenizer, text_of
from composer_mixmon.sources.given import Given

__all__ = ["Shown", "ShownSample", "print_shown", "show_batch"]

_FORMAT = 1
_WIDTH = 100  # characters of a sample's text that are printed


@dataclass(frozen=True)
class ShownSample:
    """One sample of the batch.

    Attributes:
        rank: Which rank was fed it.
        id: Its sample id.
        shard: Name of its shard.
        label: Its label; ``None`` where the labels are not known.
        text: What it says; ``None`` where its shard could not be read.
    """

    rank: int
    id: int
    shard: str
    label: str | None
    text: str | None


@dataclass(frozen=True)
class Shown:
    """A batch as it was.

    Attributes:
        batch: Its number.
        epoch: Composer's epoch, −1 where not known.
        source: Where the ids come from: ``"rank_ids"`` or ``"replay"``.
        proven: Whether the ledger's order hash is that of these ids; ``None`` where there is none.
        samples: Its samples, rank by rank.
        remarks: What could not be read.
    """

    batch: int
    epoch: int
    source: str
    proven: bool | None
    samples: tuple[ShownSample, ...]
    remarks: tuple[str, ...]

    @property
    def biased(self) -> bool:
        """Whether the run was fed something else."""
        return self.proven is False

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain types, for JSON."""
        return {"format": _FORMAT, **asdict(self)}


def show_batch(run: str, batch: int, rank: int | None, decode: str | None, given: Given) -> Shown:
    """Find out what a batch held.

    Args:
        run: A ledger, or a training YAML.
        batch: Its number, counted from 0 over the run.
        rank: The rank that is of interest; ``None``: all, ranks that get the same samples once.
        decode: A tokenizer, where the samples are tokens.
        given: What the command line says beside it.

    Raises:
        MixmonError: Whatever is wrong with these.
    """
    found = fed(run, batch, given)
    tokenizer = load_tokenizer(decode) if decode else None
    ranks = {part.first_position: part for part in reversed(found.ranks)}.values()
    if rank is not None:
        ranks = [part for part in found.ranks if part.rank == rank]
        if not ranks:
            known = ", ".join(str(part.rank) for part in found.ranks)
            raise ConfigError("--rank", rank, f"there are the ranks {known}")
    remarks: dict[str, None] = {}
    samples = Samples(found.order.shards, found.streams)
    shown: list[ShownSample] = []
    for part in sorted(ranks, key=lambda part: part.rank):
        for sample, label in zip(part.ids.tolist(), _labels(found, part.ids), strict=True):
            text = None
            try:
                text = text_of(samples.read(sample), tokenizer)
            except DatasetError as error:
                remarks[str(error)] = None
            shard = found.order.shards.names[samples.shard_of(sample)]
            shown.append(ShownSample(part.rank, sample, shard, label, text))
    return Shown(batch, found.epoch, found.source, found.proven, tuple(shown), tuple(remarks))


def _labels(found: Fed, ids: npt.NDArray[np.int64]) -> Iterator[str | None]:
    labels = found.order.labels
    if labels is None:
        return iter([None] * len(ids))
    indices: list[int] = labels.of_ids(ids).tolist()
    return (found.order.names[index] for index in indices)


def print_shown(shown: Shown, console: Console) -> None:
    """Print a line for each sample, and whether this is proven."""
    for one in shown.samples:
        text = "" if one.text is None else " ".join(one.text.split())
        text = text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
        say(console, f"rank {one.rank}  {one.id:>12}  {one.label or '?'}  {one.shard}  {text}")
    for remark in shown.remarks[:5]:
        say(console, f"note: {remark}")
    epoch = f", epoch {shown.epoch}" if shown.epoch >= 0 else ""
    say(console, f"\nbatch {shown.batch}{epoch}, {len(shown.samples)} samples, from {_SOURCES[shown.source]}")
    say(console, *_VERDICTS[shown.proven])


_SOURCES = {"rank_ids": "the sample ids that the ledger keeps", "replay": "a replay of the settings"}
_VERDICTS: dict[bool | None, tuple[str, str]] = {
    True: (
        "verdict: this is what the run was fed: the ledger's order hash is that of these ids",
        "bold green",
    ),
    False: ("verdict: the run was fed something else: the ledger's order hash is another", "bold red"),
    None: ("verdict: nothing was recorded to prove this by", ""),
}
