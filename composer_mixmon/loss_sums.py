"""Sums of loss by label that ranks add up, in one vector of fixed length.

Losses are whole multiples of 2^-20 nats: integers, so that a sum is the same in whatever order microbatches
and ranks come. Which classes belong to which logits is not told by anyone: it is *read* in every way that
models use, and the reading counts whose mean is the loss that the step itself has computed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["LARGEST", "READINGS", "UNIT", "LossSums"]

Ints = npt.NDArray[np.int64]

READINGS = ("in place", "shifted by one", "at the masked places only")
UNIT = 1 << 20  # parts of a nat: the quantisation of a token, 5e-7 at most, is that of float32 at a loss of 8
LARGEST = float(1 << 16)  # nats of a token: more than a model's logits differ by; 2^27 such are no overflow

# How far the step's loss may be from ours. Both are means over the same float32 numbers, but a step may round
# its own to bfloat16 (2^-8, and the sum before it as well), which it then is said to do.
_FINE, _COARSE = 1e-3, 2.0**-6
_SMALLEST = 1e-4  # nats; float32's error of log-sum-exp minus logit, ten times over
_HEAD = 2
_CHECKS = 2


class LossSums:
    """Losses and tokens of each label, by reading, and what tells whether a reading holds.

    Args:
        labels: How many labels the samples have.
        values: The vector, int64 (``width(labels)``,); zeros, if not given.

    Attributes:
        values: The vector. Vectors of several microbatches, batches or ranks are summed.
        head: Batches of a rank whose outputs could not be read, and microbatches whose own loss is rounded
            to 16 bits: int64 (2,).
        void: Microbatches that cannot be read so, by reading: int64 (readings,).
        miss: Distance of the losses read from the steps', times tokens, in units: int64 (readings,).
        loss: Losses in units, int64 (readings, labels).
        tokens: Tokens that have a loss, int64 (readings, labels).
    """

    def __init__(self, labels: int, values: Ints | None = None) -> None:
        self.values = np.zeros(self.width(labels), np.int64) if values is None else values
        self.head = self.values[:_HEAD]
        table = self.values[_HEAD:].reshape(len(READINGS), -1)
        self.void, self.miss = table[:, 0], table[:, 1]
        self.loss, self.tokens = table[:, _CHECKS : _CHECKS + labels], table[:, _CHECKS + labels :]

    @staticmethod
    def width(labels: int) -> int:
        """Numbers in a vector."""
        return _HEAD + len(READINGS) * (_CHECKS + 2 * labels)

    @property
    def empty(self) -> bool:
        """Whether nothing has been read, nor could have been."""
        return not self.values.any()

    def reading(self) -> int | None:
        """The reading whose losses are the steps', or ``None`` if none is."""
        if self.head[0]:
            return None
        tolerance = _COARSE if self.head[1] else _FINE
        allowed = tolerance * self.loss.sum(axis=1) + _SMALLEST * UNIT * self.tokens.sum(axis=1)
        fits = (self.void == 0) & (self.miss <= allowed)
        return int(np.argmin(np.where(fits, self.miss, np.inf))) if fits.any() else None

    def distances(self) -> str:
        """How far each reading is from the steps' losses, for a message."""
        tokens = np.maximum(1, self.tokens.sum(axis=1))
        off = zip(READINGS, self.void, self.miss / tokens / UNIT, strict=True)
        return ", ".join(f"{distance:.3g} with labels {name}" for name, void, distance in off if not void)
