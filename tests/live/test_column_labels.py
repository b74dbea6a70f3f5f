"""Labels by a column: what each sample says of itself, whatever the dataset makes of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner
from composer.loggers import InMemoryLogger
from streaming import StreamingDataLoader, StreamingDataset
from streaming.base.format.mds.reader import MDSReader
from torch.utils.data import DataLoader, TensorDataset

from composer_mixmon import MixMon
from composer_mixmon.cli import main
from composer_mixmon.columns import ColumnLabels
from composer_mixmon.errors import ConfigError, MixmonError
from tests.live.column_data import (
    BARE,
    SAMPLES,
    Dropping,
    Fetching,
    Mixing,
    Rows,
    Tokenising,
    dataset,
    source_of,
    without_source,
    write_sources,
)
from tests.live.data import as_dict
from tests.live.helpers import OFF, Tiny, Witness, fit, labels_of, metrics, rows

WORKERS: dict[str, dict[str, Any]] = {
    "none": {"num_workers": 0},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "spawn": {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True},
}
TARGET = {"ja": 0.5, "en": 0.5}
NAMES = ["ja", "en", "unlabelled"]  # "web" and "" have no target


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sources(tmp_path_factory.mktemp("sources"))


def by_source(**settings: Any) -> MixMon:
    defaults: dict[str, Any] = {"labels": {"column": "source"}, "target": TARGET, "window": "1000ba"}
    return MixMon(**defaults | {"log_interval": "4ba"} | settings)


def expected(batches: list[list[int]]) -> list[list[int]]:
    """Counts of each label in each batch, by what the samples were written with."""
    sources = [[source_of(i) for i in ids] for ids in batches]
    return [[of.count("ja"), of.count("en"), len(of) - of.count("ja") - of.count("en")] for of in sources]


def loader(data: Path, cls: type[StreamingDataset] = Dropping, **settings: Any) -> StreamingDataLoader:
    streams = settings.pop("streams", "told bare")
    return StreamingDataLoader(
        dataset(cls, data, streams), batch_size=6, collate_fn=as_dict, **{"num_workers": 0} | settings
    )


@pytest.mark.parametrize("workers", WORKERS)
def test_counts_are_those_of_the_samples(data: Path, workers: str) -> None:
    """Over two epochs, of a dataset that drops the column; what has no target counts as unlabelled."""
    witness, monitor = Witness(), by_source()
    run = fit(loader(data, **WORKERS[workers]), witness, monitor, duration="2ep")
    assert labels_of(monitor) == tuple(NAMES)
    assert rows(monitor).tolist() == expected(witness.batches)
    assert rows(monitor).sum() == int(run.state.timestamp.sample) == 2 * (SAMPLES + BARE)


@pytest.mark.parametrize("cls", [Tokenising, Mixing])
def test_whatever_a_dataset_makes_of_its_samples(data: Path, cls: type[StreamingDataset]) -> None:
    """A tokenising dataset, and one that reads other samples before and after the one asked for."""
    streams = "told" if cls is Mixing else "told bare"
    witness, monitor = Witness(), by_source()
    fit(loader(data, cls, streams=streams, num_workers=2), witness, monitor)
    assert rows(monitor).tolist() == expected(witness.batches)


def test_tokens_of_a_column(data: Path) -> None:
    """Tokens are added up by what the samples say, too."""
    witness, memory = Witness(), InMemoryLogger()
    run = fit(loader(data, Tokenising), witness, by_source(), loggers=[memory])
    tokens = dict.fromkeys(("ja", "en"), 0)
    total = 0
    for i in (i for ids in witness.batches for i in ids):
        total += min(i % 6, 5)
        if source_of(i) in tokens:
            tokens[source_of(i)] += min(i % 6, 5)
    for name, count in tokens.items():
        assert metrics(run)[f"mixmon/tokens/ratio/{name}"][-1][1] == pytest.approx(count / total, abs=1e-15)


def test_the_run_is_bit_identical(data: Path) -> None:
    """Same batches and weights as without us; nothing is left on the dataset, its class or the loader."""
    model, witness, watched, seen = Tiny(), Witness(), Tiny(), Witness()
    fit(loader(data, num_workers=2), witness, model=model, duration="2ep")
    monitored = loader(data, num_workers=2)
    on_class, on_loader = dict(vars(Dropping)), set(vars(monitored))
    fit(monitored, seen, by_source(), model=watched, duration="2ep")
    assert seen.batches == witness.batches
    assert watched.weights == model.weights
    assert dict(vars(Dropping)) == on_class
    assert not {"get_item", "__getitem__"} & set(vars(monitored.dataset))
    assert "_get_iterator" not in set(vars(monitored)) - on_loader


def test_every_sample_is_read_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the column opens no shard a second time."""
    read: list[int] = []
    original = MDSReader.get_sample_data

    def counting(self: MDSReader, idx: int) -> bytes:
        read.append(idx)
        return original(self, idx)

    monkeypatch.setattr(MDSReader, "get_sample_data", counting)
    fit(loader(data), by_source(), duration="1ep")
    assert len(read) == SAMPLES + BARE


def test_samples_read_beside_the_loader_are_not_kept(data: Path) -> None:
    """Whoever reads the dataset directly meanwhile neither changes the counts nor fills the memory."""
    source, witness, monitor = loader(data), Witness(), by_source()
    samples: Any = source.dataset

    class Reads(Witness):
        def batch_end(self, state: Any, logger: Any) -> None:
            super().batch_end(state, logger)
            for i in range(10):
                samples.get_item(i)
            assert vars(samples)["get_item"].recorder.read is None

    reads = Reads()
    fit(source, reads, witness, monitor)
    assert len(reads.batches) == len(witness.batches) > 1
    assert rows(monitor).tolist() == expected(witness.batches)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cls", [Rows, Fetching])
def test_map_style(cls: type[Rows], workers: int) -> None:
    """Plain dicts are read as they are, one by one or a batch at once."""
    samples: Any = cls()
    mapped: Any = DataLoader(
        samples, batch_size=6, shuffle=True, num_workers=workers, collate_fn=without_source
    )
    witness, monitor = Witness(), by_source()
    fit(mapped, witness, monitor, duration="2ep")
    assert rows(monitor).tolist() == expected(witness.batches)
    assert "__getitems__" not in vars(mapped.dataset)


@pytest.mark.parametrize("workers", [0, 2])
def test_map_style_samples_without_the_column(workers: int, caplog: pytest.LogCaptureFixture) -> None:
    """Training goes on, and the one warning says what is the matter."""
    mapped: Any = DataLoader(
        TensorDataset(torch.arange(24), torch.rand(24, 2)), batch_size=6, num_workers=workers
    )
    witness = Witness()
    fit(mapped, witness, by_source())
    assert len(witness.batches) == 4
    (warning,) = [r.message for r in caplog.records if OFF in r.message]
    assert "no sample of a batch has a column 'source'" in warning


def test_a_fault_in_the_worker_costs_the_monitoring_only(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on with the same batches and weights, and the one warning has the fault's words."""

    def failing(self: ColumnLabels, values: Any) -> Any:
        raise RuntimeError("injected")

    model, witness, watched, seen = Tiny(), Witness(), Tiny(), Witness()
    fit(loader(data), witness, model=model)
    monkeypatch.setattr(ColumnLabels, "__call__", failing)
    fit(loader(data, num_workers=2), by_source(), model=Tiny())
    fit(loader(data), seen, by_source(), model=watched)
    assert seen.batches == witness.batches
    assert watched.weights == model.weights
    warnings = [r.message for r in caplog.records if OFF in r.message]
    assert len(warnings) == 2
    assert all("a fault in the DataLoader's worker: RuntimeError('injected')" in text for text in warnings)


@pytest.mark.parametrize("at", [3, 17])
def test_resumed_equals_uninterrupted(data: Path, tmp_path: Path, at: int) -> None:
    """A run that goes on from a checkpoint has the books of one that was never interrupted."""
    whole, resumed = by_source(), by_source()
    fit(loader(data), whole, duration="24ba")
    saving = {"save_folder": str(tmp_path), "save_filename": "ba{batch}.pt", "save_interval": f"{at}ba"}
    fit(loader(data, num_workers=2), by_source(), duration=f"{at}ba", **saving)
    fit(loader(data), resumed, duration="24ba", load_path=str(tmp_path / f"ba{at}.pt"))
    mine, theirs = resumed.state_dict(), whole.state_dict()
    assert sum(theirs["mixture"]["run"]) > 0
    assert {**mine, "ledger": ""} == {**theirs, "ledger": ""}


@pytest.fixture(scope="module")
def built(data: Path) -> str:
    """The label file of the two streams, as ``mixmon labels build`` writes it from their YAML."""
    train = data / "train.yaml"
    streams = {name: {"local": str(data / name)} for name in ("told", "bare")}
    train.write_text(yaml.safe_dump({"dataset": {"streams": streams}}, sort_keys=False))
    out = data / "labels.json"
    arguments = ["labels", "build", str(train), "--column", "source", "--out", str(out)]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    return str(out)


@pytest.mark.parametrize("kind", ["file", "column"])
def test_a_built_file_tells_labels_and_shares(data: Path, built: str, kind: str) -> None:
    """By the file alone or by the samples and the file, counts and the dataset's own shares are exact."""
    labels = {"file": built} | ({"column": "source"} if kind == "column" else {})
    witness, monitor = Witness(), by_source(labels=labels, target="auto", ledger=True)
    fit(loader(data, num_workers=2), witness, monitor, duration="2ep", save_folder=str(data / kind))
    names = labels_of(monitor)
    assert sorted(names) == ["en", "ja", "unlabelled", "web"]
    sources = [[source_of(i) or "unlabelled" for i in ids] for ids in witness.batches]
    assert rows(monitor).tolist() == [[of.count(name) for name in names] for of in sources]
    all_sources = [source_of(i) or "unlabelled" for i in range(SAMPLES + BARE)]
    (segment,) = (data / kind / "mixmon").glob("*/*.jsonl")
    header = json.loads(segment.read_text().splitlines()[0])
    shares = [all_sources.count(n) / len(all_sources) for n in names]
    assert header["settings"]["own_shares"] == pytest.approx(shares, abs=1e-15)
    assert header["target"] == header["settings"]["own_shares"]


def test_a_file_that_does_not_know_all_values(data: Path, tmp_path: Path) -> None:
    """A value that came into the data after the file was built counts as unlabelled."""
    table = {"samples": [[0, SAMPLES, "ja"]]}
    (tmp_path / "old.json").write_text(json.dumps(table))
    labels = {"column": "source", "file": str(tmp_path / "old.json")}
    witness, monitor = Witness(), by_source(labels=labels, target="auto")
    fit(loader(data, streams="told"), witness, monitor)
    assert labels_of(monitor) == ("ja", "unlabelled")
    ja = [[source_of(i) for i in ids].count("ja") for ids in witness.batches]
    assert rows(monitor).tolist() == [[n, len(ids) - n] for n, ids in zip(ja, witness.batches, strict=True)]


def test_streams_without_the_column_are_told_of(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At the start, by name."""
    fit(loader(data), by_source(), duration="1ba")
    text = "samples without the column 'source' count as unlabelled: there are such in bare"
    assert sum(text in r.message for r in caplog.records) == 1
    caplog.clear()
    fit(loader(data, streams="told"), by_source(), duration="1ba")
    assert not [r for r in caplog.records if "without the column" in r.message]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": "auto"}, "the dataset's own shares of the column 'source' are not known: give the"),
        ({"target": "auto"}, "`mixmon labels build DATASET --column source --out labels.json`"),
        ({"labels": {"column": "lang"}}, "labels.column: 'lang': the dataset has no such column: it has id,"),
        ({"labels": {"column": "raw"}}, "labels.column: 'raw': the column is encoded as bytes"),
        ({"labels": {"column": "source", "file": "/none.json"}}, "labels.file: '/none.json': cannot be read"),
    ],
)
def test_what_is_wrong_is_said_before_the_first_batch(
    data: Path, settings: dict[str, Any], message: str
) -> None:
    """A target that nobody knows, a column that is not there or holds no labels, a file that is not there."""
    witness = Witness()
    with pytest.raises(ConfigError, match=re.escape(message)):
        fit(loader(data), witness, by_source(**settings))
    assert not witness.batches


def test_a_missing_target_leaves_the_dataset_as_it_was(data: Path) -> None:
    """Nothing of ours is left on a dataset whose monitoring was refused."""
    refused = loader(data)
    with pytest.raises(MixmonError):
        fit(refused, by_source(target="auto"))
    assert not {"get_item", "__getitem__"} & set(vars(refused.dataset))
    np.testing.assert_equal(len(list(refused)), 12)
