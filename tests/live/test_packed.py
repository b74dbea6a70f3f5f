"""Packed batches: each counts the sequences that it holds, whenever they were fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from composer_mixmon import MixMon
from composer_mixmon.ledger import read_ledger
from tests.live.helpers import OFF, by_id, fit, rows
from tests.live.packing import (
    Ahead,
    PackedModel,
    PackedWitness,
    Packer,
    ShardedTexts,
    Texts,
    packed_spec,
    write_texts,
)

SAMPLES = 160


def identity(samples: list[Any]) -> list[Any]:
    return samples


def loader_of(dataset: Any, workers: int = 0, **settings: Any) -> DataLoader[Any]:
    plain: dict[str, Any] = {"batch_size": 7, "shuffle": True, "collate_fn": identity, "num_workers": workers}
    return DataLoader(dataset, **plain | settings)


def expected(witness: PackedWitness, labels: int = SAMPLES) -> tuple[Any, Any]:
    """Sequences and tokens of each sample in each batch, from the batches themselves."""
    counts, tokens = np.zeros((2, len(witness.batches), labels), np.int64)
    for batch, sequences in enumerate(witness.batches):
        for sample, length in sequences:
            counts[batch, sample] += 1
            tokens[batch, sample] += length
    return counts, tokens


def train(packed: Any, *callbacks: Any, duration: str = "17ba", **settings: Any) -> PackedModel:
    model = PackedModel()
    plain = {"device_train_microbatch_size": 1}  # which a loader without a batch_size needs: a row at a time
    fit(packed_spec(packed), *callbacks, model=model, duration=duration, **plain, **settings)
    return model


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ahead", [False, True], ids=["direct", "ahead"])
@pytest.mark.parametrize("cached", [False, True], ids=["fresh", "cached"])
def test_each_batch_counts_what_it_holds(tmp_path: Path, workers: int, ahead: bool, cached: bool) -> None:
    """Over two epochs with sequences carried over, dropped and empty: counts and tokens are exact."""
    packer = Packer(loader_of(Texts(SAMPLES, cached), workers))
    packed: Any = Ahead(packer) if ahead else packer
    witness, monitor = PackedWitness(), by_id(SAMPLES, ledger=str(tmp_path))
    train(packed, witness, monitor)
    record = read_ledger(str(tmp_path)).record
    counts, tokens = expected(witness)
    assert len(counts) > 10
    assert 0 < counts.sum() < 2 * SAMPLES  # some were dropped or are empty
    np.testing.assert_array_equal(record.counts, counts)
    np.testing.assert_array_equal(record.tokens, tokens)
    assert "_generate_batches" not in vars(packer)
    assert "_get_iterator" not in vars(packer.src_iterable)


def test_labels_by_the_shards_that_the_dataset_opens(tmp_path: Path) -> None:
    """A map-style dataset with MDS readers of its own has their shards to group by."""
    write_texts(tmp_path / "data", SAMPLES)
    dataset = ShardedTexts(tmp_path / "data")
    sizes = [shard.samples for shard in dataset.shards]
    assert len(sizes) > 4
    spec = {"shards": {"early": "0:2", "late": f"2:{len(sizes)}"}}
    witness, monitor = (
        PackedWitness(),
        MixMon(labels=spec, log_interval="4ba", ledger=str(tmp_path / "ledger")),
    )
    train(Ahead(Packer(loader_of(dataset, 2))), witness, monitor)
    early = expected(witness)[0][:, : sum(sizes[:2])].sum(axis=1)
    record = read_ledger(str(tmp_path / "ledger")).record
    assert record.names == ("early", "late")
    assert record.counts is not None
    np.testing.assert_array_equal(record.counts[:, 0], early)


@pytest.mark.filterwarnings("ignore:PackedWitness is not in the state_dict:UserWarning")
def test_a_resumed_run_goes_on(tmp_path: Path) -> None:
    """Composer skips the batches that were trained on; what comes then counts once, on top of the rest."""
    saving = {"save_folder": str(tmp_path / "saved"), "save_interval": "6ba", "save_filename": "ba{batch}.pt"}
    seeded: dict[str, Any] = {"shuffle": False}
    train(Ahead(Packer(loader_of(Texts(SAMPLES), **seeded))), by_id(SAMPLES), duration="6ba", **saving)
    witness, monitor = PackedWitness(), by_id(SAMPLES)
    packed = Ahead(Packer(loader_of(Texts(SAMPLES), **seeded)))
    train(packed, witness, monitor, duration="10ba", load_path=str(tmp_path / "saved/ba6.pt"))
    whole, alone = PackedWitness(), by_id(SAMPLES)
    train(Ahead(Packer(loader_of(Texts(SAMPLES), **seeded))), whole, alone, duration="10ba")
    assert witness.batches == whole.batches[6:]
    np.testing.assert_array_equal(rows(monitor), rows(alone))


class Converting(Packer):
    """Keeps copies of the sequences instead of themselves."""

    def _kept(self, tokens: Any) -> Any:
        return list(tokens)


class Losing(Packer):
    """Throws every third sequence away."""

    def _create_batch(self) -> Any:
        kept = [tokens for place, tokens in enumerate(self.buffer) if place % 3]
        self.buffer.clear()
        self.buffer.extend(kept)
        return super()._create_batch()


@pytest.mark.parametrize("kind", [Converting, Losing])
def test_a_packer_of_another_kind_is_not_miscounted(
    kind: type[Packer], caplog: pytest.LogCaptureFixture
) -> None:
    """Monitoring ends with one warning, and the training is that of a run without it, bit by bit."""
    monitored = train(kind(loader_of(Texts(SAMPLES), shuffle=False)), by_id(SAMPLES))
    warnings = [record.message for record in caplog.records if OFF in record.message]
    alone = train(kind(loader_of(Texts(SAMPLES), shuffle=False)))
    assert len(warnings) == 1
    assert "packe" in warnings[0]
    assert monitored.weight.item() == alone.weight.item()


def test_a_loader_that_is_no_packer_is_refused() -> None:
    """An iterable of batches has no samples to count, and the error says what would do."""
    from composer_mixmon.errors import DatasetError

    batches = list(Packer(loader_of(Texts(SAMPLES))))
    with pytest.raises(DatasetError, match="torch DataLoader"):
        train(batches, MixMon())
