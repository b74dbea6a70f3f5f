"""The ids that are counted are the ids that the model is fed, batch by batch."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
from composer.core import Algorithm, Callback, Event, State
from composer.loggers import Logger
from streaming import StreamingDataLoader
from torch.utils.data import DataLoader

from composer_mixmon import MixMon, MixmonError
from tests.live.data import AugmentedStreaming, as_dict, mds_loader, streaming_dataset, two_streams, write_mds
from tests.live.helpers import (
    Tiny,
    Twice,
    Witness,
    by_id,
    fit,
    ids_to_rows,
    labels_of,
    planned,
    rows,
    trainer,
)

BATCH = 6

# A process that is not forked from ours imports streaming first, which takes longer than all the rest.
multiprocessing.get_context("forkserver").set_forkserver_preload(["tests.live.data"])
PERSISTENT = {"num_workers": 2, "persistent_workers": True}
WORKERS: dict[str, dict[str, Any]] = {
    "none": {"num_workers": 0},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "fork-persistent": {"multiprocessing_context": "fork", **PERSISTENT},
    "fork-pinned": {"num_workers": 2, "multiprocessing_context": "fork", "pin_memory": True},
    "spawn-persistent": {"multiprocessing_context": "spawn", **PERSISTENT},
    "forkserver-persistent": {"multiprocessing_context": "forkserver", **PERSISTENT},
}


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator is found")
@pytest.mark.parametrize("workers", WORKERS)
def test_counts_equal_the_ids_fed_and_those_planned(tmp_path: Path, workers: str) -> None:
    """Over three epochs of a shuffled dataset, however the workers are started."""
    exact_and_as_planned(tmp_path, StreamingDataLoader, WORKERS[workers])


@pytest.mark.parametrize("workers", ["none", "fork"])
def test_a_plain_dataloader_over_mds(tmp_path: Path, workers: str) -> None:
    """Torch's own DataLoader is read just as streaming's."""
    exact_and_as_planned(tmp_path, DataLoader, WORKERS[workers])


def exact_and_as_planned(
    tmp_path: Path, loader_class: type[DataLoader[Any]], workers: dict[str, Any]
) -> None:
    settings = {"shuffle": True, "num_canonical_nodes": 2, "shuffle_block_size": 24}
    dataset = streaming_dataset(write_mds(tmp_path, 50), BATCH, **settings)
    loader = loader_class(dataset, batch_size=BATCH, collate_fn=as_dict, **workers)
    witness, monitor = Witness(), by_id(50)
    vars(monitor)["no_worker_is_sent_this"] = Lock()  # for it cannot be pickled
    run = fit(loader, witness, monitor, duration="3ep")
    counted = rows(monitor)
    np.testing.assert_array_equal(counted, ids_to_rows(witness.batches, 50))
    assert counted.sum() == int(run.state.timestamp.sample)
    fresh = streaming_dataset(tmp_path, BATCH, **settings)
    epochs = [planned(fresh, epoch, workers["num_workers"]) for epoch in range(3)]
    np.testing.assert_array_equal(counted, ids_to_rows([ids for epoch in epochs for ids in epoch], 50))
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("microbatch", [1, 2, BATCH, BATCH + 3])
def test_microbatching_counts_each_batch_once(tmp_path: Path, microbatch: int) -> None:
    """Gradient accumulation splits the batch behind our back."""
    loader = StreamingDataLoader(
        streaming_dataset(write_mds(tmp_path, 32), BATCH), batch_size=BATCH, collate_fn=as_dict
    )
    witness, monitor, model = Witness(), by_id(32), Tiny()
    fit(loader, witness, monitor, model=model, device_train_microbatch_size=microbatch)
    np.testing.assert_array_equal(rows(monitor), ids_to_rows(witness.batches, 32))
    assert max(map(len, model.fed)) == min(microbatch, BATCH)
    assert sorted(i for ids in model.fed for i in ids) == list(range(32))


def test_an_optimizer_that_calls_its_closure_twice(tmp_path: Path) -> None:
    """Each batch goes through the model twice, in microbatches, and counts once."""
    loader = mds_loader(streaming_dataset(write_mds(tmp_path, 32), BATCH))
    witness, monitor, model = Witness(), by_id(32), Tiny()
    run = trainer(loader, witness, monitor, model=model, device_train_microbatch_size=4)
    run.state.optimizers = Twice(model.parameters(), lr=0.01)
    run.fit()
    run.close()
    np.testing.assert_array_equal(rows(monitor), ids_to_rows(witness.batches, 32))
    assert rows(monitor).sum() == int(run.state.timestamp.sample) == 32
    assert model.fed == [
        part for ids in witness.batches for _ in range(2) for part in (ids[:4], ids[4:]) if part
    ]


class Shortens(Algorithm):
    """Trains on the first samples of each batch, and leaves the others."""

    def match(self, event: Event, state: State) -> bool:
        return event == Event.AFTER_DATALOADER

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        state.batch = {name: values[:2] for name, values in state.batch.items()}


@pytest.mark.parametrize("workers", [0, 2])
def test_an_algorithm_that_shortens_the_batch(
    tmp_path: Path, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """What the loader has fed counts, as Composer counts it, whatever is trained on; nothing is said."""
    dataset = streaming_dataset(write_mds(tmp_path, 32), BATCH)
    witness, monitor, model = Witness(), by_id(32), Tiny()
    loader = mds_loader(dataset, num_workers=workers)
    run = fit(loader, witness, monitor, model=model, algorithms=[Shortens()], duration="2ep")
    plan = planned(streaming_dataset(tmp_path, BATCH), 0, workers) * 2
    np.testing.assert_array_equal(rows(monitor), ids_to_rows(plan, 32))
    assert rows(monitor).sum() == int(run.state.timestamp.sample) == 64
    assert model.fed == witness.batches == [ids[:2] for ids in plan]
    assert [record for record in caplog.records if record.name == "composer_mixmon"] == []


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("samples", [24, 25, 29])
def test_uneven_last_batch(tmp_path: Path, samples: int, drop_last: bool, workers: int) -> None:
    """The last batch holds all, one or all but one of a batch's samples, or is dropped."""
    folder = write_mds(tmp_path, samples)
    dataset = streaming_dataset(folder, BATCH)
    loader = StreamingDataLoader(
        dataset, batch_size=BATCH, collate_fn=as_dict, drop_last=drop_last, num_workers=workers
    )
    witness, monitor = Witness(), by_id(samples)
    run = fit(loader, witness, monitor, duration="2ep")
    counted = rows(monitor)
    np.testing.assert_array_equal(counted, ids_to_rows(witness.batches, samples))
    assert counted.sum() == int(run.state.timestamp.sample)
    fresh = streaming_dataset(folder, BATCH)
    plan = [ids for epoch in (0, 1) for ids in planned(fresh, epoch, workers, drop_last)]
    np.testing.assert_array_equal(counted, ids_to_rows(plan, samples))


@pytest.mark.parametrize("method", ["random", "stratified", "per_stream", "device_per_stream"])
@pytest.mark.parametrize(
    "weights",
    [
        ({}, {}),
        ({"repeat": 0.5}, {"repeat": 2}),
        ({"choose": 21}, {"choose": 50}),
        ({"proportion": 0.25}, {"proportion": 0.75}),
    ],
    ids=["plain", "repeat", "choose", "proportion"],
)
def test_streams_in_every_batching_method(tmp_path: Path, method: str, weights: Any) -> None:
    """Up- and down-sampled streams count under the underlying ids, and under their streams."""
    settings = {"batching_method": method, "weights": weights, "shuffle": True, "shuffle_block_size": 32}
    loader = StreamingDataLoader(
        two_streams(tmp_path, BATCH, **settings), batch_size=BATCH, collate_fn=as_dict
    )
    witness, ids = Witness(), by_id(64)
    run = fit(loader, witness, ids, duration="2ep")
    np.testing.assert_array_equal(rows(ids), ids_to_rows(witness.batches, 64))
    fresh = two_streams(tmp_path, BATCH, **settings)
    plan = ids_to_rows([batch for epoch in (0, 1) for batch in planned(fresh, epoch, 0)], 64)
    np.testing.assert_array_equal(rows(ids), plan)

    loader = StreamingDataLoader(
        two_streams(tmp_path, BATCH, **settings), batch_size=BATCH, collate_fn=as_dict
    )
    streams = MixMon(window="1000ba")
    fit(loader, streams, duration="2ep")
    np.testing.assert_array_equal(rows(streams), np.stack([plan[:, :40].sum(1), plan[:, 40:].sum(1)], 1))
    assert labels_of(streams) == ("a", "b")
    assert rows(streams).sum() == int(run.state.timestamp.sample)


@pytest.mark.parametrize("sampling", ["balanced", "fixed"])
def test_epochs_that_choose_their_samples(tmp_path: Path, sampling: str) -> None:
    """Anew or once for all, by ``sampling_method``: each epoch's own samples count, over three epochs."""
    settings = {"sampling_method": sampling, "weights": ({"choose": 20}, {"choose": 10}), "shuffle": True}
    witness, monitor = Witness(), by_id(64)
    fit(mds_loader(two_streams(tmp_path, BATCH, **settings)), witness, monitor, duration="3ep")
    counted = rows(monitor)
    np.testing.assert_array_equal(counted, ids_to_rows(witness.batches, 64))
    fresh = two_streams(tmp_path, BATCH, **settings)
    plan = [ids for epoch in range(3) for ids in planned(fresh, epoch, 0)]
    np.testing.assert_array_equal(counted, ids_to_rows(plan, 64))
    first, *others = counted.reshape(3, 5, 64).sum(axis=1).tolist()
    assert [other == first for other in others] == [sampling == "fixed"] * 2


@pytest.mark.parametrize("algo", ["py1e", "py1br", "py1s", "py2s", "naive", None])
def test_every_shuffle(tmp_path: Path, algo: str | None) -> None:
    """Shuffled by each algorithm, or not at all."""
    settings = {"shuffle": algo is not None, "shuffle_algo": algo or "py1e", "num_canonical_nodes": 2}
    settings["shuffle_block_size"] = 16
    folder = write_mds(tmp_path, 50)
    dataset = streaming_dataset(folder, BATCH, **settings)
    loader = mds_loader(dataset, num_workers=2)
    witness, monitor = Witness(), by_id(50)
    fit(loader, witness, monitor)
    plan = planned(streaming_dataset(folder, BATCH, **settings), 0, 2)
    np.testing.assert_array_equal(rows(monitor), ids_to_rows(witness.batches, 50))
    np.testing.assert_array_equal(rows(monitor), ids_to_rows(plan, 50))
    order = [i for batch in witness.batches for i in batch]
    assert sorted(order) == list(range(50))
    assert (plan == planned(streaming_dataset(folder, BATCH, num_canonical_nodes=2), 0, 2)) == (algo is None)


def test_an_epoch_sums_to_the_timestamp_after_every_batch(tmp_path: Path) -> None:
    """At every batch, what has been counted is what Composer says has been trained on."""
    loader = StreamingDataLoader(
        streaming_dataset(write_mds(tmp_path, 50), BATCH), batch_size=BATCH, collate_fn=as_dict
    )
    witness, monitor = Witness(), by_id(50)
    fit(loader, witness, monitor)
    np.testing.assert_array_equal(rows(monitor).sum(axis=1).cumsum(), witness.samples)


def test_items_that_read_other_items_count_once(tmp_path: Path) -> None:
    """A dataset that mixes another of its samples into each is counted by what was asked for."""
    dataset = AugmentedStreaming(local=write_mds(tmp_path, 20), batch_size=BATCH, shuffle=False)
    witness, monitor = Witness(), by_id(20)
    fit(mds_loader(dataset), witness, monitor)
    np.testing.assert_array_equal(rows(monitor), ids_to_rows(witness.batches, 20))


def test_the_dataset_can_still_be_sliced(tmp_path: Path) -> None:
    """While a run is watched, the dataset answers slices, lists and negative indices as ever."""
    dataset = streaming_dataset(write_mds(tmp_path, 20), BATCH)
    seen: list[list[int]] = []

    class Reads(Callback):
        def batch_end(self, state: State, logger: Logger) -> None:
            seen.append([int(s["id"]) for s in (*dataset[2:5], *dataset[[7, 8]], dataset[-1])])

    witness, monitor = Witness(), by_id(20)
    fit(mds_loader(dataset), witness, Reads(), monitor)
    assert seen == [[2, 3, 4, 7, 8, 19]] * 4
    np.testing.assert_array_equal(rows(monitor), ids_to_rows(witness.batches, 20))


def test_a_loader_that_an_earlier_run_still_watches(tmp_path: Path) -> None:
    """As in a notebook: the first Trainer was not closed, and the second one's counts are its own."""
    loader = mds_loader(streaming_dataset(write_mds(tmp_path, 20), BATCH))
    earlier, halves = by_id(20), MixMon(labels={"position": 2}, window="1000ba")
    first = trainer(loader, earlier)
    first.fit()
    counted, witness = rows(earlier), Witness()
    fit(loader, witness, halves)
    fed = ids_to_rows(witness.batches, 20)
    np.testing.assert_array_equal(rows(halves), np.stack([fed[:, :10].sum(1), fed[:, 10:].sum(1)], 1))
    np.testing.assert_array_equal(rows(earlier), counted)
    first.close()


def test_two_monitors_in_one_run_are_refused(tmp_path: Path) -> None:
    """Composer would save and restore them as one."""
    loader = mds_loader(streaming_dataset(write_mds(tmp_path, 20), BATCH))
    run = trainer(loader, by_id(20), MixMon())
    with pytest.raises(MixmonError, match="give the Trainer one"):
        run.fit()
    run.close()
