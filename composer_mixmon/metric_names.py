"""Labels as parts of metric names that every logger keeps, each under a name of its own.

Most labels are their own names: letters and digits of any script, ``_``, ``-``, ``.``, spaces inside and
``/`` between. MLflow refuses all else, and by default drops with such a name whatever was logged in the same
seconds, the loss too. Its file store cannot hold one name that is a folder of another, nor 256 bytes. W&B
takes names that differ in case only for one.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

__all__ = ["metric_names"]

_LONGEST = 200  # bytes of UTF-8: with a mark and the key before it, below MLflow's 250 and a file name's 255
_PLAIN = re.compile(r"[\w.\- ]+(/[\w.\- ]+)*")
_NO_FOLDER = re.compile(r"(^|/)\.{1,2}(/|$)")
_MARKED = re.compile(r"-[0-9a-f]{8,64}(/|$)")
_OTHER = re.compile(r"[^\w.\- ]")


@lru_cache(maxsize=16)
def metric_names(labels: tuple[str, ...]) -> tuple[str, ...]:
    """Name the labels in metrics.

    A label that some logger would refuse, or take for another, is marked: what is refused becomes ``_``, and
    the beginning of its SHA-256 follows, as in ``C__-f1deb75f``. It depends on the other labels only where
    they would be taken for one another.

    Args:
        labels: Different labels, of 1 to 200 printable characters.

    Returns:
        Their names in that order: different even without regard to case, and none a folder of another.
    """
    folded = [label.casefold() for label in labels]
    times = Counter(folded)
    folders = {folder for label in folded for folder in _folders(label)}
    alone = [times[label] == 1 and label not in folders for label in folded]
    names = list(labels)
    for digits in range(8, 65, 8):  # 8 suffice for all but hundreds of labels of which little is left
        names = [
            label if is_alone and _is_plain(label) else _marked(label, digits)
            for label, is_alone in zip(labels, alone, strict=True)
        ]
        if len({name.casefold() for name in names}) == len(names):
            break
    return tuple(names)


def _is_plain(label: str) -> bool:
    """Whether every logger keeps the label as it is, and it does not look like a marked one."""
    return (
        label == label.strip()
        and len(label.encode()) <= _LONGEST
        and _PLAIN.fullmatch(label) is not None
        and not _NO_FOLDER.search(label)
        and not _MARKED.search(label)
    )


def _marked(label: str, digits: int) -> str:
    legible = _OTHER.sub("_", label.strip()).encode()[: _LONGEST - digits].decode(errors="ignore")
    return f"{legible}-{hashlib.sha256(label.encode()).hexdigest()[:digits]}"


def _folders(label: str) -> Sequence[str]:
    """``a`` and ``a/b`` of ``a/b/c``."""
    return list(accumulate(label.split("/"), "{}/{}".format))[:-1]
