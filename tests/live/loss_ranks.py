"""Trains language models on several ranks and writes down what each rank logged and what it should have.

Usage: that of ``rank_script.py``, in whose ways it trains.
"""

from __future__ import annotations

import faulthandler
import json
import os
from collections.abc import Callable
from typing import Any

import torch
from composer.utils import dist
from streaming import StreamingDataLoader

from tests.live.data import streaming_dataset
from tests.live.losses import MODELS, LossWitness, composer_model
from tests.live.rank_script import BATCH, FOLDER, HALVES, SHUFFLED, WARNED, fork, is_last, monitor, train

LOSS = {"loss": {"every": "2ba"}}


def run(kind: str, model: Any = None, loss: Any = LOSS, **settings: Any) -> dict[str, Any]:
    """One run, in which each rank cuts its batches as it likes."""
    witness = LossWitness(kind)
    dataset = streaming_dataset(FOLDER / "mds", BATCH, **SHUFFLED, **settings)
    data = StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=MODELS[kind][1])
    how = {"model": model or composer_model(kind), "device_train_microbatch_size": 1 + dist.get_global_rank()}
    result = train(monitor(**HALVES, **loss), data, witness, **how)
    return result | {"losses": witness.batches, "said": list(WARNED.said)}


def causal() -> dict[str, Any]:
    return run("gpt2")


def without() -> dict[str, Any]:
    return run("gpt2", loss={})


def replicated() -> dict[str, Any]:
    return run("gpt2", replication=2)


def no_logits_on_the_last_rank() -> dict[str, Any]:
    model = composer_model("gpt2")
    forward = model.forward
    if is_last():
        model.forward = lambda batch: {"loss": forward(batch)["loss"]}  # type: ignore[method-assign]
    return run("gpt2", model)


SCENARIOS: list[Callable[[], dict[str, Any]]] = [
    causal,
    without,
    replicated,
    no_logits_on_the_last_rank,
]

if __name__ == "__main__":
    fork(int(os.environ["RANKS"]))
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(150, exit=True)
    dist.initialize_dist("cpu", timeout=60.0)
    results = {scenario.__name__: scenario() for scenario in SCENARIOS}
    (FOLDER / f"rank{dist.get_global_rank()}.json").write_text(json.dumps(results))
