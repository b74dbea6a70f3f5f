"""The loss by label that is logged is that of each sample, computed one by one with the step's weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from composer.core import Callback, State
from composer.loggers import InMemoryLogger, Logger
from streaming import StreamingDataLoader

from composer_mixmon import MixMon
from composer_mixmon.errors import ConfigError
from tests.live import test_ranks
from tests.live.data import mds_loader, two_streams
from tests.live.helpers import OFF, Twice, fit, metrics, trainer
from tests.live.losses import MODELS, LossWitness, composer_model, means
from tests.live.packing import PackedModel, Packer, Texts, packed_spec
from tests.live.test_logged import documented
from tests.live.test_packed import loader_of

BATCH, BATCHES = 6, 11  # the last batch holds 4 samples
LOSS = "mixmon/loss/"


def stream(sample: int) -> str:
    return "a" if sample < 40 else "b"


def loader(folder: Path, kind: str, workers: int = 0) -> StreamingDataLoader:
    dataset = two_streams(folder, BATCH, shuffle=True, shuffle_block_size=16, num_canonical_nodes=1)
    return StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=MODELS[kind][1])


def monitor(every: int | None, **settings: Any) -> MixMon:
    loss = None if every is None else {"every": f"{every}ba"}
    return MixMon(**{"window": "5ba", "log_interval": "4ba", "loss": loss} | settings)


def close(logged: dict[str, list[tuple[int, float]]], expected: dict[str, list[tuple[int, float]]]) -> bool:
    """Whether the same is logged at the same batches, to float32's precision."""
    assert {key: [batch for batch, _ in seen] for key, seen in logged.items()} == {
        key: [batch for batch, _ in seen] for key, seen in expected.items()
    }
    for key, seen in expected.items():
        values = [value for _, value in logged[key]]
        assert values == pytest.approx([value for _, value in seen], rel=2e-5)
    return len({value for seen in expected.values() for _, value in seen}) == sum(map(len, expected.values()))


@pytest.mark.parametrize(
    ("kind", "microbatch"),
    [("masked", 2), ("masked", BATCH), ("sparse", 1), ("sparse", 4), ("gpt2", 1), ("llama", 4)],
)
def test_loss_by_label(tmp_path: Path, kind: str, microbatch: int, caplog: pytest.LogCaptureFixture) -> None:
    """In microbatches of any size, for masked, sparse and causal prediction; nothing is said."""
    witness, memory = LossWitness(kind), InMemoryLogger()
    run = fit(
        loader(tmp_path, kind, workers=microbatch % 2),
        witness,
        monitor(3),
        model=composer_model(kind),
        device_train_microbatch_size=microbatch,
        loggers=[memory],
    )
    assert len(witness.batches) == BATCHES
    assert close(metrics(run, LOSS), means(witness.batches, stream, every=3, interval=4))
    assert not [r for r in caplog.records if r.name == "composer_mixmon"]


@pytest.mark.parametrize(("every", "interval"), [(1, 4), (4, 4), (5, 2)])
def test_any_pace(tmp_path: Path, every: int, interval: int) -> None:
    """Every chosen batch is in one log, the next one after it has been trained on."""
    witness, memory = LossWitness("gpt2"), InMemoryLogger()
    mixmon = monitor(every, log_interval=f"{interval}ba")
    run = fit(loader(tmp_path, "gpt2"), witness, mixmon, model=composer_model("gpt2"), loggers=[memory])
    assert close(metrics(run, LOSS), means(witness.batches, stream, every, interval))


def test_the_mean_over_the_labels_is_the_steps_loss(tmp_path: Path) -> None:
    """Weighed by their tokens, as Composer logs it, where every batch is one microbatch and logged alone."""
    witness, memory = LossWitness("masked"), InMemoryLogger()
    mixmon = monitor(1, log_interval="1ba")
    run = fit(loader(tmp_path, "masked"), witness, mixmon, model=composer_model("masked"), loggers=[memory])
    of_steps = dict(metrics(run, "loss/train/total")["loss/train/total"])
    by_label = {key: dict(seen) for key, seen in metrics(run, LOSS).items()}
    for batch, samples in enumerate(witness.batches):
        tokens = dict.fromkeys("ab", 0)
        for sample, losses in samples:
            tokens[stream(sample)] += len(losses)
        total = sum(n * by_label[LOSS + label][batch + 1] for label, n in tokens.items() if n)
        assert total / sum(tokens.values()) == pytest.approx(of_steps[batch], rel=1e-5)


def test_the_keys_are_those_documented(tmp_path: Path) -> None:
    """With what the other tables hold, and nothing else."""
    memory = InMemoryLogger()
    run = fit(loader(tmp_path, "gpt2"), monitor(1), model=composer_model("gpt2"), loggers=[memory])
    assert set(metrics(run)) == documented(["a", "b"], loss=True)


class Short(Callback):
    """Has memory for so many samples, and fails as CUDA does in the given forward of a run."""

    def __init__(self, memory: int, forwards_before: int) -> None:
        self.memory = memory
        self.spare = forwards_before
        self.failures = 0

    def before_backward(self, state: State, logger: Logger) -> None:
        if len(state.batch["id"]) > self.memory:
            if self.spare == 0:
                self.failures += 1
                raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")
            self.spare -= 1


@pytest.mark.filterwarnings("ignore:CUDA out of memory or excessive:RuntimeWarning")
@pytest.mark.parametrize(("memory", "failures", "forwards_before"), [(3, 1, 0), (1, 2, 4)])
def test_an_out_of_memory_retry_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int, failures: int, forwards_before: int
) -> None:
    """What was taken before the failure is dropped. Composer is told that it may retry on a CPU."""
    monkeypatch.setattr(
        "composer.trainer.trainer._is_auto_microbatching", lambda size, device: size == "auto"
    )
    witness, short, memory_logger = LossWitness("sparse"), Short(memory, forwards_before), InMemoryLogger()
    run = fit(
        loader(tmp_path, "sparse"),
        witness,
        monitor(2),
        short,
        model=composer_model("sparse"),
        device_train_microbatch_size="auto",
        loggers=[memory_logger],
    )
    assert short.failures == failures
    assert close(metrics(run, LOSS), means(witness.batches, stream, every=2, interval=4))


def test_a_closure_that_is_called_twice(tmp_path: Path) -> None:
    """The loss is that of the last look, with the weights that it has been taken with."""
    model, witness, memory = composer_model("gpt2"), LossWitness("gpt2"), InMemoryLogger()
    run = trainer(loader(tmp_path, "gpt2"), witness, monitor(2), model=model, loggers=[memory])
    run.state.optimizers = Twice(model.parameters(), lr=0.05)
    run.fit()
    run.close()
    assert close(metrics(run, LOSS), means(witness.batches, stream, every=2, interval=4))


@pytest.mark.parametrize("kind", ["sparse", "gpt2"])
def test_training_is_the_same_to_the_bit(tmp_path: Path, kind: str) -> None:
    """The weights after it, and the random numbers."""
    ends = []
    for every in (None, 1):
        model = composer_model(kind)
        fit(loader(tmp_path, kind), monitor(every), model=model, device_train_microbatch_size=2)
        ends.append(([p.detach().clone() for p in model.parameters()], torch.get_rng_state()))
    (without, state), (with_us, same) = ends
    assert all(torch.equal(one, other) for one, other in zip(without, with_us, strict=True))
    assert torch.equal(state, same)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if r.name == "composer_mixmon" and r.levelname == "WARNING"]


def test_a_model_without_logits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Costs one warning and these metrics, and nothing else."""
    memory = InMemoryLogger()
    run = fit(mds_loader(two_streams(tmp_path, BATCH)), monitor(2), loggers=[memory])
    (warning,) = said(caplog)
    assert re.search(r"no loss by label from here on, the rest goes on: the batch has no labels$", warning)
    assert OFF not in warning
    assert set(metrics(run)) == {key for key in documented(["a", "b"]) if "/tokens/" not in key}
    assert len(metrics(run)["mixmon/run/deviation"]) == 3


def test_a_loss_that_is_another(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Label smoothing: one warning tells how far off it is."""
    model, memory = composer_model("gpt2"), InMemoryLogger()

    def smoothed(outputs: Any, batch: Any) -> torch.Tensor:
        logits, classes = outputs["logits"][:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
        return torch.nn.functional.cross_entropy(logits, classes, label_smoothing=0.1)

    model.loss = smoothed  # type: ignore[method-assign]
    run = fit(loader(tmp_path, "gpt2"), monitor(1), model=model, loggers=[memory])
    (warning,) = said(caplog)
    assert re.search(r"off by [\d.]+ with labels in place, [\d.]+ with labels shifted by one", warning)
    assert metrics(run, LOSS) == {}
    assert len(metrics(run)["mixmon/run/deviation"]) == 3


def test_in_bfloat16(tmp_path: Path) -> None:
    """Logits of 16 bits and a loss of 32, as under autocast: their own mean is what counts."""
    witness, memory = LossWitness("masked"), InMemoryLogger()
    model = composer_model("masked").to(torch.bfloat16)
    run = fit(loader(tmp_path, "masked"), witness, monitor(3), model=model, loggers=[memory])
    for key, seen in means(witness.batches, stream, every=3, interval=4).items():
        logged = dict(metrics(run, LOSS)[key])
        assert logged == pytest.approx(dict(seen), rel=0.03)  # alone, a sample's padding is as long


@pytest.fixture(scope="module", params=[1, 3])
def uninterrupted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of a run of two epochs: its folder, how often it took the loss, the monitor, and what it logged."""
    folder, memory, mixmon = tmp_path_factory.mktemp("whole"), InMemoryLogger(), monitor(request.param)
    saving = {"save_folder": str(folder / "saved"), "save_filename": "ba{batch}.pt", "save_interval": "1ba"}
    settings: dict[str, Any] = {"model": composer_model("gpt2"), "duration": "2ep", "loggers": [memory]}
    run = fit(loader(folder, "gpt2"), mixmon, save_num_checkpoints_to_keep=-1, **settings, **saving)
    return folder, request.param, mixmon, metrics(run, LOSS)


@pytest.mark.filterwarnings("ignore:No batches were trained:UserWarning")  # resumed where an epoch ends
@pytest.mark.parametrize("at", [3, 4, 10, 11])
def test_resumed_equals_uninterrupted(tmp_path: Path, uninterrupted: Any, at: int) -> None:
    """What waits between two logs, or was trained on last in an interval, is logged once, and the same."""
    folder, every, whole, expected = uninterrupted
    memory, resumed = InMemoryLogger(), monitor(every)
    settings: dict[str, Any] = {"model": composer_model("gpt2"), "duration": "2ep", "loggers": [memory]}
    where = {"load_path": str(folder / "saved" / f"ba{at}.pt")}
    logged = metrics(fit(loader(tmp_path, "gpt2"), resumed, **settings, **where), LOSS)
    assert resumed.state_dict() == whole.state_dict()
    assert logged == {key: [entry for entry in seen if entry[0] >= at] for key, seen in expected.items()}
    assert any(logged.values())


def test_packed_batches_are_refused() -> None:
    """At the start, with the mend."""
    with pytest.raises(ConfigError, match=r"^loss: 'every 50ba': the rows of packed batches are no samples"):
        fit(
            packed_spec(Packer(loader_of(Texts(40)))),
            monitor(50),
            model=PackedModel(),
            duration="1ba",
            device_train_microbatch_size=1,
        )


SAMPLES = 96  # of the ranks' runs


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two ranks report of each scenario of ``loss_ranks.py``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_ranks, "SCRIPT", Path(__file__).with_name("loss_ranks.py"))
        return test_ranks.launch(2, tmp_path_factory.mktemp("ranks"), [], [])[1]


def half(sample: int) -> str:
    return f"part{2 * sample // SAMPLES}"


def loss_metrics(report: dict[str, Any]) -> dict[str, list[tuple[int, float]]]:
    of_ours = {key: seen for key, seen in report["metrics"].items() if key.startswith(LOSS)}
    return {key: [(batch, value) for batch, value in seen] for key, seen in of_ours.items()}


@pytest.mark.parametrize(("scenario", "of"), [("causal", [0, 1]), ("replicated", [0])])
def test_ranks_log_the_mean_over_all_of_their_tokens(
    ranks: list[dict[str, Any]], scenario: str, of: list[int]
) -> None:
    """The same on each, to the bit; samples that two ranks get count once."""
    reports = [rank[scenario] for rank in ranks]
    assert reports[0]["losses"] != reports[1]["losses"] or of == [0]
    together = zip(*(reports[rank]["losses"] for rank in of), strict=True)
    batches = [[sample for part in parts for sample in part] for parts in together]
    assert close(loss_metrics(reports[0]), means(batches, half, every=2, interval=3))
    assert loss_metrics(reports[0]) == loss_metrics(reports[1])
    assert [report["said"] for report in reports] == [[], []]


def test_it_travels_with_the_counts(ranks: list[dict[str, Any]]) -> None:
    """No all-reduce more than without it, not even where others end intervals."""
    for rank in ranks:
        with_it, without = rank["causal"], rank["without"]
        assert loss_metrics(without) == {}
        assert with_it["batch"] == without["batch"] == 12
        assert with_it["all_reduces"] == without["all_reduces"]


def test_a_rank_that_cannot_read_its_outputs(ranks: list[dict[str, Any]]) -> None:
    """Ends it on all ranks, which say why; the rest of the monitoring goes on."""
    reports = [rank["no_logits_on_the_last_rank"] for rank in ranks]
    for report in reports:
        assert loss_metrics(report) == {}
        assert len(report["metrics"]["mixmon/run/deviation"]) == 4
        assert report["warned"] == []
    said = [report["said"][0].rpartition(": ")[2] for report in reports]
    assert said == ["the outputs could not be read on another rank", "the model's outputs have no logits"]
    assert [len(report["said"]) for report in reports] == [1, 1]
