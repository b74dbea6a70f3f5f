"""Draw in one thread while another sorts and counts: numpy lets go of the interpreter in both."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ahead"]

Arrays = tuple[NDArray[Any], ...]

# Elements handed over at a time, and buffers that travel: enough to keep both threads busy.
_SIZE = 1 << 18
_BUFFERS = 3


def ahead(flow: Iterator[Arrays], length: int) -> Iterator[Arrays]:
    """Run ``flow`` in a thread, a few buffers ahead.

    Args:
        flow: Yields tuples of arrays of one length, pieces of sequences. It may use their memory again.
        length: Elements in all; less than a few buffers are not worth a thread.

    Yields:
        The same sequences in other pieces, each valid until the next is asked for.
    """
    if length < _BUFFERS * _SIZE:
        yield from flow
        return
    free: SimpleQueue[Arrays | None] = SimpleQueue()
    full: SimpleQueue[tuple[Arrays, int] | BaseException | None] = SimpleQueue()
    for _ in range(_BUFFERS):
        free.put(())  # made when their types are known
    thread = Thread(target=_produce, args=(flow, free, full), daemon=True)
    thread.start()
    try:
        while (item := full.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            arrays, count = item
            yield tuple(array[:count] for array in arrays)
            free.put(arrays)
    finally:
        free.put(None)
        thread.join()


def _produce(
    flow: Iterator[Arrays],
    free: SimpleQueue[Arrays | None],
    full: SimpleQueue[tuple[Arrays, int] | BaseException | None],
) -> None:
    try:
        _fill_buffers(flow, free, full)
        full.put(None)
    except BaseException as error:  # raised again where it is seen
        full.put(error)


def _fill_buffers(
    flow: Iterator[Arrays],
    free: SimpleQueue[Arrays | None],
    full: SimpleQueue[tuple[Arrays, int] | BaseException | None],
) -> None:
    """Copy pieces into free buffers until the flow ends or None says that nobody reads on."""
    buffers: Arrays = ()
    held = 0
    for pieces in flow:
        done = 0
        while done < len(pieces[0]):
            if not buffers:
                taken = free.get()
                if taken is None:
                    return
                buffers = taken or tuple(np.empty(_SIZE, piece.dtype) for piece in pieces)
            take = min(len(pieces[0]) - done, len(buffers[0]) - held)
            for buffer, piece in zip(buffers, pieces, strict=True):
                buffer[held : held + take] = piece[done : done + take]
            done, held = done + take, held + take
            if held == len(buffers[0]):
                full.put((buffers, held))
                buffers, held = (), 0
    if held:
        full.put((buffers, held))
