"""A run's way through epochs and resumptions is the one that a real Trainer took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from composer_mixmon.replay import Settings, World
from composer_mixmon.run_record import Resumption
from composer_mixmon.sources import Checkpoint, read_checkpoint
from composer_mixmon.sources.legs import Leg, lay_out
from tests.live.data import two_streams

from .runs import ORDER, saving, train

WORLD = World(1, 1, 1)


def settings_of(folder: Path, batch: int = 6, **changes: Any) -> Settings:
    return Settings.of_dataset(two_streams(folder, batch, **ORDER | changes), WORLD)


def fed(legs: tuple[Leg, ...]) -> list[list[int]]:
    ids = [row for leg in legs for row in leg.replay().ids(slice(leg.batches))]
    return [row[row >= 0].tolist() for row in ids]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """The folder and the batches of a run of three epochs of 11 batches, the last of each short."""
    folder = tmp_path_factory.mktemp("run")
    return folder, train(folder, "3ep", **saving(folder, "1ba"))


def test_epochs(run: tuple[Path, list[list[int]]]) -> None:
    """An uninterrupted run goes from epoch to epoch, and ends anywhere."""
    folder, batches = run
    for end in (1, 10, 11, 12, 33):
        assert fed(lay_out(settings_of(folder), WORLD, end)) == batches[:end]


@pytest.mark.filterwarnings("ignore:No batches were trained:UserWarning")  # resumed where an epoch ends
@pytest.mark.parametrize("at", [4, 11, 14])
def test_resumed(run: tuple[Path, list[list[int]]], at: int) -> None:
    """From a checkpoint within an epoch, and from one after an epoch's last batch."""
    folder, before = run
    path = str(folder / "saved" / f"ba{at}.pt")
    after = train(folder, "30ba", load_path=path)
    saved = read_checkpoint(path)
    found = fed(lay_out(settings_of(folder), WORLD, at + len(after), checkpoints=[saved]))
    assert found == before[:at] + after
    if at != 11:  # where the record alone cannot tell an epoch's end from its last batch
        told = Resumption(at, saved.epoch, saved.sample_in_epoch)
        assert fed(lay_out(settings_of(folder), WORLD, at + len(after), [told])) == found


def test_resumed_with_another_batch_size(run: tuple[Path, list[list[int]]]) -> None:
    """What was trained up to the checkpoint had the batch size that the checkpoint tells."""
    folder, before = run
    path = str(folder / "saved" / "ba4.pt")
    after = train(folder, "12ba", batch=8, load_path=path)
    legs = lay_out(settings_of(folder, 8), WORLD, 4 + len(after), checkpoints=[read_checkpoint(path)])
    assert fed(legs) == before[:4] + after


def test_resumed_with_other_settings(run: tuple[Path, list[list[int]]]) -> None:
    """The dataset keeps the seed and the canonical nodes of the checkpoint, whatever its YAML says now."""
    folder, before = run
    path = str(folder / "saved" / "ba4.pt")
    after = train(folder, "8ba", load_path=path)
    other = settings_of(folder, shuffle_seed=77, num_canonical_nodes=4)
    found = fed(lay_out(other, WORLD, 4 + len(after), checkpoints=[read_checkpoint(path)]))
    assert found == before[:4] + after


def test_resumed_at_an_epochs_end(tmp_path: Path) -> None:
    """A checkpoint of ``1ep`` feeds the epoch that has ended once more; so does the next one."""
    before = train(tmp_path, "1ep", **saving(tmp_path, "1ep"))
    first = str(tmp_path / "saved" / "ba11.pt")
    middle = train(tmp_path, "2ep", load_path=first, **saving(tmp_path, "1ep"))
    second = str(tmp_path / "saved" / "ba22.pt")
    last = train(tmp_path, "4ep", load_path=second)
    assert before == middle == last[:11]
    whole = before + middle + last
    saved = [read_checkpoint(path) for path in (first, second)]
    assert [(c.epoch, c.order_epoch) for c in saved] == [(1, 0), (2, 0)]
    assert fed(lay_out(settings_of(tmp_path), WORLD, len(whole), checkpoints=saved)) == whole
    told = [Resumption(11, 1, 0), Resumption(22, 2, 0)]
    legs = lay_out(settings_of(tmp_path), WORLD, len(whole), told)
    assert fed(legs) == whole
    assert [(leg.batch, leg.epoch, leg.order_epoch) for leg in legs] == [
        (0, 0, 0), (11, 1, 0), (22, 2, 0), (33, 3, 1),
    ]  # fmt: skip


def test_resumed_on_other_ranks(run: tuple[Path, list[list[int]]]) -> None:
    """A checkpoint tells which ranks trained up to it; after the last one come those of today."""
    folder, _ = run
    now = Settings.of_dataset(two_streams(folder, 3, **ORDER), World(1, 4, 1))
    saved = [
        Checkpoint("", 2, 0, 12, 0, 12, 2, 5, 1, world_size=1, nodes=1, device_batch=12),
        Checkpoint("", 4, 0, 36, 0, 36, 2, 5, 1, world_size=2, nodes=2, device_batch=6),
    ]
    legs = lay_out(now, World(1, 4, 1), 5, checkpoints=saved)
    assert [(leg.world.nodes, leg.world.ranks_per_node, leg.settings.batch_size) for leg in legs] == [
        (1, 1, 12), (2, 1, 6), (1, 4, 3),
    ]  # fmt: skip
    assert [leg.first_sample for leg in legs] == [0, 12, 36]
    assert [leg.settings.initial_physical_nodes for leg in legs] == [None, 1, 1]
