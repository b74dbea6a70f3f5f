"""Sample ids out of a DataLoader's workers, beside the batches and never in them.

In the worker, the dataset's item access notes which ids it served and the collate function hands on
``(batch, annotation)``; in the main process the DataLoader's iterator takes the pair apart again before
anyone sees it. Where labels are a column of the samples, its value is noted as the sample comes out of its
shard, before the dataset's own code makes something else of it. So the user's collator, batch transforms,
algorithms, token counters and model get exactly the batches that they get without us, whatever their type.
Workers are forked or spawned as ever; what is set on the dataset and the DataLoader is taken off by
:meth:`Tap.detach`.
"""

# Torch, Composer and streaming are typed only in part: what comes out of them is unknown to pyright.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from streaming import StreamingDataset
from torch.utils.data import DataLoader, IterableDataset

from composer_mixmon.annotate import Annotation, Annotator
from composer_mixmon.columns import MISSING, value_in
from composer_mixmon.errors import DatasetError, MixmonError

__all__ = ["TaggedBatch", "Tap", "check_loader"]

_UNCLAIMED = 1 << 20  # ids kept when nobody collates: an eval loader over the same dataset, say


class TaggedBatch(NamedTuple):
    """A batch on its way from the worker; a named tuple, so that pinning memory goes into it.

    Attributes:
        batch: What the user's collate function returned.
        annotation: What is known of it, or ``None`` if its sample ids are not known for certain.
        fault: Why it could not be annotated though they are.
    """

    batch: Any
    annotation: Annotation | None
    fault: str = ""


class _Recorder:
    """What was asked of the dataset in this process since the last batch was collated.

    Args:
        column: The column whose values are noted, if any.
    """

    def __init__(self, column: str | None) -> None:
        self.column = column
        self.ids: list[Any] = []
        self.values: list[Any] = []  # one for each id, where there is a column
        self.read: list[tuple[Any, Any]] | None = None  # ids and values read for the item that is being made

    def note(self, index: Any, sample: Any, read: list[tuple[Any, Any]], mark: int) -> None:
        """Note an item.

        Args:
            index: What was asked for.
            sample: What came of it.
            read: Ids and values of the samples read for it.
            mark: How many items were noted when it was asked for.
        """
        del self.ids[mark:]  # what the sample itself was made from is not what was asked for
        self.ids.append(index)
        if self.column is not None:
            del self.values[mark:]
            self.values.append(_value(index, sample, read, self.column))

    def take(self) -> tuple[list[Any], list[Any]]:
        """Ids and values, once."""
        taken, self.ids, self.values = (self.ids, self.values), [], []
        return taken


def _value(index: Any, sample: Any, read: list[tuple[Any, Any]], column: str) -> Any:
    """The value of the sample that was read by this id, or else first; or of what came of it."""
    if not read:
        return value_in(sample, column)
    if len(read) == 1:
        return read[0][1]
    try:
        return next((value for at, value in read if at == index), read[0][1])
    except Exception:  # an index of several ids has no one value
        return MISSING


class _RecordingItem:
    """Stands on the dataset as ``__getitem__``, where ``StreamingDataset.__iter__`` looks it up."""

    def __init__(self, dataset: Any, recorder: _Recorder, inner: Callable[[Any], Any] | None) -> None:
        self.dataset = dataset
        self.recorder = recorder
        self.inner = inner

    def __call__(self, index: Any) -> Any:
        recorder = self.recorder
        mark = len(recorder.ids) if len(recorder.ids) < _UNCLAIMED else 0
        read: list[tuple[Any, Any]] = []
        outer, recorder.read = recorder.read, read
        try:
            # Through the type, not a bound method: a bound one would be pickled as a look-up of ourselves.
            inner = self.inner
            sample = inner(index) if inner else type(self.dataset).__getitem__(self.dataset, index)
        finally:
            recorder.read = outer
        recorder.note(index, sample, read, mark)
        return sample


class _ReadingSample:
    """Stands on a ``StreamingDataset`` as ``get_item``, by which its samples come out of their shards."""

    def __init__(
        self, dataset: Any, recorder: _Recorder, inner: Callable[..., Any] | None, column: str
    ) -> None:
        self.dataset = dataset
        self.recorder = recorder
        self.inner = inner
        self.column = column

    def __call__(self, sample_id: Any, *args: Any, **kwargs: Any) -> Any:
        inner = self.inner
        if inner:
            sample = inner(sample_id, *args, **kwargs)
        else:
            sample = type(self.dataset).get_item(self.dataset, sample_id, *args, **kwargs)
        if self.recorder.read is not None:
            self.recorder.read.append((sample_id, value_in(sample, self.column)))
        return sample


class _RecordingItems:
    """Stands on a map-style dataset as ``__getitems__``, which the DataLoader's fetcher asks for."""

    def __init__(self, dataset: Any, recorder: _Recorder, inner: Callable[[Any], Any] | None) -> None:
        self.dataset = dataset
        self.recorder = recorder
        self.inner = inner

    def __call__(self, indices: Sequence[Any]) -> Any:
        cls: Any = type(self.dataset)
        if self.inner:
            samples = self.inner(indices)
        elif getattr(cls, "__getitems__", None):
            samples = cls.__getitems__(self.dataset, indices)
        else:
            samples = [self.dataset[index] for index in indices]
        recorder = self.recorder
        recorder.ids = list(indices)
        if recorder.column is not None:
            listed = samples if isinstance(samples, (list, tuple)) else [samples] * len(recorder.ids)
            recorder.values = [value_in(sample, recorder.column) for sample in listed]
        return samples


class _TaggingCollate:
    """The user's collate function, followed by what is known of the samples it was given."""

    def __init__(self, inner: Callable[[Any], Any], recorder: _Recorder, annotate: Annotator, batched: bool):
        self.inner = inner
        self.recorder = recorder
        self.annotate = annotate
        self.batched = batched

    def __call__(self, samples: Any) -> TaggedBatch:
        recorded, values = self.recorder.take()
        expected = len(samples) if self.batched else 1
        batch = self.inner(samples)
        if len(recorded) != expected:
            return TaggedBatch(batch, None)
        try:
            ids = np.array(list(map(operator.index, recorded)), np.int64)
        except (TypeError, OverflowError):  # names instead of ids
            return TaggedBatch(batch, None)
        try:
            return TaggedBatch(batch, self.annotate(ids, batch, values))
        except MixmonError as error:  # the main process says so; the batch goes on
            return TaggedBatch(batch, None, str(error))
        except Exception as error:
            return TaggedBatch(batch, None, f"a fault in the DataLoader's worker: {error!r}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":  # not there while we are being unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)


class _UntaggedNext:
    """Stands on a DataLoader's iterator as ``_next_data`` and keeps the ids back."""

    def __init__(
        self, iterator: Any, recorder: _Recorder, deliver: Callable[[TaggedBatch | None, int], None]
    ) -> None:
        self._iterator = weakref.ref(iterator)  # a cycle would keep the workers alive
        self._recorder = recorder
        self._deliver = deliver
        self._inner: _UntaggedNext | None = vars(iterator).get("_next_data")  # of an earlier Tap

    def __call__(self) -> Any:
        iterator: Any = self._iterator()
        self._forget()
        return self._untag(type(iterator)._next_data(iterator))

    def _forget(self) -> None:
        """Without workers: drop what another loader read of the same dataset meanwhile."""
        self._recorder.take()
        if self._inner is not None:
            self._inner._forget()

    def _untag(self, data: Any) -> Any:
        """Take the pair apart; the last Tap's collate function made the outermost one."""
        tagged = data if isinstance(data, TaggedBatch) else None
        iterator: Any = self._iterator()
        self._deliver(tagged, iterator._num_yielded)
        batch = data if tagged is None else tagged.batch
        return batch if self._inner is None else self._inner._untag(batch)


def check_loader(dataloader: Any) -> None:
    """Check that the ids of a DataLoader's samples can be read.

    Raises:
        DatasetError: It is no torch DataLoader, its dataset is neither a ``StreamingDataset`` nor a
            map-style one, or its persistent workers already run.
    """
    if not isinstance(dataloader, DataLoader):
        raise DatasetError(
            f"the training data is a {type(dataloader).__name__}, not a torch DataLoader: "
            "give the Trainer a DataLoader over a StreamingDataset or a map-style dataset"
        )
    dataset: Any = dataloader.dataset
    map_style = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    known = isinstance(dataset, StreamingDataset) or (map_style and not isinstance(dataset, IterableDataset))
    if not known or not hasattr(dataset, "__dict__"):
        raise DatasetError(
            f"the dataset is a {type(dataset).__name__}, neither a StreamingDataset nor an object of a "
            "map-style class (__getitem__ and __len__): its samples have no ids to count"
        )
    if dataloader._iterator is not None:  # pyright: ignore[reportPrivateUsage]
        raise DatasetError(
            "the DataLoader's persistent workers were started before monitoring: "
            "do not iterate over it before Trainer.fit"
        )


class Tap:
    """Reads the sample ids of a DataLoader from outside.

    Args:
        dataloader: A DataLoader that :func:`check_loader` lets pass.
        annotate: Annotates the batches, in the worker.

    Attributes:
        passes: Iterations over the DataLoader that have given a batch.
        number: Number of the batch that was fetched last, counted from 0 over its iteration.
    """

    def __init__(self, dataloader: DataLoader[Any], annotate: Annotator) -> None:
        self.dataloader = dataloader
        self.passes = 0
        self.number = 0
        self._latest: TaggedBatch | None = None
        self._undo: list[Callable[[], None]] = []
        try:
            self._attach(annotate)
        except Exception:
            self.detach()
            raise

    def take(self, batch: Any = None) -> Annotation | None:
        """What is known of the batch that was fetched last, once; ``None`` where its ids are not known.

        Args:
            batch: That batch; it makes no difference here.

        Raises:
            DatasetError: It could not be annotated, in the worker.
        """
        del batch
        latest, self._latest = self._latest, None
        if latest is not None and latest.fault:
            raise DatasetError(latest.fault)
        return latest.annotation if latest is not None else None

    def detach(self) -> None:
        """Take everything off the dataset and the DataLoader; twice does no harm."""
        while self._undo:
            self._undo.pop()()

    def _attach(self, annotate: Annotator) -> None:
        loader: Any = self.dataloader
        dataset: Any = loader.dataset
        recorder = _Recorder(annotate.column)
        if isinstance(dataset, StreamingDataset):
            before, column = vars(dataset), annotate.column
            self._set(dataset, "__getitem__", _RecordingItem(dataset, recorder, before.get("__getitem__")))
            if column is not None:
                reading = _ReadingSample(dataset, recorder, before.get("get_item"), column)
                self._set(dataset, "get_item", reading)
        else:
            inner = getattr(dataset, "__getitems__", None)
            if getattr(inner, "__self__", None) is dataset:
                inner = None  # the class's own; what a wrapper hands through from inside is kept
            self._set(dataset, "__getitems__", _RecordingItems(dataset, recorder, inner))
        batched = loader.batch_sampler is not None
        self._set(loader, "collate_fn", _TaggingCollate(loader.collate_fn, recorder, annotate, batched))
        self._set(loader, "_get_iterator", self._iterator_maker(loader, recorder))

    def _iterator_maker(self, loader: Any, recorder: _Recorder) -> Callable[[], Any]:
        make = loader._get_iterator

        def get_iterator() -> Any:
            iterator = make()
            iterator._next_data = _UntaggedNext(iterator, recorder, self._deliver)
            return iterator

        return get_iterator

    def _deliver(self, data: TaggedBatch | None, number: int) -> None:
        """Keep what is known of the batch that is fetched now."""
        self._latest, self.number = data, number
        self.passes += number == 0

    def _set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute and remember how it was."""
        had, before = name in vars(owner), vars(owner).get(name)
        setattr(owner, name, value)

        def undo() -> None:
            if had:
                setattr(owner, name, before)
            else:
                delattr(owner, name)

        self._undo.append(undo)
