"""Cross entropy by label out of what a training step has computed anyway: its logits, labels and loss.

Nothing here waits for the device, draws random numbers, adds to the autograd graph, or changes or keeps what
it is given.
"""

# Torch is typed only in part: what comes out of it is unknown to pyright.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from composer_mixmon.loss_sums import LARGEST, UNIT

__all__ = ["UnreadableError", "classes_of", "loss_sums"]

_IGNORED = -100  # as torch and all of its models have it; nothing below 0 is a class here
# Of logits as float32, of which there are two copies at a time at most. A CPU is three times as fast while
# they stay in its cache; an accelerator has as many launches to wait for as there are chunks.
_CHUNK_BYTES, _CPU_CHUNK_BYTES = 1 << 26, 1 << 22
_SEPARATE_LOSS = "ce_loss"  # ModernBERT's outputs tell it beside the loss that has a z-loss in it


class UnreadableError(ValueError):
    """The step has no logits, or no labels that belong to them."""


class _Reading(NamedTuple):
    """Which class belongs to which prediction.

    Attributes:
        classes: The class to predict, below 0 for none: int64 (predictions,).
        rows: The row of the microbatch that a prediction belongs to: int64 (predictions,).
    """

    classes: Tensor
    rows: Tensor


def classes_of(batch: Any) -> Tensor:
    """The classes to predict, int64 (rows,) or (rows, positions), out of a microbatch.

    They are its ``labels``, or else the second of two things.

    Raises:
        UnreadableError: It has none.
    """
    if isinstance(batch, Mapping):
        found = cast("Mapping[str, Any]", batch).get("labels")
    else:
        found = batch[1] if isinstance(batch, (tuple, list)) and len(batch) == 2 else None
    if not isinstance(found, Tensor) or found.ndim not in (1, 2):
        raise UnreadableError("the batch has no labels")
    if found.is_floating_point():
        raise UnreadableError("the batch's labels are no classes")
    return found


def loss_sums(outputs: Any, batch: Any, loss: Any, label_of_row: Tensor, labels: int) -> Tensor:
    """Sum the loss of a microbatch up by label, in every reading.

    Args:
        outputs: What the model returned: logits, or a mapping, an object or a tuple with them.
        batch: The microbatch.
        loss: What the model's loss function returned.
        label_of_row: The label of each of its rows, int64 (rows,), on the device of the logits.
        labels: How many labels there are.

    Returns:
        The vector of a :class:`~composer_mixmon.loss_sums.LossSums`, int64, on the device of the logits.

    Raises:
        UnreadableError: There is nothing to read.
    """
    logits, classes = _logits(outputs), classes_of(batch)
    predictions = logits.shape[:-1].numel()
    if predictions > classes.numel():
        raise UnreadableError(f"the model makes {predictions} predictions for {classes.numel()} labels")
    steps, coarse = _step_losses(outputs, loss)
    norms = _log_normalizers(logits)
    head = torch.zeros(2, dtype=torch.int64, device=logits.device)
    head[1:].fill_(coarse)  # as everywhere here: no copy from the host, which would wait for the device
    parts = [head]
    known: dict[int, Tensor] = {}
    for reading in _readings(predictions, classes, _mask(batch, classes)):
        if id(reading) not in known:
            known[id(reading)] = _sums(logits, norms, reading, steps, label_of_row, labels)
        parts.append(known[id(reading)])
    return torch.cat(parts)


def _logits(outputs: Any) -> Tensor:
    """The logits, (predictions, classes) or (rows, positions, classes)."""
    if isinstance(outputs, Mapping):
        outputs = cast("Mapping[str, Any]", outputs).get("logits")
    elif isinstance(outputs, (tuple, list)):
        tensors = (item for item in outputs if isinstance(item, Tensor) and item.ndim > 1)
        outputs = next(tensors, None)
    elif not isinstance(outputs, Tensor):
        outputs = getattr(outputs, "logits", None)
    if not isinstance(outputs, Tensor) or outputs.ndim not in (2, 3) or not outputs.is_floating_point():
        raise UnreadableError("the model's outputs have no logits")
    if type(outputs) is not Tensor:  # a DTensor would have the ranks talk to each other
        raise UnreadableError(f"the model's logits are a {type(outputs).__name__}")
    return outputs.detach()


def _mask(batch: Any, classes: Tensor) -> Tensor | None:
    """The attention mask, if there is one of the labels' shape."""
    mask = cast("Mapping[str, Any]", batch).get("attention_mask") if isinstance(batch, Mapping) else None
    return mask if isinstance(mask, Tensor) and mask.shape == classes.shape else None


def _step_losses(outputs: Any, loss: Any) -> tuple[Tensor, bool]:
    """The step's loss and its parts, float32 (losses,), and whether any was rounded to 16 bits."""
    separate = getattr(outputs, _SEPARATE_LOSS, None)
    parts: list[Any] = [loss]
    if isinstance(loss, Mapping):
        parts = list(cast("Mapping[str, Any]", loss).values())
    elif isinstance(loss, (tuple, list)):
        parts = list(cast("tuple[Any, ...]", loss))
    means: list[Tensor] = [part.detach().mean().float() for part in parts]
    if isinstance(separate, Tensor):
        means.append(separate.detach().mean().float())
    # Composer sums the parts up, unless one of them is "total"; then this sum is no loss, and does no harm.
    whole = torch.stack(means[: len(parts)]).sum()
    return torch.stack([whole, *means]), any(part.dtype.itemsize == 2 for part in parts)


def _readings(predictions: int, classes: Tensor, mask: Tensor | None) -> list[_Reading | None]:
    """Each of :data:`~composer_mixmon.loss_sums.READINGS`; ``None`` if the shapes rule it out."""
    rows = torch.arange(len(classes), device=classes.device).repeat_interleave(classes[:1].numel())
    flat = classes.reshape(-1)
    if predictions == len(flat):
        in_place = _Reading(flat, rows)
        return [in_place, _Reading(_shifted(classes), rows) if classes.ndim == 2 else None, in_place]
    unpadded = None if mask is None else _first(mask.reshape(-1) != 0, predictions)
    masked = _first(flat >= 0, predictions)
    in_place = None if unpadded is None else _Reading(flat[unpadded], rows[unpadded])
    return [in_place, None, _Reading(flat[masked], rows[masked])]


def _shifted(classes: Tensor) -> Tensor:
    """The class of each position's next one."""
    shifted = torch.full_like(classes, _IGNORED)
    shifted[:, :-1] = classes[:, 1:]
    return shifted.reshape(-1)


def _first(chosen: Tensor, number: int) -> Tensor:
    """The first so many places where it is true; how many there are is known on the device alone."""
    return torch.argsort((~chosen).to(torch.int8), stable=True)[:number]


def _log_normalizers(logits: Tensor) -> Tensor:
    """The logarithm of Σ exp of each prediction's logits, (predictions,), chunk by chunk."""
    classes = logits.shape[-1]
    # A slice of wider logits is no one matrix without a copy.
    matrices = [logits.view(-1, classes)] if logits.is_contiguous() or logits.ndim == 2 else logits.unbind()
    chunk = max(1, (_CPU_CHUNK_BYTES if logits.is_cpu else _CHUNK_BYTES) // (4 * classes))
    chunks: Iterator[Tensor] = chain.from_iterable(matrix.split(chunk) for matrix in matrices)
    return torch.cat([torch.logsumexp(_wide(part), -1) for part in chunks])


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _sums(
    logits: Tensor,
    norms: Tensor,
    reading: _Reading | None,
    steps: Tensor,
    label_of_row: Tensor,
    labels: int,
) -> Tensor:
    """``void``, ``miss``, ``loss`` and ``tokens`` of a reading, int64 (2 + 2 · labels,)."""
    sums = torch.zeros(2 + 2 * labels, dtype=torch.int64, device=logits.device)
    if reading is None:
        sums[:1].fill_(1)
        return sums
    loss, told = _fixed_loss(logits, norms, reading.classes)
    label = label_of_row[reading.rows]
    sums[2 : 2 + labels].index_add_(0, label, loss)
    sums[2 + labels :].index_add_(0, label, told.to(torch.int64))
    tokens = told.sum()
    mean = loss.sum() / UNIT / tokens.clamp(min=1)
    distance = (steps - mean).abs().min().nan_to_num(nan=LARGEST).clamp(max=LARGEST)
    sums[1:2] = (distance * UNIT).to(torch.int64) * tokens
    return sums


def _fixed_loss(logits: Tensor, norms: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of each prediction in units, int64 (predictions,), and whether it has one, bool (predictions,)."""
    told = (classes >= 0) & (classes < logits.shape[-1])
    # An index out of range would be the end of a CUDA process.
    picked = classes.where(told, 0).to(torch.int64).view(*logits.shape[:-1], 1)
    loss = norms - _wide(logits.gather(-1, picked)).reshape(-1)
    loss = loss.nan_to_num(nan=LARGEST).clamp(0, LARGEST)
    return (loss * UNIT).round().to(torch.int64).where(told, 0), told
