"""What is wrong is said before the first batch, or costs no more than the monitoring."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from composer.core import Evaluator
from streaming import StreamingDataLoader
from torch.utils.data import DataLoader

from composer_mixmon import MixMon, MixmonError
from tests.live.data import Listed, Packed, Stream2, as_dict, streaming_dataset, write_mds
from tests.live.helpers import OFF, Witness, fit, trainer

BATCH, SAMPLES = 4, 16


def loader(tmp_path: Path) -> StreamingDataLoader:
    dataset = streaming_dataset(write_mds(tmp_path / "mds", SAMPLES), BATCH)
    return StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=as_dict)


def refused(data: Any, monitor: MixMon, caplog: pytest.LogCaptureFixture) -> str:
    """The message of the error before the first batch; nothing else is said, and nothing left behind."""
    witness = Witness()
    run = trainer(data, witness, monitor, duration="2ba", device_train_microbatch_size=BATCH)
    with pytest.raises(MixmonError) as caught:
        run.fit()
    run.close()
    assert witness.batches == []
    assert [r.message for r in caplog.records if r.name == "composer_mixmon"] == []
    dataset = getattr(data, "dataset", None)
    assert "_get_iterator" not in vars(data)
    assert not {"__getitem__", "__getitems__"} & set(getattr(dataset, "__dict__", {}))
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"labels": {"shards": {"ja": "ja/*"}}}, "labels.shards.ja: 'ja/*': matches none of the 2 shards"),
        ({"labels": {"shards": {"a": "0:2", "b": "1:2"}}}, "labels.shards.b: '1:2': shard 'shard.00001.mds'"),
        (
            {"labels": {"position": 17}},
            "labels.position: 17: the dataset has 16 samples",
        ),
        ({"labels": {"file": "/nowhere.yaml"}}, "labels.file: '/nowhere.yaml': cannot be read"),
        ({"target": {"ja": 1.0}}, "target.ja: 1.0: the dataset has no such label"),
        (
            {"alarm": {"rules": [{"ratio": "ja", "below": 0.5}]}},
            "alarm.rules[0].ratio: 'ja': the dataset has no such label",
        ),
    ],
)
def test_settings_that_do_not_fit_the_dataset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], message: str
) -> None:
    """Field, value and mend."""
    assert refused(loader(tmp_path), MixMon(**settings), caplog).startswith(message)


def test_a_label_file_of_another_dataset(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is refused with the first difference."""
    labels = tmp_path / "labels.yaml"
    labels.write_text("shards: [[shard.00000.mds, 8, ja], [shard.00001.mds, 9, en]]")
    told = refused(loader(tmp_path), MixMon(labels={"file": str(labels)}), caplog)
    assert "is of another dataset, 1 shards differ: shard 1 is 'shard.00001.mds' of 8 samples here" in told


def test_an_iterable_dataset(caplog: pytest.LogCaptureFixture) -> None:
    """Its samples have no ids."""
    told = refused(DataLoader(Stream2(), batch_size=BATCH), MixMon(), caplog)
    assert told.startswith("the dataset is a Stream2, neither a StreamingDataset nor")


def test_a_list(caplog: pytest.LogCaptureFixture) -> None:
    """A bare list takes no attributes."""
    told = refused(DataLoader([Listed(8)[i] for i in range(8)], batch_size=BATCH), MixMon(), caplog)
    assert told.startswith("the dataset is a list, neither")


def test_training_data_that_is_no_dataloader(caplog: pytest.LogCaptureFixture) -> None:
    """Composer takes any iterable; we cannot."""

    class Batches:
        def __iter__(self) -> Any:
            return iter([as_dict([Listed(8)[0]])])

        def __len__(self) -> int:
            return 1

    told = refused(Batches(), MixMon(), caplog)
    assert told.startswith("the training data is a Batches, not a torch DataLoader")


def test_persistent_workers_that_already_run() -> None:
    """They hold the dataset as it was before us."""
    data: Any = DataLoader(Listed(8), batch_size=BATCH, num_workers=1, persistent_workers=True)
    run = trainer(data, MixMon(), eval_dataloader=Evaluator(label="eval", dataloader=data, metric_names=[]))
    run.eval()
    with pytest.raises(MixmonError, match=re.escape("do not iterate over it before Trainer.fit")):
        run.fit()
    run.close()


def off_but_trained(data: Any, caplog: pytest.LogCaptureFixture) -> list[list[int]]:
    """Trains; there is one warning, and the books are closed."""
    witness, monitor = Witness(), MixMon(labels={"position": 2}, log_interval="1ba")
    run = fit(data, witness, monitor, device_train_microbatch_size=BATCH)
    assert int(run.state.timestamp.batch) == len(witness.batches)
    warned = [r.message for r in caplog.records if r.name == "composer_mixmon"]
    assert len(warned) == 1
    assert warned[0].startswith(f"{OFF}, training goes on: the ids of a batch are missing")
    assert monitor.state_dict() == {}
    return witness.batches


@pytest.mark.parametrize("workers", [0, 2])
def test_packed_batches(tmp_path: Path, caplog: pytest.LogCaptureFixture, workers: int) -> None:
    """A dataset that makes one sample of two."""
    dataset = Packed(local=write_mds(tmp_path, SAMPLES), batch_size=2 * BATCH, shuffle=False)
    data = DataLoader(dataset, batch_size=BATCH, collate_fn=as_dict, num_workers=workers)
    assert sum(map(len, off_but_trained(data, caplog))) == SAMPLES // 2


def test_a_dataset_that_is_batched_already(caplog: pytest.LogCaptureFixture) -> None:
    """``batch_size=None`` asks a map-style dataset for whole batches, past our ears."""

    class Batched(Listed):
        def __getitem__(self, index: int) -> Any:
            return as_dict([super(Batched, self).__getitem__(2 * index + i) for i in range(2)])

    assert off_but_trained(DataLoader(Batched(3), batch_size=None), caplog) == [[0, 1], [2, 3], [4, 5]]


def test_streaming_samples_one_by_one(tmp_path: Path) -> None:
    """``batch_size=None`` over MDS hands on single samples, whose ids are known."""
    dataset = streaming_dataset(write_mds(tmp_path, 5), 1)
    collate = lambda sample: as_dict([sample])  # noqa: E731
    monitor, witness = MixMon(log_interval="1ba", window="9ba", labels={"position": 5}), Witness()
    data = DataLoader(dataset, batch_size=None, collate_fn=collate)
    fit(data, witness, monitor, device_train_microbatch_size=1)
    assert witness.batches == [[0], [1], [2], [3], [4]]
    assert monitor.state_dict()["mixture"]["run"] == [1, 1, 1, 1, 1]
