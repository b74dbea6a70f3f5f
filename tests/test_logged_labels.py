"""Which labels are logged one by one, and which together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_mixmon.logged_labels import choose_labels
from composer_mixmon.metric_names import metric_names


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(1, 150), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_nothing_is_lost(labels: int, sizes: int, seed: int) -> None:
    """What is logged adds up to all there is; no label of the rest has a larger target than one logged."""
    rng = np.random.default_rng(seed)
    names, target = tuple(f"site {i}" for i in range(labels)), rng.integers(0, sizes, labels).astype(float)
    logged = choose_labels(names, target)
    values = rng.integers(0, 2**40, (3, labels))
    sums = logged.sums(values)
    assert sums.dtype == values.dtype
    assert len(logged.labels) == len(logged.names) == sums.shape[1] == min(labels, 61)
    assert sums.sum(axis=1).tolist() == values.sum(axis=1).tolist()
    if labels <= 61:
        assert logged.labels == names
        return
    own = [names.index(label) for label in logged.labels[:-1]]
    assert own == sorted(own)
    assert sums[:, :-1].tolist() == values[:, own].tolist()
    assert target[own].min() >= np.delete(target, own).max()


def test_what_has_no_label_is_seen() -> None:
    """``unlabelled`` is meant to have no share at all, and is logged beside the largest."""
    names = (*(f"site {i}" for i in range(500)), "unlabelled")
    logged = choose_labels(names, np.append(np.full(500, 1 / 500), 0.0))
    assert logged.labels == (*names[:59], "unlabelled", "other")


@pytest.mark.parametrize(
    ("label", "rest"),
    [("other", "other_"), ("Other", "other_"), ("other/news", "other_"), ("others", "other")],
)
def test_the_rest_has_a_name_of_its_own(label: str, rest: str) -> None:
    """Not a label's, nor a folder of it; a label among the rest may be called so."""
    names = (label, *(f"site {i}" for i in range(100)))
    large, small = np.ones(101), np.ones(101)
    large[0], small[0] = 2, 0
    assert choose_labels(names, large).names[-1] == rest
    assert choose_labels(names, small).names[-1] == "other"


def test_names_are_those_among_all_labels() -> None:
    """A label keeps its name in metrics, whichever others are logged."""
    names = ("Wiki", "wiki", *(f"site {i}" for i in range(100)))
    target = np.ones(102)
    target[0] = 0
    logged = choose_labels(names, target)
    assert logged.labels[0] == "wiki"
    assert logged.names[0] == metric_names(names)[1] != "wiki"
