"""From findings to a verdict: which facts make the data the cause, and how that is said."""

from __future__ import annotations

from composer_mixmon.postmortem.findings import (
    Break,
    Estimate,
    LossFindings,
    MixtureFindings,
    Onset,
    OrderFindings,
    SeeSaw,
    Verdict,
)

__all__ = ["advise", "judge"]

_MATERIAL = 0.05  # share of the loss's variance below which a mixture is not why it swings
_CHANCE = 0.05
_FEW = 20  # rows without which nothing is said
_SHORT = 200  # rows from which on a relation that is not seen is none
_UNUSUAL = 0.95  # quantile of earlier windows from which a deviation is out of the ordinary
_NAMED = 3


def judge(mixture: MixtureFindings | None, loss: LossFindings | None, order: OrderFindings) -> Verdict:
    """Say whether the data are the cause.

    Args:
        mixture: What the mixture did, if known.
        loss: What the loss did and what the mixture has to do with it, if known.
        order: Whether the order was kept.
    """
    reasons = [*_reasons(mixture, loss), *_order_reasons(order)]
    onset = loss.onset if loss else None
    if mixture and loss and _follows(mixture, loss):
        swings = "swings" if mixture.see_saw else "is biased"
        head = f"The data are the cause: the mixture {swings}, and the loss follows it."
        return Verdict("data", head, tuple(reasons))
    if mixture and onset and _biased_at(mixture, onset):
        head = (
            f"The data are the cause: the loss left its course at batch {onset.batch:,}, when the mixture "
            f"was {onset.deviation:.3f} off its target, more than in {onset.usual:.0%} of the windows before."
        )
        return Verdict("data", head, tuple(reasons))
    if order.breaks:
        first, *others = order.breaks
        more = f" (and {len(others):,} more)" if others else ""
        head = f"The order was not kept: {first.text}{more}."
        return Verdict("order", head, tuple(reasons))
    if mixture is None or loss is None:
        return Verdict("unknown", _unknown(mixture, loss), tuple(reasons))
    if loss.rows < _FEW:
        head = f"There are too few batches with a loss to say anything: {loss.rows:,}."
        return Verdict("unknown", head, tuple(reasons))
    if mixture.alarms and _open(loss):
        head = "The mixture was biased; whether the loss follows it cannot be told from what was recorded."
        return Verdict("unknown", head, tuple(reasons))
    return Verdict("not data", _not_data(mixture, onset), tuple(reasons))


def _follows(mixture: MixtureFindings, loss: LossFindings) -> bool:
    """Whether a biased mixture explains the loss, beyond chance."""
    if not mixture.alarms or loss.explained is None or loss.p is None:
        return False
    together = loss.coherence is not None and loss.coherence.value > loss.coherence.chance
    material = loss.explained.low > 0 and loss.explained.value >= _MATERIAL
    return material and (loss.p <= _CHANCE or together)


def _open(loss: LossFindings) -> bool:
    """Whether the record is too short, or too noisy, to rule out that the mixture explains the loss."""
    return loss.explained is None or loss.explained.high >= _MATERIAL or loss.rows < _SHORT


def _biased_at(mixture: MixtureFindings, onset: Onset) -> bool:
    if onset.deviation is None or onset.usual is None:
        return False
    return bool(mixture.alarms) and onset.deviation > mixture.tolerance and onset.usual >= _UNUSUAL


def _unknown(mixture: MixtureFindings | None, loss: LossFindings | None) -> str:
    if mixture is None and loss is None:
        return "Neither a mixture nor a loss was recorded."
    if mixture is None:
        return "The mixture is not known, so the data can neither be blamed nor ruled out."
    biased = "was biased beyond the tolerance" if mixture.alarms else "was as it should be"
    return f"The mixture {biased}; no loss was recorded, so what it did to the loss is not known."


def _not_data(mixture: MixtureFindings, onset: Onset | None) -> str:
    if mixture.alarms and onset:
        return (
            "The data are not the cause: the mixture was biased, but the loss does not follow it, and when "
            f"it left its course at batch {onset.batch:,} the mixture was as before."
        )
    if mixture.alarms:
        return "The mixture was biased beyond the tolerance, but the data do not explain the loss."
    if onset:
        return (
            f"The data are not the cause: the loss left its course at batch {onset.batch:,} while the "
            "mixture was as it should be."
        )
    return "The data are not the cause of anything: the mixture was as it should be."


def _reasons(mixture: MixtureFindings | None, loss: LossFindings | None) -> list[str]:
    reasons: list[str] = []
    if mixture:
        reasons.append(_mixture_reason(mixture))
        if mixture.unmet:
            reasons.append(mixture.unmet)
        if mixture.see_saw:
            reasons.append(_see_saw_reason(mixture.see_saw))
    if loss:
        if loss.explained is not None:
            reasons.append(_loss_reason(loss, loss.explained))
        if loss.onset:
            reasons.append(_onset_reason(loss.onset))
    return reasons


def _mixture_reason(mixture: MixtureFindings) -> str:
    worst = mixture.worst[0] if mixture.worst else None
    where = ""
    if worst:
        where = (
            f"; its worst {mixture.window:,} batches, {worst.first:,} to {worst.last:,}, were "
            f"{worst.deviation:.3f} off (a perfect shuffle shows {worst.noise_floor:.3f})"
        )
    if mixture.alarms:
        return (
            f"The mixture was more than {mixture.tolerance:g} off its target, for certain from batch "
            f"{mixture.alarms[0].batch:,} on{where}."
        )
    return f"Nothing speaks for a mixture more than {mixture.tolerance:g} off its target{where}."


def _see_saw_reason(see_saw: SeeSaw) -> str:
    lengths = "".join(f"; {relation}" for relation in see_saw.relations)
    return (
        f"The share of {see_saw.label} swings by {see_saw.amplitude:.2f} (standard deviation), once in "
        f"{see_saw.period:,.0f} batches on average, {see_saw.cycles:,} times{lengths}."
    )


def _loss_reason(loss: LossFindings, explained: Estimate) -> str:
    lag = f", {loss.lag:,} batches later" if loss.lag else ""
    chance = "" if loss.p is None else f"; a mixture shifted in time explains as much with p = {loss.p:.2g}"
    if explained.low <= 0 or explained.value < _MATERIAL:
        answer = "no, it is not why the loss moves" if explained.high < _MATERIAL else "that may be chance"
        return (
            f"The mixture explains {max(explained.value, 0):.0%} of the loss's variance after its trend "
            f"(95 % interval {explained.low:.0%} to {explained.high:.0%}): {answer}."
        )
    effects = ", ".join(f"{e.label} {e.per_tenth.value:+.3f}" for e in loss.effects[:_NAMED])
    return (
        f"The mixture explains {explained.value:.0%} of the loss's variance after its trend (95 % interval "
        f"{explained.low:.0%} to {explained.high:.0%}{lag}{chance}). A share that is 10 points higher goes "
        f"with a loss that is different by: {effects}."
    )


def _onset_reason(onset: Onset) -> str:
    text = f"The loss is NaN or infinite from batch {onset.batch:,} on, and was {onset.before:.3g} before"
    if onset.kind == "rise":
        rise = f"from {onset.before:.3g} to {onset.after:.3g}"
        text = f"The loss rose for good from batch {onset.batch:,} on, {rise}"
    if onset.deviation is None or onset.usual is None:
        return f"{text}."
    return (
        f"{text}. The mixture was {onset.deviation:.3f} off its target then; {1 - onset.usual:.0%} of the "
        "windows before were further off."
    )


def _order_reasons(order: OrderFindings) -> list[str]:
    if order.breaks:
        return [f"{_capital(one)}." for one in order.breaks[:_NAMED]]
    kept = f"The order was kept: {order.checked:,} batches compared with {order.by}."
    return [kept] if order.checked else []


def _capital(one: Break) -> str:
    return one.text[:1].upper() + one.text[1:]


def advise(
    verdict: Verdict,
    mixture: MixtureFindings | None,
    loss: LossFindings | None,
    order: OrderFindings,
    run: str,
    audited: bool,
) -> list[str]:
    """Say what to do about it, in sentences.

    Args:
        verdict: What is the cause.
        mixture: What the mixture did, if known.
        loss: What the loss did, if known.
        order: Whether the order was kept.
        run: RUN as it was given.
        audited: Whether other settings have been tried.
    """
    advice: list[str] = []
    if verdict.kind == "data" and not audited:
        advice.append("Find settings that mix better: mixmon audit TRAIN.yaml --sweep")
    if any(one.kind in ("repeat", "gap") for one in order.breaks):
        advice.append(
            "Resume with the dataset's own state: load the whole checkpoint (load_weights_only: false, and "
            "no dataset_state in load_ignore_keys), with the same index files, and leave the callback's "
            "integrity checks on."
        )
    if any(one.kind == "departure" for one in order.breaks):
        advice.append(
            "Compare with a run that went well: mixmon compare RUN_A RUN_B names the settings that differ."
        )
    if loss and loss.onset and verdict.kind == "not data":
        advice.append(
            f"Look elsewhere: learning rate, precision, hardware. The batch itself: mixmon show {run} "
            f"--batch {loss.onset.batch}"
        )
    if verdict.kind == "unknown" and mixture is None:
        advice.append("Give --config TRAIN.yaml to compute the mixture by replay.")
    if verdict.kind == "unknown" and loss is None:
        advice.append("Give RUN with a loss: what W&B or TensorBoard have of it.")
    return advice
