"""Tokens of each sample, out of the batches that collators make."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import BatchEncoding

from composer_mixmon.logged_labels import choose_labels
from composer_mixmon.rows import Rows
from composer_mixmon.token_mixture import TokenMixture
from composer_mixmon.tokens import tokens_of

MASK = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]])
IDS = torch.ones(4, 3, dtype=torch.int64)
TOLD = [2, 1, 3, 0]
HALVES = np.array([0.5, 0.5])


@pytest.mark.parametrize(
    ("batch", "tokens"),
    [
        ({"input_ids": IDS, "attention_mask": MASK}, TOLD),
        (BatchEncoding({"input_ids": IDS, "attention_mask": MASK}), TOLD),
        ({"attention_mask": MASK.bool()}, TOLD),
        ({"attention_mask": MASK.tolist()}, TOLD),
        ({"attention_mask": MASK.float() * 0.5}, TOLD),
        ({"input_ids": torch.ones(6), "cu_seqlens": torch.tensor([0, 2, 3, 6, 6], dtype=torch.int32)}, TOLD),
        ({"lengths": TOLD, "input_ids": IDS}, TOLD),
        ({"length": torch.tensor(TOLD)}, TOLD),
        ({"input_ids": IDS}, [3, 3, 3, 3]),
        ({"input_ids": IDS, "attention_mask": torch.ones(4, 1, 3, 3)}, [3, 3, 3, 3]),
        ({"input_ids": IDS, "attention_mask": None}, [3, 3, 3, 3]),
        ({"input_ids": IDS, "attention_mask": MASK.to_sparse()}, [3, 3, 3, 3]),
        ({"attention_mask": MASK[:2]}, None),
        ({"input_ids": [[1], [1, 2], [1], [1]]}, None),
        ({"x": IDS}, None),
        ((IDS, MASK), None),
        (None, None),
    ],
)
def test_tokens_are_read_off_whatever_tells_them(batch: Any, tokens: list[int] | None) -> None:
    """The mask comes first, then bounds, lengths and width; what does not fit the samples tells nothing."""
    found = tokens_of(batch, 4)
    assert (None if found is None else found.tolist()) == tokens


def rows(*tokens: list[int] | None) -> Rows:
    made = Rows.empty(len(tokens), 2)
    for i, told in enumerate(tokens):
        made.put(i, np.array([1, 1]), None if told is None else np.array(told), 0)
    return made


def test_window_of_tokens_is_a_window_rounded_up_to_intervals() -> None:
    """Intervals that lie wholly before the window fall out; batches without tokens do not count."""
    mixture = TokenMixture(2, window=3)
    for interval in (rows([8, 0], [8, 0]), rows([1, 1], [1, 1]), rows(None, None), rows([0, 4], None)):
        mixture.commit(mixture.fold(interval))
    figures = mixture.metrics(mixture.fold(rows()), HALVES, choose_labels(("ja", "en"), HALVES))
    assert figures == {
        "mixmon/tokens/ratio/ja": 0.25,
        "mixmon/tokens/ratio/en": 0.75,
        "mixmon/tokens/deviation": 0.25,
    }


def test_window_of_tokens_survives_saving() -> None:
    """A window that was saved and loaded goes on as the one that was not."""
    saved, fresh = TokenMixture(2, 3), TokenMixture(2, 3)
    saved.commit(saved.fold(rows([300, 7], [1, 1])))
    fresh.load_state_dict(saved.state_dict())
    assert fresh.state_dict() == saved.state_dict()
    more = rows([2**40, 0])
    logged = choose_labels(("a", "b"), HALVES)
    assert fresh.metrics(fresh.fold(more), HALVES, logged) == saved.metrics(saved.fold(more), HALVES, logged)


def test_without_tokens_nothing_is_logged() -> None:
    """Where no batch tells its tokens, there are no figures of tokens."""
    mixture = TokenMixture(2, 3)
    assert mixture.metrics(mixture.fold(rows(None)), HALVES, choose_labels(("a", "b"), HALVES)) == {}
