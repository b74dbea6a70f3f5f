"""Tiny language models, what they are fed, and the brute force for their loss by label."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import transformers  # whose models are imported when they are used
from composer.core import Callback, State
from composer.loggers import Logger
from composer.models import HuggingFaceModel

from tests.live.data import as_dict

POSITIONS, CLASSES = 9, 41
PAD, MASK = 0, 1


def _texts(ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of the samples, each of a length of its own, and where there are any."""
    lengths = np.array([4 + i % (POSITIONS - 3) for i in ids])
    real = np.arange(POSITIONS) < lengths[:, None]
    tokens = np.array([np.random.default_rng(i).integers(2, CLASSES, POSITIONS) for i in ids])
    return np.where(real, tokens, PAD), real


def _batch(ids: Sequence[int], tokens: np.ndarray, real: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    named = {"input_ids": tokens, "attention_mask": real.astype(np.int64), "labels": labels, "id": ids}
    return {name: torch.as_tensor(np.array(values)) for name, values in named.items()}


def masked(samples: list[Any]) -> dict[str, Any]:
    """A batch for masked prediction: of each sample, one token in three, and always one."""
    ids = as_dict(samples)["id"].tolist()
    tokens, real = _texts(ids)
    hidden = real & (np.random.default_rng(ids).random(real.shape) < 1 / 3)
    hidden[np.arange(len(ids)), np.array(ids) % 4] = True
    return _batch(ids, np.where(hidden, MASK, tokens), real, np.where(hidden, tokens, -100))


def causal(samples: list[Any]) -> dict[str, Any]:
    """A batch for the prediction of the next token."""
    ids = as_dict(samples)["id"].tolist()
    tokens, real = _texts(ids)
    return _batch(ids, tokens, real, np.where(real, tokens, -100))


def _modernbert(sparse: bool) -> torch.nn.Module:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    special = {
        "pad_token_id": PAD,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "cls_token_id": 2,
        "sep_token_id": 3,
    }
    how: dict[str, Any] = {"attn_implementation": "sdpa", "reference_compile": False}
    return transformers.ModernBertForMaskedLM(
        transformers.ModernBertConfig(vocab_size=CLASSES, sparse_prediction=sparse, **sizes, **special, **how)
    )


def _gpt2() -> torch.nn.Module:
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 2, "eos_token_id": 3}
    sizes = {"n_positions": POSITIONS, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=CLASSES, **sizes, **off))


def _llama() -> torch.nn.Module:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=CLASSES, max_position_embeddings=POSITIONS, **sizes)
    )


MODELS: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[list[Any]], Any], int]] = {
    "masked": (lambda: _modernbert(False), masked, 0),
    "sparse": (lambda: _modernbert(True), masked, 0),
    "gpt2": (_gpt2, causal, 1),
    "llama": (_llama, causal, 1),
}
"""By name: the network, its collate function, and by how much its labels are shifted."""


def composer_model(kind: str) -> HuggingFaceModel:
    """The same weights each time, so large that the loss is far from that of chance."""
    torch.manual_seed(5)
    network = MODELS[kind][0]()
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim > 1:
                weight.mul_(8)
    return HuggingFaceModel(network)


class LossWitness(Callback):
    """The brute force: runs the model on each sample alone, with the weights that the step has.

    Args:
        kind: Which model it is.

    Attributes:
        batches: Of each batch trained on, each sample's id with its tokens' losses, in float64.
    """

    def __init__(self, kind: str) -> None:
        self.shift = MODELS[kind][2]
        self.batches: list[list[tuple[int, list[float]]]] = []
        self._batch: Any = None
        self._seen: list[tuple[int, list[float]]] = []

    def after_dataloader(self, state: State, logger: Logger) -> None:
        self._batch = copy.deepcopy(state.batch)

    def before_train_batch(self, state: State, logger: Logger) -> None:
        model: Any = getattr(state.model, "module", state.model)  # several ranks: wrapped
        network = copy.deepcopy(model.model).eval()
        self._seen = []
        for row in zip(*self._batch.values(), strict=True):
            sample = dict(zip(self._batch, row, strict=True))
            fed = {name: sample[name][None] for name in ("input_ids", "attention_mask")}
            with torch.no_grad():
                logits = network(**fed).logits[0].double()
            losses = [
                float(logits[at].exp().sum().log() - logits[at, target])
                for at, target in enumerate(sample["labels"].tolist()[self.shift :])
                if target >= 0
            ]
            self._seen.append((int(sample["id"]), losses))

    def batch_end(self, state: State, logger: Logger) -> None:
        self.batches.append(self._seen)


def means(
    batches: list[list[Any]], label_of: Callable[[int], str], every: int, interval: int
) -> dict[str, list[tuple[int, float]]]:
    """What is to be logged: by key, the batch beside which it is, and the mean loss of the label's tokens.

    An interval is logged while its last batch is still being trained on, and what is left when all have been.
    """
    logged: dict[str, list[tuple[int, float]]] = {}
    ends = [*range(interval - 1, len(batches), interval), len(batches)]
    for begin, end in zip([0, *ends], ends, strict=False):
        losses: dict[str, list[float]] = {}
        for batch in range(begin, end):
            for sample, of_tokens in batches[batch] if batch % every == 0 else ():
                losses.setdefault(label_of(sample), []).extend(of_tokens)
        for label, listed in losses.items():
            logged.setdefault(f"mixmon/loss/{label}", []).append((end, math.fsum(listed) / len(listed)))
    return logged
