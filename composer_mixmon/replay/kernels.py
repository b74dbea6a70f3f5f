"""Loops compiled by numba: numpy's random stream, exact to the bit, and the passes over every sample.

Imported by :mod:`composer_mixmon.replay.fast` only. A stream's state is uint64 (6,): the two halves of
PCG64's state, those of its increment, whether the upper half of the last 64 bits waits to be used as the next
32, and that half (O'Neill 2014; numpy's ``pcg64.h`` and ``distributions.c``). Sizes are below 2³².
"""

# numba has no types.
# pyright: basic, reportMissingImports=false, reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

__all__ = ["integers", "shuffle", "skip_places", "skip_shuffles", "sort_by_position", "tally", "uniform"]

_U = np.uint64
_ZERO, _ONE, _HALF, _LOWER = _U(0), _U(1), _U(32), _U(0xFFFFFFFF)
_HIGH, _LOW = _U(0x2360ED051FC65DA4), _U(0x4385DF649FCCF645)  # PCG64's multiplier
_STEPS = 1024  # drawn before they are taken: then memory is waited for at many places at a time


def _compiled(function):
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # nowhere to keep the machine code: compile it in every process
        return njit(nogil=True)(function)


@intrinsic
def _upper(context, a, b):
    """Upper half of the product of two uint64."""

    def generate(context, builder, signature, arguments):
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@_compiled
def _multiply_add(a, b, c):
    """a·b + c modulo 2¹²⁸, each a pair of upper and lower half."""
    low = a[1] * b[1]
    total = low + c[1]
    return _upper(a[1], b[1]) + a[0] * b[1] + a[1] * b[0] + c[0] + _U(total < low), total


@_compiled
def _output(state):
    """64 random bits of a state (XSL-RR)."""
    mixed, turn = state[0] ^ state[1], state[0] >> _U(58)
    return (mixed >> turn) | (mixed << ((_U(64) - turn) & _U(63)))


@_compiled
def _mask(step):
    """The least 2**k − 1 that is not below ``step``."""
    mask = _ONE
    while mask < step:
        mask = (mask << _ONE) | _ONE
    return mask


@_compiled
def _advance(state, draws):
    """Go on by a number of 64-bit draws (Brown 1994)."""
    factor, plus = (_ZERO, _ONE), (_ZERO, _ZERO)
    power, power_plus = (_HIGH, _LOW), (state[2], state[3])
    while draws:
        if draws & _ONE:
            factor, plus = (
                _multiply_add(factor, power, (_ZERO, _ZERO)),
                _multiply_add(plus, power, power_plus),
            )
        power_plus = _multiply_add(power, power_plus, power_plus)
        power = _multiply_add(power, power, (_ZERO, _ZERO))
        draws >>= _ONE
    state[0], state[1] = _multiply_add((state[0], state[1]), factor, plus)


@_compiled
def _next32(state):
    if state[4]:
        state[4] = _ZERO
        return state[5]
    now = _multiply_add((state[0], state[1]), (_HIGH, _LOW), (state[2], state[3]))
    state[0], state[1] = now
    bits = _output(now)
    state[4], state[5] = _ONE, bits >> _HALF
    return bits & _LOWER


@_compiled
def _targets(state, step, targets):
    """Draw the places that ``step``, ``step − 1``, … of Fisher and Yates' shuffle swap with.

    numpy masks 32 bits to the step's and draws again where the result is above it. Here every masked draw is
    written down, and overwritten by the next one unless it is accepted: no branch to predict.

    Returns:
        How many steps were drawn: as many as fit or share a mask.
    """
    now, plus = (state[0], state[1]), (state[2], state[3])
    mask, count, full = _mask(step), _ZERO, _U(len(targets) - 2)
    least = mask >> _ONE
    if state[4]:
        state[4] = _ZERO
        targets[count] = state[5] & mask
        count += _U((state[5] & mask) <= step)
    while step - count > least and count < full:
        now = _multiply_add(now, (_HIGH, _LOW), plus)
        bits = _output(now)
        targets[count] = bits & mask
        count += _U((bits & mask) <= step - count)
        bits >>= _HALF
        if step - count == least:
            state[4], state[5] = _ONE, bits
            break
        targets[count] = bits & mask
        count += _U((bits & mask) <= step - count)
    state[0], state[1] = now
    return count


@_compiled
def shuffle(state, values):
    """Shuffle in place, as ``Generator.shuffle``."""
    targets = np.empty(_STEPS, np.uint32)
    step = _U(max(len(values), 1) - 1)
    while step:
        for target in targets[: _targets(state, step, targets)]:
            values[step], values[target] = values[target], values[step]
            step -= _ONE


@_compiled
def skip_shuffles(state, sizes):
    """Draw what shuffling arrays of these sizes would draw."""
    now, plus = (state[0], state[1]), (state[2], state[3])
    held, bits = state[4], state[5]
    for size in sizes:
        step = _U(max(size, 1) - 1)
        while step:
            mask = _mask(step)
            least = mask >> _ONE
            if held:
                held = _ZERO
                step -= _U((bits & mask) <= step)
            while step > least:
                now = _multiply_add(now, (_HIGH, _LOW), plus)
                bits = _output(now)
                step -= _U((bits & mask) <= step)
                bits >>= _HALF
                if step == least:
                    held = _ONE
                    break
                step -= _U((bits & mask) <= step)
    state[0], state[1], state[4], state[5] = now[0], now[1], held, bits


@_compiled
def integers(state, low, high):
    """Draw a whole number of ``low`` … ``high − 1``, as ``Generator.integers`` (Lemire 2019)."""
    span = _U(high - low)
    if span == _ONE:
        return low
    product = _next32(state) * span
    if (product & _LOWER) < span:
        least = (_LOWER - (span - _ONE)) % span
        while (product & _LOWER) < least:
            product = _next32(state) * span
    return low + np.int64(product >> _HALF)


@_compiled
def uniform(state, low, high, out):
    """Add ``Generator.uniform(low, high)`` to every element of ``out``."""
    now, plus = (state[0], state[1]), (state[2], state[3])
    width = high - low
    for k in range(len(out)):
        now = _multiply_add(now, (_HIGH, _LOW), plus)
        out[k] += low + width * (np.float64(np.int64(_output(now) >> _U(11))) * 2.0**-53)
    state[0], state[1] = now


@_compiled
def skip_places(state, sizes, low, high):
    """For each size, draw :func:`integers` and pass over so many draws of :func:`uniform`."""
    for size in sizes:
        integers(state, low, high)
        _advance(state, _U(size))


@_compiled
def sort_by_position(positions, values):
    """Sort both by position, in place, where about one position lies between any two whole numbers.

    A counting sort by whole part, then insertion within each.

    Returns:
        How many positions equal the one before while the value differs.
    """
    first = np.int64(positions.min())
    starts = np.zeros(np.int64(positions.max()) - first + 2, np.uint32)
    for position in positions:
        starts[_U(np.int64(position) - first + 1)] += np.uint32(1)
    for k in range(1, len(starts)):
        starts[k] += starts[k - 1]
    from_positions, from_values = positions.copy(), values.copy()
    for k in range(len(from_positions)):
        whole = _U(np.int64(from_positions[k]) - first)
        place = _U(starts[whole])
        positions[place], values[place] = from_positions[k], from_values[k]
        starts[whole] = place + _ONE
    ties = 0
    for k in range(1, len(positions)):
        position, value, place = positions[k], values[k], k
        if positions[k - 1] < position:
            continue
        while place > 0 and positions[place - 1] > position:
            positions[place], values[place] = positions[place - 1], values[place - 1]
            place -= 1
        positions[place], values[place] = position, value
        ties += place > 0 and positions[place - 1] == position and values[place - 1] != value
    return ties


@_compiled
def tally(units, labels, row_of_unit, counts):
    """Count each label in the row of its unit; a row of −1 counts nothing."""
    for k in range(len(units)):
        row = row_of_unit[units[k]]
        if row >= 0:
            counts[row, labels[k]] += 1
