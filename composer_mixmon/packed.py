"""Which samples each packed batch holds: for loaders that pack several sequences into a row.

ModernBERT's ``BufferedIterable`` over a ``GreedyBestFitSequencePacker`` over a DataLoader is one such; any
objects of the same shape will do, and nothing of that code is imported::

    DataLoader ─► packer.buffer ─► packed batch ─► queue of a thread ─► Trainer
      samples      sequences        cu_seqlens

The packer keeps the very objects that the samples hold as ``input_ids``, in its ``buffer``, until they are
packed. So the sequences of a batch are those that have been fetched and are no longer in the buffer when the
batch comes out: those carried over count in the batch that holds them, and those that the packer drops at the
end of an epoch never.
"""

# Torch is typed only in part: what comes out of it is unknown to pyright.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from torch.utils.data import DataLoader

from composer_mixmon.annotate import Annotation, Annotator
from composer_mixmon.errors import DatasetError
from composer_mixmon.tap import TaggedBatch, Tap

__all__ = ["PackedTap", "find_packer"]

Ints = npt.NDArray[np.int64]

_SEQUENCE = "input_ids"
_BOUNDS = "cu_seqlens"
_MOST_WAITING = 10_000  # batches that nobody has taken: then somebody else iterates over the packer


def find_packer(dataloader: Any) -> Any | None:
    """The packer behind what a Trainer iterates over, or ``None``.

    It is an object with the attributes ``src_iterable`` (a DataLoader), ``buffer`` and ``_generate_batches``:
    the one given, or what that one has as ``iterable``.
    """
    for candidate in (dataloader, getattr(dataloader, "iterable", None)):
        source: Any = getattr(candidate, "src_iterable", None)
        if (
            isinstance(source, DataLoader)
            and hasattr(candidate, "buffer")
            and hasattr(candidate, "_generate_batches")
        ):
            return candidate
    return None


class _Note(NamedTuple):
    """What is known of the samples of a source batch.

    Attributes:
        ids: Sample ids, int64 (samples,).
        labels: Their labels, int64 (samples,).
    """

    ids: Ints
    labels: Ints


class _Noting:
    """Notes each sample's label, in the worker."""

    def __init__(self, annotate: Annotator) -> None:
        self.column = annotate.column
        self._annotate = annotate

    def __call__(self, ids: Ints, batch: Any, values: Sequence[Any] = ()) -> _Note:
        del batch
        return _Note(ids, self._annotate.labels_of(ids, values))


class _SourceTap(Tap):
    """Reads the samples that the packer fetches."""

    def __init__(self, dataloader: DataLoader[Any], noting: _Noting, fetched: Any) -> None:
        self._fetched = fetched
        super().__init__(dataloader, cast("Annotator", noting))

    def _deliver(self, data: TaggedBatch | None, number: int) -> None:
        del number
        self._fetched(data)


@dataclass
class _Sequence:
    """A sequence that has been fetched and not yet packed.

    Attributes:
        tokens: The object itself, which keeps its identity from being used again.
        sample: Its sample id.
        label: Its label.
        times: How often it was fetched.
    """

    tokens: Any
    sample: int
    label: int
    times: int = 0


class PackedTap:
    """Reads from outside which samples a packer's batches hold.

    Args:
        dataloader: What the Trainer iterates over; :func:`find_packer` finds a packer in it.
        annotate: Annotates the batches.

    Attributes:
        dataloader: As given.
        passes: Iterations over the packer that have been begun.
        number: Number of the batch that was taken last, counted from 0 over its iteration.
    """

    def __init__(self, dataloader: Any, annotate: Annotator) -> None:
        self.dataloader = dataloader
        self.passes = self.number = 0
        self._annotate = annotate
        self._packer: Any = find_packer(dataloader)
        self._waiting: dict[int, _Sequence] = {}
        self._fault = ""
        self._ready: deque[tuple[int, Any, Annotation | str]] = deque(maxlen=_MOST_WAITING)
        self._source = _SourceTap(self._packer.src_iterable, _Noting(annotate), self._fetch)
        self._inner = self._packer._generate_batches
        self._on = True
        self._packer._generate_batches = self._generate

    def take(self, batch: Any) -> Annotation | None:
        """What is known of a batch; ``None`` if it did not come from the packer.

        Args:
            batch: The very object that came from the packer.

        Raises:
            DatasetError: The packer did something else with the sequences than pack them.
        """
        while self._ready:
            number, made, known = self._ready.popleft()
            if made is batch:
                if isinstance(known, str):
                    raise DatasetError(known)
                self.number = number
                return known
        return None

    def detach(self) -> None:
        """Take everything off the packer and the DataLoader; twice does no harm."""
        if self._on:
            self._on = False
            del self._packer._generate_batches
        self._source.detach()
        self._waiting.clear()
        self._ready.clear()

    def _generate(self) -> Iterator[Any]:
        """Stands on the packer as ``_generate_batches``, which its ``__iter__`` looks up."""
        self._waiting.clear()
        self._fault = ""
        self.passes += 1
        for number, batch in enumerate(self._inner()):
            if self._on:
                self._ready.append((number, batch, self._known(batch)))
            yield batch

    def _fetch(self, data: TaggedBatch | None) -> None:
        """Note the sequences of a source batch, in the packer's thread, before the packer sees them."""
        note: Any = data.annotation if data is not None else None
        if data is None or note is None:
            self._fault = (
                data.fault if data else ""
            ) or "the ids of the samples that were packed are not known"
            return
        try:
            for sample, index, label in zip(data.batch, note.ids.tolist(), note.labels.tolist(), strict=True):
                tokens = sample[_SEQUENCE]
                here = self._waiting.setdefault(id(tokens), _Sequence(tokens, index, label))
                here.times += 1
        except Exception as error:
            self._fault = f"the samples that were packed have no {_SEQUENCE}: {error!r}"

    def _known(self, batch: Any) -> Annotation | str:
        """Annotate a batch that has just been packed, or say why not; never raises."""
        if self._fault:
            return self._fault
        try:
            used = self._used()
            lengths = np.array([len(one.tokens) for one in used], np.int64)
            if not _holds(batch, lengths):
                return "a packed batch does not hold the sequences that left the packer's buffer"
            ids = np.array([one.sample for one in used], np.int64)
            labels = np.array([one.label for one in used], np.int64)
            return self._annotate.count(ids, labels, lengths)
        except Exception as error:
            return f"a fault in reading a packed batch: {error!r}"

    def _used(self) -> list[_Sequence]:
        """The sequences that are no longer in the packer's buffer, as often as they were fetched."""
        left = Counter(map(id, self._packer.buffer))
        used: list[_Sequence] = []
        for key, one in list(self._waiting.items()):
            times = one.times - left.get(key, 0)
            if len(one.tokens):
                used += [one] * times
            one.times -= times
            if not one.times:
                del self._waiting[key]
        return used


def _holds(batch: Any, lengths: Ints) -> bool:
    """Whether sequences of these lengths are a batch's, but for at most one piece of padding a row."""
    bounds: Any = batch[_BOUNDS]
    pieces = Counter(int(piece) for row in bounds for piece in np.diff(np.asarray(row)))
    sequences = Counter(lengths.tolist())
    return not sequences - pieces and (pieces - sequences).total() <= len(bounds)
