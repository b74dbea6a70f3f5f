"""Loss by label on chosen batches, out of what the training step has computed anyway.

A batch's microbatches come in its order, so their rows are those of the batch, one after the other. What
they add up to stays on the device until the interval's all-reduce, with which it travels.
"""

# Torch is typed only in part: what comes out of it is unknown to pyright.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from composer_mixmon.logged_labels import LoggedLabels
from composer_mixmon.loss_sums import UNIT, LossSums
from composer_mixmon.monitor import AddUp
from composer_mixmon.packing import pack_counts, unpack_counts
from composer_mixmon.token_loss import UnreadableError, classes_of, loss_sums

__all__ = ["LabelLoss"]

Ints = npt.NDArray[np.int64]

log = logging.getLogger("composer_mixmon")


class LabelLoss:
    """Mean loss of each label's tokens, over the chosen batches trained on since the last log.

    For each batch: :meth:`put` when it has been fetched; :meth:`restart` whenever its microbatches begin, the
    first time or once more; :meth:`take` after the loss of each; :meth:`done` when it has been trained on. A
    :class:`~composer_mixmon.monitor.Rider`: what is done travels with the next addition over the ranks.

    If the loss that comes out is not the step's own, all ranks say so once and log none from there on.

    Args:
        logged: The labels whose loss is logged.
        every: The batches with numbers divisible by this are chosen.
        speaks: Whether this rank says what concerns all of them.
    """

    def __init__(self, logged: LoggedLabels, every: int, speaks: bool = True) -> None:
        self._logged = logged
        self._every = every
        self._speaks = speaks
        self._off = False
        self._chosen = False  # the batch in hand
        self._labels: Ints | None = None  # of its samples; None: not looked at on this rank
        self._label_of_row: torch.Tensor | None = None  # the same on the device
        self._rows = 0  # taken of it
        self._sums: torch.Tensor | None = None  # of those
        self._fault = ""  # why it is not
        self._why = ""  # why a batch done was not
        self._done: torch.Tensor | None = None  # of batches done since the last addition
        self._unread = 0  # of these, how many could not be read
        self._waits = False  # there have been some, on every rank
        self._total = np.zeros(
            (2, logged.total), np.int64
        )  # losses and tokens of all ranks since the last log
        self._told = False  # these have been logged, with an interval whose last batch is in hand

    def put(self, batch: int, labels: Ints | None) -> None:
        """Take a batch that has been fetched.

        Args:
            batch: Its number, counted from 0 over the run.
            labels: Those of this rank's samples, int64 (samples,); ``None`` if another rank has the same.
        """
        self._chosen = not self._off and batch % self._every == 0
        self._labels = labels if self._chosen else None
        self._label_of_row = None
        self.restart()

    def restart(self) -> None:
        """The batch's microbatches begin, perhaps again: after an out-of-memory error, or for a closure."""
        self._rows, self._sums, self._fault = 0, None, ""

    def take(self, outputs: Any, batch: Any, loss: Any) -> None:
        """Take what the step has made of a microbatch; never raises.

        Args:
            outputs: The model's outputs.
            batch: The microbatch.
            loss: What the model's loss function made of them.
        """
        if self._labels is None or self._fault:
            return
        try:
            self._take(self._labels, outputs, batch, loss)
        except UnreadableError as error:
            self._fault = str(error)
        except Exception as error:  # a model unlike those that we know
            self._fault = f"a fault in reading the model's outputs: {error!r}"

    def done(self, finite: bool) -> None:
        """Count the batch in hand: it has been trained on. Begin anew, if an interval ends here.

        Args:
            finite: Whether its loss over all ranks is; if not, the batch is left out.
        """
        self.settle()
        if self._chosen and finite:
            self._waits = True
            if self._labels is not None:
                self._count(len(self._labels))
        self._chosen, self._labels, self._label_of_row = False, None, None
        self.restart()

    def part(self, batches: int) -> Ints:
        """This rank's sums of the batches done since the last time."""
        del batches
        sums = LossSums(self._logged.total)
        if self._done is not None:
            sums.values += self._done.cpu().numpy()
        sums.head[0] = self._unread
        self._done, self._unread, self._waits = None, 0, False
        return sums.values

    def receive(self, total: Ints) -> None:
        """Take their sum over all ranks."""
        sums = LossSums(self._logged.total, total)
        if sums.empty or self._off:  # what was in hand when it was turned off
            return
        reading = sums.reading()
        if reading is not None:
            self._total += sums.loss[reading], sums.tokens[reading]
        else:
            self._off = True
            self._explain(sums)

    def flush(self, add_up: AddUp) -> None:
        """Add up what has not travelled with an interval.

        Args:
            add_up: Adds up over the ranks; called on all ranks or on none.
        """
        if self._waits:
            self.receive(add_up(self.part(0)))

    def report(self) -> dict[str, float]:
        """Name the figures of all that has been added up, for a log; of labels that have tokens."""
        self._told = True
        logged = self._logged.sums(self._total).tolist()
        return {
            f"mixmon/loss/{name}": loss / tokens / UNIT
            for name, loss, tokens in zip(self._logged.names, *logged, strict=True)
            if tokens
        }

    def settle(self) -> None:
        """What has been logged is so for good."""
        if self._told:
            self._total[:] = 0
            self._told = False

    def state_dict(self) -> dict[str, Any]:
        """What waits to be logged, as plain types, the same on every rank after :meth:`flush`."""
        return {"total": pack_counts(self._total)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` saved.

        Raises:
            ValueError: It is of another number of labels or damaged.
        """
        total = unpack_counts(state["total"], self._logged.total)
        if total.shape != self._total.shape:
            raise ValueError(f"losses and tokens are two rows, {len(total)} were saved")
        self._total = total

    def _take(self, labels: Ints, outputs: Any, batch: Any, loss: Any) -> None:
        classes = classes_of(batch)
        begin, self._rows = self._rows, self._rows + len(classes)
        if self._rows > len(labels):
            raise UnreadableError("the microbatches have more rows than the batch has samples")
        if self._label_of_row is None:
            self._label_of_row = torch.tensor(labels).to(classes.device, non_blocking=True)
        here = self._label_of_row[begin : self._rows]
        sums = loss_sums(outputs, batch, loss, here, self._logged.total)
        self._sums = sums if self._sums is None else self._sums + sums

    def _count(self, samples: int) -> None:
        if not self._fault and self._rows < samples:
            self._fault = "the microbatches have fewer rows than the batch has samples"
        if self._fault:
            self._unread += 1
            self._why = self._fault
        elif self._sums is not None:
            self._done = self._sums if self._done is None else self._done + self._sums

    def _explain(self, sums: LossSums) -> None:
        """Say why there is no loss by label; sums of ranks that all were read say it the same on each."""
        if not self._speaks and not self._why:
            return
        why = f"none of its readings is the step's loss: the nearest are off by {sums.distances()}"
        if sums.head[0]:
            why = self._why or "the outputs could not be read on another rank"
        log.warning("mixmon: no loss by label from here on, the rest goes on: %s", why)
