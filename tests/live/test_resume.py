"""A run that was interrupted and resumed keeps the books of one that was not."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from composer.core import Callback, State
from composer.loggers import InMemoryLogger, Logger
from streaming import StreamingDataLoader

from composer_mixmon import MixMon
from composer_mixmon.ledger import read_ledger
from composer_mixmon.run_record import RunRecord
from tests.live.data import as_dict, two_streams
from tests.live.helpers import Witness, books_in, fit, ids_to_rows, metrics, pending, rows, trainer

BATCH, BATCHES = 6, 22  # two epochs of 11
RULE = {"rules": [{"deviation": 0.3, "for": "3ba", "grace": "2ba"}]}


def loader(tmp_path: Path, workers: int = 0) -> StreamingDataLoader:
    dataset = two_streams(tmp_path, BATCH, shuffle=True, shuffle_block_size=16, num_canonical_nodes=1)
    return StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=as_dict)


def monitor(**settings: Any) -> MixMon:
    return MixMon(**{"window": "5ba", "log_interval": "4ba", "alarm": RULE} | settings)


def saving(folder: Path) -> dict[str, Any]:
    return {
        "save_folder": str(folder),
        "save_filename": "ba{batch}.pt",
        "save_interval": "1ba",
        "save_num_checkpoints_to_keep": -1,
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MixMon, Any, Witness]:
    """The folder, the monitor, what it logged and the witness of a run of two epochs."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    mixmon, witness = monitor(), Witness()
    callbacks = (witness, mixmon)
    run = fit(
        loader(folder), *callbacks, duration="2ep", loggers=[InMemoryLogger()], **saving(folder / "saved")
    )
    assert int(run.state.timestamp.batch) == BATCHES
    return folder, mixmon, metrics(run), witness


def same_record(one: RunRecord, other: RunRecord) -> None:
    """Each batch has the same counts, order, epoch and, to the bit, loss."""
    for name in ("first", "counts", "order", "epoch", "loss"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), strict=True)


EVERYWHERE = [*((at, 0) for at in range(1, BATCHES)), (7, 2), (16, 2)]


@pytest.mark.filterwarnings("ignore:No batches were trained:UserWarning")  # resumed where an epoch ends
@pytest.mark.parametrize(("at", "workers"), EVERYWHERE)
def test_resumed_equals_uninterrupted(
    tmp_path: Path, uninterrupted: tuple[Path, MixMon, Any, Witness], at: int, workers: int
) -> None:
    """Interrupted at any batch: the same books to the byte, the same figures, the same ledger."""
    folder, _, logged, _ = uninterrupted
    settings: dict[str, Any] = {"loggers": [InMemoryLogger()], **saving(tmp_path / "saved")}
    first = fit(loader(tmp_path, workers), monitor(), duration=f"{at}ba", **settings)
    settings |= {"loggers": [InMemoryLogger()], "save_overwrite": True}
    settings["load_path"] = str(tmp_path / "saved" / f"ba{at}.pt")
    second = fit(loader(tmp_path, workers), monitor(), duration=f"{BATCHES}ba", **settings)
    last = f"ba{BATCHES}.pt"
    books, expected = books_in(tmp_path / "saved" / last), books_in(folder / "saved" / last)
    assert json.dumps(books) == json.dumps(expected)
    before, after = metrics(first), metrics(second)
    for key, seen in logged.items():
        left_over = [] if at % 4 == 0 else before[key][-1:]  # logged because training ended
        assert before[key] == [entry for entry in seen if entry[0] < at] + left_over
        assert after[key] == [entry for entry in seen if entry[0] >= at]
    same_record(read_ledger(str(tmp_path / "saved")).record, read_ledger(str(folder / "saved")).record)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes:UserWarning")
def test_resumed_with_other_workers(tmp_path: Path, uninterrupted: tuple[Path, MixMon, Any, Witness]) -> None:
    """Two, then none, then four: the order is not the workers', so that books and ledger stay the same."""
    folder, _, logged, _ = uninterrupted
    settings: dict[str, Any] = {"save_overwrite": True, **saving(tmp_path / "saved")}
    begin = None
    for workers, end in ((2, 5), (0, 14), (4, BATCHES)):
        settings |= {"load_path": begin, "loggers": [InMemoryLogger()]}
        run = fit(loader(tmp_path, workers), monitor(), duration=f"{end}ba", **settings)
        begin = str(tmp_path / "saved" / f"ba{end}.pt")
    assert json.dumps(books_in(Path(begin))) == json.dumps(books_in(folder / "saved" / f"ba{BATCHES}.pt"))
    same_record(read_ledger(str(tmp_path / "saved")).record, read_ledger(str(folder / "saved")).record)
    for kind in ("plan_mismatch", "repeats", "gaps", "rank_overlap"):
        key = f"mixmon/integrity/{kind}"
        assert metrics(run)[key][-1] == logged[key][-1] == (BATCHES, 0.0)


def test_every_checkpoint_holds_what_has_been_trained_on(
    uninterrupted: tuple[Path, MixMon, Any, Witness],
) -> None:
    """The counts of each checkpoint sum to its ``timestamp.sample``, between two intervals too."""
    folder, _, _, witness = uninterrupted
    for batch in range(1, BATCHES + 1):
        saved = torch.load(folder / "saved" / f"ba{batch}.pt", weights_only=False)["state"]
        other = monitor()
        other.load_state_dict(dict(saved["callbacks"])["MixMon"])
        books = other.state_dict()
        total = np.array(books["mixture"]["run"]) + pending(books).sum(axis=0)
        ids = np.array([i for ids in witness.batches[:batch] for i in ids])
        assert total.tolist() == [(ids < 40).sum(), (ids >= 40).sum()]
        stamp = saved["timestamp"]["Timestamp"]
        assert total.sum() == stamp["sample"]
        epoch = books["integrity"]["epoch"]
        assert epoch["number"] in (stamp["epoch"], -1)  # at the epoch's end, the books of it are closed
        assert epoch["position"] == (stamp["sample_in_epoch"] if epoch["number"] >= 0 else 0)


def test_the_books_are_plain_types(uninterrupted: tuple[Path, MixMon, Any, Witness]) -> None:
    """They load with ``weights_only=True``, as Composer's next release will load checkpoints."""
    _, mixmon, _, _ = uninterrupted
    file = io.BytesIO()
    torch.save(mixmon.state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == mixmon.state_dict()


def test_saving_in_the_middle_of_a_batch_loses_nothing(tmp_path: Path) -> None:
    """Whoever asks for the state, and whenever, the batch in hand is counted once it is trained on."""

    class Asks(Callback):
        def batch_start(self, state: State, logger: Logger) -> None:
            state.state_dict()

        before_forward = after_backward = batch_end = batch_start

    expected, asked = monitor(window="1000ba"), monitor(window="1000ba")
    fit(loader(tmp_path), expected, duration="10ba")
    fit(loader(tmp_path), Asks(), asked, duration="10ba")
    np.testing.assert_array_equal(rows(asked), rows(expected))
    assert asked.state_dict() == expected.state_dict()


def test_books_of_other_labels_are_begun_afresh(
    tmp_path: Path, uninterrupted: tuple[Path, MixMon, Any, Witness], caplog: pytest.LogCaptureFixture
) -> None:
    """A run resumed with other labels goes on, says so, and counts from here on."""
    folder, _, _, _ = uninterrupted
    other = monitor(labels={"position": 4}, window="100ba")
    where = {"load_path": str(folder / "saved" / "ba7.pt")}
    fit(loader(tmp_path), other, duration="10ba", **where)
    assert rows(other).shape == (3, 4)
    assert sum("counts afresh" in r.message for r in caplog.records) == 1


@pytest.mark.parametrize("books", [{}, {"format": 99}, {"format": 1, "labels": ["a", "b"]}, {"format": 1}])
def test_unreadable_books_do_not_stop_a_run(tmp_path: Path, books: dict[str, Any]) -> None:
    """Those of another version, damaged or empty."""
    begins_afresh(tmp_path, books)


@pytest.mark.parametrize("lost", ["mixture", "pending", "phase", "alarms", "evidence", "labels"])
def test_books_of_which_a_part_is_lost(
    tmp_path: Path, uninterrupted: tuple[Path, MixMon, Any, Witness], lost: str
) -> None:
    """Nothing is taken over from the rest of them."""
    _, mixmon, _, _ = uninterrupted
    begins_afresh(tmp_path, {key: part for key, part in mixmon.state_dict().items() if key != lost})


def begins_afresh(tmp_path: Path, books: dict[str, Any]) -> None:
    mixmon = monitor(window="100ba")
    mixmon.load_state_dict(books)
    fit(loader(tmp_path), mixmon, duration="5ba")
    assert len(rows(mixmon)) == 5
    assert rows(mixmon).sum() == 5 * BATCH


def test_fit_twice_and_close_twice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The second fit goes on with the first one's books; closing again is silent."""
    mixmon, witness = monitor(window="100ba"), Witness()
    run = trainer(loader(tmp_path), witness, mixmon, duration="6ba")
    run.fit()
    assert len(rows(mixmon)) == 6
    run.fit(duration="3ba")
    run.close()
    said = len(caplog.records)
    run.close()
    assert len(caplog.records) == said
    streams = [[int(i >= 40) for i in ids] for ids in witness.batches]
    np.testing.assert_array_equal(rows(mixmon), ids_to_rows(streams, 2))
    assert len(streams) == 9
