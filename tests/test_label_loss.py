"""Loss by label out of logits, labels and a step's loss: against loops over the tokens, in float64."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from composer_mixmon import token_loss
from composer_mixmon.config import parse_loss
from composer_mixmon.errors import ConfigError
from composer_mixmon.label_loss import LabelLoss
from composer_mixmon.logged_labels import choose_labels
from composer_mixmon.loss_sums import READINGS, UNIT, LossSums
from composer_mixmon.token_loss import UnreadableError, loss_sums

ROWS, POSITIONS, CLASSES, LABELS = 5, 7, 11, 3
LABEL_OF_ROW = torch.tensor([2, 0, 0, 2, 1])
IN_PLACE, SHIFTED, MASKED = range(3)


def batch_of(seed: int = 0, rows: int = ROWS) -> dict[str, Tensor]:
    """Classes, of which some are not to be predicted, and padding at each row's end, where none is."""
    rng = np.random.default_rng(seed)
    mask = np.arange(POSITIONS) < rng.integers(3, POSITIONS + 1, (rows, 1))
    told = mask & (rng.random((rows, POSITIONS)) < 0.6)
    told[:, 1] = True
    classes = np.where(told, rng.integers(0, CLASSES, told.shape), -100)
    return {"labels": torch.from_numpy(classes), "attention_mask": torch.from_numpy(mask.astype(np.int64))}


def logits_of(seed: int = 0, rows: int = ROWS, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 4 * torch.randn(rows, POSITIONS, CLASSES, generator=generator).to(dtype)


def by_loop(logits: Tensor, batch: Mapping[str, Tensor], shift: int) -> dict[int, list[float]]:
    """The brute force: the losses of each label's tokens."""
    losses: dict[int, list[float]] = {label: [] for label in range(LABELS)}
    for row, label in enumerate(LABEL_OF_ROW.tolist()):
        for position in range(POSITIONS - shift):
            target = int(batch["labels"][row, position + shift])
            if target >= 0:
                z = logits[row, position].double()
                losses[label].append(float(z.exp().sum().log() - z[target]))
    return losses


def mean(losses: Mapping[int, list[float]]) -> Tensor:
    return torch.tensor(np.mean([loss for listed in losses.values() for loss in listed]), dtype=torch.float32)


def unpadded(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    return logits[batch["attention_mask"] > 0]


def sparse(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    return logits[batch["labels"] >= 0]


def as_is(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    return logits


def flat(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    return logits.reshape(-1, CLASSES)


def sliced(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """The first positions and classes of more: no one matrix."""
    wide = torch.full((len(logits), POSITIONS + 1, CLASSES + 2), 50.0, dtype=logits.dtype)
    wide[:, :-1, :-2] = logits
    return wide[:, :-1, :-2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("shape", "shift", "expected"),
    [
        (as_is, 0, IN_PLACE),
        (flat, 0, IN_PLACE),
        (sliced, 0, IN_PLACE),
        (unpadded, 0, IN_PLACE),
        (as_is, 1, SHIFTED),
        (flat, 1, SHIFTED),
        (sliced, 1, SHIFTED),
        (sparse, 0, MASKED),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_each_labels_loss_is_that_of_its_tokens(
    shape: Any, shift: int, expected: int, dtype: torch.dtype
) -> None:
    """However the model lays its predictions out, the reading found is the one that the step's loss is of."""
    batch, logits = batch_of(), logits_of(dtype=dtype)
    losses = by_loop(logits, batch, shift)
    vector = loss_sums(shape(logits, batch), batch, mean(losses), LABEL_OF_ROW, LABELS)
    sums = LossSums(LABELS, vector.numpy())
    assert sums.reading() == expected
    assert sums.tokens[expected].tolist() == [len(listed) for listed in losses.values()]
    totals = [sum(listed) for listed in losses.values()]
    assert sums.loss[expected] / UNIT == pytest.approx(totals, abs=1e-5 * POSITIONS)


@pytest.mark.parametrize("wrap", ["mapping", "object", "tuple", "tensor"])
@pytest.mark.parametrize("pair", [False, True], ids=["mapping", "pair"])
def test_outputs_and_batches_of_any_make(wrap: str, pair: bool) -> None:
    """Logits and labels are found where models and datasets put them."""
    batch, logits = batch_of(), logits_of()
    loss = mean(by_loop(logits, batch, 0))
    outputs: Any = {
        "mapping": {"loss": loss, "logits": logits},
        "object": SimpleNamespace(logits=logits),
        "tuple": (loss, logits, logits * 2),
        "tensor": logits,
    }[wrap]
    given: Any = (batch["labels"], batch["labels"]) if pair else batch
    assert LossSums(LABELS, loss_sums(outputs, given, loss, LABEL_OF_ROW, LABELS).numpy()).reading() == 0


def test_one_class_a_row() -> None:
    """Classification, where a row is one prediction."""
    logits, classes = logits_of()[:, 0], torch.tensor([3, 1, 4, 1, 5])
    vector = loss_sums(logits, (None, classes), cross_entropy(logits, classes), LABEL_OF_ROW, LABELS)
    sums = LossSums(LABELS, vector.numpy())
    assert sums.reading() == IN_PLACE
    assert sums.tokens[IN_PLACE].tolist() == [2, 1, 2]


@pytest.mark.parametrize(
    "named", [{"loss": 1, "lbl": 2}, {"total": 3, "loss": 1, "lbl": 2}, (1, 2), {"a": 1}]
)
def test_a_loss_of_several_parts(named: Any) -> None:
    """The cross entropy may be one of those that the model returns, or that its outputs tell beside it."""
    batch, logits = batch_of(), logits_of()
    cross = mean(by_loop(logits, batch, 0))
    values = {1: cross, 2: cross * 0.3, 3: cross * 1.3}
    loss: Any = (
        {name: values[i] for name, i in named.items()}
        if isinstance(named, dict)
        else tuple(values[i] for i in named)
    )
    assert LossSums(LABELS, loss_sums(logits, batch, loss, LABEL_OF_ROW, LABELS).numpy()).reading() == 0
    beside = SimpleNamespace(logits=logits, ce_loss=cross)
    assert LossSums(LABELS, loss_sums(beside, batch, cross + 1, LABEL_OF_ROW, LABELS).numpy()).reading() == 0


@pytest.mark.parametrize(
    ("loss_of", "fits"),
    [
        (lambda z, y: cross_entropy(z, y), True),
        (lambda z, y: cross_entropy(z.bfloat16(), y), True),
        (lambda z, y: cross_entropy(z, y, label_smoothing=0.1), False),
        (lambda z, y: cross_entropy(z, y) * 1.01, False),
        (lambda z, y: cross_entropy(z, y) + 0.01, False),
        (lambda z, y: cross_entropy(z, y, weight=torch.linspace(1, 9, CLASSES)), False),
        (lambda z, y: torch.tensor(float("nan")), False),
    ],
    ids=["plain", "in bfloat16", "smoothed", "scaled", "more", "weighted", "nan"],
)
@pytest.mark.parametrize("shift", [0, 1])
def test_only_a_loss_that_adds_up_to_the_steps_is_taken(loss_of: Any, fits: bool, shift: int) -> None:
    """Anything else is none, also where it is near."""
    batch, logits = batch_of(), logits_of()
    predictions, classes = logits[:, : POSITIONS - shift], batch["labels"][:, shift:]
    loss = loss_of(predictions.reshape(-1, CLASSES), classes.reshape(-1))
    sums = LossSums(LABELS, loss_sums(logits, batch, loss, LABEL_OF_ROW, LABELS).numpy())
    assert sums.reading() == (shift if fits else None)


@pytest.mark.parametrize(
    ("outputs", "batch", "why"),
    [
        (torch.zeros(5, 1), {"x": torch.zeros(5)}, "the batch has no labels"),
        (torch.zeros(5, 1), [1, 2, 3], "the batch has no labels"),
        (torch.zeros(5, 1), {"labels": torch.zeros(5)}, "the batch's labels are no classes"),
        (torch.zeros(5), batch_of(), "the model's outputs have no logits"),
        ({"loss": torch.zeros(())}, batch_of(), "the model's outputs have no logits"),
        ((torch.zeros(()),), batch_of(), "the model's outputs have no logits"),
        (None, batch_of(), "the model's outputs have no logits"),
        (torch.nn.Parameter(logits_of()), batch_of(), "the model's logits are a Parameter"),
        (torch.zeros(9, POSITIONS, CLASSES), batch_of(), "the model makes 63 predictions for 35 labels"),
    ],
)
def test_what_cannot_be_read(outputs: Any, batch: Any, why: str) -> None:
    """Is said in words."""
    with pytest.raises(UnreadableError, match=f"^{why}$"):
        loss_sums(outputs, batch, torch.zeros(()), LABEL_OF_ROW, LABELS)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    st.integers(0, 1000),
    st.lists(st.integers(1, 3), min_size=1, max_size=5),
    st.sampled_from([as_is, sparse, unpadded]),
)
def test_microbatches_add_up_exactly(seed: int, sizes: list[int], shape: Any) -> None:
    """However a batch is cut, losses and tokens are the same integers."""
    rows = sum(sizes)
    batch, logits = batch_of(seed, rows), logits_of(seed, rows)
    label_of_row = torch.from_numpy(np.random.default_rng(seed).integers(0, LABELS, rows))
    loss, begin = torch.zeros(()), 0
    whole = LossSums(LABELS, loss_sums(shape(logits, batch), batch, loss, label_of_row, LABELS).numpy())
    parts = LossSums(LABELS)
    for size in sizes:
        at = slice(begin, begin + size)
        part = {key: value[at] for key, value in batch.items()}
        vector = loss_sums(shape(logits[at], part), part, loss, label_of_row[at], LABELS)
        parts.values += vector.numpy()
        begin += size
    reading = MASKED if shape is sparse else IN_PLACE
    assert parts.loss[reading].tolist() == whole.loss[reading].tolist()
    assert parts.tokens[reading].tolist() == whole.tokens[reading].tolist()
    assert whole.loss[reading].sum() > 0


class Operations(TorchDispatchMode):
    """What is done: the operations with their arguments, and the bytes of the largest tensor made."""

    def __init__(self, given: Tensor) -> None:
        super().__init__()
        self.given = given.untyped_storage().data_ptr()
        self.done: list[tuple[str, Any]] = []
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.done.append((func.overloadpacket.__name__, args))
        for tensor in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() != self.given:
                self.largest = max(self.largest, tensor.untyped_storage().nbytes())
        return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("elsewhere", "most"), [(False, 1 << 22), (True, 1 << 26)], ids=["cpu", "elsewhere"])
def test_memory_is_bounded(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, elsewhere: bool, most: int
) -> None:
    """With logits of 134 MB, nothing that is made is larger, nor what logsumexp makes inside."""
    if elsewhere:
        monkeypatch.setattr(token_loss, "_CPU_CHUNK_BYTES", token_loss._CHUNK_BYTES)
    classes = torch.zeros((2, 512), dtype=torch.int64)
    logits = torch.zeros((2, 512, 1 << 15), dtype=dtype)
    with Operations(logits) as operations:
        vector = loss_sums(logits, {"labels": classes}, torch.tensor(np.log(1 << 15)), classes[:, 0], 1)
    assert LossSums(1, vector.numpy()).reading() == IN_PLACE
    inside = [args[0].nbytes for name, args in operations.done if name == "logsumexp"]
    assert max(operations.largest, *inside) == most


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are the same, whatever is looked at in one go."""
    batch, logits = batch_of(), logits_of()
    whole = loss_sums(logits, batch, torch.zeros(()), LABEL_OF_ROW, LABELS)
    for size in (1, 4 * CLASSES * 3):
        monkeypatch.setattr(token_loss, "_CPU_CHUNK_BYTES", size)
        for made in (logits, sliced(logits, batch)):
            assert loss_sums(made, batch, torch.zeros(()), LABEL_OF_ROW, LABELS).equal(whole)


NEED_VALUES = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique", "bincount"}


@pytest.mark.parametrize("shape", [as_is, sparse])
def test_the_host_never_needs_a_value(shape: Any) -> None:
    """No operation is done whose result's shape, or whose effect, the host learns from the device."""
    batch, logits = batch_of(), logits_of()
    given, loss = shape(logits, batch), torch.tensor(1.0)
    with Operations(given) as operations:
        loss_sums(given, batch, loss, LABEL_OF_ROW, LABELS)
    names = [name for name, _ in operations.done]
    assert "logsumexp" in names
    assert not NEED_VALUES & set(names)
    indices = [index for name, args in operations.done if name == "index" for index in args[1]]
    assert indices
    assert all(index.dtype == torch.int64 for index in indices)  # of booleans, the shape would be unknown


def test_nothing_given_is_changed_and_no_graph_grows() -> None:
    """The step's tensors keep their values, versions and gradients."""
    batch, logits = batch_of(), logits_of().requires_grad_()
    outputs = logits * 1
    loss = cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten())
    given = (outputs, loss, *batch.values())
    before = [(tensor.clone(), tensor._version) for tensor in given]
    vector = loss_sums({"logits": outputs}, batch, loss, LABEL_OF_ROW, LABELS)
    assert not vector.requires_grad
    assert all(
        tensor.equal(copy) and tensor._version == version
        for tensor, (copy, version) in zip(given, before, strict=True)
    )
    loss.backward()
    assert logits.grad is not None


def test_wild_values_raise_nothing() -> None:
    """Classes out of range, and logits that are no numbers, are no error; the losses do not add up then."""
    batch = {"labels": torch.tensor([[0, CLASSES, 2**40, -1, 3, 4, 5]])}
    logits = logits_of(rows=1)
    logits[0, 4:6, 0] = torch.tensor([float("nan"), float("inf")])
    vector = loss_sums(logits, batch, torch.tensor(1.0), LABEL_OF_ROW[:1], LABELS)
    sums = LossSums(LABELS, vector.numpy())
    assert sums.reading() is None
    assert sums.tokens[IN_PLACE].tolist() == [0, 0, 4]
    assert sums.values.min() >= 0


# What follows is the life of a batch: put, restart, take, done, part, receive, report, settle.

NAMES = ("ja", "en", "de")
LOGGED = choose_labels(NAMES, np.ones(3))
LABEL_OF_SAMPLE = LABEL_OF_ROW.numpy()


def alone(part: Any) -> Any:
    return part


def train(losses: LabelLoss, number: int, sizes: tuple[int, ...] = (ROWS,), finite: bool = True) -> None:
    """One batch, of which the logits and labels follow from its number, in microbatches."""
    losses.put(number, LABEL_OF_SAMPLE)
    losses.restart()
    run(losses, number, sizes)
    losses.done(finite)


def run(losses: LabelLoss, number: int, sizes: tuple[int, ...]) -> None:
    for logits, part, loss in microbatches(number, sizes):
        losses.take(logits, part, loss)


def microbatches(number: int, sizes: tuple[int, ...]) -> Iterator[tuple[Tensor, dict[str, Tensor], Tensor]]:
    batch, logits, begin = batch_of(number), logits_of(number), 0
    for size in sizes:
        at = slice(begin, begin + size)
        part = {key: value[at] for key, value in batch.items()}
        loss = cross_entropy(logits[at].flatten(0, 1), part["labels"].flatten())
        yield logits[at], part, loss
        begin += size


def expected(*numbers: int) -> dict[str, float]:
    """Means over the tokens of these batches."""
    listed = [by_loop(logits_of(number), batch_of(number), 0) for number in numbers]
    return {
        f"mixmon/loss/{name}": float(np.mean([loss for losses in listed for loss in losses[label]]))
        for label, name in enumerate(NAMES)
    }


def test_chosen_batches_until_the_log() -> None:
    """Every second one, from the first on; what has been logged is not logged again."""
    losses = LabelLoss(LOGGED, 2)
    for number in range(5):
        train(losses, number)
    losses.receive(losses.part(5))
    assert losses.report() == pytest.approx(expected(0, 2, 4), abs=1e-5)
    losses.settle()
    assert losses.report() == {}


def test_a_batch_in_hand_is_logged_next_time() -> None:
    """The interval is added up and logged while its last batch is still to be trained on."""
    losses = LabelLoss(LOGGED, 1)
    train(losses, 0)
    losses.put(1, LABEL_OF_SAMPLE)
    losses.receive(losses.part(2))
    assert losses.report() == pytest.approx(expected(0), abs=1e-5)
    run(losses, 1, (ROWS,))
    losses.done(True)
    losses.flush(alone)
    assert losses.report() == pytest.approx(expected(1), abs=1e-5)


def test_a_batch_begun_again_counts_once() -> None:
    """The last of several tries counts, in the microbatches that it has."""
    once, again = LabelLoss(LOGGED, 1), LabelLoss(LOGGED, 1)
    train(once, 0)
    again.put(0, LABEL_OF_SAMPLE)
    for tried in ((3,), (2, 2), (2, 2, 1)):
        again.restart()
        run(again, 0, tried)
    again.done(True)
    sums, tries = LossSums(3, once.part(1)), LossSums(3, again.part(1))
    assert sums.loss[IN_PLACE].tolist() == tries.loss[IN_PLACE].tolist()
    assert sums.tokens[IN_PLACE].tolist() == tries.tokens[IN_PLACE].tolist()


def test_ranks_add_up() -> None:
    """Two ranks, of which a third gets the second one's samples, log the mean of all tokens."""
    ranks = [LabelLoss(LOGGED, 1) for _ in range(3)]
    train(ranks[0], 0)
    train(ranks[1], 7, (1, 4))
    ranks[2].put(0, None)
    run(ranks[2], 7, (ROWS,))
    ranks[2].done(True)
    total = sum(rank.part(1) for rank in ranks)
    for rank in ranks:
        rank.receive(total)
        assert rank.report() == pytest.approx(expected(0, 7), abs=1e-5)
        assert rank.report() == ranks[0].report()


def test_a_batch_without_a_finite_loss_is_left_out() -> None:
    """It says nothing, and is no reason to stop."""
    losses = LabelLoss(LOGGED, 1)
    train(losses, 0, finite=False)
    train(losses, 1)
    losses.flush(alone)
    assert losses.report() == pytest.approx(expected(1), abs=1e-5)


def test_what_waits_is_added_up_once_and_only_if_something_does() -> None:
    """On every rank at the same time, also on one whose samples another has."""
    calls: list[Any] = []
    losses, copy = LabelLoss(LOGGED, 2), LabelLoss(LOGGED, 2)

    def add_up(part: Any) -> Any:
        calls.append(part)
        return part

    for number in range(2):
        train(losses, number)
        copy.put(number, None)
        copy.done(True)
        for rank in (losses, copy):
            rank.flush(add_up)
            rank.flush(add_up)
    assert len(calls) == 2
    assert not calls[1].any()


def test_saved_and_loaded() -> None:
    """What has been added up and not been logged goes on, of other labels it is refused."""
    first, second = LabelLoss(LOGGED, 1), LabelLoss(LOGGED, 1)
    train(first, 0)
    first.flush(alone)
    second.load_state_dict(first.state_dict())
    train(second, 1)
    second.flush(alone)
    assert second.report() == pytest.approx(expected(0, 1), abs=1e-5)
    for total in (
        LabelLoss(choose_labels(("ja",), np.ones(1)), 1).state_dict(),
        {"total": "|u1:eJwDAAAAAAE="},
        {"total": "x"},
    ):
        with pytest.raises(ValueError, match=r"."):
            second.load_state_dict({"total": 0} | total)


SMOOTHED = "no loss by label from here on, the rest goes on: none of its readings is the step's loss"


def test_a_loss_that_does_not_add_up_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """By the rank that speaks, with how far off it is; what was logged before was right."""
    losses, silent = LabelLoss(LOGGED, 1), LabelLoss(LOGGED, 1, speaks=False)
    for rank in (losses, silent):
        train(rank, 0)
        rank.flush(alone)
        rank.put(1, LABEL_OF_SAMPLE)
        for logits, part, loss in microbatches(1, (ROWS,)):
            rank.take(logits, part, loss + 0.5)
        rank.done(True)
        rank.put(2, LABEL_OF_SAMPLE)
        rank.flush(alone)  # while another is in hand
        run(rank, 2, (ROWS,))
        rank.done(True)
        train(rank, 3)
        rank.flush(alone)
        assert rank.report() == pytest.approx(expected(0), abs=1e-5)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert SMOOTHED in record.message
    assert f"off by 0.5 with labels {READINGS[0]}" in record.message


@pytest.mark.parametrize(
    ("sizes", "why"),
    [((4,), "the microbatches have fewer rows"), ((3, 2, 2), "the microbatches have more rows")],
)
def test_rows_that_are_no_samples(sizes: tuple[int, ...], why: str, caplog: pytest.LogCaptureFixture) -> None:
    """Batches that something has shortened or repeated are not laid to any label."""
    losses = LabelLoss(LOGGED, 1)
    losses.put(0, LABEL_OF_SAMPLE)
    for size in sizes:
        logits, part, loss = next(microbatches(0, (size,)))
        losses.take(logits, part, loss)
    losses.done(True)
    losses.flush(alone)
    assert losses.report() == {}
    (record,) = caplog.records
    assert why in record.message


def test_a_fault_of_one_rank_ends_it_on_all(caplog: pytest.LogCaptureFixture) -> None:
    """The rank says what it was, the first one that there is one; the other is silent."""
    ranks = [LabelLoss(LOGGED, 1, speaks=rank == 0) for rank in range(3)]
    for number in range(2):
        for rank in ranks:
            rank.put(number, LABEL_OF_SAMPLE)
            rank.take(object() if rank is ranks[1] else logits_of(), batch_of(), torch.tensor(1.0))
            rank.done(True)
        total = sum(rank.part(1) for rank in ranks)
        for rank in ranks:
            rank.receive(total)
            assert rank.report() == {}
    said = [record.message.rpartition(": ")[2] for record in caplog.records]
    assert said == ["the outputs could not be read on another rank", "the model's outputs have no logits"]


def test_an_error_in_reading_is_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What nobody has thought of is named."""
    monkeypatch.setattr("composer_mixmon.label_loss.loss_sums", lambda *args: 1 / 0)
    losses = LabelLoss(LOGGED, 1)
    train(losses, 0, (2, 3))
    losses.flush(alone)
    assert losses.report() == {}
    (record,) = caplog.records
    assert "a fault in reading the model's outputs: ZeroDivisionError" in record.message


@pytest.mark.parametrize(
    ("value", "every"),
    [(None, None), (False, None), (True, 50), ({}, 50), ({"every": "7ba"}, 7), ({"every": 3}, 3)],
)
def test_the_setting(value: Any, every: int | None) -> None:
    """Off unless asked for."""
    assert parse_loss(value) == every


@pytest.mark.parametrize("value", ["50ba", 5, [], {"every": "0ba"}, {"every": "1ep"}, {"often": "1ba"}])
def test_no_setting(value: Any) -> None:
    """Refused by the field's name."""
    with pytest.raises(ConfigError, match=r"^loss"):
        parse_loss(value)
